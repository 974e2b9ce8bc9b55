from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest

from packer.errors import FormatError, PackerError, SpaceError, UsageError
from packer.format.fields import Field
from packer.packs.output_names import check_space, format_of
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter
from tests.format.packs import FIELDS, files_of, out_path, rows_of, write_pack


def begin(out: Path, format: str, **options: object) -> PackWriter:
    return PackWriter(str(out), fields=FIELDS, rows=10, block_rows=5, format=format, **options)


def test_nothing_under_the_final_name_until_finished(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    with begin(out, format) as writer:
        writer.write_block(0, {n: a[:5] for n, a in rows_of(10).items()})
        assert sorted(os.listdir(tmp_path)) == [out.name + ".packing"]
    assert os.listdir(tmp_path) == []


def test_finished_leaves_the_pack_alone(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    write_pack(out)
    assert os.listdir(tmp_path) == [out.name]


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    partial = Path(f"{out}.packing")
    (partial / "blocks").mkdir(parents=True)
    (partial / "pack").write_bytes(b"old")
    (partial / "journal").write_bytes(b"torn")
    write_pack(out)
    assert open_pack(out).rows == 23
    assert os.listdir(tmp_path) == [out.name]


def test_what_is_somebody_elses_is_not_cleared(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    partial = Path(f"{out}.packing")
    partial.mkdir()
    (partial / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError) as error:
        write_pack(out)
    assert str(error.value) == (
        f"{partial}: is needed as the working folder, but holds thesis.txt, which is not packer's."
        " Move it away, or pass another output."
    )
    assert (partial / "thesis.txt").read_text() == "years of work"


def test_a_file_in_the_way_is_not_removed(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    Path(f"{out}.packing").write_bytes(b"mine")
    with pytest.raises(
        PackerError,
        match=r"is needed as the working folder, but is not a folder\. Move it away, or pass another output\.$",
    ):
        write_pack(out)
    assert Path(f"{out}.packing").read_bytes() == b"mine"


@pytest.mark.usefixtures("impatient")
def test_second_writer_of_one_output_is_refused(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    with begin(out, format) as first:
        with pytest.raises(PackerError) as error:
            begin(out, format)
        assert str(error.value) == (
            f"{out}: another packer is writing it ({out}.packing is locked). Wait for it, or pass another name."
        )
        for block in range(2):
            first.write_block(block, {n: a[block * 5 : block * 5 + 5] for n, a in rows_of(10).items()})
        first.finish(rows=10, ragged={"key": [b"k"] * 10})
    assert (open_pack(out).read("image") == rows_of(10)["image"]).all()


def test_existing_output(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    write_pack(out)
    with pytest.raises(UsageError) as error:
        write_pack(out)
    assert (
        str(error.value)
        == f"{out}: exists; nothing is overwritten unasked. Pass overwrite=True, or another name."
    )
    write_pack(out, rows=7, overwrite=True)
    assert open_pack(out).rows == 7
    assert os.listdir(tmp_path) == [out.name]


def test_overwrite_replaces_only_packs(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dear.jpg").write_bytes(b"x")
    (tmp_path / "photos.tar").write_bytes(b"not a pack")
    for name in ("photos", "photos.tar"):
        with pytest.raises(UsageError) as error:
            write_pack(tmp_path / name, overwrite=True)
        assert (
            str(error.value)
            == f"{tmp_path / name}: is not a pack, or holds other files; overwrite=True replaces only packs. Pass another name."
        )
    assert (tmp_path / "photos" / "dear.jpg").exists()


def test_overwrite_spares_what_lies_in_or_behind_a_pack(tmp_path: Path):
    write_pack(tmp_path / "p")
    (tmp_path / "p" / "thesis.txt").write_text("years of work")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["precious"] = [1, 2, 3]
    for name in ("p", "link", "mine.h5"):
        with pytest.raises(UsageError, match="overwrite=True replaces only packs"):
            write_pack(tmp_path / name, overwrite=True)
    assert (tmp_path / "p" / "thesis.txt").exists()


def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    with pytest.raises(UsageError, match="has appeared meanwhile"), begin(out, format) as writer:
        for block in range(2):
            writer.write_block(block, {n: a[block * 5 : block * 5 + 5] for n, a in rows_of(10).items()})
        out.write_text("somebody else's")
        writer.finish(rows=10, ragged={"key": [b"k"] * 10})
    assert out.read_text() == "somebody else's"
    assert os.listdir(tmp_path) == [out.name]


def test_a_failing_rename_brings_the_old_pack_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_pack(tmp_path / "p")
    rename = os.rename

    def fail(origin: str, target: str) -> None:
        if origin.endswith(".packing/pack"):
            raise OSError(errno.EIO, "Input/output error")
        rename(origin, target)

    monkeypatch.setattr(os, "rename", fail)
    monkeypatch.setattr("packer.writing.working_folder.exchange", lambda *_: False)  # as on macOS
    with pytest.raises(PackerError, match=r"writing failed \(Input/output error\)"):
        write_pack(tmp_path / "p", rows=9, overwrite=True)
    assert open_pack(tmp_path / "p").rows == 23
    assert os.listdir(tmp_path) == ["p"]


def test_what_a_broken_replacement_left_does_not_block_the_next(tmp_path: Path):
    write_pack(tmp_path / "p")
    (tmp_path / "p.packing" / "old").mkdir(parents=True)
    (tmp_path / "p.packing" / "old" / "x").touch()
    write_pack(tmp_path / "p", rows=9, overwrite=True)
    assert open_pack(tmp_path / "p").rows == 9
    assert os.listdir(tmp_path) == ["p"]


def test_errors_while_creating_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("Unable to synchronously create file")  # h5py's errors carry no number

    monkeypatch.setattr("packer.format.hdf5_container.h5py.File", fail)
    with pytest.raises(PackerError, match=r"writing failed \(the HDF5 library could not write to the disk\)"):
        write_pack(tmp_path / "p.h5")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["seal", "fsync"])
def test_errors_while_sealing_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, step: str
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr("packer.format.hdf5_container.Hdf5Container.seal", fail)
        monkeypatch.setattr("packer.format.npy_container.NpyContainer.seal", fail)
    with pytest.raises(SpaceError, match=r"writing failed \(No space left on device\)"):
        write_pack(out_path(tmp_path, format))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("compressed", [True, False])
def test_a_disk_that_is_full_from_the_first_byte(tmp_path: Path, compressed: bool):
    """Where HDF5 stores no rows yet it writes only while h5py closes the file."""
    field = Field("x", "|u1", (512, 512), {}, {"name": "gzip", "level": 4} if compressed else None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(SpaceError, match=r"p\.h5: writing failed \(File too large\)"):
            PackWriter(str(tmp_path / "p.h5"), fields=[field], rows=10, block_rows=5, format="h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_all_of_a_pack_and_its_name_are_on_the_disk_before_it_is_called_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
):
    flushed = set[int]()
    fsync = os.fsync

    def note(fd: int) -> None:
        fsync(fd)
        flushed.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    path = out_path(tmp_path, format)
    write_pack(path)
    parts = [tmp_path, path, *(path.iterdir() if path.is_dir() else [])]
    assert {part.name for part in parts if part.stat().st_ino not in flushed} == set()


def test_folder_that_does_not_exist_or_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        UsageError, match=r"its folder .*/no does not exist\. Create it, or pass another name\.$"
    ):
        write_pack(tmp_path / "no" / "p.h5")
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    with pytest.raises(
        PackerError, match=r"no permission to write in .*\. Pass another name, or change the permission\.$"
    ):
        write_pack(tmp_path / "p.h5")


def test_disk_too_small(tmp_path: Path):
    with pytest.raises(
        SpaceError, match=r"p\.h5: needs 1,000,000 TB; .* GB free\. Free some space, or pass a smaller size"
    ):
        check_space(str(tmp_path / "p.h5"), 10**18)


def test_disk_that_fills_while_reserving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str):
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SpaceError, match="writing failed"):
        write_pack(out_path(tmp_path, format))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_does_not_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, number: int
):
    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    write_pack(out_path(tmp_path, format))
    expected = files_of(out_path(tmp_path, format))
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    (tmp_path / "other").mkdir()
    write_pack(out_path(tmp_path / "other", format))
    assert files_of(out_path(tmp_path / "other", format)) == expected


def test_disk_that_fills_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str):
    with begin(out_path(tmp_path, format), format) as writer:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(
            SpaceError,
            match=r"^.*/pack(\.h5)?: writing failed \(No space left on device\)\. Free some space, or pass another disk\.$",
        ):
            writer.write_block(0, {n: a[:5] for n, a in rows_of(10).items()})
    assert os.listdir(tmp_path) == []


def test_moved_rows_and_their_checksums(tmp_path: Path, format: str):
    """Rows 1 and 4 are replaced by 8 and 9; what results is what writing those rows in the first place gives."""
    order = [0, 8, 2, 3, 9, 5, 6, 7]
    content = rows_of(10)
    for name, rows in (("moved", list(range(10))), ("plain", order)):
        with PackWriter(
            str(out_path(tmp_path, format, name)), fields=FIELDS, rows=10, block_rows=5, format=format
        ) as writer:
            for block in range(2):
                part = np.array([*rows, 0, 0][block * 5 : block * 5 + 5])
                writer.write_block(block, {n: a[part] for n, a in content.items()})
            if name == "moved":
                writer.move_rows([(1, 8), (4, 9)])
            writer.finish(rows=8, ragged={"key": [b"k"] * 8})
    moved, plain = (out_path(tmp_path, format, name) for name in ("moved", "plain"))
    assert (open_pack(moved).read("image") == content["image"][order]).all()
    for a, b in [(moved, plain)] if format == "h5" else [(p, plain / p.name) for p in moved.iterdir()]:
        assert a.read_bytes() == b.read_bytes()


def test_pieces_make_the_same_pack_as_whole_blocks(tmp_path: Path, format: str):
    """A buffer filled again and again, in pieces of two rows, as conversion writes them."""
    content, out = rows_of(10), out_path(tmp_path, format)
    with begin(out, format) as writer:
        for block in range(2):
            buffer = np.empty((2, 4, 6, 3), np.uint8)

            start = block * 5
            opened = writer.files.open_block(block)
            opened.write({"label": content["label"][start : start + 5]})
            for row in range(start, start + 5, 2):
                piece = buffer[: min(2, start + 5 - row)]
                piece[:] = content["image"][row : row + len(piece)]
                opened.write({"image": piece})
            writer.record(block, None, opened.close())
        writer.finish(rows=10, ragged={"key": [b"k"] * 10})
    with begin(out_path(tmp_path, format, "whole"), format) as writer:
        for block in range(2):
            writer.write_block(block, {n: a[block * 5 : block * 5 + 5] for n, a in content.items()})
        writer.finish(rows=10, ragged={"key": [b"k"] * 10})
    whole = out_path(tmp_path, format, "whole")
    for a, b in [(out, whole)] if format == "h5" else [(p, whole / p.name) for p in out.iterdir()]:
        assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize(
    ("pieces", "sentence"),
    [
        ([4], "image: block 1 has 5 rows; 4 are given"),
        ([3, 3], "image: block 1 has 5 rows; more are given"),
        ([], "image: block 1 has 5 rows; 0 are given"),
    ],
)
def test_too_many_or_few_rows_are_refused(tmp_path: Path, pieces: list[int], sentence: str):
    content = rows_of(10)
    with begin(tmp_path / "p.h5", "h5") as writer, pytest.raises(ValueError, match="block 1") as error:
        opened = writer.files.open_block(1)
        opened.write({"label": content["label"][:5]})
        for n in pieces:
            opened.write({"image": content["image"][:n]})
        opened.close()
    assert str(error.value) == sentence


def test_wrong_rows_are_refused(tmp_path: Path):
    content = rows_of(10)
    with begin(tmp_path / "p.h5", "h5") as writer:
        for image in (content["image"][:5, :3], content["image"][:5].astype("<i2"), content["image"][:10:2]):
            with pytest.raises(ValueError, match=r"^image: rows are .*; \|u1\(5, 4, 6, 3\) fit$"):
                writer.write_block(1, {"image": image, "label": content["label"][:5]})


def test_too_few_keys_are_refused(tmp_path: Path):
    with (
        begin(tmp_path / "p.h5", "h5") as writer,
        pytest.raises(ValueError, match="key: 9 rows are given for 10"),
    ):
        writer.finish(rows=10, ragged={"key": [b"k"] * 9})


def test_a_header_that_cannot_be_read_again_is_not_sealed(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    with begin(out, format) as writer, pytest.raises(FormatError, match="header is malformed"):
        for block in range(writer.blocks):
            first = block * writer.block_rows
            content = rows_of(10)
            last = first + writer.block_rows
            writer.write_block(block, {name: content[name][first:last] for name in ("image", "label")})
        writer.finish(rows=10, ragged={"key": [b"k"] * 10}, splits={"train": ((0, 11),)})
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "format"), [("a.h5", "h5"), ("a.HDF5", "h5"), ("a", "npy"), ("a.v2", "npy")]
)
def test_the_name_asks_for_a_format(name: str, format: str):
    assert format_of(name) == format
