"""Rows made one by one, in any order: the same pack, journalled as blocks become whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.convert import image_rows
from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.image_conversion import convert_images
from packer.convert.pack_run import part_writer, seal
from packer.convert.row_filling import RowFilling, fillable
from packer.errors import PackerError, SourceError
from tests.filling.conftest import ROWS


class Engine:
    """Makes all rows, some at a time. blocks: those that were closed, in order; done: rows that were there before."""

    def __init__(self, workers: int = 2, rows: Any = None) -> None:
        self.workers, self.rows = workers, rows
        self.checksums = np.zeros(ROWS, np.uint64)
        self.found: list[int] = []
        self.blocks: list[int] = []

    def __call__(self, task: ConversionTask, name: str, running: RunOptions) -> Report:
        with part_writer(task, name, running) as writer:
            self.blocks = sorted(writer.done)
            writer.record_rows()
            with RowFilling(task, writer, self.workers, self.checksums) as source:
                self.found = np.flatnonzero(self.checksums).tolist()
                order = np.random.default_rng(3).permutation(ROWS) if self.rows is None else self.rows
                order = order[self.checksums[order] == 0]
                for some in np.array_split(order, 9):
                    if len(some):
                        future = source.start(some)
                        if error := future.exception():
                            raise error if isinstance(error, PackerError) else source.broken(error)
                        source.arrived(some, future.result())
                while source.open():
                    pass
            if self.rows is not None:
                raise PackerError("enough")
            return seal(task, writer, source.outcome, 0)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("out", ["p.h5", "p"])
def test_it_is_the_pack_that_convert_makes(images: Path, tmp_path: Path, workers: int, out: str) -> None:
    convert_images(images, tmp_path / f"made-{out}")
    convert_images(images, tmp_path / out, engine=Engine(workers))
    for one in [tmp_path / out] if out == "p.h5" else sorted((tmp_path / out).iterdir()):
        other = tmp_path / f"made-{out}" / ("" if out == "p.h5" else one.name)
        assert one.read_bytes() == other.read_bytes(), one


def test_blocks_and_rows_of_an_interrupted_run_are_kept(
    images: Path,
    whole: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "p.h5"
    some = np.array([*range(43), 50, 60])  # a whole block of 43 rows, and two rows of the next
    first = Engine(2, some)
    with pytest.raises(PackerError, match="enough"):
        convert_images(images, out, engine=first)
    second = Engine(2)
    second.checksums[:] = first.checksums
    second.checksums[[44, 60]] = 5  # one that was not made, one that is damaged
    convert_images(images, out, engine=second)
    assert second.blocks == [0]
    assert second.found == [*range(43), 50]
    assert out.read_bytes() == whole.read_bytes()


def test_a_decoder_that_crashes_is_named(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = image_rows.ImageRows.make

    def crash(self: Any, sample: int, *given: Any) -> Any:
        if self.key(sample) == "dog/7.jpg":
            os.kill(os.getpid(), signal.SIGSEGV)
        return make(self, sample, *given)

    monkeypatch.setattr(image_rows.ImageRows, "make", crash)
    with pytest.raises(
        SourceError,
        match=r"dog/7\.jpg: its decoder crashed \(SIGSEGV\)\. Remove it, or pass on_error='skip'\.",
    ):
        convert_images(images, tmp_path / "p.h5", engine=Engine())
    assert not (tmp_path / "p.h5").exists()


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({}, True),
        ({"format": "npy"}, True),
        ({"store": "jpeg"}, False),
        ({"store": "gzip"}, False),
        ({"shards": 50}, False),
        ({"size": "keep", "store": "jpeg"}, False),
    ],
)
def test_what_can_be_made_row_by_row(
    images: Path,
    tmp_path: Path,
    options: dict[str, Any],
    possible: bool,
) -> None:
    def look(task: ConversionTask, name: str, running: RunOptions) -> Report:
        assert fillable(task) is possible
        raise PackerError("seen")

    with pytest.raises(PackerError, match="seen"):
        convert_images(images, tmp_path / "p.h5", engine=look, **options)
