"""The order of a table's rows in its pack: an array of row numbers, split by split, mapped from a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.convert.splits import Split, counts_of
from packer.format.file_io import create_anew
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
    """Return the row numbers of a table, split by split, and the range of each split.

    rows: rows of the source. split: shares of the splits; the seed draws each split's rows, all rows with the
    same probability, unless `owners` defines the split of each row. shuffle: True for a random order, by the
    seed, within each split; False keeps the source's order. path: file to overwrite with the row numbers and
    to map them from; None keeps them in memory.
    Raises UsageError if a split would be empty or a row belongs to none; OSError.
    """
    splits: dict[str, tuple[int, int]] = {}
    pieces = _pieces(rows, split, shuffle, seed, splits, owners, path)
    if path is None:
        return SampleOrder(np.concatenate(list(pieces)), splits)
    with open(create_anew(path), "wb") as file:
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
    """Yield the row numbers in order. splits: filled with the range of each split."""
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
            members = _members(owners, name, first, path)
            splits[name] = (at, at + len(members))
            yield from (members[piece] for piece in _drawn(0, len(members), 0, len(members), key))
            at += len(members)
            continue
        low, count = (first, dealt[name]) if name in shares else (0, first)
        if str(split.parts[name]).startswith("last"):
            low, count = rows - last, last
        splits[name] = (at, at + count)
        at += count
        if name in shares and drawn:
            pieces = _drawn(first, left, taken, count, randomness.key(seed, "split"))
            # A contiguous part of a random order is in random order itself.
            yield from pieces if shuffle else [np.sort(np.concatenate(list(pieces)))]
            taken += count
        else:
            yield from _drawn(low, count, 0, count, key)


def _members(owners: Owners, name: str, first: int, path: str | None) -> Numbers:
    """Return the rows of a split in ascending order.

    first: row of the first owner. path: the result is mapped from an unnamed file beside this path; None
    keeps it in memory.
    """
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
    """Yield low + p for positions start..start+count-1, permuted among 0..rows-1 by the key if given."""
    for at in range(start, start + count, _DRAWN):
        positions = np.arange(at, min(at + _DRAWN, start + count))
        yield low + (positions if key is None else randomness.permute(positions, rows, key))
