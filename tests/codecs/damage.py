"""Bytes as a damaged or hostile file would hold them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest


def truncated(data: bytes) -> Iterator[bytes]:
    """Every prefix of short data; of longer data 60, spread evenly, and all that lack less than 40 bytes."""
    lengths = {*np.linspace(0, len(data) - 1, 60).astype(int), *range(max(0, len(data) - 40), len(data))}
    yield from (data[:length] for length in sorted(map(int, lengths)))


def flipped(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Copies of data in which one to eight bytes are others, a third of them within the first 200."""
    draws = np.random.default_rng(seed)
    for number in range(count):
        copy = bytearray(data)
        end = min(200, len(data)) if number % 3 == 0 else len(data)
        for position in draws.integers(0, end, draws.integers(1, 9)):
            copy[position] ^= int(draws.integers(1, 256))
        yield bytes(copy)


def noise(count: int, seed: int = 0) -> Iterator[bytes]:
    """Random bytes, 0 to 2,000 of them."""
    draws = np.random.default_rng(seed)
    yield from (draws.bytes(int(length)) for length in draws.integers(0, 2000, count))


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Expect a ValueError of exactly that message."""
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}\Z"):
        yield


def complaint(call: Callable[[], object]) -> str | None:
    """The message of the ValueError that a call raises, None if it raises none."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return None
