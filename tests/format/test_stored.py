"""What every way to store a field promises: images raw, as JPEG files, compressed; texts given block by block; keys at the end."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packer.codecs.block_codecs import codec_from_record
from packer.errors import PackerError, UsageError
from packer.format.checksums import Trailer
from packer.format.fields import Field
from packer.format.file_io import pread_all
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from tests.format.packs import (
    KINDS,
    SHAPE,
    Content,
    begin,
    files_of,
    image_field,
    out_path,
    write_blocks,
    write_content,
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def images_of(pack: Pack) -> np.ndarray:
    """The images of a pack, without the reader."""
    field = pack.header.field("image")
    if field.codec is None:
        return pack.read("image")
    if field.ragged:
        from packer.codecs import jpeg

        return np.stack([jpeg.decode(row, 1 << 20) for row in pack.read_ragged("image")])
    codec, blocks = codec_from_record(field.codec), []
    for extent in pack.header.extents["image"]:
        out = np.empty((pack.header.block_rows, *SHAPE), np.uint8)
        with open(pack.file(extent), "rb") as file:
            codec.decompress_into(pread_all(file.fileno(), extent.nbytes, extent.offset), out.reshape(-1))
        assert not out[extent.rows :].any()
        blocks.append(out[: extent.rows])
    return np.concatenate(blocks)


@pytest.mark.parametrize("rows", [23, 20, 3])
def test_rows_come_back(tmp_path: Path, kind: tuple[str, str], rows: int):
    content, out = Content.random(kind[1], rows), out_path(tmp_path, kind[0])
    header = write_content(out, content, block_rows=min(rows, 5), seed=4)
    pack = open_pack(out)
    assert (pack.header, pack.fields, pack.sealed) == (header, content.fields, True)
    assert (images_of(pack) == content.loaded_images()).all()
    assert (pack.read("label") == content.labels).all()
    assert pack.read_ragged("text") == content.texts
    assert pack.read_ragged("text", 2, 3) == content.texts[2:3]
    assert [os.fsencode(key) for key in pack.keys()] == content.keys
    assert os.listdir(tmp_path) == [out.name]


@pytest.mark.parametrize("keep", [23, 22, 20, 11, 4, 1])
def test_every_checksum_is_that_of_the_bytes_that_are_stored(
    tmp_path: Path, kind: tuple[str, str], keep: int
):
    out = out_path(tmp_path, kind[0])
    write_content(out, Content.random(kind[1], 23), keep=keep)
    pack = open_pack(out)
    size, table = pack.header.block_rows, []
    for block, start in enumerate(range(0, keep, size)):
        stop, sums = min(start + size, keep), []
        for field in pack.fields:
            if field.compressed:
                extent = pack.header.extents[field.name][block]
                sums.append(xxhash.xxh3_64_intdigest(out.read_bytes()[extent.offset : extent.end]))
            elif field.ragged:
                offsets = pack.read(f"{field.name}.offsets")
                sums.append(xxhash.xxh3_64_intdigest(b"".join(pack.read_ragged(field.name, start, stop))))
                entries = offsets[start : stop + (stop == keep)]
                sums.append(xxhash.xxh3_64_intdigest(entries.tobytes()))
            else:
                sums.append(xxhash.xxh3_64_intdigest(pack.read(field.name, start, stop).tobytes()))
        table.append(sums)
    assert pack.checksums().tolist() == table
    pieces = [[b"".join(pack.stored_block(a, b, 7)) for a in pack.header.columns] for b in range(len(table))]
    assert [[xxhash.xxh3_64_intdigest(data) for data in row] for row in pieces] == table


@given(st.data())
def test_moved_rows_are_as_if_written_there(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """Moves as convert makes them: a row is moved on after it has been moved from, not before."""
    format, store = data.draw(st.sampled_from([kind.values[0] for kind in KINDS if not skipped(kind)]))
    folder = tmp_path_factory.mktemp("moved")
    rows, block_rows = 13, data.draw(st.sampled_from([1, 4, 5, 13]))
    keep = data.draw(st.integers(1, rows))
    targets = data.draw(st.lists(st.integers(0, keep - 1), unique=True, max_size=4).map(sorted))
    donors = data.draw(st.lists(st.integers(0, rows - 1), unique=True, min_size=len(targets)).map(sorted))
    moves = [(to, origin) for to, origin in zip(targets, donors, strict=False) if to < origin]
    content = Content.random(store, rows)
    write_content(out_path(folder, format, "moved"), content, keep=keep, moves=moves, block_rows=block_rows)
    origin = dict(moves)
    final = content.take(origin.get(row, row) for row in range(keep))
    padded = content.take([origin.get(row, row) for row in range(keep)] + [0] * (rows - keep))
    write_content(out_path(folder, format, "padded"), padded, keep=keep, block_rows=block_rows)
    moved = files_of(out_path(folder, format, "moved"))
    assert moved == files_of(out_path(folder, format, "padded"))
    assert (images_of(open_pack(out_path(folder, format, "moved"))) == final.loaded_images()).all()
    if format == "npy":  # in HDF5, space that was planned and given up stays in the file
        write_content(out_path(folder, format, "plain"), final, block_rows=min(block_rows, keep))
        assert moved == files_of(out_path(folder, format, "plain"))


def skipped(kind: object) -> bool:
    return any(mark.args[0] for mark in kind.marks)  # type: ignore[attr-defined]


def test_blocks_may_come_in_any_order(tmp_path: Path, kind: tuple[str, str]):
    content = Content.random(kind[1], 23)
    write_content(out_path(tmp_path, kind[0], "forward"), content)
    with begin(out_path(tmp_path, kind[0], "backward"), content) as writer:
        write_blocks(writer, content, [4, 1, 3, 0, 2, 1])  # one of them twice
        writer.finish(rows=23, ragged={"key": content.keys})
    forward, backward = (files_of(out_path(tmp_path, kind[0], n)) for n in ("forward", "backward"))
    assert forward == backward


def test_ragged_rows_given_at_the_end_are_stored_alike(tmp_path: Path, kind: tuple[str, str]):
    content = Content.random(kind[1], 23)
    write_content(out_path(tmp_path, kind[0], "blocks"), content)
    with begin(out_path(tmp_path, kind[0], "end"), content) as writer:
        stored = content.stored_images()
        for block in range(5):
            part = slice(5 * block, 5 * block + 5)
            whole = {"label": content.labels[part], "image": stored[part]}
            writer.write_block(block, whole)
        writer.finish(rows=23, ragged={"text": content.texts, "key": content.keys})
    blocks, end = (files_of(out_path(tmp_path, kind[0], n)) for n in ("blocks", "end"))
    assert blocks == end


@pytest.mark.parametrize("store", ["raw", "gzip"])
def test_chunks_are_blocks(tmp_path: Path, store: str):
    content = Content.random(store, 23)
    write_content(tmp_path / "p.h5", content)
    with h5py.File(tmp_path / "p.h5") as file:
        assert (file["image"].chunks, file["image"].maxshape) == ((5, *SHAPE), content.images.shape)


def test_jpeg_rows_are_jpeg_files(tmp_path: Path):
    from PIL import Image

    content = Content.random("jpeg", 7)
    write_content(tmp_path / "p.h5", content)
    with h5py.File(tmp_path / "p.h5") as file:
        offsets, blob = file["image.offsets"][:], file["image"][:].tobytes()
    for row, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        with Image.open(io.BytesIO(blob[start:stop])) as image:
            assert (image.format, image.size) == ("JPEG", (SHAPE[1], SHAPE[0]))
        assert blob[start:stop] == content.stored_images()[row]


def test_the_trailer_covers_what_lies_between_compressed_blocks(tmp_path: Path):
    write_content(tmp_path / "p.h5", Content.random("gzip", 23))
    pack = open_pack(tmp_path / "p.h5")
    data = (tmp_path / "p.h5").read_bytes()[:-128]
    taken = bytearray(len(data))
    for extent in (e for extents in pack.header.extents.values() for e in extents):
        assert not any(taken[extent.offset : extent.end])
        taken[extent.offset : extent.end] = b"\1" * extent.nbytes
    rest = bytes(byte for byte, used in zip(data, taken, strict=True) if not used)
    trailer = Trailer.from_bytes(pack.seal)
    assert trailer is not None
    assert trailer.rest_digest == xxhash.xxh3_128_digest(rest)


def test_only_fields_of_coded_rows(tmp_path: Path):
    """No field that is stored as it is: the file is laid out when it is sealed."""
    content = Content.random("gzip", 12)
    fields = [f for f in content.fields if f.name in ("image", "text")]
    with begin(tmp_path / "p.h5", content, fields=fields) as writer:
        for block in range(3):
            part = slice(5 * block, 5 * block + 5)
            writer.write_block(block, {"image": content.images[part], "text": content.texts[part]})
        writer.finish(rows=11, ragged={})
    pack = open_pack(tmp_path / "p.h5")
    assert (images_of(pack) == content.images[:11]).all()
    assert pack.read_ragged("text") == content.texts[:11]


def test_all_rows_empty(tmp_path: Path, kind: tuple[str, str]):
    field = Field("text", "|u1", None)
    out = out_path(tmp_path, kind[0])
    with begin(out, Content.random("raw", 12), fields=[field]) as writer:
        for block in range(3):
            writer.write_block(block, {"text": [b""] * min(5, 12 - 5 * block)})
        writer.finish(rows=12, ragged={})
    assert open_pack(out).read_ragged("text") == [b""] * 12


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("image"), "image: block 1 has 5 rows; 0 are given"),
        (lambda w: w.pop("label"), "label: block 1 has 5 rows; 0 are given"),
        (lambda w: w.update(text=[b""] * 4), "text: block 1 has 5 rows; 4 are given"),
        (lambda w: w.update(text=[b""] * 6), "text: block 1 has 5 rows; 6 are given"),
        (lambda w: w.update(image=w["image"][:4]), "image: block 1 has 5 rows; 4 are given"),
        (
            lambda w: w.update(image=np.zeros((6, *SHAPE), np.uint8)),
            "image: block 1 has 5 rows; more are given",
        ),
        (
            lambda w: w.update(image=w["image"][:, :4]),
            "image: rows are |u1(5, 4, 24, 3); |u1(5, 16, 24, 3) fit",
        ),
    ],
)
def test_wrong_rows_of_a_block_are_refused(tmp_path: Path, change: Callable[[dict], object], sentence: str):
    content = Content.random("gzip", 10)
    whole = {"image": content.images[5:], "label": content.labels[5:], "text": content.texts[5:]}
    change(whole)
    with (
        begin(tmp_path / "p.h5", content) as writer,
        pytest.raises(ValueError, match=r"block 1|fit") as error,
    ):
        writer.write_block(1, whole)
    assert str(error.value) == sentence


def test_rows_neither_in_blocks_nor_at_the_end_are_an_error_and_no_pack(tmp_path: Path):
    content = Content.random("raw", 10)
    with begin(tmp_path / "p.h5", content) as writer, pytest.raises(PackerError):
        writer.finish(rows=10, ragged={"key": content.keys})
    assert os.listdir(tmp_path) == []


def test_npy_files_are_never_compressed(tmp_path: Path):
    with pytest.raises(
        UsageError,
        match=r"'image' would be compressed; \.npy files cannot be\. Pass an output that ends in \.h5\.$",
    ):
        begin(tmp_path / "p", Content.random("raw", 5), fields=[image_field("gzip")])
    assert os.listdir(tmp_path) == []


def test_what_is_not_one_run_of_bytes_is_not_read_as_one(tmp_path: Path):
    write_content(tmp_path / "p.h5", Content.random("gzip", 12))
    with pytest.raises(ValueError, match=r"^'image' is not stored in one piece$"):
        open_pack(tmp_path / "p.h5").read("image")
