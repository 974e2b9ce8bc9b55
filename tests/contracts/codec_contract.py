"""The contract of a block codec: round trips, damaged blocks, compatibility with HDF5's filter."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import prod
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.codecs.block_codecs import BlockCodec

_ROWS = ((), (3,), (2, 5), (4, 3, 3), (5, 7, 1), (8, 6, 4), (1, 2, 300))
_GUARD = 100
"""Guard bytes before and after the memory that a codec fills; the codec must not change them."""


def check_block_codec(codec: type[BlockCodec]) -> None:
    """Check a block codec: round trips, damaged blocks, and decompression by HDF5's filter if it is registered.

    codec: a class with the methods of `packer.codecs.block_codecs.BlockCodec`. Raises AssertionError.
    """
    for number, (row, dtype, high) in enumerate(product(_ROWS, ("|u1", "<u2", "<f4", "<i8"), (1, 3, 256))):
        shape = 1 + number % 30, *row
        raw = np.random.default_rng(number).integers(
            0, high, prod(shape) * np.dtype(dtype).itemsize, np.uint8
        )
        made = codec.for_rows(row, np.dtype(dtype))
        block = raw.view(dtype).reshape(shape)
        assert np.array_equal(_unpacked(made, made.compress(block), len(raw)), raw), (
            f"{dtype}{shape}: differs"
        )
    image = np.add.outer(2 * np.arange(40), 2 * np.arange(56))[..., None] + np.array([0, 10, 20])
    photo = (image + np.random.default_rng(0).integers(0, 5, image.shape)).astype(np.uint8)
    photos = np.stack([np.roll(photo, shift, axis=0) for shift in range(40)])
    made = codec.for_rows(image.shape, photos.dtype)
    _check_value(made, photos)
    _check_damage(made, photos)
    for row, dtype in (
        ((9, 7, 3), "|u1"),
        ((9, 7, 1), "|u1"),
        ((2, 2, 100), "|u1"),
        ((28,), "<f4"),
        ((), "<i8"),
    ):
        values = np.random.default_rng(0).integers(0, 50, (6, *row)).astype(dtype)
        _check_hdf5(codec.for_rows(row, values.dtype), values)


def damaged_copies(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield variants of some bytes as a damaged or hostile file may hold them, each with its kind.

    "truncated": 100 prefixes; "noise": 100 strings of up to 2,000 random bytes; "flipped": 400 copies with one
    to eight changed bytes, in a third of them within the first 200.
    """
    lengths = {*np.linspace(0, len(data) - 1, 60).astype(int), *range(max(0, len(data) - 40), len(data))}
    yield from (("truncated", data[:length]) for length in sorted(map(int, lengths)))
    draws = np.random.default_rng(0)
    yield from (("noise", draws.bytes(int(length))) for length in draws.integers(0, 2000, 100))
    for number in range(400):
        copy = bytearray(data)
        end = min(200, len(data)) if number % 3 == 0 else len(data)
        for position in draws.integers(0, end, draws.integers(1, 9)):
            copy[position] ^= int(draws.integers(1, 256))
        yield "flipped", bytes(copy)


def _unpacked(codec: BlockCodec, data: bytes | memoryview, nbytes: int) -> NDArray[np.uint8]:
    """Decompress into memory between guard bytes, and check these."""
    memory = np.full(nbytes + 2 * _GUARD, 7, np.uint8)
    try:
        codec.decompress_into(data, memory[_GUARD : _GUARD + nbytes])
    finally:
        guards = memory[:_GUARD], memory[_GUARD + nbytes :]
        assert all((guard == 7).all() for guard in guards), "it writes outside the memory that it is given"
    return memory[_GUARD : _GUARD + nbytes]


def _check_value(codec: BlockCodec, block: NDArray[np.uint8]) -> None:
    """Check that codecs compare by value, compress deterministically and can be shared by threads."""
    before, data = block.copy(), codec.compress(block)
    assert np.array_equal(block, before), "compress changes the block"
    assert len(data) < 0.6 * block.nbytes, "smooth images compress by less than 40 %"
    assert np.array_equal(_unpacked(codec, memoryview(data), block.nbytes), block.reshape(-1)), (
        "a memoryview differs"
    )
    key, most = codec.setting
    settings = json.loads(json.dumps(vars(codec)))
    assert list(settings) == [key], "its only attribute is not its setting"
    assert type(settings[key]) is int, "its setting is not an int"
    assert 1 <= settings[key] <= most, "its setting is out of range"
    for again in (type(codec)(**settings), pickle.loads(pickle.dumps(codec))):
        assert (again, hash(again)) == (codec, hash(codec)), "a copy is not equal"
        assert again.compress(block) == data, "a copy of the codec compresses to other bytes"
    assert all(isinstance(version, str) for version in codec.versions().values()), "versions are not str"
    blocks = [np.roll(block, shift, axis=2) for shift in range(8)]
    with ThreadPoolExecutor(4) as pool:
        packed = list(pool.map(codec.compress, blocks * 3))
        found = list(pool.map(lambda data: _unpacked(codec, data, block.nbytes), packed))
    for data, values, expected in zip(packed, found, blocks * 3, strict=True):
        assert np.array_equal(values, expected.reshape(-1)), "threads disturb each other"
        assert data == codec.compress(expected), "compression is not deterministic"


def _check_damage(codec: BlockCodec, block: NDArray[np.uint8]) -> None:
    """Check that damaged blocks raise ValueError with a short reason, or give other rows, nothing else."""
    data, noticed = codec.compress(block), 0
    for change in (-1000, -1, 1, 1000):
        reason = _refusal(codec, data, block.nbytes + change)
        assert f"{block.nbytes + change:,}" in reason, (
            f"the error does not name the length of the block: {reason!r}"
        )
    for kind, damaged in damaged_copies(data):
        reason = _refusal(codec, damaged, block.nbytes)
        assert len(reason) < 200, f"the reason is longer than 200 characters: {reason}"
        assert reason or kind == "flipped", f"{kind} bytes are accepted as a block"
        noticed += kind == "flipped" and bool(reason)
    assert noticed > 130, f"only {noticed} of 400 blocks with changed bytes are detected"
    assert np.array_equal(_unpacked(codec, data, block.nbytes), block.reshape(-1)), (
        "after damaged blocks it decompresses to other rows"
    )


def _refusal(codec: BlockCodec, data: bytes, nbytes: int) -> str:
    """Return the message of the ValueError that decompression raises; "" if it raises none."""
    try:
        _unpacked(codec, data, nbytes)
    except ValueError as error:
        return str(error) or "?"
    return ""


def _check_hdf5(codec: BlockCodec, values: NDArray[Any]) -> None:
    """Check that HDF5, if it has the filter, decompresses two chunks, the second padded with zeros."""
    chunk = 4, *values.shape[1:]
    number, settings = codec.hdf5_filter(chunk, values.dtype)
    if not h5py.h5z.filter_avail(number):
        return
    rest = np.zeros(chunk, values.dtype)
    rest[: len(values) - 4] = values[4:]
    with h5py.File("x", "w", driver="core", backing_store=False) as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(chunk)
        properties.set_filter(number, h5py.h5z.FLAG_OPTIONAL, settings)
        space = h5py.h5s.create_simple((8, *chunk[1:]))
        data = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(values.dtype), space, properties)
        assert data.get_create_plist().get_filter(0)[2] == settings, "HDF5's filter changes the settings"
        for first, block in ((0, values[:4]), (4, rest)):
            data.write_direct_chunk((first, *(0 for _ in chunk[1:])), codec.compress(block))
        file.flush()
        assert np.array_equal(file["x"][:], np.concatenate((values[:4], rest))), (
            "HDF5 decompresses to other rows"
        )
