"""packer.load.caches.gpu_cache: rows gathered on a device are the rows of the pack. On "cpu" here, and on CUDA where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer import progress
from packer.errors import FormatError
from packer.format.fields import Field
from packer.orders.runs import Runs, Subset, consecutive, one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.read.row_selection import select_fields, select_rows
from packer.starting import ForkSafeThreads
from packer.writing.pack_writer import PackWriter
from tests.read.conftest import ROWS, SPLITS, image_of, store_of

torch = pytest.importorskip("torch")
from packer.load.caches import gpu_cache  # noqa: E402
from packer.load.device import CopyingDevice, CudaDevice  # noqa: E402

ROW_BYTES = 8 * 6 * 3 + 8  # image and label
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload ten rows at a time."""
    monkeypatch.setattr(gpu_cache, "STEP_BYTES", 10 * ROW_BYTES)


def upload(pack: Pack, device: str, *, split: str | None = None, reader: PackStore | None = None) -> Any:
    fields = select_fields(pack, None)
    files = reader or PackStore(pack, fields, Subset(select_rows(pack, split)))
    kind = CudaDevice if device == "cuda" else CopyingDevice
    where = torch.empty(0, device=device).device
    return gpu_cache.GpuStore(files, fields, kind(where), ForkSafeThreads(3))


def check(held: Any, rows: np.ndarray, pack_rows: np.ndarray, images: np.ndarray) -> None:
    found = held.tensors(consecutive(np.asarray(rows, np.int64)))
    assert found["image"].dtype == torch.uint8
    assert found["image"].is_contiguous()
    assert (found["image"].cpu().numpy() == images[pack_rows]).all()
    assert found["label"].dtype == torch.int64
    assert found["label"].tolist() == (3 * np.asarray(pack_rows)).tolist()


def test_rows_of_every_kind_of_pack(stored: Pack, expected: dict[str, np.ndarray], device: str, steps: None):
    rows = np.concatenate([np.arange(a, b) for a, b in SPLITS["train"]])
    images = expected[store_of(stored)]
    held = upload(stored, device, split="train")
    assert held.ready
    assert held.ahead_rows is None
    assert held.tensors(one_run(0, 1))["image"].device.type == device
    draws = np.random.default_rng(0)
    for count in (1, 2, 40, len(rows)):
        some = draws.permutation(len(rows))[:count]
        check(held, some, rows[some], images)
        start = int(draws.integers(0, len(rows) - count + 1))
        check(held, np.arange(start, start + count), rows[start : start + count], images)
    none = held.tensors(one_run(0, 0))
    assert none["image"].shape == (0, *images[0].shape)
    assert set(none) == {"image", "label"}
    held.close()
    assert not held.ready


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
    for rows in (np.arange(3, 9), np.array([9, 2, 2, 3, 19])):
        found = held.tensors(consecutive(rows))["x"]
        assert found.dtype == torch.from_numpy(values).dtype
        assert found.shape == (len(rows), *shape)
        assert (found.cpu().numpy() == values[rows]).all()


@pytest.mark.parametrize(
    "error", [FormatError("p.h5: reading failed (Input/output error)."), RuntimeError("CUDA error")]
)
def test_an_error_of_a_reading_thread_is_raised(pack: Pack, device: str, steps: None, error: Exception):
    class Broken(PackStore):
        def copy(self, rows: Runs, out: Any) -> None:
            if rows.starts[0] >= 20:
                raise error
            super().copy(rows, out)

    with pytest.raises(type(error)) as raised:
        upload(pack, device, reader=Broken(pack, select_fields(pack, None)))
    assert raised.value is error


def test_progress_is_shown_in_bytes_if_it_takes_long(
    pack: Pack, steps: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    upload(pack, "cpu")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(gpu_cache, "SHOWN_BYTES", 1)
    upload(pack, "cpu")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("1.52 kB of 15.7 kB, ")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    upload(pack, "cpu")
    assert capsys.readouterr().err == ""


def test_a_batch_may_be_written_to(pack: Pack, device: str):
    images = np.stack([image_of(row) for row in range(ROWS)])
    held = upload(pack, device)
    for rows in (np.arange(5, 15), np.array([7, 3, 9])):
        held.tensors(consecutive(rows))["image"].zero_()
        check(held, rows, rows, images)


@pytest.mark.gpu
def test_gathers_on_slow_streams_see_whole_rows(pack: Pack, steps: None):
    """The rows outlive the kernels that gather from them."""
    images = np.stack([image_of(row) for row in range(ROWS)])
    held = upload(pack, "cuda")
    draws = np.random.default_rng(0)
    results = []
    for _ in range(11):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            rows = draws.permutation(ROWS)
            results.append((stream, rows, held.tensors(consecutive(rows))["image"]))
    held.close()
    del held
    torch.full((1 << 16,), 9, dtype=torch.uint8, device="cuda")
    for stream, rows, found in results:
        stream.synchronize()
        assert (found.cpu().numpy() == images[rows]).all()
