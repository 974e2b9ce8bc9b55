"""What every format promises: written rows come back, through ours and through everybody else's readers."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyfive
import pytest

from packer.errors import FormatError
from packer.format.checksums import SIZE, Trailer, block_checksum, digest, outside
from packer.format.fields import Field
from packer.format.file_io import pread_all
from packer.format.hdf5_container import taken
from packer.packs import pack as format_pack
from packer.packs import pack_opening
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter
from tests.format.packs import keys_of, out_path, rows_of, write_pack


def checksums_of(pack: Pack) -> np.ndarray:
    """The stored table."""
    if pack.format == "npy":
        return np.load(os.path.join(pack.path, "checksums.npy"))
    with h5py.File(pack.path) as file:
        return file["packer/checksums"][:]


@pytest.mark.parametrize("keep", [23, 22, 20, 16, 3, 1])
def test_rows_come_back(tmp_path: Path, format: str, keep: int):
    out = out_path(tmp_path, format)
    header = write_pack(out, keep=keep, classes=("a", "b"), seed=4)
    pack = open_pack(out)
    assert pack.sealed
    assert pack.header == header
    assert (pack.rows, pack.format, pack.header.classes, pack.header.seed) == (keep, format, ("a", "b"), 4)
    for name, array in rows_of(23).items():
        assert (pack.read(name) == array[:keep]).all()
        assert (pack.read(name, 1, 3) == array[:keep][1:3]).all()
    assert [os.fsencode(key) for key in pack.keys()] == keys_of(keep)
    assert pack.keys(1, 4) == [os.fsdecode(key) for key in keys_of(keep)[1:4]]


@pytest.mark.parametrize("keep", [23, 11, 2])
def test_every_checksum_is_that_of_its_block(tmp_path: Path, format: str, keep: int):
    write_pack(out_path(tmp_path, format), keep=keep)
    pack = open_pack(out_path(tmp_path, format))
    offsets, blob, size = pack.read("key.offsets"), pack.read("key"), pack.header.block_rows
    expected = []
    for start in range(0, keep, size):
        stop = min(start + size, keep)
        expected.append(
            [
                block_checksum(pack.read("image", start, stop)),
                block_checksum(pack.read("label", start, stop)),
                block_checksum(blob[offsets[start] : offsets[stop]]),
                block_checksum(offsets[start : stop + (stop == keep)]),
            ]
        )
    assert checksums_of(pack).tolist() == expected


def test_a_file_that_is_replaced_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, other = out_path(tmp_path, "h5"), out_path(tmp_path, "h5", "other")
    write_pack(path, keep=3)
    new = write_pack(other, keep=22)

    def read_seal(name: str) -> bytes:
        seal = format_pack.read_seal(name)
        if os.path.exists(other):
            os.replace(other, path)
        return seal

    monkeypatch.setattr(pack_opening, "read_seal", read_seal)
    assert open_pack(path).header == new


def test_equal_content_gives_equal_files(tmp_path: Path, format: str):
    for name in ("one", "two"):
        write_pack(out_path(tmp_path, format, name), keep=20)
    one, two = (out_path(tmp_path, format, name) for name in ("one", "two"))
    pairs = [(one, two)] if format == "h5" else [(one / p.name, two / p.name) for p in one.iterdir()]
    assert all(a.read_bytes() == b.read_bytes() for a, b in pairs)
    assert len(pairs) == (1 if format == "h5" else 7)


def test_any_hdf5_reader_reads_it(tmp_path: Path):
    write_pack(tmp_path / "p.h5")
    expected = rows_of(23)
    with h5py.File(tmp_path / "p.h5") as file:
        assert sorted(file) == ["image", "key", "key.offsets", "label", "packer"]
        assert file["image"].chunks == (23, 4, 6, 3)  # blocks of 5 rows would be chunks of less than 4 KiB
        assert (file["image"][:] == expected["image"]).all()
        assert (file["label"][:] == expected["label"]).all()
    second = pyfive.File(tmp_path / "p.h5")  # an independent implementation, in Python
    assert (second["image"][:] == expected["image"]).all()
    assert (second["label"][:] == expected["label"]).all()
    assert bytes(second["packer/header"][:]) == open_pack(tmp_path / "p.h5").header.to_bytes()


@pytest.mark.parametrize("rows", [92, 99, 100, 106, 113, 120, 127, 500])
def test_small_fields_lie_in_one_extent_each(tmp_path: Path, rows: int):
    """HDF5 takes chunks under 2 KiB from blocks that several datasets share."""
    fields = (
        Field("image", "|u1", (64, 64, 1)),
        Field("label", "<i8", ()),
        Field("keypoints", "<f4", (1, 2)),
        Field("tag", "|u1", ()),
    )
    options = {"fields": fields, "rows": rows, "block_rows": 43, "format": "h5"}
    with PackWriter(str(tmp_path / "p.h5"), **options) as writer:
        content = {f.name: np.zeros((rows, *f.shape), f.dtype) for f in fields}
        for block, start in enumerate(range(0, rows, 43)):
            writer.write_block(block, {n: a[start : start + 43] for n, a in content.items()})
        header = writer.finish(rows=rows - 1, ragged={})
    assert {name: len(extents) for name, extents in header.extents.items()} == dict.fromkeys(content, 1)
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["image"].chunks == (43, 64, 64, 1)
        assert file["keypoints"].chunks == (min(rows, 512), 1, 2)
        assert file["keypoints"].shape == (rows - 1, 1, 2)


def test_h5_rows_lie_in_one_extent_a_field(tmp_path: Path):
    header = write_pack(tmp_path / "p.h5", rows=400, block_rows=1)
    assert [len(extents) for extents in header.extents.values()] == [1, 1, 1, 1]


def test_trailer_covers_every_byte_outside_the_rows(tmp_path: Path):
    write_pack(tmp_path / "p.h5")
    data = (tmp_path / "p.h5").read_bytes()
    trailer = Trailer.from_bytes(data[-SIZE:])
    assert trailer is not None
    ranges = outside(taken(open_pack(tmp_path / "p.h5").header.extents), len(data) - SIZE)
    assert digest([data[a:b] for a, b in ranges]) == trailer.rest_digest
    table = data[trailer.checksums_offset : trailer.checksums_offset + trailer.checksums_length]
    assert digest([table]) == trailer.checksums_digest


def test_a_file_opened_for_writing_since_is_refused_with_the_remedy(tmp_path: Path):
    out = tmp_path / "p.h5"
    write_pack(out)
    with h5py.File(out, "a") as file:
        file.attrs["note"] = "added"
    with pytest.raises(FormatError) as error:
        open_pack(out)
    text = f"{out}: was opened for writing after it was sealed, so its rows may have changed. Run packer seal {out}."
    assert str(error.value) == text


def test_an_unsealed_file_whose_arrays_changed_is_refused(tmp_path: Path):
    write_pack(tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5", "a") as file:
        file["label"].resize(9, axis=0)
    with pytest.raises(
        FormatError,
        match=r"its arrays no longer match its header \(extents of 'label' do not hold \d+ rows\)",
    ):
        open_pack(tmp_path / "p.h5")


def test_a_replaced_pack_is_noticed(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    write_pack(out)
    pack = open_pack(out)
    pack.check_same()
    write_pack(out, rows=22, overwrite=True)
    with pytest.raises(FormatError) as error:
        pack.check_same()
    assert str(error.value) == f"{out}: was replaced or changed after it was opened. Open it again."


def damaged_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b'"block_rows":5') + 13] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda p: p.unlink(),
            "p.h5: cannot be read (No such file or directory). Check the name and the permissions.",
        ),
        (
            lambda p: p.write_bytes(b""),
            "p.h5: is neither a pack nor an HDF5 file. Pass what packer convert wrote.",
        ),
        (
            lambda p: p.write_text("hello" * 99),
            "p.h5: is neither a pack nor an HDF5 file. Pass what packer convert wrote.",
        ),
        (
            lambda p: os.truncate(p, 3000),
            "p.h5: HDF5 cannot read it: it was cut short or is damaged. Convert the images again.",
        ),
        (damaged_header, "p.h5: header is damaged (its checksum differs). Convert the images again."),
    ],
)
def test_each_damaged_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage, sentence: str
):
    monkeypatch.chdir(tmp_path)
    write_pack(Path("p.h5"))
    damage(Path("p.h5"))
    with pytest.raises(FormatError) as error:
        open_pack("p.h5")
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda p: (p / "trailer").unlink(),
            "p: is a folder without a 'trailer' file, not a pack. If the copy is complete, or the pack was edited in place, run"
            " packer seal p.",
        ),
        (
            lambda p: (p / "trailer").write_bytes(bytes(128)),
            "p/trailer: is damaged. Convert the images again.",
        ),
        (
            lambda p: damaged_header(p / "header.json"),
            "p: header is damaged (its checksum differs). Convert the images again.",
        ),
        (
            lambda p: os.truncate(p / "image.npy", 1000),
            "p/image.npy: is 1000 bytes long; the rows of 'image' reach to 1784. It was cut short: convert the images again.",
        ),
        (
            lambda p: (p / "label.npy").unlink(),
            "p/label.npy: cannot be read (No such file or directory). Check the name and the permissions.",
        ),
    ],
)
def test_each_damaged_directory_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage, sentence: str
):
    monkeypatch.chdir(tmp_path)
    write_pack(Path("p"))
    damage(Path("p"))
    with pytest.raises(FormatError) as error:
        open_pack("p")
    assert str(error.value) == sentence


@pytest.mark.parametrize("member", ["header_offset", "header_length", "checksums_offset", "checksums_length"])
@pytest.mark.parametrize("value", [(1 << 64) - 1, 1 << 62, 1 << 29])
def test_a_trailer_that_leads_astray_is_a_format_error(tmp_path: Path, format: str, member: str, value: int):
    """Whole by its own checksum, as a hostile file's may be."""
    out = out_path(tmp_path, format)
    write_pack(out)
    file = out if format == "h5" else out / "trailer"
    data = file.read_bytes()
    trailer = Trailer.from_bytes(data[-SIZE:])
    assert trailer is not None
    file.write_bytes(data[:-SIZE] + replace(trailer, **{member: value}).to_bytes())
    with pytest.raises(FormatError, match=r"header is damaged|header is \d+ bytes|checksum table is damaged"):
        open_pack(out).checksums()


def test_an_unfinished_conversion_is_never_read(tmp_path: Path):
    write_pack(tmp_path / "p.h5")
    shutil.copy(tmp_path / "p.h5", tmp_path / "p.h5.packing")
    with pytest.raises(FormatError, match="is a conversion that did not finish"):
        open_pack(tmp_path / "p.h5.packing")


def test_read_notices_a_file_cut_short_after_opening(tmp_path: Path):
    write_pack(tmp_path / "p")
    pack = open_pack(tmp_path / "p")
    os.truncate(tmp_path / "p" / "image.npy", 1000)
    with pytest.raises(FormatError, match=r"image.npy: ends before row 23; it was cut short"):
        pack.read("image")


def test_pread_all_stops_at_the_end(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"abc")
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        assert pread_all(fd, 10, 1) == b"bc"
    finally:
        os.close(fd)
