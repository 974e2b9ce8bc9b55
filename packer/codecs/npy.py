"""Rows that are arrays of any shape, each stored as a .npy file: read in place, without decoding."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH_AT = 8  # magic and version come before the header's length, two bytes
_MAX_HEADER = 1 << 12


def encode(array: NDArray[Any]) -> bytes:
    """Return an array as a .npy file of version 1.0, C order; its numbers begin at a multiple of 64 bytes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def size(data: bytes) -> tuple[int, int, int]:
    """Return (height, width, channels) of a picture [h, w] or [h, w, C], from the header alone. Raises: ValueError."""
    shape = _header(data)[0]
    if len(shape) not in (2, 3):
        raise ValueError(f"an array {list(shape)}; [h, w] and [h, w, C] are pictures")
    return shape[0], shape[1], shape[2] if len(shape) == 3 else 1


def array(data: bytes) -> NDArray[Any]:
    """Return the array, read-only, in the memory of `data`. Raises: ValueError if the file is damaged or cut short."""
    shape, dtype, start = _header(data)
    if len(data) - start != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{len(data) - start:,} bytes of numbers for {dtype.str} {list(shape)}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def _header(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, dtype, and where the numbers begin."""
    length = int.from_bytes(data[_LENGTH_AT : _LENGTH_AT + 2], "little")
    if len(data) < _LENGTH_AT + 2 + length or length > _MAX_HEADER:
        raise ValueError("no .npy file, or cut short")
    return _parsed(bytes(data[: _LENGTH_AT + 2 + length]))


@lru_cache(maxsize=1 << 12)  # 40 us each, and pictures of one size have one header
def _parsed(header: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    file = io.BytesIO(header)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("a .npy file of another version than 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if fortran or dtype.hasobject or dtype.names is not None:
        raise ValueError(f"{dtype} in {'F' if fortran else 'C'} order; numbers in C order are read")
    return shape, dtype, len(header)
