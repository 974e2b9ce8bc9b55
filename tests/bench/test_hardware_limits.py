from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packer import convert_images
from packer.bench.hardware_limits import READ_BYTES, CopyLimit, DecodeLimit, read_rate
from packer.codecs import jpeg
from packer.errors import FormatError
from packer.packs.pack_opening import open_pack


@pytest.mark.parametrize("threads", [1, 3])
def test_the_copy_limit_counts_what_was_copied(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = CopyLimit(batch_bytes=1 << 16, pack_bytes=1 << 20, threads=threads)
    limit._slots[:] = 0
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 100)
    rate = limit.rate(0.05)
    assert threads <= rate * (next(clock) - 1) / 100 <= 5 + threads
    filled = limit._slots.any(axis=2)
    assert (limit._slots.all(axis=2) == filled).all()
    assert filled[:, 0].all()


def test_the_copy_limit_takes_packs_smaller_than_a_batch() -> None:
    assert CopyLimit(batch_bytes=1 << 12, pack_bytes=10, threads=1).rate(0.01) > 0


@pytest.mark.parametrize("options", [{"size": 32}, {"size": "max=40"}, {"size": "keep", "channels": "rgb"}])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_decode_limit_counts_rows(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, options: dict[str, Any]
) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", store="jpeg", **options)
    shapes: list[tuple[int, ...]] = []
    decode = jpeg.decode_upright_into

    def noted(data: bytes, out: NDArray[np.uint8]) -> None:
        decode(data, out)
        shapes.append(out.shape)

    monkeypatch.setattr(jpeg, "decode_upright_into", noted)
    limit = DecodeLimit(open_pack(tmp_path / "p.h5"), 6, threads)
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 100)
    rate = limit.rate(0.5)
    assert len(shapes) == pytest.approx(6 * rate * (next(clock) - 1) / 100)
    expected = {32: (32, 32, 3), "max=40": (33, 40, 4), "keep": (40, 48, 4)}[options["size"]]
    assert set(shapes) == {expected}


@pytest.mark.parametrize("size", [32, "max=40"])
def test_the_decode_limit_names_a_damaged_row(photo_folder: Path, tmp_path: Path, size: int | str) -> None:
    convert_images(photo_folder, tmp_path / "p", store="jpeg", size=size)
    with open(tmp_path / "p" / "image.npy", "r+b") as file:
        data = file.read()
        file.seek(data.rfind(b"\xff\xd8"))
        file.write(bytes(1000))
    with pytest.raises(FormatError, match=r"p: row 23 of 'image' is damaged \(.*\)\. Run packer verify"):
        DecodeLimit(open_pack(tmp_path / "p"), 6, 2).rate(0.5)


@pytest.mark.parametrize("threads", [1, 2])
def test_reading_counts_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    paths = []
    for number, size in enumerate((READ_BYTES + 5, 0, 7)):
        path = tmp_path / str(number)
        path.write_bytes(bytes(size))
        paths.append(str(path))
    clock = iter([0.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock, 0.5))
    assert read_rate(paths, threads, 1) == (READ_BYTES + 5 + 7) / 0.5


def test_reading_stops_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1000 * READ_BYTES)
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 100)
    rate = read_rate([str(path)], 2, 0.02)
    pieces = rate * (next(clock) - 1) / 100 / READ_BYTES
    assert 2 <= pieces <= 4
