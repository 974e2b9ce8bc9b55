"""Powers of ten in 128 bits, for turning decimal numbers into the nearest binary ones.

A table as in D. Lemire, "Number parsing at a gigabyte per second" (2021), section 5: for each q the first 128 bits of 5**q.
Those of negative q, whose bits never end, are rounded up.
"""

from __future__ import annotations

SMALLEST, LARGEST = -342, 308  # below, 19 digits are nearer to 0 than to any double; above, they are infinite


def significand(q: int) -> int:
    """The first 128 bits of 5**q, the first of them set."""
    power: int = 5 ** abs(q)
    if q >= 0:
        excess = power.bit_length() - 128
        return power >> excess if excess > 0 else power << -excess
    bits = (power - 1).bit_length()
    # Where 5**-q has 64 bits or fewer, numbers can lie exactly between two doubles: no bit may be lost twice.
    reciprocal: int = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // power + 1
    return reciprocal >> max(0, reciprocal.bit_length() - 128)


def table() -> bytes:
    """Both halves of each, the upper first, as little-endian 64-bit words."""
    words = bytearray()
    for q in range(SMALLEST, LARGEST + 1):
        upper, lower = divmod(significand(q), 1 << 64)
        words += upper.to_bytes(8, "little") + lower.to_bytes(8, "little")
    return bytes(words)
