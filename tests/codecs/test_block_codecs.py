"""One contract for every codec of blocks, and what each promises beyond it."""

from __future__ import annotations

import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from packer.codecs import NAMES, block_codecs
from packer.codecs.block_codecs import BlockCodec, Gzip, block_codec, codec_from_record, codec_record
from packer.codecs.blosc2 import PART_BYTES, Blosc2
from packer.codecs.zstd import Zstd
from packer.errors import MissingDependencyError, UsageError
from tests.codecs.damage import complaint, refused
from tests.contracts.codec_contract import check_block_codec

Block = NDArray[np.generic]

pytest.importorskip("zstandard")


@pytest.fixture(scope="module", params=NAMES)
def codec(request: pytest.FixtureRequest) -> BlockCodec:
    return block_codec(request.param, (40, 56, 3), np.dtype(np.uint8))


@pytest.fixture(scope="module")
def block(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of a few parts of blosc2's and a bit: uint8 [40, 40, 56, 3]."""
    rows = np.stack([np.roll(picture, shift, axis=0) for shift in range(40)])
    assert rows.nbytes > 2 * PART_BYTES
    assert rows.nbytes % PART_BYTES
    return rows


def unpack(codec: BlockCodec, data: bytes, nbytes: int) -> NDArray[np.uint8]:
    """Decompress between guards that must stay as they are."""
    memory = np.full(nbytes + 200, 7, np.uint8)
    try:
        codec.decompress_into(data, memory[100 : 100 + nbytes])
    finally:
        assert np.all(memory[:100] == 7)
        assert np.all(memory[100 + nbytes :] == 7)
    return memory[100 : 100 + nbytes]


def as_bytes(block: Block) -> NDArray[np.uint8]:
    return np.frombuffer(block.tobytes(), np.uint8)


def test_every_codec_is_named() -> None:
    assert tuple(block_codecs._CODECS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_codec_keeps_its_promises(name: str) -> None:
    pytest.importorskip("hdf5plugin")
    check_block_codec(block_codecs._CODECS[name])
    codec = block_codec(name, (9, 7, 3), np.dtype(np.uint8))
    assert codec_from_record(codec_record(codec)) == codec


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_we_read_what_hdf5_packed(name: str, block: NDArray[np.uint8], tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    filters = {"gzip": {"compression": "gzip"}, "zstd": dict(hdf5plugin.Zstd(clevel=3))}
    codec = block_codec(name, block.shape[1:], block.dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        chunks = (16, *block.shape[1:])  # the last one is half empty
        data = file.create_dataset("x", data=block, chunks=chunks, **filters[name])
        assert data.id.get_create_plist().get_filter(0)[0] == codec.hdf5_filter(chunks, block.dtype)[0]
        found = np.empty((48, *block.shape[1:]), np.uint8)
        for first in (0, 16, 32):
            _, packed = data.id.read_direct_chunk((first, 0, 0, 0))
            codec.decompress_into(packed, found[first : first + 16].reshape(-1))
    assert np.array_equal(found[:40], block)
    assert not found[40:].any()


@pytest.mark.parametrize("item", [2, 3, 4, 8])
def test_frames_are_those_of_the_blosc2_library(item: int, block: NDArray[np.uint8]) -> None:
    blosc2 = pytest.importorskip("blosc2")
    ours = Blosc2(item)
    frame = ours.compress(block)
    assert blosc2.schunk_from_cframe(frame)[:] == block.tobytes()
    theirs = blosc2.SChunk(
        chunksize=block.nbytes,
        data=block.reshape(-1),
        contiguous=True,
        cparams=blosc2.CParams(
            codec=blosc2.Codec.ZSTD,
            clevel=1,
            typesize=item,
            filters=[blosc2.Filter.NOFILTER] * 4 + [blosc2.Filter.SHUFFLE, blosc2.Filter.BYTEDELTA],
            filters_meta=[0] * 5 + [item],
            blocksize=PART_BYTES // item * item,
            splitmode=blosc2.SplitMode.NEVER_SPLIT,
            nthreads=1,
        ),
        dparams=blosc2.DParams(nthreads=1),
    ).to_cframe()
    assert np.array_equal(unpack(ours, theirs, block.nbytes), as_bytes(block))
    lengths = {*range(16, 24), *range(39, 47), *range(97 + 12, 97 + 16)}  # what Zstandard's settings change
    assert [i for i in range(97 + 32) if i not in lengths and frame[i] != theirs[i]] == []
    assert frame[-75:] == theirs[-75:]


@pytest.mark.parametrize("codec", [Gzip(), Blosc2(3)], indirect=False)
def test_bytes_after_the_block_are_refused(codec: BlockCodec, block: NDArray[np.uint8]) -> None:
    assert complaint(lambda: unpack(codec, codec.compress(block) + b"more", block.nbytes))


def bombs() -> list[tuple[BlockCodec, bytes]]:
    """Blocks that unpack to 50 MB, and say so or not."""
    import zstandard

    zeros = bytes(50_000_000)
    frame = zstandard.ZstdCompressor().compress(zeros)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(zeros)
    small = zstandard.ZstdCompressor().compress(bytes(3000))
    wide = struct.pack("<IBBI", 0xFD2FB528, 0x80, 0x88, 3000) + small[6:]  # announces a window of 128 MiB
    honest = Blosc2(3).compress(np.zeros(3000, np.uint8))
    chunk = bytearray(honest)
    part = struct.unpack_from("<i", chunk, 97 + 32)[0] + 97
    length = struct.unpack_from("<i", chunk, part)[0]
    liar = honest[: part + 4] + frame[: length - 5].ljust(length, b"\0") + honest[part + 4 + length :]
    return [
        (Gzip(), zlib.compress(zeros)),
        (Zstd(), frame),
        (Zstd(), silent),
        (Zstd(), wide),
        (Blosc2(3), liar),
    ]


def test_bombs_take_no_memory() -> None:
    for codec, data in bombs():
        out = np.zeros(3000, np.uint8)
        tracemalloc.start()
        try:
            assert complaint(lambda: codec.decompress_into(data, out))  # noqa: B023
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, 0, "not a Blosc2 frame of 3,000 bytes as packer writes it"),
        (97 + 2, 0x97, "a Blosc2 chunk other than packer writes, or a damaged one"),
        (97 + 4, 0xFF, "a Blosc2 chunk other than packer writes, or a damaged one"),
        (97 + 32, 0xFF, "a damaged Blosc2 chunk (its parts do not follow each other)"),
        (97 + 36 + 3, 0x80, "a damaged Blosc2 chunk (a part of -2,147,483,629 bytes)"),
        (97 + 36, 0, "a damaged Blosc2 chunk (a part of 0 bytes)"),
        (97 + 36 + 1, 1, "a damaged Blosc2 chunk (a part of 275 bytes)"),
        (97 + 36, 18, "a damaged Zstandard frame (decompression error: did not decompress full frame)"),
        (97 + 36 + 4, 0, "a damaged Zstandard frame (error when determining content size)"),
        (97 + 36 + 4 + 5, 0, "a Zstandard frame of another size than 3,000 bytes"),
    ],
)
def test_each_lie_of_a_frame_is_named(offset: int, value: int, message: str) -> None:
    frame = bytearray(Blosc2(3).compress(np.zeros(3000, np.uint8)))
    frame[offset] = value
    with refused(message):
        unpack(Blosc2(3), bytes(frame), 3000)


def test_incompressible_parts_are_kept_as_they_are() -> None:
    raw = np.random.default_rng(0).integers(0, 256, PART_BYTES + 3000, dtype=np.uint8)
    data = Blosc2(1).compress(raw)
    assert len(data) == len(raw) + 97 + 32 + 2 * 4 + 2 * 4 + 75
    assert np.array_equal(unpack(Blosc2(1), data, len(raw)), raw)


@pytest.mark.parametrize("nbytes", [0, 4])
def test_blocks_of_part_items_are_refused(nbytes: int) -> None:
    with refused(f"a block of {nbytes} bytes; whole items of 3, up to 2 GiB, are packed"):
        Blosc2(3).compress(np.zeros(nbytes, np.uint8))


@pytest.mark.parametrize(
    ("row", "dtype", "item"),
    [
        ((9, 7, 3), "|u1", 3),
        ((9, 7, 1), "|u1", 1),
        ((9, 7, 3), "<f4", 12),
        ((9, 7, 256), "|u1", 1),
        ((28,), "<f4", 4),
        ((), "<i8", 8),
    ],
)
def test_pixels_are_compared_with_pixels(row: tuple[int, ...], dtype: str, item: int) -> None:
    assert block_codec("blosc2", row, np.dtype(dtype)) == Blosc2(item)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"name": "lz4", "level": 1},
        {"name": "gzip"},
        {"name": "gzip", "level": 0},
        {"name": "gzip", "level": 1.0},
        {"name": "gzip", "level": True},
        {"name": "zstd", "level": 23},
        {"name": "zstd", "level": 1, "item": 3},
        {"name": "blosc2", "level": 1},
        {"name": "blosc2", "item": 256},
        {"name": ["blosc2"], "item": 3},
    ],
)
def test_unknown_records_are_refused(record: dict[str, object]) -> None:
    with refused(f"compression {record!r} is unknown; gzip, zstd, blosc2 are known"):
        codec_from_record(record)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        block_codec("lz4", (), np.dtype(np.uint8))
    assert str(caught.value) == "store='lz4': unknown; gzip, zstd, blosc2 are known. Pass one of them."


@pytest.mark.parametrize("name", ["zstd", "blosc2"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = block_codec(name, (), np.dtype(np.uint8))
    data = codec.compress(np.zeros(100, np.uint8))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    install = "zstandard is not installed. Run: pip install zstandard"
    uses: dict[str, Callable[[], object]] = {
        f"store={name!r}: {install}": lambda: codec.compress(np.zeros(100, np.uint8)),
        f"reading {name} blocks: {install}": lambda: codec.decompress_into(data, np.zeros(100, np.uint8)),
    }
    for message, use in uses.items():
        with pytest.raises(MissingDependencyError) as caught:
            use()
        assert str(caught.value) == message
    with pytest.raises(MissingDependencyError):
        codec.versions()
