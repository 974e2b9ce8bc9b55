"""packer.load.caches.gpu_cache: rows gathered on a device are the rows of the pack. On "cpu" here, and on CUDA where there is one."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import numpy as np
import pytest

from packer.errors import FormatError
from packer.format.fields import Field
from packer.orders.runs import Runs, Subset, consecutive, one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.read.row_selection import select_fields, select_rows
from packer.writing.pack_writer import PackWriter
from tests.load.caches.test_row_memory import Held, until
from tests.open_files import open_files
from tests.read.conftest import ROWS, SPLITS, image_of, store_of

torch = pytest.importorskip("torch")
gpu_cache = pytest.importorskip("packer.load.caches.gpu_cache")

ROW_BYTES = 8 * 6 * 3 + 8  # image and label
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill ten rows at a time."""
    monkeypatch.setattr(gpu_cache, "STEP_BYTES", 10 * ROW_BYTES)


class Gate(PackStore):
    """Reads so many rows of images when told to; for one thread."""

    def __init__(self, pack: Pack, fields: Any) -> None:
        super().__init__(pack, fields)
        self.allowed = threading.Semaphore(0)
        self.read_rows: list[int] = []

    def copy(self, rows: Runs, out: Any) -> None:
        if "image" in out:
            self.allowed.acquire()
            self.read_rows += rows.rows().tolist()
        super().copy(rows, out)


def upload(pack: Pack, device: str, *, split: str | None = None, reader: PackStore | None = None) -> Any:
    fields = select_fields(pack, None)
    subset = Subset(select_rows(pack, split))
    return Held(gpu_cache.GpuStore(reader or PackStore(pack, fields, subset), fields, device))


def check(held: Any, rows: np.ndarray, pack_rows: np.ndarray, images: np.ndarray) -> bool:
    found = held.tensors(consecutive(np.asarray(rows, np.int64)))
    if found is None:
        return False
    assert found["image"].dtype == torch.uint8
    assert found["image"].is_contiguous()
    assert (found["image"].cpu().numpy() == images[pack_rows]).all()
    assert found["label"].dtype == torch.int64
    assert found["label"].tolist() == (3 * np.asarray(pack_rows)).tolist()
    return True


def test_rows_of_every_kind_of_pack(stored: Pack, expected: dict[str, np.ndarray], device: str, steps: None):
    rows = np.concatenate([np.arange(a, b) for a, b in SPLITS["train"]])
    images = expected[store_of(stored)]
    held = upload(stored, device, split="train")
    assert held.wait(30)
    assert held.ready
    assert held.filled[0] == len(rows)
    assert "key" not in held._dtypes
    assert held.tensors(one_run(0, 1))["image"].device.type == device
    draws = np.random.default_rng(0)
    for count in (1, 2, 40, len(rows)):
        some = draws.permutation(len(rows))[:count]
        assert check(held, some, rows[some], images)
        start = int(draws.integers(0, len(rows) - count + 1))
        assert check(held, np.arange(start, start + count), rows[start : start + count], images)
    none = held.tensors(one_run(0, 0))
    assert none["image"].shape == (0, *images[0].shape)
    with pytest.raises(IndexError, match="row 70 of 70"):
        held.tensors(one_run(69, 71))
    held.leave()
    assert held.tensors(one_run(0, 1)) is None


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("|u1", (3,)), ("|i1", (1, 2)), ("<u2", (5,)), ("<i2", ()), ("<u4", ()), ("<i4", (3,)), ("<u8", ()),
        ("<i8", (2, 2)), ("<f2", (3,)), ("<f4", (28,)), ("<f8", (1,)), ("|b1", ()), ("|b1", (16,)),
    ],
)  # fmt: skip
def test_fields_of_every_type(tmp_path: Any, dtype: str, shape: tuple[int, ...], device: str):
    field = Field("x", dtype, shape)
    values = np.random.default_rng(0).integers(0, 2 if dtype == "|b1" else 100, (20, *shape)).astype(dtype)
    with PackWriter(str(tmp_path / "p"), fields=(field,), rows=20, block_rows=20, format="npy") as writer:
        writer.write_block(0, {"x": values})
        writer.finish(rows=20, ragged={})
    pack = open_pack(tmp_path / "p")
    held = upload(pack, device)
    assert held.wait(30)
    for rows in (np.arange(3, 9), np.array([9, 2, 2, 3, 19])):
        found = held.tensors(consecutive(rows))["x"]
        assert found.dtype == torch.from_numpy(values).dtype
        assert found.shape == (len(rows), *shape)
        assert (found.cpu().numpy() == values[rows]).all()


def test_an_error_of_the_thread_reaches_the_loop_as_itself(pack: Pack, device: str):
    """CUDA's too, which are no PackerErrors; `wait` never returns before it knows."""
    failed = RuntimeError("CUDA error: an illegal memory access was encountered")

    class Broken(PackStore):
        def copy(self, rows: Runs, out: Any) -> None:
            raise failed

    for _ in range(20):
        held = upload(pack, device, reader=Broken(pack, select_fields(pack, None)))
        with pytest.raises(RuntimeError) as raised:
            held.wait(30)
        assert raised.value is failed
        with pytest.raises(RuntimeError, match="illegal memory access"):
            held.check()
        held.leave()


def test_what_is_there_is_gathered_and_what_is_not_is_said(pack: Pack, device: str, steps: None):
    images = np.stack([image_of(row) for row in range(ROWS)])
    gate = Gate(pack, select_fields(pack, None))
    held = upload(pack, device, reader=gate)
    for filled in (0, 10, 20):
        assert until(lambda filled=filled: held.filled[0] == filled)
        assert not held.ready
        if filled:
            assert check(held, np.arange(filled)[::-1], np.arange(filled)[::-1], images)
        assert held.tensors(one_run(0, filled + 1)) is None
        assert held.tensors(one_run(ROWS - 1, ROWS)) is None
        gate.allowed.release()
    gate.allowed.release(20)
    assert held.wait(20)
    everything = np.random.default_rng(1).permutation(ROWS)
    assert check(held, everything, everything, images)


def test_a_batch_may_be_written_to(pack: Pack, device: str):
    images = np.stack([image_of(row) for row in range(ROWS)])
    held = upload(pack, device)
    assert held.wait(20)
    for rows in (np.arange(5, 15), np.array([7, 3, 9])):
        held.tensors(consecutive(rows))["image"].zero_()
        assert check(held, rows, rows, images)


def test_rows_that_cannot_be_read_are_left_to_the_disk(
    pack: Pack, device: str, steps: None, caplog: pytest.LogCaptureFixture
):
    class Broken(PackStore):
        def copy(self, rows: Runs, out: Any) -> None:
            if rows.starts[0] >= 20:
                raise FormatError("p.h5: reading failed (Input/output error). Check the disk.")
            super().copy(rows, out)

    with caplog.at_level(logging.WARNING, "packer.load"):
        held = upload(pack, device, reader=Broken(pack, select_fields(pack, None)))
        assert not held.wait(20)
    assert "Input/output error" in caplog.text
    assert held.tensors(one_run(0, 1)) is None


def test_a_device_that_is_full_is_said_and_nothing_is_held(
    pack: Pack, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_cache, "_empty", full)
    with caplog.at_level(logging.WARNING, "packer.load"):
        held = upload(pack, device)
        assert not held.wait(20)
    assert not held.ready
    assert held.failed.startswith("15.7 kB do not fit ")
    assert caplog.messages == [f"{pack.path}: rows stay off the device ({held.failed})"]
    assert held.tensors(one_run(0, 1)) is None


@pytest.mark.parametrize("how", ["close", "collect"])
def test_nothing_stays_behind(pack: Pack, device: str, steps: None, how: str):
    others = set(threading.enumerate())

    def threads() -> int:
        return sum(t.name == "packer-keep" for t in set(threading.enumerate()) - others)

    assert upload(pack, device).wait(20)  # what the first use opens stays open
    gc.collect()
    assert until(lambda: threads() == 0)
    before, gate = open_files(), Gate(pack, select_fields(pack, None))
    held = upload(pack, device, reader=gate)
    gate.allowed.release()
    assert until(lambda: held.filled[0] == 10)
    assert threads() == 1
    threading.Timer(0.1, gate.allowed.release).start()
    if how == "close":
        held.leave()
        assert threads() == 0
    held = None
    gc.collect()
    assert until(lambda: threads() == 0)
    gate.close()
    assert until(lambda: open_files() <= before)
    assert len(gate.read_rows) == 20


@pytest.mark.gpu
def test_gathers_on_slow_streams_see_whole_rows(pack: Pack, steps: None):
    """The stream that gathers waits for the one that fills, and the tensors outlive their owner's kernels."""
    images = np.stack([image_of(row) for row in range(ROWS)])
    gate = Gate(pack, select_fields(pack, None))
    held = upload(pack, "cuda", reader=gate)
    draws = np.random.default_rng(0)
    results = []
    for _ in range(11):
        gate.allowed.release()
    while not held.ready:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            rows = draws.permutation(max(held.filled[0], 1))
            found = held.tensors(consecutive(rows))
            if found is not None:
                results.append((stream, rows, found["image"]))
    held.leave()
    del held
    torch.full((1 << 16,), 9, dtype=torch.uint8, device="cuda")
    for stream, rows, found in results:
        stream.synchronize()
        assert (found.cpu().numpy() == images[rows]).all()
