"""The file of the frontier: one process writes, others see each change and whether it lives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from packer.errors import SourceError, error_from_record, error_record
from packer.format.fields import Field
from packer.format.frontier import FAILED, PLANNING, READABLE, Frontier
from packer.writing.pack_writer import PackWriter


def test_readers_see_what_is_written(tmp_path: Path) -> None:
    writer, reader = Frontier(str(tmp_path)), Frontier(str(tmp_path))
    assert (reader.rows, reader.plan, reader.state, reader.described) == (0, 0, PLANNING, {})
    writer.begin(READABLE, job={"a": 1}, inode=7)
    writer.rise(40)
    writer.move(5, 90)
    plan = reader.plan
    assert (reader.rows, reader.state, reader.progress) == (40, READABLE, (5, 90))
    assert reader.described == {"job": {"a": 1}, "inode": 7}
    writer.begin(PLANNING)
    assert (reader.rows, reader.plan, reader.described) == (0, 0, {})
    writer.begin(READABLE, inode=7, job={"a": 1})  # a run that goes on has the same plan
    assert reader.plan == plan
    writer.begin(READABLE, inode=8, job={"a": 1})
    assert reader.plan not in (0, plan)


def test_an_error_comes_through_as_it_was_even_a_long_one(tmp_path: Path) -> None:
    writer, reader = Frontier(str(tmp_path)), Frontier(str(tmp_path))
    for name in ("a", "b" * 200_000):
        writer.begin(FAILED, error=error_record(SourceError(f"{name}: is bad.")))
        assert str(error_from_record(reader.described["error"])) == str(SourceError(f"{name}: is bad."))


def test_its_locks_say_who_lives_even_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    reader = Frontier(str(folder))
    assert not reader.alive
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        writer = Frontier(str(folder))
        os.write(go, bytes([writer.lock(), not writer.has_readers]))
        signal.pause()
    assert os.read(ready, 2) == b"\1\1"
    assert reader.alive
    assert not reader.lock()
    other = Frontier(str(folder))
    assert not other.has_readers
    reader.join()
    assert other.has_readers
    for path in folder.iterdir():
        path.unlink()
    assert reader.alive
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not reader.alive


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 1, 3, 0), (3, 0, 2, 1)])
def test_rows_before_the_first_block_that_is_not_journalled_can_be_read(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    told: list[int] = []
    rows = np.arange(10, dtype="<i8")
    with PackWriter(
        str(tmp_path / "p.h5"), fields=[Field("x", "<i8", ())], rows=10, block_rows=3, format="h5",
        readable=lambda count, extents: told.append(count),
    ) as writer:  # fmt: skip
        for block in order:
            writer.write_block(block, {"x": rows[3 * block : 3 * block + 3]})
            writer.record(block, None)
    leading = [next(k for k in range(5) if k not in order[: n + 1]) for n in range(4)]
    assert told == [min(3 * k, 10) for k in leading]
