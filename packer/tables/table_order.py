"""The order of the rows of a table in its pack: an array of row numbers, splits one after the other, in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.convert.splits import Split, counts_of
from packer.tables.table_splits import Owners

Numbers = NDArray[np.int64]
_DRAWN = 1 << 20  # row numbers drawn at once


def table_order(
    rows: int,
    *,
    split: Split | None,
    shuffle: bool,
    seed: int,
    path: str | None = None,
    owners: Owners | None = None,
) -> SampleOrder:
    """Return the rows of a table: splits one after the other, by name.

    rows: of the source; split: shares are drawn from the seed, each row as likely as any other, unless `owners` says which split each
    row is in. shuffle: the rows of each split in a random order, drawn from the seed; else in the source's. path: of a file,
    overwritten, that the row numbers are mapped from; None: they are in memory.
    Raises UsageError when a split would be empty, or a row in none; OSError.
    """
    splits: dict[str, tuple[int, int]] = {}
    pieces = _pieces(rows, split, shuffle, seed, splits, owners, path)
    if path is None:
        return SampleOrder(np.concatenate(list(pieces)), splits)
    with open(path, "wb") as file:
        for piece in pieces:
            piece.tofile(file)
    return SampleOrder(np.memmap(path, np.int64, "r"), splits)


def _pieces(
    rows: int,
    split: Split | None,
    shuffle: bool,
    seed: int,
    splits: dict[str, tuple[int, int]],
    owners: Owners | None,
    path: str | None,
) -> Iterator[Numbers]:
    """Yield the row numbers in order. splits: filled in."""
    if split is None:
        yield from _drawn(0, rows, 0, rows, randomness.key(seed, "convert") if shuffle else None)
        return
    first, last, shares = split.portions(rows)
    left = rows - first - last
    dealt = {} if owners is not None else counts_of(shares, left)
    drawn = len(shares) > 1
    at = taken = 0
    for name in split.parts or (owners.names if owners else ()):
        key = randomness.key(seed, "convert", name) if shuffle else None
        if owners is not None and name in owners.names:
            own = _owned(owners, name, first, path)
            splits[name] = (at, at + len(own))
            yield from (own[piece] for piece in _drawn(0, len(own), 0, len(own), key))
            at += len(own)
            continue
        low, count = (first, dealt[name]) if name in shares else (0, first)
        if str(split.parts[name]).startswith("last"):
            low, count = rows - last, last
        splits[name] = (at, at + count)
        at += count
        if name in shares and drawn:
            pieces = _drawn(first, left, taken, count, randomness.key(seed, "split"))
            # What stands together in a random order is in a random order.
            yield from pieces if shuffle else [np.sort(np.concatenate(list(pieces)))]
            taken += count
        else:
            yield from _drawn(low, count, 0, count, key)


def _owned(owners: Owners, name: str, first: int, path: str | None) -> Numbers:
    """Return the rows of a split, rising. first: row of the first owner; path: beside which they are mapped from a file without a name."""
    number, total = owners.names.index(name), len(owners.numbers)
    pieces = (
        first + start + np.flatnonzero(owners.numbers[start : start + _DRAWN] == number)
        for start in range(0, total, _DRAWN)
    )
    if path is None:
        return np.concatenate([np.empty(0, np.int64), *pieces])
    with TemporaryFile(dir=os.path.dirname(path)) as file:
        for piece in pieces:
            piece.tofile(file)
        file.flush()
        return np.memmap(file, np.int64, "r") if file.tell() else np.empty(0, np.int64)


def _drawn(low: int, rows: int, start: int, count: int, key: int | None) -> Iterator[Numbers]:
    """Yield the numbers at positions start..start+count-1 of the range low..low+rows-1, permuted by the key, None: as it is."""
    for at in range(start, start + count, _DRAWN):
        positions = np.arange(at, min(at + _DRAWN, start + count))
        yield low + (positions if key is None else randomness.permute(positions, rows, key))
