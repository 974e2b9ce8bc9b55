"""Buckets: batches of images alike in size, shuffled, so that little of a padded batch is padding.

The rows are split by height or width, whichever varies more, at the middle, again and again, until a part has no more rows than a bucket
may have, or images of one size only: 8 bytes a row, made once. An epoch permutes the rows of each bucket; one bucket after another, they
are cut into batches, and these are permuted. Only a few batches hold rows of two buckets, and those are neighbours. All is compared in
whole numbers, so that every machine splits alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.errors import UsageError
from packer.orders.epochs import Context, RowOrder, order_key, recorded, whole_number
from packer.orders.runs import Runs, consecutive
from packer.orders.sampling import check_same, digest_of, keys_of, permute_each

# Global batches that a bucket holds, and how many buckets there are at least: see docs/decisions.md.
BATCHES = 16
BUCKETS = 8


@dataclass(frozen=True, eq=False)
class Buckets(RowOrder):
    """Images of like height and width in each batch: for images that differ in size, padded or not.

    Every row comes once an epoch. Rows of a bucket are mixed anew in each epoch, and batches come in a random order.

    Parameters
    ----------
    rows : int, optional
        Rows of a bucket, at most, but for images of one size; default: 16 global batches, or an eighth of all rows if
        that is less. Fewer mean less padding, and batch-mates that meet again more often.
    pixels : int, optional
        Most pixels of a batch of a rank as it is padded (before Padding(multiple=...) rounds up): batches then have as many rows as fit,
        at most batch_size. The state counts batches then, in place of rows.

    Examples
    --------
    Three wide images and three tall ones, in batches of three:

    >>> from packer.orders.runs import one_run
    >>> sizes = np.array([[20, 30], [30, 20], [20, 31], [31, 20], [21, 30], [30, 21]])
    >>> about = Context(n=6, row_bytes=1, block_rows=6, global_batch=3, sizes=lambda: sizes)
    >>> Buckets(rows=3).bind(about).place(one_run(0, 6), n=6, seed=0, epoch=0).rows().tolist()
    [2, 4, 0, 3, 5, 1]
    """

    rows: int | None = None
    pixels: int | None = None
    _cut: _Cut | None = field(default=None, repr=False)
    name: ClassVar[str] = "buckets"

    def __post_init__(self) -> None:
        for name, value, remedy in (
            ("rows", self.rows, "Pass the rows of a bucket, some batches."),
            ("pixels", self.pixels, "Pass the pixels of a batch, for example 4_000_000."),
        ):
            if value is not None:
                object.__setattr__(self, name, whole_number(f"Buckets: {name}", value, remedy))

    def bind(self, about: Context) -> Buckets:
        """Return the order with the rows by size. Raises UsageError if their sizes are not known."""
        if about.sizes is None:
            raise UsageError(
                "Buckets: the heights and widths of the rows are not known, as of packs with weights. Pass one pack, or another order."
            )
        sizes = np.ascontiguousarray(about.sizes(), np.int32).reshape(-1, 2)
        batch = about.global_batch
        each = batch // about.ranks
        if self.pixels is not None:
            _check_budget(self.pixels, sizes)
            mean = int(sizes.prod(axis=1, dtype=np.int64).mean()) if len(sizes) else 1
            each = min(each, max(1, self.pixels // max(1, mean)))
            batch = about.global_batch // about.ranks
        rows = self.rows or max(1, min(BATCHES * each * about.ranks, len(sizes) // BUCKETS))
        return replace(self, rows=rows, _cut=_Cut.of(sizes, rows, batch, self.pixels))

    @property
    def batch_rows(self) -> int | None:
        """The most rows of a batch, where batches are cut by pixels: positions are batches then."""
        return None if self.pixels is None or self._cut is None else self._cut.batch

    def length(self, n: int) -> int:
        """Return the rows, or, where batches are cut by pixels, the batches of an epoch."""
        return n if self.pixels is None else len(self._bound.ends)

    def batches(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the places of the rows of each batch, for `place`, where batches are cut by pixels: a run for each."""
        ends = self._bound.ends
        numbers = randomness.permute(positions.rows(), len(ends), order_key(seed, epoch, self.name))
        starts = np.where(numbers > 0, ends[numbers - 1], 0)
        return Runs(starts, ends[numbers] - starts)

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the rows at the positions, or, where batches are cut by pixels, at places that `batches` returned."""
        if not len(positions.starts):
            return positions
        bound, places = self._bound, positions.rows()
        if self.pixels is None:
            places = _permuted_batches(places, n, bound.batch, order_key(seed, epoch, self.name))
        buckets = np.searchsorted(bound.buckets, places, "right")
        firsts = np.where(buckets > 0, bound.buckets[buckets - 1], 0)
        keys = keys_of(randomness.key(seed, epoch, "bucket"), buckets)
        inside = permute_each(places - firsts, bound.buckets[buckets] - firsts, keys)
        return consecutive(bound.rows[firsts + inside].astype(np.int64))

    def record(self) -> dict[str, Any]:
        """Return the name, the rows of a bucket and of a global batch, or its pixels, and what tells these sizes from others."""
        lengths = {"name": self.name, "rows": self.rows, "batch": self._bound.batch}
        return lengths | {"pixels": self.pixels, "sizes": digest_of(self._bound.sizes)}

    def resumed(self, record: Mapping[str, Any]) -> Buckets:
        """Return the order with the recorded lengths. Raises UsageError for other sizes, or the record of another order."""
        lengths = recorded(record, self.name, "rows", "batch")
        pixels = record.get("pixels")
        if pixels is not None:
            pixels = recorded(record, self.name, "pixels")["pixels"]
        check_same("heights and widths", digest_of(self._bound.sizes), record.get("sizes"))
        cut = _Cut.of(self._bound.sizes, lengths["rows"], lengths["batch"], pixels)
        return replace(self, rows=lengths["rows"], pixels=pixels, _cut=cut)

    @property
    def _bound(self) -> _Cut:
        assert self._cut is not None  # by bind
        return self._cut


class _Cut(NamedTuple):
    """Rows by size. rows: bucket after bucket; buckets: where each ends; batch: rows of a batch, at most.

    ends: where each batch ends, if batches are cut by pixels. sizes: int32 [n, 2].
    """

    rows: NDArray[np.integer[Any]]
    buckets: NDArray[np.int64]
    batch: int
    ends: NDArray[np.int64]
    sizes: NDArray[np.int32]

    @classmethod
    def of(cls, sizes: NDArray[np.int32], most: int, batch: int, pixels: int | None) -> _Cut:
        """most: rows of a bucket."""
        rows, buckets = _split(sizes, most)
        ends = np.empty(0, np.int64)
        if pixels is not None and len(rows):
            firsts = np.concatenate(([0], buckets[:-1]))
            areas = np.maximum.reduceat(sizes[rows].astype(np.int64), firsts).prod(axis=1)
            counts = buckets - firsts
            each = np.clip(pixels // np.maximum(areas, 1), 1, batch)
            batches = -(-counts // each)  # of a bucket, as even as can be
            of = np.repeat(np.arange(len(buckets)), batches)
            number = np.arange(len(of)) - np.repeat(np.cumsum(batches) - batches, batches) + 1
            ends = firsts[of] + number * counts[of] // batches[of]
        return cls(rows, buckets, batch, ends, sizes)


def _check_budget(pixels: int, sizes: NDArray[np.int32]) -> None:
    areas = sizes.prod(axis=1, dtype=np.int64)
    if len(areas) and areas.max() > pixels:
        height, width = sizes[areas.argmax()].tolist()
        raise UsageError(
            f"Buckets: pixels is {pixels:,}, and an image of {height} x {width} has more. Pass at least {areas.max():,}."
        )


def _permuted_batches(places: NDArray[np.int64], n: int, batch: int, key: int) -> NDArray[np.int64]:
    """Return where the rows of positions stand among the buckets: batches permuted, a shorter one, cut at a random place, last."""
    whole, rest = divmod(n, batch)
    if not whole:
        return places
    short = key % (whole + 1) * batch  # where the shorter one begins
    numbers = places // batch
    inside = places - numbers * batch
    full = numbers < whole
    found = np.full(len(places), short)
    begins = randomness.permute(numbers[full], whole, key) * batch
    found[full] = begins + np.where(begins >= short, rest, 0)
    found += inside
    return found


def _split(sizes: NDArray[np.int32], most: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Return the rows bucket after bucket, and where each bucket ends. sizes: int32 [n, 2]."""
    n = len(sizes)
    short = n > 0 and int(sizes.max()) < 1 << 16 and int(sizes.min()) >= 0
    columns = [
        sizes[:, k].astype(np.uint16 if short else np.int32) for k in range(2)
    ]  # short ones sort faster
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
    """Return the number of the column that varies more, without an eighth at each end if it varies then; None if none does."""
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
    """Return where to part rising values, not all equal: as near the middle as equal ones stay together."""
    middle = len(values) // 2
    low, high = (int(np.searchsorted(values, values[middle], side)) for side in ("left", "right"))
    return low if low and (middle - low <= high - middle or high == len(values)) else high
