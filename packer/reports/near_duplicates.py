"""Equal and similar rows, searched without comparing every pair; their meaning for splits and labels.

Rows whose stored bytes are equal are exact duplicates; sorting a checksum groups them. Near duplicates have
hashes that differ in up to 8 of 64 bits. Two hashes within 7 bits differ in at most one bit of at least one
of four 16-bit bands. So each hash is compared only with hashes that differ in at most one bit of a band, and
then all 64 bits are counted (multi-index hashing; this finds 95 % of the pairs at 8 bits).
Source: M. Norouzi, A. Punjani, D. Fleet, "Fast Search in Hamming Space with Multi-Index Hashing", CVPR 2012.

A hash shared by very many rows would still make the search quadratic. If all buckets together exceed
MOST_COMPARISONS, each row is compared only with its nearest neighbours in a bucket, and the page gives the
number of comparisons left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.reports.image_measures import MOST_BITS, ImageMeasures, agree

MOST_COMPARISONS = 2_000_000_000
"""Limit for all bands together; about a minute of one core."""
MOST_PAIRS = 1_000_000
"""Limit for pairs kept."""
SHOWN_PAIRS = 24
"""Pairs of each kind of duplicates on the page."""
_BANDS, _BITS = 4, 16
_CHUNK = 1 << 20  # comparisons at a time

Ints = NDArray[np.int64]


class Duplicates(NamedTuple):
    """Pairs of equal or similar rows. Of rows with equal bytes, split and label, the first stands for all.

    one, other: row numbers over all packs, int64 [P]; pairs across splits or labels come first.
    bits: number of bits in which their hashes differ, 0 for exact duplicates.
    exact, crossing, suspect: bool [P]: equal bytes; different splits; different labels.
    repeats: rows whose bytes equal those of an earlier row.
    near_rows: rows with a near or exact duplicate.
    leaked: by the number of a split, its rows with a duplicate in another split.
    suspects: rows with a duplicate that has another label.
    flat: rows without structure, compared by their bytes alone.
    left_out: comparisons left out; cut: True if pairs beyond MOST_PAIRS were dropped.
    """

    one: Ints
    other: Ints
    bits: Ints
    exact: NDArray[np.bool_]
    crossing: NDArray[np.bool_]
    suspect: NDArray[np.bool_]
    repeats: int
    near_rows: int
    leaked: tuple[int, ...]
    suspects: int
    flat: int
    left_out: int
    cut: bool

    def kinds(self) -> list[tuple[int, list[int]]]:
        """Return (number of pairs, pairs shown) for four kinds of pairs.

        In order: in different splits; with different labels; of the rest, exact and near duplicates.
        """
        rest = ~self.crossing & ~self.suspect
        kinds = self.crossing, self.suspect, rest & self.exact, rest & ~self.exact
        return [(int(kind.sum()), np.flatnonzero(kind)[:SHOWN_PAIRS].tolist()) for kind in kinds]

    def shown_rows(self) -> set[int]:
        """Return the rows of the pairs shown."""
        numbers = [number for _, shown in self.kinds() for number in shown]
        return {*self.one[numbers].tolist(), *self.other[numbers].tolist()}


def find_duplicates(
    digests: NDArray[np.uint64], parts: NDArray[np.int16], labels: Ints | None, images: ImageMeasures | None
) -> Duplicates:
    """Return equal and similar rows.

    digests: checksum of each row's bytes, [N]; parts: the number of each row's split, [N].
    labels: [N], or None without labels to compare. images: None compares bytes alone.
    """
    known = np.zeros(len(digests), np.int64) if labels is None else labels
    order = np.lexsort((known, parts, digests))
    d, p, k = digests[order], parts[order], known[order]
    new = np.ones((2, len(d)), bool)
    new[0, 1:] = d[1:] != d[:-1]
    new[1, 1:] = new[0, 1:] | (p[1:] != p[:-1]) | (k[1:] != k[:-1])
    heads = np.flatnonzero(new[1])  # a node: rows equal in bytes, split and label
    sizes = np.diff(np.append(heads, len(d)))
    rows = order[heads]  # lexsort is stable: the first row of each
    groups = np.cumsum(new[0])[heads]
    first = np.maximum.accumulate(np.where(new[0][heads], np.arange(len(heads)), 0))
    again = np.flatnonzero(first != np.arange(len(heads)))
    one, other, bits = first[again], again, np.zeros(len(again), np.int64)
    left_out, cut = 0, False
    if images is not None:
        some, details = np.flatnonzero(~images.flat[rows]), images.traits

        def confirm(a: Ints, b: Ints) -> NDArray[np.bool_]:
            alike: NDArray[np.bool_] = groups[some[a]] != groups[some[b]]
            alike[alike] = agree(details[rows[some[a[alike]]]], details[rows[some[b[alike]]]])
            return alike

        a, b, near_bits, left_out = _similar_pairs(images.hashes[rows[some]], confirm)
        one, other = np.concatenate((one, some[a])), np.concatenate((other, some[b]))
        bits, cut = np.concatenate((bits, near_bits)), len(a) >= MOST_PAIRS
    # Nodes of several rows are shown as a pair too.
    inside = np.flatnonzero(sizes > 1)
    low = np.concatenate((rows[one], rows[inside]))
    high = np.concatenate((rows[other], order[heads[inside] + 1]))
    low, high = np.minimum(low, high), np.maximum(low, high)
    one, other = np.concatenate((one, inside)), np.concatenate((other, inside))
    bits = np.concatenate((bits, np.zeros_like(inside)))
    exact, crossing, suspect = (of[low] == of[high] for of in (digests, parts, known))
    crossing, suspect = ~crossing, ~suspect
    near, leaks, doubts = (np.union1d(one[some], other[some]) for some in (slice(None), crossing, suspect))
    leaked = np.bincount(p[heads[leaks]], sizes[leaks], minlength=int(parts.max(initial=0)) + 1)
    ranked = np.lexsort((high, low, bits, ~exact, ~suspect, ~crossing))
    pairs = low[ranked], high[ranked], bits[ranked], exact[ranked], crossing[ranked], suspect[ranked]
    return Duplicates(
        *pairs,
        repeats=len(d) - int(new[0].sum()),
        near_rows=int(sizes[near].sum()),
        leaked=tuple(leaked.astype(int).tolist()),
        suspects=int(sizes[doubts].sum()),
        flat=0 if images is None else int(images.flat.sum()),
        left_out=left_out,
        cut=cut,
    )


def _similar_pairs(
    hashes: NDArray[np.uint64], confirm: Callable[[Ints, Ints], NDArray[np.bool_]]
) -> tuple[Ints, Ints, Ints, int]:
    """Return pairs of hashes that differ in at most MOST_BITS bits: all within 7, and 95 % of those at 8.

    hashes: [N]. confirm: called with both ends of some pairs, returns which pairs are duplicates.
    Returns one, other, number of differing bits, int64 [P] each, and the comparisons left out.
    """
    kept: list[NDArray[np.uint64]] = []
    left_out = 0
    count = np.uint64(max(1, len(hashes)))
    for band in range(_BANDS):
        keys = (hashes >> np.uint64(_BITS * band)).astype(np.uint16).astype(np.int64)
        order = np.lexsort((hashes, keys))
        counts = np.bincount(keys, minlength=1 << _BITS)
        limit = int(counts.max(initial=0))
        total = rest = _comparisons(keys[order], counts, limit)
        while rest > MOST_COMPARISONS // _BANDS and limit > 1:
            limit //= 2
            rest = _comparisons(keys[order], counts, limit)
        left_out += total - rest
        for i, j in _near(hashes[order], keys[order], counts, limit):
            one, other = order[i], order[j]
            good = confirm(one, other)
            one, other = one[good], other[good]
            low, high = np.minimum(one, other).astype(np.uint64), np.maximum(one, other).astype(np.uint64)
            kept.append(low * count + high)
            if sum(map(len, kept)) >= MOST_PAIRS:
                break
    found = np.unique(np.concatenate(kept)) if kept else np.zeros(0, np.uint64)
    one, other = (found // count).astype(np.int64), (found % count).astype(np.int64)
    bits = np.bitwise_count(hashes[one] ^ hashes[other]).astype(np.int64)
    return one, other, bits, left_out


def _comparisons(keys: Ints, counts: Ints, limit: int) -> int:
    """Return the number of comparisons of a band. Arguments: see `_near`."""
    return sum(int(lengths.sum()) for _, _, lengths in _compared(keys, counts, limit))


def _compared(keys: Ints, counts: Ints, limit: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield positions, and first and number of the consecutive positions that each is compared with."""
    ends = np.cumsum(counts)
    positions = np.arange(len(keys))
    yield positions, positions + 1, np.minimum(ends[keys] - positions - 1, limit)
    for flip in (1 << np.arange(_BITS)).tolist():
        # The other row's key has the bit set: each pair comes once.
        rows = np.flatnonzero(keys & flip == 0)
        others = keys[rows] | flip
        yield rows, ends[others] - counts[others], np.minimum(counts[others], limit)


def _near(hashes: NDArray[np.uint64], keys: Ints, counts: Ints, limit: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield pairs of positions within MOST_BITS whose keys differ in at most one bit, in chunks.

    hashes, keys: of one band, sorted by key, then by hash. counts: rows by key. limit: most rows of a bucket
    that a row is compared with.
    """
    for rows, begins, lengths in _compared(keys, counts, limit):
        behind = np.cumsum(lengths)
        start = 0
        while start < len(rows):
            before = int(behind[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(behind, before + _CHUNK, "right")))
            some = slice(start, stop)
            i = np.repeat(rows[some], lengths[some])
            offsets = np.arange(len(i)) - np.repeat(behind[some] - lengths[some] - before, lengths[some])
            j = np.repeat(begins[some], lengths[some]) + offsets
            near = np.flatnonzero(np.bitwise_count(hashes[i] ^ hashes[j]) <= MOST_BITS)
            if len(near):
                yield i[near], j[near]
            start = stop
