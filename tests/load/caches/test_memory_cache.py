"""packer.load.caches.memory_cache: batches are the same wherever their rows come from, and however far the memory is."""

from __future__ import annotations

import gc
import logging
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from packer.errors import FormatError, PackerError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.caches import memory_cache
from packer.orders.runs import Runs, consecutive, one_run
from packer.packs.pack import Pack
from packer.read.array_store import ArrayStore, PackStore
from packer.read.row_selection import select_fields
from tests.load.caches.test_row_memory import filled, folder, kept
from tests.read.conftest import ROWS, SHAPE, image_of, make_pack, make_stored

__all__ = ["folder"]

ROW_BYTES = int(np.prod(SHAPE))


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
                assert filled(memory._engine.store)  # type: ignore[union-attr]
                monkeypatch.setattr(PackStore, "copy", None)
        assert memory.resident


def store_of(pack: Pack) -> PackStore:
    return PackStore(pack, select_fields(pack, None))


def read(store: ArrayStore, rows: Runs) -> np.ndarray:
    """Images, after their labels were compared."""
    out = {
        name: np.empty((rows.total, size), np.uint8) for name, size in (("image", ROW_BYTES), ("label", 8))
    }
    store.copy(rows, out)
    assert (out["label"].view("<i8")[:, 0] == 3 * rows.rows()).all()
    return out["image"].reshape(-1, *SHAPE)


def expected(rows: Runs) -> np.ndarray:
    return np.stack([image_of(row) for row in rows.rows().tolist()])


MIXED = Runs(np.array([7, 2, 90]), np.array([3, 1, 13]))


@pytest.mark.parametrize("rows", [one_run(5, 30), MIXED])
def test_rows_are_the_files_before_they_are_there_and_after(pack: Pack, rows: Runs) -> None:
    store = store_of(pack)
    memory = kept(store)
    assert np.array_equal(read(memory, rows), expected(rows))
    assert memory.wait(120)
    assert memory.ready
    assert np.array_equal(read(memory, rows), expected(rows))
    memory.close()  # rows that it no longer has come from the files
    assert not memory.ready
    assert np.array_equal(read(memory, rows), expected(rows))


def test_rows_are_asked_for_below_until_they_are_there(pack: Pack) -> None:
    store = store_of(pack)
    asked: list[int] = []
    store.prefetch = lambda rows: asked.extend(rows.rows().tolist())  # type: ignore[method-assign]
    memory = kept(store)
    assert memory.wait(120)
    asked.clear()
    memory.prefetch(MIXED)
    assert not asked
    memory.close()
    memory.prefetch(MIXED)
    assert asked == MIXED.rows().tolist()


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


def test_rows_that_cannot_be_made_come_from_the_disk(
    pack: Pack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says so before the store does, also where logging takes its time."""
    warn = memory_cache._LOG.warning
    monkeypatch.setattr(memory_cache._LOG, "warning", lambda *text: (time.sleep(0.1), warn(*text)))
    store = Elsewhere(pack, select_fields(pack, None))
    rows = consecutive(np.random.default_rng(0).permutation(ROWS)[3:])
    with caplog.at_level(logging.WARNING, "packer.load"):
        memory = kept(store)
        failed = False
        while not failed:
            failed = memory.failed is not None
            assert np.array_equal(read(memory, rows), expected(rows))
        assert not memory.wait(120)
    assert caplog.messages == [
        f"{pack.path}: not all rows are kept in memory, the others are read from the disk (p.h5: reading failed (Input/output error)."
        " Check the disk.)"
    ]
    memory.close()


def test_an_error_of_the_thread_reaches_the_loop_as_itself(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = RuntimeError("a defect")
    monkeypatch.setattr(memory_cache, "RowMemory", Mock(side_effect=failed))
    with PackedBatchDataset(pack.path, 9, placement="ram", output="numpy") as dataset:
        with pytest.raises(RuntimeError) as raised:
            for _ in range(1000):
                dataset.batch(0)
        assert raised.value is failed


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


def test_closed_at_once_nothing_is_left(pack: Pack) -> None:
    """The fixture of the folder looks for what is."""
    assert tempfile.gettempdir() != "/tmp"
    kept(store_of(pack)).close()
    memory = kept(store_of(pack))
    del memory
    gc.collect()
