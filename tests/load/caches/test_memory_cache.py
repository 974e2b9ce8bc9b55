"""packer.load.caches.memory_cache: batches are the same wherever their rows come from, and however far the memory is."""

from __future__ import annotations

import gc
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import FormatError, PackerError
from packer.format.pack import Pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.caches import memory_cache
from packer.load.caches.memory_cache import MemoryRows
from packer.load.prefetcher import FileRows
from packer.orders.row_orders import Rows, Sequential
from packer.orders.runs import Runs
from packer.read.array_store import PackStore
from tests.load.caches.test_row_memory import folder
from tests.load.test_prefetcher import Lender, files_of, images, request_of
from tests.read.conftest import ROWS, image_of, make_pack, make_stored

__all__ = ["folder"]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    return make_pack(tmp_path / "p.h5")


@pytest.mark.parametrize(("store", "shards"), [("jpeg", (40, 63)), ("zstd", None)])
def test_epochs_are_those_of_the_disk_and_at_last_from_memory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, shards: tuple[int, ...] | None
) -> None:
    pack = make_stored(tmp_path, "h5", store, shards)
    options: Any = {"split": "train", "order": "blocks", "seed": 3, "output": "numpy"}
    with PackedBatchDataset(pack.path, 9, placement="disk", **options) as disk:
        epochs = [list(disk) for _ in range(4)]
        assert not disk.resident
    with PackedBatchDataset(pack.path, 9, placement="ram", **options) as memory:
        for number, epoch in enumerate(epochs):
            for own, other in zip(epoch, memory, strict=True):
                assert all(np.array_equal(a, b) for a, b in zip(own, other, strict=True))
            if number == 1:
                assert memory._prefetcher._sources[0].wait(120)  # type: ignore[union-attr]
                monkeypatch.setattr(FileRows, "read_fixed", None)
        assert memory.resident


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("order", [Sequential(), Rows()])
def test_it_asks_for_a_slot_unless_its_rows_lie_as_one_run_and_are_copied_anyway(
    pack: Pack, order: Any, copied: bool
) -> None:
    files, reader, fields = files_of(pack)
    request, lend = request_of(reader, order, 5, 30), Lender(fields)
    expected = np.stack([image_of(row) for row in request.rows().rows().tolist()])
    memory = MemoryRows(files, fields, fields, copied=copied)
    assert np.array_equal(images(memory.fetch(request, lend)), expected)
    assert lend.lent == 1
    assert memory.wait(120)
    assert memory.ready
    assert np.array_equal(images(memory.fetch(request, lend)), expected)
    assert lend.lent == (1 if copied and isinstance(order, Sequential) else 2)
    memory.close()  # rows that it no longer has come from the files
    assert not memory.ready
    assert np.array_equal(images(memory.fetch(request, lend)), expected)
    files.close()


class Elsewhere(PackStore):
    """Rows from 20 on can be read by the loop alone, not by the copy of it that fills the memory."""

    copied = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.copied = True

    def copy(self, rows: Runs, out: Any) -> None:
        if self.copied and rows.rows().max() >= 20:
            raise FormatError("p.h5: reading failed (Input/output error). Check the disk.")
        super().copy(rows, out)


def test_rows_that_cannot_be_made_come_from_the_disk(pack: Pack, caplog: pytest.LogCaptureFixture) -> None:
    files, _, fields = files_of(pack)
    reader = files.reader = Elsewhere(pack, fields)
    request, lend = request_of(reader, Rows(), 0, ROWS - 3), Lender(fields)
    expected = np.stack([image_of(row) for row in request.rows().rows().tolist()])
    with caplog.at_level(logging.WARNING, "packer.load"):
        memory = MemoryRows(files, fields, fields)
        failed = False
        while not failed:
            failed = memory.failed is not None
            assert np.array_equal(images(memory.fetch(request, lambda: lend(ROWS - 3))), expected)
        assert not memory.wait(120)
    assert caplog.messages == [
        f"{pack.path}: not all rows are kept in memory, the others are read from the disk (p.h5: reading failed (Input/output error)."
        " Check the disk.)"
    ]
    memory.close()
    files.close()


def test_without_memory_all_rows_come_from_the_disk(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise PackerError("memory for rows: cannot be had (Cannot allocate memory). Pass placement='disk'.")

    monkeypatch.setattr(memory_cache, "RowMemory", refuse)
    caplog.set_level(logging.WARNING, "packer.load")
    with PackedBatchDataset(pack.path, 9, placement="ram", shuffle=True, output="numpy") as dataset:
        labels = np.concatenate([batch.label for _ in range(2) for batch in dataset])
        assert not dataset.resident
    assert sorted(labels.tolist()) == sorted(2 * (3 * np.arange(ROWS)).tolist())
    assert len(caplog.messages) == 1
    assert "Cannot allocate memory" in caplog.messages[0]


class Runtime:
    """CUDA's registering of memory, as far as it is used. registered: address -> bytes. code: that it answers."""

    def __init__(self, code: int = 0) -> None:
        self.registered: dict[int, int] = {}
        self.code = code

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 1
        self.registered[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address: int) -> None:
        del self.registered[address]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    torch = pytest.importorskip("torch")
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return runtime


def test_pinned_memory_is_registered_as_long_as_a_view_of_it_lives(pack: Pack, runtime: Runtime) -> None:
    files, reader, fields = files_of(pack)
    memory = MemoryRows(files, fields, fields, pinned="cuda:0", copied=True)
    assert memory.wait(120)
    fetched = memory.fetch(request_of(reader, Sequential(), 5, 30), Lender(fields))
    ((address, nbytes),) = runtime.registered.items()
    for rows in (fetched.arrays["image"], fetched.arrays["label"]):
        assert address <= rows.ctypes.data < rows.ctypes.data + rows.nbytes <= address + nbytes
    memory.close()
    gc.collect()
    assert runtime.registered
    assert (fetched.arrays["label"] == 3 * np.arange(5, 30)).all()
    del fetched, rows, memory
    gc.collect()
    assert not runtime.registered
    files.close()


def test_memory_that_cannot_be_pinned_is_said(
    pack: Pack, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.code = 2
    files, _, fields = files_of(pack)
    with caplog.at_level(logging.WARNING, "packer.load"):
        memory = MemoryRows(files, fields, fields, pinned="cuda:0", copied=True)
        assert memory.wait(120)
    assert "CUDA cannot pin" in caplog.text
    request, lend = request_of(files.reader, Sequential(), 5, 30), Lender(fields)
    assert (images(memory.fetch(request, lend)) == np.stack([image_of(row) for row in range(5, 30)])).all()
    assert lend.lent == 1
    memory.close()
    files.close()


@pytest.mark.gpu
def test_views_of_pinned_memory_are_copied_asynchronously(pack: Pack) -> None:
    import torch

    files, reader, fields = files_of(pack)
    two = [MemoryRows(files, fields, fields, pinned="cuda", copied=True) for _ in range(2)]
    assert all(memory.wait(120) for memory in two)
    request = request_of(reader, Sequential(), 10, 60)
    view = two[0].fetch(request, Lender(fields)).arrays["image"]
    host = torch.from_numpy(view)
    assert host.is_pinned()
    expected = np.stack([image_of(row) for row in range(10, 60)])
    assert (host.to("cuda", non_blocking=True).cpu().numpy() == expected).all()
    for memory in two:
        memory.close()
    files.close()
    assert (view == expected).all()


def test_closed_at_once_nothing_is_left(pack: Pack) -> None:
    """The fixture of the folder looks for what is."""
    assert tempfile.gettempdir() != "/tmp"
    files, _, fields = files_of(pack)
    MemoryRows(files, fields, fields).close()
    memory = MemoryRows(files, fields, fields)
    del memory
    gc.collect()
    files.close()
