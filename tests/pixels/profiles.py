"""ICC profiles of version 2, made for the tests: RGB by primaries, grey by gamma, CMYK by the colors of its inks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import product

import numpy as np

P3 = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))
ADOBE = ((0.640, 0.330), (0.210, 0.710), (0.150, 0.060))
PROPHOTO = ((0.7347, 0.2653), (0.1596, 0.8404), (0.0366, 0.0001))
SRGB = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060))

_D65, _D50 = np.array([0.9505, 1.0, 1.089]), np.array([0.9642, 1.0, 0.8249])
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


def rgb(primaries: Sequence[tuple[float, float]], gamma: float = 2.2, name: str = "Test RGB") -> bytes:
    """Return a profile of three primaries, white D65."""
    xyz = np.array([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
    xyz = xyz * np.linalg.solve(xyz, _D65)
    adapt = np.linalg.inv(_BRADFORD) @ np.diag((_BRADFORD @ _D50) / (_BRADFORD @ _D65)) @ _BRADFORD
    tags = {f"{c}XYZ": _xyz(column) for c, column in zip("rgb", (adapt @ xyz).T, strict=True)}
    curves = {f"{c}TRC": _curve(gamma) for c in "rgb"}
    return _profile("RGB ", "mntr", "XYZ ", name, {**tags, **curves})


def grey(gamma: float, name: str = "Test grey") -> bytes:
    """Return a profile of grey values."""
    return _profile("GRAY", "mntr", "XYZ ", name, {"kTRC": _curve(gamma)})


def cmyk(name: str = "Test inks") -> bytes:
    """Return a profile of four inks; 100 % of all is black, cyan is the Lab color (60, -40, -40)."""
    inks = np.array([(60.0, -40, -40), (50, 70, 0), (90, 0, 90), (10, 0, 0)])
    grid = bytearray()
    for amounts in product((0, 1), repeat=4):
        some = inks[np.array(amounts, bool)]
        lightness = 100 * np.prod(some[:, 0] / 100) if len(some) else 100.0
        a, b = some[:, 1:].sum(axis=0) if len(some) else (0.0, 0.0)
        grid += bytes(int(np.clip(v, 0, 255)) for v in (lightness * 2.55, a + 128, b + 128))
    matrix = struct.pack(">9i", *(65536 if i % 4 == 0 else 0 for i in range(9)))
    ramp = bytes(range(256))
    table = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix + ramp * 4 + bytes(grid) + ramp * 3
    return _profile("CMYK", "prtr", "Lab ", name, {"A2B0": table})


def _xyz(values: np.ndarray) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(float(v) * 65536) for v in values))


def _curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256))


def _profile(space: str, kind: str, pcs: str, name: str, tags: dict[str, bytes]) -> bytes:
    text = name.encode() + b"\0"
    described = b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(8 + 3 + 67)
    tags = {"desc": described, "wtpt": _xyz(_D50), "cprt": b"text" + bytes(4) + b"none\0", **tags}
    offset, table, body = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for tag, data in tags.items():
        padded = data + bytes(-len(data) % 4)
        table += tag.encode() + struct.pack(">II", offset + len(body), len(data))
        body += padded
    header = bytearray(128)
    length = 128 + len(table) + len(body)
    header[:24] = struct.pack(
        ">I4sI4s4s4s", length, b"", 0x02100000, kind.encode(), space.encode(), pcs.encode()
    )
    header[36:40] = b"acsp"
    header[68:80] = struct.pack(">3i", *(round(v * 65536) for v in _D50))
    return bytes(header) + table + body
