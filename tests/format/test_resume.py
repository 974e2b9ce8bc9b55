"""A pack that was interrupted anywhere and gone on with is, byte for byte, the pack that was made in one go."""

from __future__ import annotations

import errno
import os
import pkgutil
from pathlib import Path

import pytest

from packer.errors import PackerError, UsageError
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter
from tests.format.packs import KINDS, Content, begin, files_of, out_path, write_blocks, write_content

ROWS = 23
PLAN = {"rows": ROWS}
MOVES = [(1, 20), (7, 21), (11, 22)]
KEEP = 20


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def content(kind: tuple[str, str]) -> Content:
    return Content.random(kind[1], ROWS)


@pytest.fixture
def out(tmp_path: Path, kind: tuple[str, str]) -> Path:
    return out_path(tmp_path, kind[0])


@pytest.fixture
def whole(tmp_path: Path, kind: tuple[str, str], content: Content) -> dict[str, bytes]:
    """What making it in one go gives."""
    (tmp_path / "straight").mkdir()
    path = out_path(tmp_path / "straight", kind[0])
    write_content(path, content, keep=KEEP, moves=MOVES)
    return files_of(path)


def leave(out: Path, content: Content, recorded: tuple[int, ...], unrecorded: tuple[int, ...] = ()) -> Path:
    """Be interrupted when some blocks are recorded, and others written; the folder that is left."""
    with begin(out, content, plan=PLAN) as writer:
        write_blocks(writer, content, recorded, record=True)
        write_blocks(writer, content, unrecorded)
    assert not out.exists()
    return Path(f"{out}.packing")


def go_on(out: Path, content: Content, done: set[int], resume: bool = True) -> dict[str, bytes]:
    """Go on, expecting these blocks to be done; the pack."""

    def inspect(writer: PackWriter) -> None:
        assert writer.done == {block: {"block": block} for block in done}

    write_content(out, content, keep=KEEP, moves=MOVES, plan=PLAN, resume=resume, inspect=inspect)
    assert [name for name in os.listdir(out.parent) if name != "straight"] == [out.name]
    return files_of(out)


@pytest.mark.parametrize("resume", [True, False])
def test_interrupted_while_writing(out: Path, content: Content, whole: dict[str, bytes], resume: bool):
    leave(out, content, recorded=(3, 0), unrecorded=(1,))
    assert go_on(out, content, {0, 3}, resume) == whole


def test_interrupted_with_nothing_skipped(tmp_path: Path, kind: tuple[str, str], content: Content, out: Path):
    """No block is changed in the end: the checksums of those that are done come from the journal."""
    leave(out, content, recorded=(1, 4))
    write_content(out, content, plan=PLAN, resume=True)
    write_content(out_path(tmp_path, kind[0], "straight"), content)
    assert files_of(out) == files_of(out_path(tmp_path, kind[0], "straight"))


def test_interrupted_again_and_again(out: Path, content: Content, whole: dict[str, bytes]):
    leave(out, content, recorded=(0,))
    for block in range(1, 5):
        with begin(out, content, plan=PLAN, resume=True) as writer:
            assert sorted(writer.done) == list(range(block))
            write_blocks(writer, content, [block], record=True)
    assert go_on(out, content, set(range(5))) == whole


def test_nothing_recorded_leaves_nothing(out: Path, content: Content):
    with begin(out, content, plan=PLAN) as writer:
        write_blocks(writer, content, [0, 1])
        assert not writer.kept
    assert os.listdir(out.parent) == []


def test_without_a_plan_nothing_is_kept(out: Path, content: Content):
    with begin(out, content) as writer:
        write_blocks(writer, content, [0, 1], record=True)
        writer.close()
        writer.close()
        assert not writer.kept
    assert os.listdir(out.parent) == []


def test_rows_checked_are_counted(out: Path, content: Content):
    leave(out, content, recorded=(0, 4))
    counts: list[int] = []
    with begin(out, content, plan=PLAN, checked=counts.append):
        assert counts in ([5, 8], [3, 8])


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def flip_plain(out: Path, content: Content, name: str, row: int) -> None:
    """Flip a byte of a row of a field that is stored as it is."""
    with begin(out, content, plan=PLAN) as writer:
        fd, offset = writer.files.place(name, row)
        byte = os.pread(fd, 1, offset)
        os.pwrite(fd, bytes([byte[0] ^ 1]), offset)


DAMAGES = {"plain": ["flipped"], "file": ["flipped", "shortened", "removed", "emptied"]}


def damages(name: str, stored: str) -> list[object]:
    """Each kind of pack in which a field is stored so, with each damage to it."""
    return [
        pytest.param(kind.values[0], name, damage, id=f"{kind.id}-{name}-{damage}", marks=kind.marks)
        for kind in KINDS
        if name != "image" or (kind.values[0][1] == "raw") == (stored == "plain")
        for damage in DAMAGES[stored]
    ]


@pytest.mark.parametrize(
    ("kind", "name", "damage"),
    [
        *damages("label", "plain"),
        *damages("image", "plain"),
        *damages("image", "file"),
        *damages("text", "file"),
    ],
)
def test_a_recorded_block_that_is_damaged_is_made_again(
    out: Path, content: Content, whole: dict[str, bytes], name: str, damage: str
):
    folder = leave(out, content, recorded=(0, 2, 4))
    file = folder / "blocks" / f"{name}.2"
    if not file.exists():
        flip_plain(out, content, name, 12)
    elif damage == "flipped":
        flip(file, -1)
    elif damage == "shortened":
        os.truncate(file, file.stat().st_size - 1)
    elif damage == "emptied":
        os.truncate(file, 0)
    else:
        file.unlink()
    assert go_on(out, content, {0, 4}) == whole


def test_a_pack_that_was_cut_short_is_made_again(out: Path, content: Content, whole: dict[str, bytes]):
    folder = leave(out, content, recorded=(0, 1, 2, 3, 4))
    pack = folder / "pack"
    for file in [pack] if pack.is_file() else pack.iterdir():
        os.truncate(file, 10)
    with begin(out, content, plan=PLAN) as writer:
        assert not writer.done
    assert go_on(out, content, set()) == whole


def test_a_pack_that_is_missing_is_made_again(out: Path, content: Content, whole: dict[str, bytes]):
    folder = leave(out, content, recorded=(0, 1))
    os.rename(folder / "pack", folder.parent / "elsewhere")
    with begin(out, content, plan=PLAN) as writer:
        assert (writer.done, writer.kept) == ({}, False)
    assert not folder.exists()


def test_a_damaged_line_of_the_journal_is_a_block_to_make_again(
    out: Path, content: Content, whole: dict[str, bytes]
):
    folder = leave(out, content, recorded=(0, 1, 2))
    journal = folder / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join((*lines[:2], b"x" + lines[2][1:], lines[3][:-9])))
    assert go_on(out, content, {0}) == whole


def test_another_plan(out: Path, content: Content, whole: dict[str, bytes]):
    leave(out, content, recorded=(0, 1))
    with pytest.raises(
        UsageError, match=r"resume=True cannot continue the work in .*: rows was 23, now it is 24\."
    ):
        begin(out, content, plan={"rows": 24}, resume=True)
    with begin(out, content, plan={"rows": 24}) as writer:
        assert (writer.done, writer.cleared) == ({}, "rows was 23, now it is 24")


SEALING = {
    "h5": [
        ("hdf5_container._create", 1),
        ("hdf5_container._create", 3),
        ("hdf5_container.Hdf5Container._add", 2),
        ("hdf5_container.Hdf5Container._add", 3),
        ("hdf5_container.digest", 1),
    ],
    "npy": [
        ("npy_container.NpyContainer._new", 1),
        ("npy_container.NpyContainer._new", 4),
        ("file_io.fsync_path", 1),
    ],
}
"""What sealing calls, and at which call it is interrupted."""


@pytest.mark.parametrize(
    ("kind", "target", "count"),
    [
        pytest.param(kind.values[0], target, count, id=f"{kind.id}-{target}-{count}", marks=kind.marks)
        for kind in KINDS
        for target, count in SEALING[kind.values[0][0]]
    ],
)
def test_interrupted_while_sealing(
    out: Path,
    content: Content,
    whole: dict[str, bytes],
    target: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """When arrays are added, rows moved and dropped, whose place in the file may hold something else by now."""
    real, calls = pkgutil.resolve_name(f"packer.format.{target}"), []

    def fail(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == count:
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments, **options)

    def inspect(writer: PackWriter) -> None:
        monkeypatch.setattr(f"packer.format.{target}", fail)

    with pytest.raises(PackerError, match=r"writing failed \(Input/output error\)"):
        write_content(out, content, keep=KEEP, moves=MOVES, plan=PLAN, inspect=inspect)
    assert len(calls) == count
    monkeypatch.undo()
    assert [name for name in os.listdir(out.parent) if name != "straight"] == [f"{out.name}.packing"]
    done: list[int] = []
    write_content(
        out, content, keep=KEEP, moves=MOVES, plan=PLAN, resume=True, inspect=lambda w: done.extend(w.done)
    )
    assert files_of(out) == whole
    assert 3 in done  # untouched by moves, and in front of what was dropped


def test_interrupted_after_sealing(
    out: Path, content: Content, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    """A whole pack in the folder, not yet under its name: it is taken over, and sealed again."""

    def fail(self: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("packer.writing.working_folder.WorkingFolder.publish", fail)
        with pytest.raises(PackerError, match=r"writing failed \(Input/output error\)"):
            write_content(out, content, plan=PLAN)
    assert open_pack(f"{out}.packing/pack").rows == ROWS
    done: list[int] = []
    write_content(
        out, content, keep=KEEP, moves=MOVES, plan=PLAN, resume=True, inspect=lambda w: done.extend(w.done)
    )
    assert done == [0, 1, 2, 3, 4]
    assert files_of(out) == whole
