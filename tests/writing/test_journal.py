from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packer.writing.journal import Journal, read_journal

RECORDS = [{"size": 8, "name": "caf\u00e9 \udcff"}, [0, [1, 2**64 - 1], None], [1, [3, 4], ["is empty"]]]


def journal_of(path: Path, records: list[object]) -> None:
    journal = Journal(str(path))
    for record in records:
        journal.add(record)
    journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal_of(tmp_path / "journal", RECORDS)
    return tmp_path / "journal"


def test_records_come_back_in_order(path: Path):
    assert read_journal(str(path)) == RECORDS
    journal_of(path, ["another"])
    assert read_journal(str(path)) == [*RECORDS, "another"]


def test_a_line_is_a_digest_and_json(path: Path):
    text = b"[0,[1,18446744073709551615],null]"
    line = b"%s %s\n" % (xxhash.xxh3_64_hexdigest(text).encode(), text)
    assert path.read_bytes().splitlines(keepends=True)[1] == line


def test_none_there_is_empty(tmp_path: Path):
    assert read_journal(str(tmp_path / "no")) == []


@pytest.mark.parametrize("cut", [1, 2, 10, 40])
def test_a_torn_last_line_is_left_out_and_does_not_spoil_the_next(path: Path, cut: int):
    last = len(path.read_bytes().splitlines(keepends=True)[-1])
    os.truncate(path, path.stat().st_size - min(cut, last - 1))
    whole = RECORDS if cut == 1 else RECORDS[:2]  # only its newline is missing
    assert read_journal(str(path)) == whole
    journal_of(path, ["after"])
    assert read_journal(str(path)) == [*whole, "after"]


def test_a_damaged_line_in_the_middle_is_left_out(path: Path):
    data = bytearray(path.read_bytes())
    data[data.index(b"[0,[1,") + 1] ^= 1
    path.write_bytes(bytes(data))
    assert read_journal(str(path)) == [RECORDS[0], RECORDS[2]]


@given(st.data())
def test_no_damage_gives_another_record(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    path = tmp_path_factory.mktemp("journal") / "journal"
    journal_of(path, RECORDS)
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(text[: data.draw(st.integers(0, len(text)))]))
    found = read_journal(str(path))
    assert [record for record in RECORDS if record in found] == found


def test_a_full_disk_is_an_error_and_the_torn_line_does_no_harm(path: Path, monkeypatch: pytest.MonkeyPatch):
    journal, write, calls = Journal(str(path)), os.write, []

    def full(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:7])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left on device"):
        journal.add("a record that is cut in two")
    assert calls == [len('0123456789abcdef "a record that is cut in two"\n') - n for n in (0, 7)]
    monkeypatch.undo()
    journal.close()
    journal.close()
    journal_of(path, ["after"])
    assert read_journal(str(path)) == [*RECORDS, "after"]


def test_a_short_write_is_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    journal_of(path, ["in many pieces"])
    assert read_journal(str(path)) == [*RECORDS, "in many pieces"]
