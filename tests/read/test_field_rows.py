"""What lies behind a field: rows of any length, JPEG files, compressed blocks, and the checking of their checksums."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.codecs import jpeg
from packer.codecs.block_codecs import Gzip
from packer.errors import FormatError
from packer.format.fields import Extent, Field
from packer.load.batch_dataset import PackedBatchDataset
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read import field_rows as stores
from packer.read.array_store import PackStore
from tests.format.packs import Content, begin, write_blocks, write_content, write_shards
from tests.open_files import listed_files, open_files
from tests.read.conftest import ROWS, SHAPE, STORED, content_of, make_stored, runs_of, store_of

ROW_BYTES = int(np.prod(SHAPE))
SOME = [(0, 16), (16, 16), (3, 1), (30, 40), (ROWS - 1, 1), (39, 3), (96, 7), (0, ROWS), (8, 16)]


def images(reader: PackStore, runs: Runs) -> np.ndarray:
    out = np.full((runs.total, ROW_BYTES), 99, np.uint8)
    reader.copy(runs, {"image": out})
    return out.reshape(-1, *SHAPE)


@pytest.mark.parametrize("verify", [False, True])
def test_runs_of_every_kind_of_pack(stored: Pack, expected: dict[str, np.ndarray], verify: bool):
    reader = PackStore(stored, stored.fields, verify=verify)
    for runs in [[run] for run in SOME] + [SOME, SOME[::-1]]:
        wanted = runs_of(*runs)
        rows = wanted.rows().tolist()
        reader.prefetch(wanted)
        assert (images(reader, wanted) == expected[store_of(stored)][rows]).all(), runs
        labels = np.empty((len(rows), 8), np.uint8)
        reader.copy(wanted, {"label": labels})
        assert labels.view("<i8")[:, 0].tolist() == [3 * row for row in rows], runs
        assert reader.ragged("text", wanted) == [b"abcd"[: row % 5] for row in rows], runs
        assert reader.ragged("key", wanted) == [b"row/%d" % row for row in rows], runs
    reader.close()


@pytest.mark.parametrize("store", ["raw", "jpeg", "gzip"])
def test_what_will_be_needed_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str):
    """Rows as they lie, the bytes of JPEG files, whole blocks: of each shard, and of its own file."""
    pack = make_stored(tmp_path, "h5", store, (40, 1, 62))
    reader, asked = PackStore(pack, pack.fields[:1]), []

    def note(
        extents: np.ndarray, files: np.ndarray, starts: np.ndarray, lengths: np.ndarray, size: int
    ) -> None:
        assert (np.diff(extents[:, 0]) > 0).all()
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            owner = int(np.searchsorted(extents[:, 0], start, "right")) - 1
            first, file, offset = extents[owner].tolist()
            place = os.readlink(f"/proc/self/fd/{files[file, 0]}")
            asked.append((place, offset + (start - first) * size, length * size))

    monkeypatch.setattr("packer.read.gather.willneed_rows", note)
    reader.prefetch(runs_of((3, 2), (41, 20)))
    first, last = pack.parts[0], pack.parts[2]
    if store == "raw":
        begins = [part.header.extents["image"][0].offset for part in (first, last)]
        expected = [(begins[0] + 3 * ROW_BYTES, 2 * ROW_BYTES), (begins[1], 20 * ROW_BYTES)]
    elif store == "jpeg":
        begins = [part.header.extents["image"][0].offset for part in (first, last)]
        a, b = first.read("image.offsets").tolist(), last.read("image.offsets").tolist()
        expected = [(begins[0] + a[3], a[5] - a[3]), (begins[1], b[20])]
    else:
        blocks = first.header.extents["image"][:1] + last.header.extents["image"][:2]
        expected = [(block.offset, block.nbytes) for block in blocks]
    paths = [first.path] + [last.path] * (len(expected) - 1)
    assert asked == [(path, *span) for path, span in zip(paths, expected, strict=True)]
    monkeypatch.undo()
    with pytest.raises(IndexError):
        reader.prefetch(runs_of((ROWS, 1)))


@given(st.data())
def test_any_runs_of_compressed_blocks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """Against the array itself; blocks are taken whole, in part, and across."""
    folder = tmp_path_factory.mktemp("coded")
    rows, block_rows = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    content = Content.random("gzip", rows)
    write_content(folder / "p.h5", content, block_rows=min(rows, block_rows))
    pack = open_pack(folder / "p.h5")
    starts = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5))
    wanted = runs_of(*((start, data.draw(st.integers(1, rows - start))) for start in starts))
    out = np.full((wanted.total, pack.header.field("image").row_bytes), 99, np.uint8)
    PackStore(pack, pack.fields).copy(wanted, {"image": out})
    assert (out.reshape(-1, *content.images.shape[1:]) == content.images[wanted.rows()]).all()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks that are decoded from now on."""
    blocks: list[int] = []
    decode = stores.CompressedRows._decode

    def noted(self: stores.CompressedRows, block: int, out: np.ndarray) -> None:
        blocks.append(block)
        decode(self, block, out)

    monkeypatch.setattr(stores.CompressedRows, "_decode", noted)
    return blocks


def test_whole_blocks_are_decoded_where_they_are_wanted_and_parts_once(tmp_path: Path, decoded: list[int]):
    write_content(tmp_path / "p.h5", content_of("gzip"), block_rows=16)
    pack = open_pack(tmp_path / "p.h5")
    reader = PackStore(pack, pack.fields)
    images(reader, runs_of((0, 32)))
    assert decoded == [0, 1]
    images(reader, runs_of((33, 1), (40, 2), (47, 2), (50, 1), (33, 1)))
    assert decoded == [0, 1, 2, 3]
    images(reader, runs_of((63, 1), (17, 1), (50, 2), (16, 16), (20, 3)))
    assert decoded == [0, 1, 2, 3, 1, 3]  # a whole one serves its parts too


def test_blocks_that_are_kept_are_decoded_once_by_whichever_thread(tmp_path: Path, decoded: list[int]):
    content = content_of("gzip")
    write_content(tmp_path / "p.h5", content, block_rows=16)
    pack = open_pack(tmp_path / "p.h5")
    reader = PackStore(pack, pack.fields)
    reader.cache_blocks(16)

    def read(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 48, 7)
        return bool((images(reader, Runs(rows, np.ones_like(rows))) == content.images[rows]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(60)))
    assert sorted(decoded) == [0, 1, 2]
    assert (images(reader, runs_of((48, 1), (2, 3), (20, 1))) == content.images[[48, 2, 3, 4, 20]]).all()
    assert decoded[3:] == [3]  # the fourth one took the place of the third, which was not asked for
    images(reader, runs_of((33, 1)))
    assert decoded[3:] == [3, 2]
    reader.cache_blocks(0)
    assert not reader._field("image")._kept  # type: ignore[attr-defined]


def test_a_kept_block_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content = content_of("gzip")
    write_content(tmp_path / "p.h5", content, block_rows=16)
    pack = open_pack(tmp_path / "p.h5")
    reader = PackStore(pack, pack.fields)
    reader.cache_blocks(16)

    def spoil(self: Gzip, data: memoryview, out: np.ndarray) -> None:
        raise ValueError("spoilt")

    with monkeypatch.context() as patch:
        patch.setattr(Gzip, "decompress_into", spoil)
        with pytest.raises(FormatError, match=r"rows 16 to 31 of 'image' are damaged \(spoilt\)"):
            images(reader, runs_of((20, 1)))
    assert (images(reader, runs_of((20, 1))) == content.images[20:21]).all()


def test_a_block_that_failed_is_not_taken_for_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was decoded into the same memory."""
    content = content_of("gzip")
    write_content(tmp_path / "p.h5", content, block_rows=16)
    pack = open_pack(tmp_path / "p.h5")
    reader = PackStore(pack, pack.fields)
    assert (images(reader, runs_of((3, 2))) == content.images[3:5]).all()

    def spoil(self: Gzip, data: memoryview, out: np.ndarray) -> None:
        out[:] = 7
        raise ValueError("spoilt")

    with monkeypatch.context() as patch:
        patch.setattr(Gzip, "decompress_into", spoil)
        with pytest.raises(FormatError, match=r"rows 16 to 31 of 'image' are damaged \(spoilt\)"):
            images(reader, runs_of((20, 1)))
    assert (images(reader, runs_of((3, 2))) == content.images[3:5]).all()


@pytest.mark.parametrize(
    ("format", "store"), [("h5", "raw"), ("h5", "jpeg"), ("h5", "gzip"), ("npy", "raw"), ("npy", "jpeg")]
)
def test_shards_with_blocks_of_other_lengths(tmp_path: Path, store: str, format: str):
    content = content_of(store, 50)
    pack = open_pack(write_shards(tmp_path / "p", content, (20, 7, 3, 20), format=format, block_rows=16))
    assert [part.header.block_rows for part in pack.parts] == [16, 7, 3, 16]
    truth = content.loaded_images()
    for verify in (False, True):
        reader = PackStore(pack, pack.fields, verify=verify)
        for run in ((3, 2), (21, 3), (28, 1), (3, 2), (33, 4), (15, 30)):
            assert (images(reader, runs_of(run)) == truth[run[0] : sum(run)]).all()


def test_threads_decode_blocks_of_their_own(stored: Pack, expected: dict[str, np.ndarray]):
    reader, truth = PackStore(stored, stored.fields, verify=True), expected[store_of(stored)]

    def read(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, ROWS, 5)
        return bool((images(reader, Runs(rows, np.ones_like(rows))) == truth[rows]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(60)))


def test_the_wrong_question_is_a_type_error(stored: Pack):
    reader = PackStore(stored, stored.fields)
    with pytest.raises(TypeError, match=r"^rows of one length have no encoded form$"):
        reader.ragged("label", runs_of((0, 1)))
    if store_of(stored) == "jpeg":
        assert reader.ragged("image", runs_of((5, 1))) == content_of("jpeg").take([5]).stored_images()
    else:
        with pytest.raises(TypeError, match=r"^rows of one length have no encoded form$"):
            reader.ragged("image", runs_of((0, 1)))


@pytest.mark.parametrize("verify", [False, True])
def test_rows_out_of_range(stored: Pack, verify: bool):
    reader = PackStore(stored, stored.fields, verify=verify)
    for run in ((ROWS, 1), (ROWS - 1, 2), (-1, 1)):
        for name in ("label", "image"):
            with pytest.raises(IndexError):
                out = np.empty((run[1], 8 if name == "label" else ROW_BYTES), np.uint8)
                reader.copy(runs_of(run), {name: out})
        with pytest.raises(IndexError):
            reader.ragged("text", runs_of(run))


BAD_JPEG = {
    "size": (
        lambda good: jpeg.encode(np.zeros((9, 6, 3), np.uint8), 90),
        r"a JPEG of 6 x 9 pixels in 3 channels; .*",
    ),
    "channels": (
        lambda good: jpeg.encode(np.zeros((8, 6, 1), np.uint8), 90),
        r"a JPEG of 6 x 8 pixels in 1 channel; .*",
    ),
    "truncated": (lambda good: good[:-20], r"a damaged or truncated JPEG \(.*\)"),
    "garbage": (lambda good: b"garbage" * 9, r"not a JPEG that can be decoded \(.*\)"),
    "empty": (lambda good: b"", r"empty; a JPEG is expected"),
}


@pytest.mark.parametrize(
    ("bad", "shape"),
    [(bad, "one shape") for bad in BAD_JPEG]
    + [(bad, "its own") for bad in ("truncated", "garbage", "empty")],
)
def test_a_damaged_jpeg_row_is_named(tmp_path: Path, bad: str, shape: str):
    """With the pack and the row, whether the images are of one size or not."""
    make, reason = BAD_JPEG[bad]
    content = content_of("jpeg", 20)
    field, label, text, key = content.fields
    if shape == "its own":
        field = replace(field, codec={"name": "jpeg", "shape": None, "quality": 90})
    files = content.stored_images()
    files[13] = make(files[13])
    with begin(tmp_path / "p.h5", content, fields=(field, label, text, key), block_rows=20) as writer:
        writer.write_block(0, {"image": files, "label": content.labels, "text": content.texts})
        writer.finish(rows=20, ragged={"key": content.keys})
    sentence = rf"p\.h5: row 13 of 'image' is damaged \({reason}\)\. Run packer verify, or convert the images again\.$"
    with PackedBatchDataset(tmp_path / "p.h5", 5, order="sequential", output="numpy") as dataset:
        assert sum(len(dataset.batch(k).label) for k in (0, 1, 3)) == 15
        with pytest.raises(FormatError, match=sentence):
            dataset.batch(2)
        with pytest.raises(FormatError, match=sentence):
            list(dataset)


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    "kind", [param for param in STORED if param.values[0][1] in ("gzip", "zstd", "blosc2")]
)
def test_a_damaged_block_is_named(tmp_path: Path, kind: tuple[str, str, tuple[int, ...] | None]):
    pack = make_stored(tmp_path, *kind)
    first = 16 if kind[2] is None else 57  # a whole block of the last part
    number = 1 if kind[2] is None else 3 + 1 + 1
    extent = pack.header.extents["image"][number]
    assert extent.rows == 16
    reader = PackStore(pack, pack.fields)
    images(reader, runs_of((first, 16)))
    for offset in (extent.offset, extent.offset + extent.nbytes // 2):
        flip(Path(pack.file(extent)), offset)
    sentence = (
        rf"^{pack.path}: rows {first} to {first + 15} of 'image' are damaged \(.*\)\."
        r" Run packer verify, or convert the images again\.$"
    )
    for run in ((first, 16), (first + 3, 1), (0, ROWS)):
        with pytest.raises(FormatError, match=sentence):
            images(PackStore(pack, pack.fields), runs_of(run))
    images(reader, runs_of((0, first), (first + 16, 5)))  # the others are whole


def test_a_codec_from_the_future_refuses_its_field_only(tmp_path: Path):
    write_content(tmp_path / "p.h5", content_of("gzip"), block_rows=16)
    pack = open_pack(tmp_path / "p.h5")
    field = replace(pack.header.field("image"), codec={"name": "wavelets", "level": 3})
    pack = replace(pack, header=replace(pack.header, fields=(field, *pack.fields[1:])))
    reader = PackStore(pack, pack.fields)
    assert reader.ragged("key", runs_of((7, 1))) == [b"row/7"]
    with pytest.raises(FormatError) as error:
        images(reader, runs_of((0, 1)))
    assert str(error.value) == (
        f"{pack.path}: 'image' is stored in a form that this packer does not know (compression"
        " {'name': 'wavelets', 'level': 3} is unknown; gzip, zstd, blosc2 are known). Upgrade packer."
    )


def byte_of(part: Pack, array: str, row: int) -> tuple[Extent, int]:
    """An extent, and where in it a byte lies that belongs to that row, or to the block of it."""
    name, extents = array.removesuffix(".offsets"), part.header.extents[array]
    field = part.header.field(name)
    if field.compressed:
        return extents[row // part.header.block_rows], 3
    if array != name:
        return extents[0], 8 * row
    if field.ragged:
        return extents[0], int(part.read(f"{name}.offsets")[row])
    return extents[0], row * field.row_bytes


@pytest.mark.parametrize("kind", STORED)
def test_verify_finds_a_flipped_byte_in_every_array(
    tmp_path: Path, kind: tuple[str, str, tuple[int, ...] | None]
):
    pack = make_stored(tmp_path, *kind)
    part = pack.parts[-1]
    first = ROWS - part.rows  # of the last part
    for array in part.header.columns:
        name, (extent, inside) = array.removesuffix(".offsets"), byte_of(part, array, 20)
        file = Path(part.file(extent))
        flip(file, extent.offset + inside)
        reader = PackStore(pack, pack.fields, verify=True)

        def read(run: tuple[int, int], name: str = name, reader: PackStore = reader) -> None:
            if name == "image":
                images(reader, runs_of(run))
            elif name == "label":
                reader.copy(runs_of(run), {name: np.empty((run[1], 8), np.uint8)})
            else:
                reader.ragged(name, runs_of(run))

        read((first, 16))
        read((first + 32, 5))
        for run in ((first + 31, 1), (first + 15, 2), (0, ROWS), (first + 18, 9)):
            with pytest.raises(FormatError) as error:
                read(run)
            assert f"{part.path}: " in str(error.value)
            if not array.endswith(".offsets"):
                assert str(error.value) == (
                    f"{part.path}: rows 16 to 31 of {array!r} are damaged (their checksum differs)."
                    " Run packer verify, or convert the images again."
                )
        flip(file, extent.offset + inside)
        read((0, ROWS))


def test_verify_reads_each_block_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_content(tmp_path / "p.h5", content_of("raw"), block_rows=16)
    pack = open_pack(tmp_path / "p.h5")
    asked = []
    stored_block = Pack.stored_block
    monkeypatch.setattr(
        Pack,
        "stored_block",
        lambda self, *a: asked.append(a[:2]) or stored_block(self, *a),  # type: ignore[func-returns-value]
    )
    reader = PackStore(pack, pack.fields, verify=True)
    for run in ((20, 1), (16, 16), (30, 4), (31, 2)):
        images(reader, runs_of(run))
    assert asked == [("image", 1), ("image", 2)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", STORED)
def test_forked_processes_verify_each_block_once_among_them(
    tmp_path: Path, kind: tuple[str, str, tuple[int, ...] | None]
):
    """Each worker of a conversion reads rows of almost every block, if they are shuffled."""
    pack = make_stored(tmp_path, *kind)
    reader = PackStore(pack, pack.fields, verify=True)
    child = os.fork()
    if not child:
        images(reader, runs_of((0, ROWS)))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    checked = reader._checked["image"]
    starts = np.cumsum([0, *(part.rows for part in pack.parts)])
    blocks = {
        start + k for start, part in zip(starts, pack.parts, strict=False) for k in range(part.header.blocks)
    }
    assert set(np.flatnonzero(checked).tolist()) == blocks


@pytest.mark.parametrize("kind", STORED)
def test_offsets_that_lead_astray_are_a_sentence(
    tmp_path: Path, kind: tuple[str, str, tuple[int, ...] | None]
):
    pack = make_stored(tmp_path, *kind)
    part = pack.parts[-1]
    extent = part.header.extents["text.offsets"][0]
    for value in (-1, 1 << 40, 0):
        with open(part.file(extent), "r+b") as file:
            file.seek(extent.offset + 8 * 20)
            file.write(np.int64(value).tobytes())
        for verify in (False, True):
            with pytest.raises(
                FormatError,
                match=r"offsets of 'text' are damaged\.|rows 16 to 31 of 'text(\.offsets)?' are damaged \(their",
            ):
                PackStore(pack, pack.fields, verify=verify).ragged("text", runs_of((ROWS - part.rows, 40)))


@pytest.mark.parametrize("kind", STORED)
def test_descriptors_are_closed(tmp_path: Path, kind: tuple[str, str, tuple[int, ...] | None]):
    pack = make_stored(tmp_path, *kind)
    before = open_files()
    reader = PackStore(pack, pack.fields, verify=True)
    images(reader, runs_of((0, ROWS)))
    reader.ragged("text", runs_of((0, ROWS)))
    assert listed_files() - before
    reader.close()
    assert open_files() <= before
    images(reader, runs_of((0, ROWS)))  # opens them again
    del reader


def test_a_shard_replaced_after_opening_is_noticed(tmp_path: Path):
    pack = make_stored(tmp_path, "h5", "raw", (40, 1, 62))
    other = Content.random("raw", 62)
    with begin(tmp_path / "other.h5", other, block_rows=16) as writer:
        write_blocks(writer, other, range(4))
        writer.finish(rows=62, ragged={"key": other.keys})
    pack.confirm()
    shutil.copy(tmp_path / "other.h5", pack.parts[2].path)
    with pytest.raises(FormatError) as error:
        images(PackStore(pack, pack.fields), runs_of((0, 1)))
    assert (
        str(error.value)
        == f"{pack.parts[2].path}: was replaced or changed after it was opened. Open it again."
    )


def test_fields_by_name_in_either_form(stored: Pack):
    """As the pack stores them, or as they are loaded."""
    loaded = [field.loaded for field in stored.fields]
    assert PackStore(stored, loaded).fields == PackStore(stored, stored.fields).fields == stored.fields
    assert loaded[0].shape == SHAPE
    assert isinstance(loaded[0], Field)
