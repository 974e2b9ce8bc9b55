from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from packer.errors import SourceError
from packer.inputs import text_files
from packer.inputs.file_names import shorten
from packer.inputs.text_files import read_lines


@pytest.fixture(autouse=True)
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(path: str = "l.csv") -> str:
    with pytest.raises(SourceError) as error:
        list(read_lines(path, "a list is needed"))
    return str(error.value)


def test_lines_keep_their_ends_and_bytes() -> None:
    Path("l.csv").write_bytes(b"\xef\xbb\xbfa\r\ncaf\xe9\n")
    assert list(read_lines("l.csv", "", newline="")) == ["a\r\n", "caf\udce9\n"]
    assert list(read_lines("l.csv", "")) == ["a\n", "caf\udce9\n"]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str) -> None:
    os.mkfifo("l.csv") if kind == "pipe" else os.symlink("/dev/zero", "l.csv")
    assert refused() == "l.csv: is not a regular file; a list is needed. Copy it to a regular file."


def test_a_folder_or_nothing() -> None:
    Path("l.csv").mkdir()
    assert refused() == "l.csv: cannot be read (Is a directory); a list is needed. Check the path."
    ending = "; a list is needed. Check the path."
    assert refused("none") == f"none: cannot be read (No such file or directory){ending}"


def test_an_endless_line_is_refused_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST", 1000)
    Path("l.csv").write_text("a\n" + "x" * 1000 + "\n")
    assert refused() == ("l.csv line 2: is longer than 1,000 characters; a list is needed. Check the file.")
    Path("l.csv").write_text("a\n" + "x" * 999 + "\n")
    assert len(list(read_lines("l.csv", ""))) == 2


@pytest.mark.parametrize(
    ("data", "line"), [(b"a\nb\0\n", 2), ("a,b\n".encode("utf-32"), 1), ("a\nb".encode("utf-16-be"), 1)]
)
def test_zero_bytes_are_told(data: bytes, line: int) -> None:
    Path("l.csv").write_bytes(data)
    assert refused() == (
        f"l.csv line {line}: has zero bytes, which UTF-8 text has not; a list is needed. "
        "Check the file; convert UTF-16 with: iconv -f UTF-16 -t UTF-8 OLD > NEW."
    )


def test_utf_16_with_its_mark_and_gzip_are_read() -> None:
    for data in (
        "a\u00e9\r\nb".encode("utf-16"),
        "\ufeffa\u00e9\r\nb".encode("utf-16-be"),
        "a\u00e9\nb".encode(),
    ):
        for packed in (data, gzip.compress(data)):
            Path("l.csv").write_bytes(packed)
            assert list(read_lines("l.csv", "")) == ["a\u00e9\n", "b"]
    Path("l.csv").write_bytes(gzip.compress(b"a\n" * 1000)[:-9])
    assert refused() == "l.csv: damaged or truncated gzip; a list is needed. Get it again."
    Path("l.csv").write_bytes(b"\xff\xfea\0\n")
    assert refused() == "l.csv line 1: begins like UTF-16, but is not; a list is needed. Save it as UTF-8."


def test_a_file_that_is_written_while_it_is_read_is_refused() -> None:
    Path("l.csv").write_text("a\n" * 3)
    lines = read_lines("l.csv", "")
    assert next(lines) == "a\n"
    with open("l.csv", "a") as file:
        file.write("b\n")
    with pytest.raises(SourceError) as error:
        list(lines)
    assert str(error.value) == (
        "l.csv: was changed while it was read. Run the same command again once it is complete."
    )


def test_long_texts_are_cut_for_messages() -> None:
    assert shorten("a" * 120) == "a" * 120
    assert shorten("a" * 1200) == "a" * 120 + "... (1,200 characters)"
