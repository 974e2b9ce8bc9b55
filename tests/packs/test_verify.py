"""Damage of every kind is found and named; what is whole is called whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.codecs.block_codecs import block_codec, codec_record
from packer.errors import FormatError, UsageError
from packer.format.block_spans import ArraySpans
from packer.format.checksums import SIZE, Trailer, digest, outside
from packer.format.fields import OFFSETS, Extent, Field
from packer.format.hdf5_container import taken
from packer.packs.pack_opening import open_pack
from packer.packs.shards import write_index
from packer.packs.verify import Problem, verify_pack
from packer.writing.pack_writer import PackWriter
from tests.format.packs import FIELDS, FORMATS, keys_of, out_path, rows_of, write_pack

CLASSES = tuple(f"class {i}" for i in range(23))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(bytes(data))


def place(out: Path, array: str, element: int) -> tuple[Path, int]:
    """The file and the byte offset of an element of an array."""
    pack = open_pack(out)
    extent = pack.header.extents[array][0]
    return Path(pack.file(extent)), extent.offset + element * extent.row_bytes


def told(out: Path) -> list[tuple[str, str | None, int | None, tuple[int, int] | None]]:
    """Of each problem all but the file and the sentence."""
    return [(p.kind, p.array, p.block, p.rows) for p in verify_pack(out).problems]


# --- whole packs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [23, 22, 20, 3, 1])
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_whole_pack_is_called_whole(tmp_path: Path, format: str, keep: int, threads: int | None):
    out, done = out_path(tmp_path, format), list[int]()
    write_pack(out, keep=keep, classes=CLASSES)
    verdict = verify_pack(out, threads=threads, on_progress=done.append)
    assert verdict.ok
    assert verdict.problems == ()
    assert verdict.nbytes == open_pack(out).nbytes == done[-1]
    assert done == sorted(done)


def test_no_threads_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^threads=0: is not a whole number of at least 1\.$"):
        verify_pack(tmp_path, threads=0)


def coded_pack(out: Path, field: Field, rows: list[bytes] | np.ndarray) -> None:
    """A pack whose images are stored through a codec."""
    fields = (field, Field("label", "<i8", ()), Field("key", "|u1", None))
    format = "h5" if out.suffix == ".h5" else "npy"
    with PackWriter(str(out), fields=fields, rows=len(rows), block_rows=4, format=format) as writer:
        for block in range(-(-len(rows) // 4)):
            part = slice(4 * block, min(len(rows), 4 * block + 4))
            writer.write_block(block, {"image": rows[part], "label": np.arange(len(rows))[part]})
        writer.finish(rows=len(rows), ragged={"key": keys_of(len(rows))}, classes=CLASSES)


@pytest.mark.parametrize("codec", ["gzip", "zstd", "blosc2"])
def test_compressed_blocks_are_compared_as_they_are_stored(tmp_path: Path, codec: str):
    out = tmp_path / "p.h5"
    record = codec_record(block_codec(codec, (4, 6, 3), np.dtype("u1")))
    coded_pack(out, Field("image", "|u1", (4, 6, 3), {}, record), rows_of(10)["image"])
    assert verify_pack(out).problems == ()
    extent = open_pack(out).header.extents["image"][2]
    flip(out, extent.end - 1)
    assert told(out) == [("rows", "image", 2, (8, 10))]


def test_jpeg_rows_are_compared_as_they_are_stored(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    images = [simplejpeg.encode_jpeg(np.full((8, 8, 3), i, np.uint8)) for i in range(10)]
    coded_pack(out, Field("image", "|u1", None, {}, {"name": "jpeg", "shape": [8, 8, 3]}), images)
    assert verify_pack(out).problems == ()
    flip(*place(out, "image", sum(map(len, images[:5]))))
    assert told(out) == [("rows", "image", 1, (4, 8))]


def test_blocks_larger_than_what_is_read_at_once(tmp_path: Path, format: str):
    out, rows = out_path(tmp_path, format), 5
    fields = (Field("x", "<f4", (1000, 201)), Field("label", "<i8", ()))
    content = np.random.default_rng(0).random((rows, 1000, 201), np.float32)
    with PackWriter(str(out), fields=fields, rows=rows, block_rows=2, format=format) as writer:
        for block in range(3):
            part = slice(2 * block, min(rows, 2 * block + 2))
            writer.write_block(block, {"x": content[part], "label": np.arange(rows)[part]})
        writer.finish(rows=rows, ragged={})
    assert verify_pack(out).problems == ()
    file, offset = place(out, "x", 4)
    flip(file, offset - 1)
    assert told(out) == [("rows", "x", 1, (2, 4))]


def test_many_blocks_are_told_apart(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    write_pack(out, rows=300, block_rows=1)
    assert verify_pack(out).problems == ()
    flip(*place(out, "label", 123))
    flip(*place(out, "image", 299))
    assert told(out) == [("rows", "label", 123, (123, 124)), ("rows", "image", 299, (299, 300))]


def test_a_sealed_pack_needs_neither_hdf5_nor_torch(tmp_path: Path):
    write_pack(tmp_path / "p.h5")
    code = (
        "import sys; from packer.packs.verify import Problem, verify_pack; assert verify_pack(sys.argv[1]).ok;"
        "print({'h5py', 'torch'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "p.h5")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert run.stdout.strip() == "set()"


# --- one flipped bit --------------------------------------------------------------------------------------------------

ROWS = [
    ("image", 0, "rows 0 to 4 of 'image' are damaged (block 0: its checksum differs)", 0, (0, 5)),
    ("image", 11, "rows 10 to 14 of 'image' are damaged (block 2: its checksum differs)", 2, (10, 15)),
    ("label", 20, "row 20 of 'label' is damaged (block 4: its checksum differs)", 4, (20, 21)),
    ("key", 0, "rows 0 to 4 of 'key' are damaged (block 0: its checksum differs)", 0, (0, 5)),
    ("key.offsets", 0, "rows 0 to 4 of 'key.offsets' are damaged (block 0: its checksum differs)", 0, (0, 5)),
    ("key.offsets", 21, "row 20 of 'key.offsets' is damaged (block 4: its checksum differs)", 4, (20, 21)),
]


@pytest.mark.parametrize(("array", "element", "text", "block", "rows"), ROWS)
def test_a_bit_of_a_row(tmp_path: Path, format: str, array: str, element: int, text: str, block: int, rows):
    out = out_path(tmp_path, format)
    write_pack(out, keep=21, classes=CLASSES)
    file, offset = place(out, array, element)
    flip(file, offset)
    sentence = f"{file}: {text}. Convert the images again."
    assert verify_pack(out).problems == (Problem(str(file), "rows", sentence, array, block, rows),)


@pytest.mark.parametrize("bit", range(8))
def test_damaged_offsets_are_not_blamed_on_the_bytes_they_lead_to(tmp_path: Path, format: str, bit: int):
    out = out_path(tmp_path, format)
    write_pack(out)
    for byte in range(8):  # the entry that bounds blocks 0 and 1
        file, offset = place(out, "key.offsets", 5)
        flip(file, offset + byte, bit)
        assert told(out) == [("rows", "key.offsets", 1, (5, 10))]
        flip(file, offset + byte, bit)


@pytest.mark.usefixtures("hdf5_here")
def test_a_bit_of_the_checksum_table_is_not_blamed_on_the_rows(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    write_pack(out)
    trailer = Trailer.from_bytes(open_pack(out).seal)
    assert trailer is not None
    file = out if format == "h5" else out / "checksums.npy"
    flip(file, trailer.checksums_offset + 8 * (4 * 2 + 1))  # of 5 blocks of 4 arrays
    text = f"{file}: checksum table is damaged; the rows are intact. Convert the images again."
    assert verify_pack(out).problems == (Problem(str(file), "checksums", text),)
    flip(file, trailer.checksums_offset)
    assert verify_pack(out).problems == (Problem(str(file), "checksums", text),)


@pytest.mark.usefixtures("hdf5_here")
def test_damaged_rows_beside_a_damaged_table(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    write_pack(out)
    trailer = Trailer.from_bytes(open_pack(out).seal)
    assert trailer is not None
    flip(out if format == "h5" else out / "checksums.npy", trailer.checksums_offset)
    flip(*place(out, "label", 22))
    assert told(out) == [
        ("checksums", None, None, None),
        ("rows", "image", 0, (0, 5)),  # only its entry is damaged, which nothing tells any more
        ("rows", "label", 4, (20, 23)),
    ]


HDF5_SECTIONS = {
    "signature": ("metadata", lambda trailer: 0),
    "superblock": ("metadata", lambda trailer: 40),
    "root group": ("metadata", lambda trailer: 100),
    "first byte of the header": ("header", lambda trailer: trailer.header_offset),
    "last byte of the header": ("header", lambda trailer: trailer.header_offset + trailer.header_length - 1),
    "behind the header": ("metadata", lambda trailer: trailer.header_offset + trailer.header_length),
    **{
        f"trailer's byte {at}": ("trailer", lambda trailer, at=at: trailer.container_length + at)
        for at in (0, 8, 16, 24, 40, 48, 56, 72, 88, 111, 112, 119, 120, 127)
    },
}
SENTENCES = {
    "metadata": "bytes outside the rows are damaged (their checksum differs); packer reads the rows nevertheless, HDF5 may not",
    "header": "header is damaged (its checksum differs)",
    "trailer": "trailer is damaged",
}


@pytest.mark.usefixtures("hdf5_here")
@pytest.mark.parametrize("section", HDF5_SECTIONS)
def test_a_bit_of_an_hdf5_file_outside_the_rows(tmp_path: Path, section: str):
    out = tmp_path / "p.h5"
    write_pack(out, keep=21)
    trailer = Trailer.from_bytes(open_pack(out).seal)
    assert trailer is not None
    kind, where = HDF5_SECTIONS[section]
    flip(out, where(trailer))
    sentence = f"{out}: {SENTENCES[kind]}. Convert the images again."
    assert verify_pack(out).problems == (Problem(str(out), kind, sentence),)


def test_rows_cleared_behind_the_last_one_are_covered(tmp_path: Path):
    out = tmp_path / "p.h5"
    write_pack(out, keep=21)
    file, offset = place(out, "image", 21)
    flip(file, offset)
    assert told(out) == [("metadata", None, None, None)]


@pytest.mark.parametrize("array", ["image", "label", "key", "key.offsets"])
@pytest.mark.parametrize("offset", [0, 6, 8, 20, 60, 126, 127])
def test_a_bit_of_an_npy_header(tmp_path: Path, array: str, offset: int):
    write_pack(tmp_path / "p")
    file = tmp_path / "p" / f"{array}.npy"
    flip(file, offset)
    text = (
        f"{file}: its .npy header is not the one that packer wrote; another program has changed the file,"
        " or it is damaged. Convert the images again."
    )
    assert verify_pack(tmp_path / "p").problems == (Problem(str(file), "metadata", text, array),)


def test_a_bit_of_the_tables_npy_header(tmp_path: Path):
    write_pack(tmp_path / "p")
    file = tmp_path / "p" / "checksums.npy"
    flip(file, 70)
    text = f"{file}: its .npy header is damaged. Convert the images again."
    assert verify_pack(tmp_path / "p").problems == (Problem(str(file), "metadata", text),)


@pytest.mark.parametrize(("name", "kind"), [("header.json", "header"), ("trailer", "trailer")])
def test_a_bit_of_a_directorys_header_or_trailer(tmp_path: Path, name: str, kind: str):
    write_pack(tmp_path / "p")
    for offset in range(0, (tmp_path / "p" / name).stat().st_size, 7):
        flip(tmp_path / "p" / name, offset)
        assert told(tmp_path / "p") == [(kind, None, None, None)]
        flip(tmp_path / "p" / name, offset)


@settings(max_examples=75)
@given(data=st.data())
@pytest.mark.parametrize("format", FORMATS)
def test_no_bit_holds_nothing(format: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    """Whichever bit of whichever file is flipped, one place is named, and it holds the bit."""
    out = out_path(tmp_path_factory.getbasetemp() / f"bits-{format}", format)
    if not out.exists():
        out.parent.mkdir(exist_ok=True)
        write_pack(out, keep=21, classes=CLASSES)
    file = out if format == "h5" else data.draw(st.sampled_from(sorted(out.iterdir())))
    offset = data.draw(st.integers(0, file.stat().st_size - 1))
    flip(file, offset, bit := data.draw(st.integers(0, 7)))
    try:
        problems = verify_pack(out, threads=1).problems
    finally:
        flip(file, offset, bit)
    assert len(problems) == 1
    if problems[0].kind == "rows":
        rows, array = problems[0].rows, problems[0].array
        assert rows is not None
        assert array is not None
        bounds = rows
        if array == "key":
            entries = open_pack(out).read("key" + OFFSETS)
            bounds = int(entries[rows[0]]), int(entries[rows[1]])
        elif array.endswith(OFFSETS) and rows[1] == 21:
            bounds = rows[0], 22
        assert place(out, array, bounds[0])[1] <= offset < place(out, array, bounds[1])[1]
        assert problems[0].file == str(file)


# --- more than a bit --------------------------------------------------------------------------------------------------


def test_exchanged_blocks(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    write_pack(out)
    file, start = place(out, "image", 5)
    _, middle = place(out, "image", 10)
    _, stop = place(out, "image", 15)
    data = file.read_bytes()
    file.write_bytes(data[:start] + data[middle:stop] + data[start:middle] + data[stop:])
    assert told(out) == [("rows", "image", 1, (5, 10)), ("rows", "image", 2, (10, 15))]


@pytest.mark.usefixtures("hdf5_here")
@pytest.mark.parametrize("length", [0, 7, 3000, -SIZE - 1, -1])
def test_a_file_cut_short(tmp_path: Path, length: int):
    out = tmp_path / "p.h5"
    write_pack(out)
    os.truncate(out, length if length >= 0 else out.stat().st_size + length)
    if length in (0, 7):
        with pytest.raises(FormatError, match=r"is neither a pack nor an HDF5 file"):
            verify_pack(out)
    else:
        assert told(out) == [("trailer", None, None, None)]


def test_a_file_that_lost_its_trailer_alone(tmp_path: Path):
    out = tmp_path / "p.h5"
    write_pack(out)
    os.truncate(out, out.stat().st_size - SIZE)
    text = (
        f"{out}: was opened for writing after it was sealed, so its rows may have changed."
        f" Run packer seal {out}."
    )
    assert verify_pack(out).problems == (Problem(str(out), "unsealed", text),)


@pytest.mark.parametrize("name", ["image.npy", "label.npy", "key.npy", "key.offsets.npy"])
def test_an_array_cut_short_or_missing(tmp_path: Path, name: str):
    write_pack(tmp_path / "p")
    file = tmp_path / "p" / name
    os.truncate(file, file.stat().st_size - 1)
    (problem,) = verify_pack(tmp_path / "p").problems
    assert problem.kind == "rows"
    assert problem.text.startswith(f"{file}: is {file.stat().st_size} bytes long; the rows of {file.stem!r} ")
    file.unlink()
    assert told(tmp_path / "p") == [("rows", None, None, None)]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 200)])
def test_a_table_cut_short_or_missing_is_known_from_the_rows(tmp_path: Path, damage: Callable[[Path], None]):
    write_pack(tmp_path / "p")
    file = tmp_path / "p" / "checksums.npy"
    damage(file)
    (problem,) = verify_pack(tmp_path / "p").problems
    assert problem.file == str(file)
    flip(*place(tmp_path / "p", "label", 3))
    assert told(tmp_path / "p")[1:] == [("rows", None, None, None)]


@pytest.mark.parametrize("name", ["header.json", "trailer"])
def test_a_header_or_trailer_missing(tmp_path: Path, name: str):
    write_pack(tmp_path / "p")
    (tmp_path / "p" / name).unlink()
    assert [p[0] for p in told(tmp_path / "p")] == [name.partition(".")[0]]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("image.npy", "metadata"), ("checksums.npy", "metadata"), ("header.json", "header"), ("trailer", "trailer")],
)  # fmt: skip
def test_bytes_behind_the_end_of_a_file(tmp_path: Path, name: str, kind: str):
    write_pack(tmp_path / "p")
    with (tmp_path / "p" / name).open("ab") as file:
        file.write(b"\0")
    (problem,) = verify_pack(tmp_path / "p").problems
    assert problem.kind == kind


@pytest.mark.usefixtures("hdf5_here")
def test_bytes_behind_the_trailer(tmp_path: Path):
    write_pack(tmp_path / "p.h5")
    with (tmp_path / "p.h5").open("ab") as file:
        file.write(bytes(SIZE))
    assert told(tmp_path / "p.h5") == [("trailer", None, None, None)]


def test_a_block_that_the_disk_cannot_read(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = out_path(tmp_path, format)
    write_pack(out)
    file, bad = place(out, "image", 7)
    preadv = os.preadv

    def failing(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset <= bad < offset + len(buffers[0]) and os.path.samestat(os.fstat(fd), file.stat()):
            raise OSError(5, "Input/output error")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    (problem,) = verify_pack(out).problems
    assert (problem.kind, problem.array, problem.block) == ("rows", "image", 1)
    assert "rows 5 to 9 of 'image' are damaged (block 1: Input/output error)" in problem.text


# --- values that the checksums do not forbid --------------------------------------------------------------------------


def forged(out: Path, *, labels: np.ndarray | None = None, offsets: np.ndarray | None = None) -> None:
    """A pack with impossible values under checksums that fit them."""
    content = rows_of(23)
    with PackWriter(
        str(out), fields=FIELDS, rows=23, block_rows=5, format="h5" if out.suffix else "npy"
    ) as w:
        for block in range(5):
            part = slice(5 * block, min(23, 5 * block + 5))
            given = content["label"] if labels is None else labels
            w.write_block(block, {"image": content["image"][part], "label": given[part]})
        w.finish(rows=23, ragged={"key": keys_of(23)}, classes=CLASSES[:20])


def test_labels_that_number_no_class(tmp_path: Path, format: str):
    out = out_path(tmp_path, format)
    labels = np.zeros(23, "<i8")
    labels[[6, 8]] = -1, 20
    forged(out, labels=labels)
    file = out if format == "h5" else out / "label.npy"
    text = (
        f"{file}: 'label' are not all within 0 to 19 (rows 6 to 8), although the checksums agree."
        " Convert the images again."
    )
    assert verify_pack(out).problems == (Problem(str(file), "rows", text, "label", 1, (6, 9)),)


OFFSET_RULES = [
    (0, 1, 0, ["begin at 1, not at 0 (row 0)"]),
    (7, 0, 1, ["fall (row 6)"]),
    (5, 1 << 40, 1, ["fall (row 5)"]),
    (10, 0, 1, ["fall (row 9)"]),  # between two blocks
    (23, 1, 4, ["end at 1, their bytes at 122 (row 22)", "fall (row 22)"]),
    (23, 1 << 40, 4, ["end at 1099511627776, their bytes at 122 (row 22)"]),
]


@pytest.mark.parametrize(("entry", "value", "block", "what"), OFFSET_RULES)
def test_offsets_that_fall_or_lead_out(
    tmp_path: Path, format: str, entry: int, value: int, block: int, what: list[str]
):
    out = out_path(tmp_path, format)
    write_pack(out)
    file, offset = place(out, "key.offsets", entry)
    data = bytearray(file.read_bytes())
    data[offset : offset + 8] = value.to_bytes(8, "little")
    file.write_bytes(bytes(data))
    refit(out)
    sentences = [
        f"{file}: 'key.offsets' {w}, although the checksums agree. Convert the images again." for w in what
    ]
    problems = verify_pack(out).problems
    assert [p.text for p in problems] == sentences
    assert {(p.file, p.kind, p.array, p.block) for p in problems} == {
        (str(file), "rows", "key.offsets", block)
    }


def refit(out: Path) -> None:
    """Make the checksum table and its digest fit the rows as they are now."""
    from packer.packs.block_hashing import hash_blocks

    pack = open_pack(out)
    trailer = Trailer.from_bytes(pack.seal)
    assert trailer is not None
    table = hash_blocks(pack, threads=1, progress=lambda done: None, checks={}).table
    file = out if out.suffix else out / "checksums.npy"
    data = bytearray(file.read_bytes())
    data[trailer.checksums_offset : trailer.checksums_offset + table.nbytes] = table.tobytes()
    file.write_bytes(bytes(data))
    rest = trailer.rest_digest
    if out.suffix:
        ranges = outside(taken(pack.header.extents), trailer.container_length)
        rest = digest([bytes(data[a:b]) for a, b in ranges])
    changed = Trailer(
        trailer.container_length,
        trailer.header_offset,
        trailer.header_length,
        trailer.header_digest,
        trailer.checksums_offset,
        trailer.checksums_length,
        digest([table]),
        rest,
    )
    seal = out if out.suffix else out / "trailer"
    seal.write_bytes(seal.read_bytes()[:-SIZE] + changed.to_bytes())


# --- shards -----------------------------------------------------------------------------------------------------------


def sharded(folder: Path, format: str) -> Path:
    out = folder / "sharded"
    out.mkdir()
    shards = []
    for number, rows in enumerate((7, 9)):
        shard = out_path(out, format, f"{number:05d}")
        write_pack(shard, rows=rows)
        shards.append(open_pack(shard))
    write_index(str(out), shards)
    return out


def test_every_shard_is_looked_at(tmp_path: Path, format: str):
    out, done = sharded(tmp_path, format), list[int]()
    verdict = verify_pack(out, on_progress=done.append)
    assert verdict.problems == ()
    assert verdict.nbytes == open_pack(out).nbytes == done[-1]
    shard = out_path(out, format, "00001")
    flip(*place(shard, "label", 8))
    assert told(out) == [("rows", "label", 1, (5, 9))]


def test_an_exchanged_shard_is_found(tmp_path: Path, format: str):
    out = sharded(tmp_path, format)
    shard = out_path(out, format, "00001")
    if shard.is_dir():
        shutil.rmtree(shard)
    write_pack(shard, rows=9, seed=1, overwrite=True)
    assert [p[0] for p in told(out)] == ["index"]
    if shard.is_dir():
        shutil.rmtree(shard)
    else:
        shard.unlink()
    assert [p[0] for p in told(out)] == ["index"]


def test_a_damaged_index_is_one_problem(tmp_path: Path, format: str):
    out = sharded(tmp_path, format)
    flip(out / "index.json", 30)
    assert told(out) == [("index", None, None, None)]


# --- no packs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: None, "x: cannot be read (No such file or directory). Check the name and the permissions."),
        (Path.mkdir, "x: is a folder without a 'trailer' file, not a pack."
        " Run packer convert x OUT.h5, or packer.fill_pack(images, 'OUT.h5'), which converts while it is loaded from."),
        (lambda p: p.write_text("hello"), "x: is neither a pack nor an HDF5 file. Pass what packer convert wrote."),
    ],
)  # fmt: skip
def test_what_is_no_pack_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], sentence: str
):
    monkeypatch.chdir(tmp_path)
    make(Path("x"))
    with pytest.raises(FormatError) as error:
        verify_pack("x")
    assert str(error.value) == sentence


# --- the parts --------------------------------------------------------------------------------------------------------


def test_a_block_may_lie_in_several_extents():
    extents = [Extent("", 100, 3, 10), Extent("", 500, 0, 10), Extent("", 200, 4, 10)]
    spans = ArraySpans(extents)
    assert spans.elements(0, 2) == [("", 100, 20)]
    assert spans.elements(2, 5) == [("", 120, 10), ("", 200, 20)]
    assert spans.elements(5, 7) == [("", 220, 20)]
    assert spans.elements(7, 9) is spans.elements(-1, 2) is spans.elements(3, 2) is None
    assert spans.elements(7, 7) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=6), st.integers(0, 60))
def test_outside_is_what_no_range_takes(ranges: list[tuple[int, int]], length: int):
    taken = [(start, start + count) for start, count in ranges]
    found = outside(taken, length)
    inside = {byte for start, stop in taken for byte in range(start, stop)}
    if all(stop <= length for _, stop in taken):
        assert [b for a, z in found for b in range(a, z)] == [b for b in range(length) if b not in inside]
