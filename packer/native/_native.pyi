from collections.abc import Buffer
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Bytes: TypeAlias = NDArray[np.uint8]
_Integers: TypeAlias = NDArray[np.int64]

def permute(
    positions: Buffer, numbers: Buffer, n: int, a: int, b: int, key: int, round_keys: bytes, /
) -> int: ...
def unpermute(
    numbers: Buffer, positions: Buffer, n: int, a: int, b: int, key: int, round_keys: bytes, /
) -> int: ...
def copy_rows(
    extents: _Integers,
    files: _Integers,
    starts: _Integers,
    lengths: _Integers,
    row_bytes: int,
    out: _Bytes,
    /,
) -> int: ...
def read_rows(
    extents: _Integers,
    files: _Integers,
    starts: _Integers,
    lengths: _Integers,
    row_bytes: int,
    out: _Bytes,
    /,
) -> tuple[int, int]: ...
def willneed_rows(
    extents: _Integers, files: _Integers, starts: _Integers, lengths: _Integers, row_bytes: int, /
) -> None: ...
def resample(
    source: _Bytes,
    result: _Bytes,
    down_first: NDArray[np.int32],
    down_weights: NDArray[np.uint16],
    down_bits: int,
    across_first: NDArray[np.int32],
    across_weights: NDArray[np.uint16],
    across_bits: int,
    /,
) -> None: ...
def channel_sums(pixels: _Bytes, /) -> tuple[list[int], list[int]]: ...
def jpeg_plain_shape(data: Buffer, /) -> tuple[int, int, int] | None: ...
def jpeg_part(
    data: Buffer, left: int, top: int, right: int, bottom: int, /
) -> tuple[bytes, int, int, int, int] | None: ...
def jpeg_with_restarts(data: Buffer, /) -> bytes | None: ...
def parse_csv(
    data: Buffer,
    out: Buffer,
    size: int,
    lines: Buffer,
    cells: Buffer,
    delimiter: int,
    quote: int,
    point: int,
    thousands: int,
    comment: int,
    na: tuple[bytes, ...],
    powers: Buffer,
    /,
) -> tuple[int, int, int, list[tuple[int, int, bytes, int, int]], dict[int, list[str]], bytes]: ...
def end_of_csv_records(data: Buffer, start: int, delimiter: int, quote: int, comment: int, /) -> int: ...
def block_sums(
    records: Buffer,
    itemsize: int,
    block: int,
    mask: _Bytes | None,
    offsets: _Integers,
    single: _Bytes,
    figures: NDArray[np.float64],
    whole: _Bytes,
    /,
) -> None: ...
def augment(
    what: bytes,
    images: int,
    height: int,
    width: int,
    columns: int,
    out: int,
    begin: int,
    end: int,
    past: int,
    /,
) -> None: ...
