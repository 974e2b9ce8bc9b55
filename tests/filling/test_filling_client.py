"""Clients whose pack is begun anew, closed or forked while it is in use."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import service
from packer.convert.image_conversion import convert_images
from packer.errors import PackerError
from packer.filling import filling_client
from packer.filling.opening import FillingPack, fill_pack, open_filling
from packer.format.pack import Pack
from packer.format.working_folder import is_locked
from packer.load.batch_dataset import PackedBatchDataset
from packer.orders.runs import consecutive
from packer.read.array_store import PackStore
from tests.filling.conftest import ROWS


def alive(folder: Path) -> list[int]:
    """Return the processes that fill packs in a folder."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            command = Path("/proc", name, "cmdline").read_bytes() if name.isdigit() else b""
            if b"slow_process" in command and os.fsencode(folder) in command.split(b"\0")[-2]:
                found.append(int(name))
    return found


def kill(folder: Path) -> None:
    """Kill the processes that fill packs in a folder."""
    for process in alive(folder):
        os.kill(process, signal.SIGKILL)
    while alive(folder):
        time.sleep(0.01)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started in the test fill slowly; close() waits for their end on a busy machine too."""
    monkeypatch.setattr(filling_client, "MODULE", "tests.filling.slow_process")
    monkeypatch.setattr(filling_client, "_END_SECONDS", 120.0)


def changed(source: Path, out: Path) -> None:
    Image.new("RGB", (32, 24)).save(source / "dog" / "9.jpg")


def enlarged(source: Path, out: Path) -> None:
    Image.new("RGB", (32, 24)).save(source / "dog" / "new.jpg")


def removed(source: Path, out: Path) -> None:
    shutil.rmtree(f"{out}.packing")


def made_by_others(source: Path, out: Path) -> None:
    changed(source, out)
    convert_images(source, out)


@pytest.mark.parametrize("change", [changed, enlarged, removed, made_by_others])
def test_rows_of_files_that_are_no_longer_filled_are_not_read(
    images: Path, tmp_path: Path, slow: None, change: Callable[[Path, Path], None]
) -> None:
    source, out = tmp_path / "source", tmp_path / "p.h5"
    shutil.copytree(images, source)
    pack = open_filling(str(source), str(out), {})
    assert isinstance(pack, FillingPack)
    image = pack.header.field("image")
    reader = PackStore(pack, [image])
    reader.array("image", consecutive(np.array([5])))  # its files are open
    kill(tmp_path)
    change(source, out)
    with pytest.raises(
        PackerError, match="was replaced or started over after it was opened; its images changed, or"
    ):
        reader.array("image", consecutive(np.arange(ROWS)))
    with pytest.raises(PackerError, match="was replaced or started over after it was opened"):
        PackStore(pack, ()).array("label", consecutive(np.array([5])))
    reader.close()
    pack.close()


@pytest.mark.parametrize("number", [1, 2])
def test_closing_in_the_middle_leaves_no_process(
    images: Path, tmp_path: Path, slow: None, number: int
) -> None:
    """Nor with several datasets of one pack, of which each is closed while its threads wait for rows."""
    datasets = [
        PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), 8, shuffle=True, threads=2, output="numpy")
        for _ in range(number)
    ]
    loops = [iter(dataset) for dataset in datasets]
    for loop in loops:
        next(loop)
    for dataset in datasets:
        assert isinstance(dataset.pack, FillingPack)
        dataset.close()
        assert dataset.pack.units._idle == []
    assert not alive(tmp_path)
    for loop in loops:
        with pytest.raises(PackerError, match="closed"):
            list(loop)


def test_a_process_that_is_killed_as_it_starts_is_started_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def killed(*arguments: Any, **options: Any) -> socket.socket:
        started.append(service.start(*arguments, **options))
        if len(started) > 1:
            return started[-1]
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    monkeypatch.setattr(filling_client, "start", killed)
    pack = open_filling(str(images), str(tmp_path / "p.h5"), {})
    assert pack.rows == ROWS
    assert len(started) > 1
    started[0].close()
    pack.close()


def test_a_pack_that_cannot_be_sealed_is_closed_with_a_warning(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(filling_client, "MODULE", "tests.filling.unsealing_process")
    dataset = PackedBatchDataset(fill_pack(images, tmp_path / "p.h5"), 8, shuffle=True)
    for _ in range(2):
        assert sum(len(labels) for _, labels in dataset) == ROWS
        dataset.close()
        assert "cannot be sealed (No space left on device)" in caplog.text


def test_what_was_cleared_is_told_once_however_many_threads_ask(
    images: Path, tmp_path: Path, slow: None, caplog: pytest.LogCaptureFixture
) -> None:
    for options in ({"size": 64}, {}):
        pack = open_filling(str(images), str(tmp_path / "p.h5"), options)
        assert isinstance(pack, FillingPack)
        pack.units.wait(np.array([3]))
        pack.units._connect().close()
        pack.units.exclusive().open(lambda done, total: None)
        pack.close()
    assert caplog.text.count("was discarded, because the source or the options changed") == 1


def test_a_client_that_is_closed_asks_again(images: Path, tmp_path: Path, slow: None) -> None:
    pack = open_filling(str(images), str(tmp_path / "p.h5"), {})
    reader = PackStore(pack, pack.fields)
    for row in (3, 70):
        reader.array("image", consecutive(np.array([row])))
        with (
            pack.closing(),
            pytest.raises(PackerError, match="was closed while its rows were being converted"),
        ):
            reader.array("image", consecutive(np.arange(ROWS)))
        assert not alive(tmp_path)
    reader.close()


def test_a_forked_child_that_closes_leaves_its_parents_connections_alone(
    images: Path, tmp_path: Path, slow: None
) -> None:
    """A connection that both use would give one's answer to the other, or end the process that fills."""
    pack = open_filling(str(images), str(tmp_path / "p.h5"), {})
    assert isinstance(pack, FillingPack)
    pack.units.wait(np.array([3]))
    before, connections = alive(tmp_path), [*pack.units._idle]
    child = os.fork()
    if not child:
        signal.alarm(20)
        pack.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pack.units.wait(np.array([70]))
    assert alive(tmp_path) == before
    assert pack.units._idle == connections
    pack.close()


def test_a_child_forked_while_its_parent_closes_asks(images: Path, tmp_path: Path, slow: None) -> None:
    pack = open_filling(str(images), str(tmp_path / "p.h5"), {})
    assert isinstance(pack, FillingPack)
    with pack.closing():
        child = os.fork()
        if not child:
            with suppress(BaseException):
                pack.units._check_open()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(PackerError, match="was closed"):
            pack.units.wait(np.array([3]))


def test_a_forked_child_is_ready_before_its_threads_begin(images: Path, tmp_path: Path, slow: None) -> None:
    pack = open_filling(str(images), str(tmp_path / "p.h5"), {})
    assert isinstance(pack, FillingPack)
    with pack.units._lock:  # a thread of the parent is asking
        child = os.fork()
        if not child:
            signal.alarm(20)
            with pack.units._lock:
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pack.close()


def test_of_a_pack_that_another_process_makes_no_processes_are_started_meanwhile(
    images: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out, started = tmp_path / "p.h5", []
    begun, go_on = threading.Event(), threading.Event()

    def progress(done: int) -> None:
        begun.set()
        go_on.wait()

    other = threading.Thread(target=convert_images, args=(images, out), kwargs={"on_progress": progress})
    other.start()
    begun.wait()
    assert is_locked(f"{out}.packing")

    def counted(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        assert go_on.is_set()
        return service.start(*arguments, **options)

    looks: list[str] = []

    def looked(folder: str) -> bool:
        looks.append(folder)
        if len(looks) == 5:
            go_on.set()
        return is_locked(folder)

    monkeypatch.setattr(filling_client, "start", counted)
    monkeypatch.setattr(filling_client, "is_locked", looked)
    pack = open_filling(str(images), str(out), {})
    other.join()
    assert not isinstance(pack, FillingPack)
    assert len(started) == 1
    assert "is being converted by another process; waiting for it" in caplog.text
    assert out.read_bytes() == whole.read_bytes()


def test_limits_are_told_in_one_sentence(
    images: Path, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **named: Any) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(filling_client, "map_states", refused)
        with pytest.raises(PackerError, match=r"failed 4 times \(\[Errno 24\] Too many open files\)"):
            open_filling(str(images), str(tmp_path / "p.h5"), {})
    with monkeypatch.context() as patch:
        patch.setattr(service.subprocess, "run", refused)
        with pytest.raises(PackerError, match=r"failed 4 times \(\[Errno 24\] Too many open files\)"):
            open_filling(str(images), str(tmp_path / "q.h5"), {})


def test_names_in_options_lead_from_where_the_pack_was_opened(
    images: Path, tmp_path: Path, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for folder, value in ((tmp_path, 3), (tmp_path / "elsewhere", 4)):
        lines = "".join(f"{name}/{i}.jpg,{value}\n" for name in ("cat", "dog") for i in range(ROWS // 2))
        (folder / "labels.csv").write_text("path,value\n" + lines)
    monkeypatch.chdir(tmp_path)
    pack = open_filling(str(images), "p.h5", {"labels": "labels.csv", "size": 32})
    assert isinstance(pack, FillingPack)
    monkeypatch.chdir("elsewhere")
    kill(tmp_path)
    image = pack.header.field("image")
    PackStore(pack, [image]).array("image", consecutive(np.arange(ROWS)))
    pack.close()
    monkeypatch.undo()
    convert_images(images, tmp_path / "made.h5", labels=tmp_path / "labels.csv", size=32)
    assert (tmp_path / "p.h5").read_bytes() == (tmp_path / "made.h5").read_bytes()


def test_a_pack_beside_one_that_is_made_first_does_not_wait_for_it(images: Path, tmp_path: Path) -> None:
    opened: list[Pack] = []

    def progress(done: int, total: int) -> None:
        if not opened:
            opened.append(open_filling(str(images), str(tmp_path / "other.h5"), {"size": 32}))

    pack = open_filling(str(images), str(tmp_path / "p.h5"), {"store": "gzip"}, progress)
    assert opened
    opened[0].close()
    assert pack.rows == ROWS
