"""The file of the frontier: one process writes, others see each change and whether it lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packer.errors import PackerError, SourceError
from packer.format.frontier import FAILED, SEALED, UNDER_WAY, Frontier, Readers, write_private
from packer.service import error_of


def test_readers_see_what_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "frontier")
    with pytest.raises(FileNotFoundError):
        Frontier(path)
    writer = Frontier(path, create=True)
    writer.begin()
    reader = Frontier(path)
    assert reader.state == (0, 0, UNDER_WAY)
    assert reader.text is None
    writer.describe(77)
    writer.rise(40)
    writer.rise(30)  # never lower within a run
    writer.move(5, 90)
    writer.move(6)
    writer.place(12)
    assert reader.state == (40, 77, UNDER_WAY)
    assert reader.progress == (6, 90)
    assert reader.inode == 12
    writer.end()
    assert reader.outcome == SEALED
    Frontier(path, create=True).begin()  # of a run that goes on: the same file, from the beginning
    assert reader.state == (0, 0, UNDER_WAY)


def test_an_error_comes_through_as_it_was_even_a_long_one(tmp_path: Path) -> None:
    writer = Frontier(str(tmp_path / "frontier"), create=True)
    for length in (10, 100_000):
        writer.end(SourceError("ä" * length))
        assert writer.outcome == FAILED
        error = error_of(writer.text)
        assert type(error) is SourceError
        assert str(error).startswith("ä" * 10)


def test_its_lock_tells_whether_the_writer_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "frontier")
    writer = Frontier(path, create=True)
    reader = Frontier(path)
    assert not reader.alive
    assert writer.lock()
    assert reader.alive
    assert not Frontier(path, create=True).lock()
    os.unlink(path)
    assert reader.alive  # of the file that it has mapped
    del writer
    assert not reader.alive


def test_a_writer_knows_whether_anybody_reads(tmp_path: Path) -> None:
    path = str(tmp_path / "readers")
    mine, first, second = Readers(path), Readers(path), Readers(path)
    assert mine.leave()
    assert first.join()
    assert second.join()
    assert not mine.leave()
    assert not first.leave()
    assert second.leave()
    assert mine.leave()
    assert first.join()
    first.close()
    assert mine.leave()


def test_files_that_are_being_created_links_and_files_of_others_are_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "frontier"
    path.touch()
    with pytest.raises(FileNotFoundError):  # its size comes a moment later
        Frontier(str(path))
    path.chmod(0o666)
    with pytest.raises(PackerError, match="frontier: is not a file of this user alone"):
        Frontier(str(path), create=True)
    path.unlink()
    (tmp_path / "mine").write_bytes(b"mine")
    path.symlink_to("mine")
    with pytest.raises(OSError, match="frontier"):
        Frontier(str(path), create=True)
    write_private(str(path), b"x")
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert path.read_bytes() == b"x"
    assert path.stat().st_mode & 0o777 == 0o600
