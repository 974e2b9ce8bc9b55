"""Buckets: batches of images alike in size, shuffled, so that padded batches contain little padding.

The rows are split at the median of height or width, whichever varies more, again and again, until a part has
at most a bucket's rows, or images of a single size: 8 bytes a row, computed once. An epoch permutes the rows
of each bucket, cuts the sequence of buckets into batches, and permutes these. Only a few batches hold rows of
two buckets, and these are neighbours. All comparisons use integers, so that every machine splits alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.errors import UsageError
from packer.orders.epochs import Context, Order, RowOrder, order_key
from packer.orders.runs import Subset, digest_of

# Global batches per bucket, and the least number of buckets: see docs/decisions/padding.md.
BATCHES = 16
BUCKETS = 8
_STEP = np.array(randomness.GOLDEN, np.uint64)  # 0-d: faster than a number
_ROUNDS = 10


@dataclass(frozen=True)
class Buckets(RowOrder):
    """Images of similar height and width in each batch: for images that differ in size, padded or not.

    Every row comes once an epoch. Each epoch mixes the rows of a bucket again, and permutes the batches. A
    bucket has the rows of 16 global batches, or an eighth of all rows if that is less.

    Examples
    --------
    Wide images (even rows) and tall ones, in batches of four:

    >>> from packer.orders.runs import Subset, one_run
    >>> sizes = np.array([[20, 30], [30, 20]] * 16)
    >>> about = Context(Subset([(0, 32)]), row_bytes=1, block_rows=32, global_batch=4, sizes=lambda: sizes)
    >>> rows = Buckets().bind(about).within(one_run(0, 32), epoch=0).rows()
    >>> (rows.reshape(8, 4) % 2).mean(axis=1).tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """

    bucket: int | None = field(default=None, init=False, repr=False)
    batch: int | None = field(default=None, init=False, repr=False)
    name: ClassVar[str] = "buckets"
    lengths: ClassVar[tuple[str, ...]] = ("bucket", "batch")
    _sizes: NDArray[np.int32] = field(init=False, repr=False, compare=False)
    _rows: NDArray[np.integer[Any]] = field(init=False, repr=False, compare=False)  # bucket after bucket
    _ends: NDArray[np.int64] = field(init=False, repr=False, compare=False)  # end of each bucket

    def bind(self, about: Context) -> Buckets:
        """Return the order with the rows by size. Raises UsageError if the pack lacks their sizes."""
        if about.sizes is None:
            raise UsageError(
                "Buckets: the heights and widths of the rows are not known (packs with weights have none)."
                " Pass a single pack, or another order."
            )
        sizes = np.ascontiguousarray(about.sizes(), np.int32).reshape(-1, 2)
        bucket = max(1, min(BATCHES * about.global_batch, len(sizes) // BUCKETS))
        bound = self.having(bucket=bucket, batch=about.global_batch, _sizes=sizes)
        return bound.having(drawn={"heights and widths": digest_of(sizes)}).over(about.subset, about.seed)

    def over(self: Order, rows: int | Subset, seed: int = 0) -> Order:
        """Return the order bound to rows, split by size."""
        assert isinstance(self, Buckets)
        by_size, ends = _split(self._sizes, self.bound[0])
        return super().over(rows, seed).having(_rows=by_size, _ends=ends)

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the rows at the positions."""
        places = _permuted_batches(
            positions, self.length, self.bound[1], order_key(self.seed, epoch, self.name)
        )
        buckets = np.searchsorted(self._ends, places, "right")
        firsts = np.where(buckets > 0, self._ends[buckets - 1], 0)
        key = np.array(randomness.key(self.seed, epoch, "bucket"), np.uint64)
        keys = randomness.mix64((key ^ buckets.view(np.uint64)) + _STEP)
        inside = permute_each(places - firsts, self._ends[buckets] - firsts, keys)
        return self._rows[firsts + inside].astype(np.int64)


def _permuted_batches(places: NDArray[np.int64], n: int, batch: int, key: int) -> NDArray[np.int64]:
    """Return positions in the buckets' sequence: batches permuted; a shorter one (cut at random) last."""
    whole, rest = divmod(n, batch)
    if not whole:
        return places
    short = key % (whole + 1) * batch  # first row of the shorter batch
    numbers = places // batch
    inside = places - numbers * batch
    full = numbers < whole
    found = np.full(len(places), short)
    begins = randomness.permute(numbers[full], whole, key) * batch
    found[full] = begins + np.where(begins >= short, rest, 0)
    found += inside
    return found


def _split(sizes: NDArray[np.int32], most: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Return the rows bucket after bucket, and the end of each bucket. sizes: int32 [n, 2]."""
    n = len(sizes)
    short = n > 0 and int(sizes.max()) < 1 << 16 and int(sizes.min()) >= 0
    # uint16 sorts faster.
    columns = [sizes[:, k].astype(np.uint16 if short else np.int32) for k in range(2)]
    rows: NDArray[np.integer[Any]] = np.arange(n, dtype=np.int32 if n < 1 << 31 else np.int64)
    waiting, ends = [(0, n)], []
    while waiting:
        start, stop = waiting.pop()
        column = _widest([one[rows[start:stop]] for one in columns]) if stop - start > most else None
        if column is None:
            ends.append(stop)
            continue
        rising = np.argsort(columns[column][rows[start:stop]], kind="stable")
        rows[start:stop] = rows[start:stop][rising]
        at = start + _middle(columns[column][rows[start:stop]])
        waiting += [(at, stop), (start, at)]
    return rows, np.array(ends, np.int64)


def _widest(columns: list[NDArray[Any]]) -> int | None:
    """Return the column that varies more, if possible without an eighth at each end; None if none varies."""
    n = len(columns[0])
    eighth = n // 8
    some = [np.partition(one, (eighth, n - 1 - eighth))[[eighth, n - 1 - eighth]].tolist() for one in columns]
    whole = [[int(one.min()), int(one.max())] for one in columns]
    for spans in (some, whole):
        (low, high), (left, right) = spans
        if low < high or left < right:
            return int(right * low > high * left)
    return None


def _middle(values: NDArray[Any]) -> int:
    """Return the index nearest the middle that separates unequal ones of ascending values (not all equal)."""
    middle = len(values) // 2
    low, high = (int(np.searchsorted(values, values[middle], side)) for side in ("left", "right"))
    return low if low and (middle - low <= high - middle or high == len(values)) else high


def permute_each(
    positions: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the number at each position of a shuffled range, with a range and key for every position.

    positions: int64 [k]; sizes: int64 [k], position < size <= 2**52; keys: uint64 [k], of the permutation.
    Returns int64 [k]: for one size and key each of 0..size-1 once.

    `randomness.feistel`, with ten rounds: each number is equally likely at each place from size 2 on, but
    some orders of 5 to 20 numbers are up to a fifth more likely than others.
    """
    a = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    unsigned = sizes.astype(np.uint64)
    b = (unsigned + a - np.uint64(1)) // a
    return randomness.cycle_walk(
        positions.astype(np.uint64),
        unsigned,
        lambda some, where: randomness.feistel(some, a[where], b[where], _round_keys(keys[where])),
    )


def _round_keys(keys: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield each round's keys, in memory that the next round overwrites."""
    keys = keys.copy()
    for _ in range(_ROUNDS):
        keys += _STEP
        yield keys
