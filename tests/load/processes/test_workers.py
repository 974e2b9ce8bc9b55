from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import randomness
from packer.errors import FormatError, TransformError, UsageError
from packer.load.batch import LentSlot, SlotLayout, Slots
from packer.load.processes import workerproc
from packer.load.processes.transforms import PythonTransform
from packer.orders.runs import consecutive, one_run
from packer.packs.pack import Pack
from packer.read.array_store import PackStore
from packer.read.row_selection import select_fields
from tests.load.processes.made import Made, asked, filler_of, flipped
from tests.open_files import open_files
from tests.read.conftest import image_of, make_pack

# From 3.12 on os.fork() in a test warns of the threads that others have started.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("workers") / "p.h5")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process, thread or descriptor outlives a test."""
    before, others = open_files(), threads()
    yield
    gc.collect()
    until = time.monotonic() + 120
    while (threads() - others or multiprocessing.active_children()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads() - others
    assert not multiprocessing.active_children()
    assert open_files() <= before  # fewer when what others left has been collected meanwhile


def threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith(("packer-transform", "packer-load"))}


def lives(process: str) -> bool:
    """Whether a process runs; one that has ended, and that nobody has waited for, does not."""
    try:
        return Path("/proc", process, "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


FAST = ["fork", "thread"]


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": sample["image"] + rng.normal(size=sample["image"].shape)}


ROWS = [5, 6, 7, 100, 3, 3, 0, 102, *range(20, 40)]


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver", "thread"])
def test_every_row_is_made_where_it_belongs(pack: Pack, context: str, monkeypatch: pytest.MonkeyPatch):
    if context == "forkserver":  # from a process that has loaded nothing before
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        monkeypatch.setattr(forkserver._forkserver, "_preload_modules", [])  # type: ignore[attr-defined]
    processes = 2 if context in FAST else 1  # others import all they need, which takes a second
    with Made(pack, flipped, names=("image", "label", "key"), context=context, processes=processes) as made:
        batch = made.batch(ROWS)
        assert (batch["image"] == np.stack([image_of(row)[:, ::-1] for row in ROWS])).all()
        assert batch["label"].tolist() == [3 * row for row in ROWS]
        assert batch["key"] == [f"row/{row}" for row in ROWS]
    if context == "forkserver":  # it stays for others; here it would look like a leak
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    elif context == "spawn":
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def test_draws_depend_on_the_row_alone(pack: Pack):
    with Made(pack, noisy) as made:
        reference = made.batch(ROWS)["x"].copy()
        other = made.batch(ROWS, epoch=1)["x"].copy()
    assert (reference != other).any(axis=(1, 2, 3)).all()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    for context in FAST:
        with Made(pack, noisy, processes=3, context=context) as made:
            again = [made.batch(ROWS[start : start + 5])["x"].copy() for start in range(0, len(ROWS), 5)]
        assert (np.concatenate(again) == reference).all()
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_lambdas_change_fields_shapes_and_dtypes(pack: Pack):
    with Made(
        pack, lambda s: {"mean": s["image"].mean((0, 1)).astype("f4"), "odd": s["label"] % 2 == 1}
    ) as made:
        batch = made.batch(ROWS)
        assert [(f.name, f.dtype, f.shape) for f in made.fields] == [
            ("mean", "<f4", (3,)),
            ("odd", "|b1", ()),
        ]
    assert np.allclose(batch["mean"], [image_of(row).mean((0, 1)) for row in ROWS])
    assert batch["odd"].tolist() == [row % 2 == 1 for row in ROWS]


def test_rows_of_their_own_shape_come_back_as_lists(pack: Pack):
    def boxes(sample: dict[str, Any]) -> dict[str, Any]:
        return {"boxes": np.full((sample["label"] // 3, 4), sample["label"])}

    with Made(pack, boxes, ragged=["boxes"]) as made:
        rows = made.batch([2, 0, 7])["boxes"]
    assert [row.shape for row in rows] == [(2, 4), (0, 4), (7, 4)]
    assert (rows[2] == 21).all()


def test_rows_within_lists_do_not_change_with_those_after_them(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workerproc, "_CHUNK_ROWS", 3)
    crops = lambda s: {"label": s["label"], "crops": [s["image"][:2, :2], {"image": s["image"]}]}  # noqa: E731
    with Made(pack, crops, ragged=["crops"]) as made:
        rows = made.batch(ROWS)["crops"]
    for row, (crop, whole) in zip(ROWS, rows, strict=True):
        assert (crop == image_of(row)[:2, :2]).all()
        assert (whole["image"] == image_of(row)).all()


def test_rows_that_cannot_be_pickled_are_an_error_that_names_one(pack: Pack):
    message = re.escape("for row 5 ('row/5') in epoch 0 it returned 'boxes' as a list that cannot be pickled")
    made = Made(pack, lambda s: {"boxes": [lambda: s]}, ragged=["boxes"], processes=1)
    with made, pytest.raises(TransformError, match=message):
        made.batch([5, 6])


def test_an_answer_that_cannot_be_pickled_ends_no_process(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workerproc, "Filled", lambda *_: lambda: 0)
    with Made(pack, flipped) as made:
        for _ in range(2):
            with pytest.raises(TransformError, match=r"process \d+ failed:"):
                made.batch([5, 6])
            before = [w.process.pid for w in made.workers._pool._workers]
        assert all(lives(str(pid)) for pid in before)


def test_an_error_that_cannot_be_printed(pack: Pack):
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail(sample: object) -> None:
        raise Mute

    made, message = Made(pack, fail), "in epoch 0 it raised Mute: it cannot be printed"
    with made, pytest.raises(TransformError, match=message):
        made.batch([5])


def draw_of(name: str, seed: int) -> float:
    """Return the first draw of a library's generator."""
    if name == "torch":
        import torch

        return torch.rand(1, generator=torch.Generator().manual_seed(seed)).item()
    import cv2

    cv2.setRNGSeed(seed & 0x7FFFFFFF)
    return float(cv2.randu(np.zeros((1, 1)), 0, 1)[0, 0])


@pytest.mark.parametrize("name", ["torch", "cv2"])
def test_draws_of_what_the_function_imports_itself(pack: Pack, name: str):
    """A process of its own: here both have been imported. The image is changed in place before the import."""
    pytest.importorskip(name)
    draw = {"torch": "m.rand(1).numpy()", "cv2": "m.randu(np.zeros((1, 1)), 0, 1)[0]"}[name]
    script = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
import numpy as np
from packer.packs.pack_opening import open_pack
from packer.load.processes.transforms import PythonTransform
from packer.load.batch import LentSlot, SlotLayout, Slots
from packer.orders.runs import one_run
from packer.read.row_selection import select_fields
from packer.read.array_store import PackStore
from tests.load.processes.made import asked, filler_of

def fn(s):
    s["image"] += 1
    if np.max(s["label"]) < 9:  # so late that the first call of a process is not the one that imports
        return {{"image": s["image"], "x": np.zeros((*s["label"].shape, 1))}}
    import {name} as m
    return {{"image": s["image"], "x": np.float64({draw}) + np.zeros((*s["label"].shape, 1))}}

pack = open_pack({str(pack.path)!r})
fields = select_fields(pack, ("image", "label"))
workers = filler_of(PythonTransform(fn, processes=1), PackStore(pack, fields), fields)
layout = SlotLayout(workers.probe(one_run(0, 6), seed=0, epoch=0), 48)
slots = Slots(layout.nbytes, workers.allocate, 8)
made = {{k: LentSlot(slots, layout, 6) for k in range(0, 48, 6)}}
done = [future for k, slot in made.items() for future in workers.tasks(asked(one_run(k, k + 6)), slot)]
[future.result(120) for future in done]
x, image = (np.concatenate([slot.arrays[name] for slot in made.values()]) for name in ("x", "image"))
print(json.dumps([x[:, 0].tolist(), image.tolist()]))
workers.close()
assert {name!r} not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    draws, images = json.loads(done.stdout)
    assert images == [(image_of(row) + np.uint8(1)).tolist() for row in range(48)]
    seeds = randomness.integers(np.arange(48), randomness.key(0, 0, "transform"), 1 << 32).tolist()
    assert draws == [0.0, 0.0, 0.0] + [draw_of(name, seed) for seed in seeds[3:]]


def test_long_jobs_do_not_wait_for_long_answers(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    """Connections that hold 8 KiB, as on macOS: each side would wait for the other one to read."""
    pipe = multiprocessing.connection.Pipe

    def narrow(*arguments: Any) -> Any:
        ends = pipe(*arguments)
        for end in ends:
            with socket.socket(fileno=os.dup(end.fileno())) as of:
                of.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return ends

    monkeypatch.setattr(multiprocessing.connection, "Pipe", narrow)
    fields = select_fields(pack, ("label",))
    transform = PythonTransform(lambda s: {"text": os.urandom(250).hex()}, processes=2)
    workers = filler_of(transform, PackStore(pack, fields), fields)
    layout = SlotLayout(workers.probe(one_run(0, 1), seed=0, epoch=0), 3000)
    slot = LentSlot(Slots(layout.nbytes, workers.allocate, 1), layout, 3000)
    request = asked(consecutive(np.tile([5, 3], 1500)))
    batches = [workers.tasks(request, slot) for _ in range(8)]
    try:
        assert all(len(part.result(120).ragged["text"]) == 1500 for batch in batches for part in batch)
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        workers.close()


def test_nothing_but_texts(pack: Pack):
    with Made(pack, lambda s: {"name": str(s["label"])}) as made:
        assert made.batch([2, 0]) == {"name": ["6", "0"]}


@pytest.mark.parametrize("context", FAST)
def test_many_batches_at_once_each_in_its_slot(pack: Pack, context: str):
    def slow(sample: dict[str, Any], rng: Any = None) -> dict[str, Any]:
        time.sleep(0.001 * (sample["label"] % 5))
        return sample

    with Made(pack, slow, processes=3, context=context) as made:
        started = [made.start([k % 103, (k + 50) % 103, (k * 7) % 103]) for k in range(60)]
        for k, (future, arrays) in enumerate(started):
            future.result(120)
            assert arrays["label"][:3].tolist() == [3 * (k % 103), 3 * ((k + 50) % 103), 3 * ((k * 7) % 103)]
    assert made.slots.allocated == 60


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


@pytest.mark.parametrize("context", FAST)
def test_memory_of_slots_outlives_the_processes(pack: Pack, context: str):
    with Made(pack, flipped, context=context) as made:
        batch = made.batch([4])
        made.workers.close()
        assert (batch["image"][0] == image_of(4)[:, ::-1]).all()
        assert made.batch([9])["label"] == 27  # they begin anew, in slots made before


@pytest.mark.parametrize("context", FAST)
def test_what_has_not_begun_can_be_cancelled(pack: Pack, tmp_path: Path, context: str):
    def waiting(sample: dict[str, Any], rng: Any = None) -> dict[str, Any]:
        row = sample["label"] // 3
        (tmp_path / str(row)).touch()
        if row == 1:
            wait_for((tmp_path / "cancelled").exists)
        return sample

    with Made(pack, waiting, processes=1, context=context) as made:
        made.batch([0])
        futures = [made.start([k])[0] for k in range(1, 5)]
        assert futures[3].cancel()
        (tmp_path / "cancelled").touch()
        futures[2].result(120)
        assert made.batch([8])["label"] == 24
        assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3", "8", "cancelled"]


def failing(sample: dict[str, Any], rng: Any = None) -> dict[str, Any]:
    if sample["label"] == 3 * 33:
        raise ZeroDivisionError("no number")
    return sample


@pytest.mark.parametrize("context", FAST)
def test_an_error_of_the_function_names_the_row_and_shows_where(pack: Pack, context: str):
    with Made(pack, failing, context=context) as made:
        with pytest.raises(TransformError) as caught:
            made.batch([1, 2, 33, 34])
        text = str(caught.value)
        assert text.startswith(
            "transform: for row 33 ('row/33') in epoch 0 it raised ZeroDivisionError: no number. In process "
        )
        assert 'raise ZeroDivisionError("no number")' in text
        assert "workerproc.py" not in text
        assert made.batch([1, 2])["label"].tolist() == [3, 6]  # the processes live on


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda s: {"x": np.ones(1 + (s["label"] > 30))},
            "transform: for row 33 ('row/33') in epoch 0 it returned 'x' as float64 [2]; float64 [1], as for the first row,"
            " is allowed. Return one dtype and shape, or pass PythonTransform(fn, ragged=['x']).",
        ),
        (lambda s: {"x": 1} if s["label"] < 30 else sys.exit(3), "it raised SystemExit: 3. In process "),
        (lambda s: {"x": 1} if s["label"] < 30 else None, "it returned a NoneType; a dict of arrays"),
    ],
)
def test_wrong_returns(pack: Pack, fn: Callable[..., Any], message: str):
    with Made(pack, fn) as made, pytest.raises(TransformError, match=re.escape(message)):
        made.batch([1, 2, 33, 34])


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "was killed by SIGKILL while it ran the function for row 33. The system does that when memory runs out: pass fewer"
            " processes, or smaller batches.",
        ),
        (
            lambda: (faulthandler.disable(), os.kill(os.getpid(), signal.SIGSEGV)),  # pytest's would print
            "was killed by SIGSEGV while it ran the function for row 33. Compiled code that it calls has crashed.",
        ),
        (lambda: os._exit(7), "ended with exit code 7 while it ran the function for row 33."),
    ],
)
def test_the_death_of_a_process_is_an_error_at_once(pack: Pack, end: Callable[[], Any], message: str):
    def fn(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["label"] == 99:
            end()
        time.sleep(0.01)
        return sample

    with Made(pack, fn, processes=3) as made:
        made.batch([1])
        processes = multiprocessing.active_children()
        assert len(processes) == 3
        others = [made.start([k])[0] for k in range(5)]
        began = time.monotonic()
        with pytest.raises(TransformError, match=re.escape(message)):
            made.batch([33])
        assert time.monotonic() - began < 30
        for future in others:
            future.exceptions(120)  # done, one way or the other
        made.workers.close()
        assert not multiprocessing.active_children()
        assert made.batch([34])["label"] == 102  # and anew


def of_process(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"process": os.getpid()}


def test_an_idle_process_that_is_killed(pack: Pack, caplog: pytest.LogCaptureFixture):
    with Made(pack, of_process) as made:
        (idle,) = made.batch([1])["process"].tolist()
        os.kill(idle, signal.SIGKILL)
        next(process for process in multiprocessing.active_children() if process.pid == idle).join()
        assert made.batch([2])["label"] == 6  # nothing was lost: others take over
    assert [record.getMessage().split(" ", 3)[3] for record in caplog.records] == [
        "was killed by SIGKILL. The system does that when memory runs out: pass fewer processes, or smaller batches."
    ]


def test_a_process_that_dies_as_it_starts_has_made_no_row(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packer.load.processes.workers.run", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with (
        Made(pack, flipped) as made,
        pytest.raises(TransformError, match=r"was killed by SIGKILL\. The system"),
    ):
        made.batch([1])


@pytest.mark.parametrize("context", FAST)
def test_a_pack_that_cannot_be_read_is_not_the_functions_fault(tmp_path: Path, context: str):
    pack = make_pack(tmp_path / "p.h5")
    with Made(pack, flipped, context=context) as made:
        made.batch([1])
        made.workers.close()
        os.truncate(tmp_path / "p.h5", 5000)
        with pytest.raises(FormatError, match=r"p\.h5"):
            made.batch([100])


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_needs_fork(pack: Pack, context: str):
    with Made(pack, lambda s: s, context=context) as made, pytest.raises(UsageError) as caught:
        made.batch([1])
    assert (
        f"which context={context!r} needs. Define it in a module, without a lambda, or pass context='fork'."
        in str(caught.value)
    )


class OnlyHere:
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_what_a_new_process_cannot_load(pack: Pack):
    with (
        Made(pack, OnlyHere(), context="spawn") as made,
        pytest.raises(
            TransformError, match=r"a new process cannot load the function \(ValueError: invalid literal"
        ),
    ):
        made.batch([1])
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", FAST)
def test_collected_workers_end(pack: Pack, context: str):
    made = Made(pack, flipped, context=context)
    batch = made.batch([1])
    assert threads()
    del made  # the fixture sees that nothing is left
    assert (batch["image"][0] == image_of(1)[:, ::-1]).all()


def test_close_while_batches_are_being_made(pack: Pack):
    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0 if sample["label"] == 3 else 600)
        return sample

    with Made(pack, slow) as made:
        made.batch([1])
        futures = [made.start([5, 6])[0] for _ in range(3)]
        time.sleep(0.1)
        began = time.monotonic()
        made.workers.close()
        assert time.monotonic() - began < 300  # it takes 600 s to make one
        for future in futures:
            with pytest.raises(TransformError, match=r"it was closed while batches were being made\."):
                future.result(0)


def test_closing_waits_for_the_calls_that_threads_run(pack: Pack):
    running, go = threading.Event(), threading.Event()

    def waiting(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        if sample["label"]:
            running.set()
            go.wait(120)
        return sample

    with Made(pack, waiting, context="thread", processes=1) as made:
        made.batch([0])
        (future, arrays), (later, _) = made.start([5]), made.start([6])
        running.wait(120)
        closing = threading.Thread(target=made.workers.close)
        closing.start()
        with pytest.raises(CancelledError):
            later.result(120)
        go.set()
        closing.join(120)
        future.result(0)
        assert arrays["label"] == 15
        assert made.batch([7])["label"] == 21


def test_a_process_that_does_not_end_when_told_to_is_killed(pack: Pack):
    def deaf(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["label"] != 3:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGSTOP)
        return sample

    with Made(pack, deaf) as made:
        made.batch([1])
        future = made.start([5, 6])[0]
        time.sleep(0.1)
        closing = threading.Thread(target=made.workers.close, daemon=True)
        closing.start()
        closing.join(60)
        stuck = closing.is_alive()
        for process in multiprocessing.active_children():
            process.kill()
        assert not stuck
        with pytest.raises(TransformError, match=r"it was closed while batches were being made\."):
            future.result(60)


class Unread:
    """What only the process that made it can unpickle."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unread, (self.home,)


def _unread(home: int) -> Unread:
    if home != os.getpid():
        raise MemoryError("no room for it")
    return Unread()


def test_an_answer_that_cannot_be_read_is_an_error(pack: Pack):
    with Made(pack, lambda sample: {"x": Unread()}, ragged=["x"]) as made:
        future = made.start([5, 6])[0]
        with pytest.raises(MemoryError, match="no room for it"):
            future.result(60)


def test_a_process_that_may_not_start_others(pack: Pack):
    def child(sender: Any) -> None:
        try:
            Made(pack, flipped).batch([1])
        except UsageError as error:
            sender.send(str(error))

    receiver, sender = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,), daemon=True)
    process.start()
    text = receiver.recv() if receiver.poll(120) else ""
    process.join()
    process.close()
    receiver.close()
    sender.close()
    assert text.endswith("Pass num_workers=0: the dataset starts its own.")


SCRIPT = """
    import os, signal, sys, time
    sys.path.insert(0, {root!r})
    from packer.packs.pack_opening import open_pack
    from tests.load.processes.made import Made

    def fn(sample):
        print(os.getpid(), flush=True)
        time.sleep(0.2)
        return sample

    made = Made(open_pack({path!r}), fn)
    made.batch([1, 2])
    future, _ = made.start([1, 2, 3, 4])
    {then}
"""


@pytest.mark.parametrize(
    ("then", "code", "said"),
    [
        ("future.result()", 0, ""),
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("os._exit(4)", 4, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        (
            "time.sleep(0.1); os.killpg(0, signal.SIGINT); future.result()",
            -signal.SIGINT,
            "KeyboardInterrupt",
        ),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_processes_end_with_their_parent_however_it_ends(pack: Pack, then: str, code: int, said: str):
    root = str(Path(__file__).parents[2])
    script = textwrap.dedent(SCRIPT).format(root=root, path=pack.path, then=then)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )  # returns when the last process that holds the pipes has ended
    assert done.returncode == code, done.stderr
    assert done.stderr.count("Traceback") == bool(said), done.stderr
    assert said in done.stderr
    processes = set(done.stdout.split())
    assert processes
    until = time.monotonic() + 120  # a pipe is closed a little before its holder has ended
    while any(map(lives, processes)):
        assert time.monotonic() < until
        time.sleep(0.01)
