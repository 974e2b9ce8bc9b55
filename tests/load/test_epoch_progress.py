from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packer.errors import PackerError, UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.epoch_progress import EpochProgress
from packer.orders.epochs import Share
from packer.packs.pack import Pack
from packer.starting import ForkSafeLock
from tests.load.test_resuming import dataset_of, labels
from tests.read.conftest import ROWS, make_pack


def plan_of(n: int) -> Any:
    return SimpleNamespace(share=lambda origin: Share(n, 10, origin=origin))


def test_marks():
    progress = EpochProgress(plan_of(40))
    first = progress.begin()
    assert (first.epoch, first.handed) == (0, 0)
    first.handed = 10
    second = progress.begin()
    first.handed = 20
    assert progress.position() == (1, 0)
    second.handed = 10
    progress.undo(second)  # it has handed something out
    assert (progress.epoch, progress.position()) == (1, (1, 10))
    second = progress.begin()
    progress.undo(second)
    assert (progress.epoch, progress.position()) == (1, (1, 10))
    progress.go_on(0, 10)
    second = progress.begin()
    progress.undo(first)  # not the latest
    progress.undo(second)
    assert (progress.epoch, progress.position()) == (0, (0, 10))
    progress.go_on(4, 30)
    second.handed = 10
    assert (progress.position(), progress.coming()) == ((4, 30), (4, 30))
    progress.plan = plan_of(30)
    assert progress.coming() == (5, 0)
    progress.plan = plan_of(40)
    progress.set_epoch(4)
    assert progress.coming() == (4, 30)
    progress.set_epoch(7)
    assert progress.coming() == (7, 0)


def test_a_lock_is_free_in_a_forked_child_and_after_travelling():
    lock = ForkSafeLock()
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(120)
    with pickle.loads(pickle.dumps(lock)):
        pass
    child = os.fork()
    if not child:
        with lock:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    let_go.set()
    thread.join()


def test_a_dataset_goes_without_the_garbage_collector(pack: Pack):
    gc.disable()
    try:
        dataset = dataset_of(pack)
        list(dataset)
        alive = weakref.ref(dataset), weakref.ref(dataset._running())
        del dataset
        assert [each() for each in alive] == [None, None]
    finally:
        gc.enable()


def test_python_ends_silently_while_an_iterator_is_held(tmp_path: Path):
    """Generators are closed when Python has cleared modules already, in a script like this."""
    make_pack(tmp_path / "p.h5")
    (tmp_path / "tools.py").write_text("import glob, os, packer, shutil, subprocess")
    (tmp_path / "train.py").write_text("""
from tools import *
from packer import *
import sys
def unused():
    return held
for taken in (0, 1, 4):
    make = lambda: PackedBatchDataset(sys.argv[1], 2, threads=4, shuffle=True)
    dataset = make(); iterator = iter(dataset); batches = [next(iterator) for _ in range(taken)]; state = dataset.state_dict()
""")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "p.h5")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("ends", "rank"), [("uneven", 0), ("uneven", 2), ("drop", 1)])
@pytest.mark.filterwarnings("ignore:.*some ranks get a batch less:UserWarning")
def test_an_epoch_that_was_iterated_to_its_end_is_over_on_every_rank(pack: Pack, ends: str, rank: int):
    dataset = dataset_of(pack, 34, ends=ends, rank=rank, world_size=3)
    list(dataset)
    state = dataset.state_dict()
    assert (state["epoch"], state["rows"]) == (0, ROWS)
    alone = dataset_of(pack, 5)
    alone.load_state_dict(state)
    assert alone.epoch == 1


def test_an_iterator_that_fails_before_its_first_batch_has_not_begun(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
):
    dataset = dataset_of(pack, order="rows")
    epoch = [labels(b) for b in dataset]
    dataset.load_state_dict(dataset.state_dict() | {"epoch": 0, "rows": 50})
    with monkeypatch.context() as patch:
        patch.setattr("packer.read.array_store.PackStore.copy", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(iter(dataset))
        patch.setattr("packer.load.batch_engine.BatchEngine._receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(dataset))
    assert [labels(b) for b in dataset] == epoch[5:]


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_older_iterator_changes_nothing_after_set_epoch(pack: Pack):
    dataset = dataset_of(pack, order="rows")
    old = iter(dataset)
    next(old)
    dataset.set_epoch(7)
    next(old)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["rows"]) == (7, 0)


def test_threads_that_begin_at_once_begin_different_epochs(tmp_path: Path):
    pack = make_pack(tmp_path / "p.h5", 40)
    for _ in range(20):
        dataset = PackedBatchDataset(pack, 40, order="rows", output="numpy", fields=("label",))
        found: list[tuple[int, ...]] = []
        ready = threading.Barrier(4)

        def run(dataset=dataset, found=found, ready=ready) -> None:
            ready.wait()
            found.extend(tuple(batch.label) for batch in dataset)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 4


def test_iterators_of_a_closed_dataset_say_so(pack: Pack):
    dataset = dataset_of(pack)
    batches = iter(dataset)
    next(batches)
    dataset.close()
    with pytest.raises(UsageError, match=r"the dataset of this iterator was closed\. Call iter\(\) again\.$"):
        next(batches)
    assert len(list(dataset)) == 11


def test_a_forked_child_is_told_to_iterate_anew(pack: Pack):
    dataset = dataset_of(pack)
    batches = iter(dataset)
    next(batches)
    child = os.fork()
    if not child:
        try:
            next(batches)
        except PackerError as error:
            os._exit(7 if "came with a fork" in str(error) and len(list(dataset)) == 11 else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_batch_that_is_held_is_each_process_own(tmp_path: Path):
    pack = make_pack(tmp_path / "p.h5", 60_000)
    dataset = PackedBatchDataset(pack, 30_000, output="numpy", fields=("image",))
    batch = next(iter(dataset))
    before = batch.image[:5].tobytes()
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(ready[0], 1)
        os._exit(7 if batch.image[:5].tobytes() == before else 8)
    batch.image[:] = 0
    os.write(ready[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for fd in (*ready, *done):
        os.close(fd)
