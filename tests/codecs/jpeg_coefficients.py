"""A reader of JPEG coefficients, and the cosine transform in floating point: oracles that share no code with libjpeg."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ZIGZAG = np.array(sorted(range(64), key=lambda i: (i // 8 + i % 8, (i % 8, i // 8)[(i // 8 + i % 8) % 2])))
_COSINES = np.array([[np.cos((2 * x + 1) * u * np.pi / 16) / 2 for x in range(8)] for u in range(8)])
_COSINES[0] /= np.sqrt(2)


class Component(NamedTuple):
    """A plane. coefficients: int64 [block rows, block columns, 8, 8], quantised; steps: int64 [8, 8], what they count in."""

    coefficients: NDArray[np.int64]
    steps: NDArray[np.int64]


def forward(pixels: NDArray[Any]) -> Floats:
    """Return the coefficients of a plane [8 h, 8 w]: float64 [h, w, 8, 8]."""
    height, width = pixels.shape
    blocks = pixels.reshape(height // 8, 8, width // 8, 8).swapaxes(1, 2) - 128.0
    return np.asarray(_COSINES @ blocks @ _COSINES.T)


def backward(coefficients: NDArray[Any]) -> Floats:
    """Return the plane of coefficients [h, w, 8, 8], limited to 0 to 255: float64 [8 h, 8 w]."""
    rows, columns = coefficients.shape[:2]
    blocks = _COSINES.T @ coefficients @ _COSINES + 128.0
    return blocks.swapaxes(1, 2).reshape(8 * rows, 8 * columns).clip(0, 255)


def components(data: bytes) -> list[Component]:
    """Read a baseline JPEG in one scan, without restart markers, whose sides are multiples of its MCU's."""
    steps: dict[int, NDArray[np.int64]] = {}
    tables: dict[int, list[tuple[int, int]]] = {}
    frame, at = b"", 2
    while True:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        segment, at = data[at + 4 : at + 2 + length], at + 2 + length
        if marker == 0xDB:
            steps[segment[0]] = np.zeros((8, 8), np.int64)
            steps[segment[0]].flat[_ZIGZAG] = list(segment[1:65])
        elif marker == 0xC4:
            tables[segment[0]] = _lookup(segment[1:17], segment[17:])
        elif marker == 0xC0:
            frame = segment
        elif marker == 0xDA:
            break
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    planes = [frame[6 + 3 * i : 9 + 3 * i] for i in range(frame[5])]
    factors = [(plane[1] >> 4, plane[1] & 15) if len(planes) > 1 else (1, 1) for plane in planes]
    across, down = (8 * max(f[i] for f in factors) for i in (0, 1))
    found = [np.zeros((height // down * v, width // across * h, 64), np.int64) for h, v in factors]
    bits, last = _Bits(data[at:-2].replace(b"\xff\0", b"\xff")), [0] * len(planes)
    for row in range(height // down):
        for column in range(width // across):
            for i, (h, v) in enumerate(factors):
                for block in range(h * v):
                    kind = segment[2 + 2 * i]
                    values = bits.block(tables[kind >> 4], tables[16 | kind & 15])
                    last[i] += values[0]
                    found[i][row * v + block // h, column * h + block % h, _ZIGZAG] = [last[i], *values[1:]]
    return [
        Component(blocks.reshape(*blocks.shape[:2], 8, 8), steps[plane[2]])
        for blocks, plane in zip(found, planes, strict=True)
    ]


def _lookup(counts: bytes, symbols: bytes) -> list[tuple[int, int]]:
    """Return (bits, symbol) of the code that any 16 bits begin with."""
    table, code, k = [(0, 0)] * (1 << 16), 0, 0
    for bits, count in enumerate(counts, 1):
        for _ in range(count):
            first = code << (16 - bits)
            table[first : first + (1 << (16 - bits))] = [(bits, symbols[k])] * (1 << (16 - bits))
            code, k = code + 1, k + 1
        code <<= 1
    return table


class _Bits:
    """The bits of a scan."""

    def __init__(self, data: bytes) -> None:
        padded = np.frombuffer(data + bytes(4), np.uint8).astype(np.int64)
        self._words = sum(padded[i : len(padded) - 3 + i] << (24 - 8 * i) for i in range(4)).tolist()
        self._at = 0

    def block(self, dc: list[tuple[int, int]], ac: list[tuple[int, int]]) -> list[int]:
        """Return the numbers of a block in the order of the file, of the first one its difference."""
        values = [0] * 64
        values[0] = self._number(self._symbol(dc))
        k = 1
        while k < 64:
            symbol = self._symbol(ac)
            run, size = symbol >> 4, symbol & 15
            if not size:
                if run < 15:
                    break
                k += 16
                continue
            k += run
            values[k] = self._number(size)
            k += 1
        return values

    def _symbol(self, table: list[tuple[int, int]]) -> int:
        bits, symbol = table[self._words[self._at >> 3] >> (16 - (self._at & 7)) & 0xFFFF]
        assert bits
        self._at += bits
        return symbol

    def _number(self, size: int) -> int:
        if not size:
            return 0
        value = self._words[self._at >> 3] >> (32 - size - (self._at & 7)) & ((1 << size) - 1)
        self._at += size
        return value if value >> (size - 1) else value - (1 << size) + 1
