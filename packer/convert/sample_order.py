"""Which sample stands in which row: splits one after the other, each shuffled or in the source's order; closing holes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.errors import UsageError

Samples = NDArray[np.int64]
"""The sample of each row."""


@dataclass(frozen=True)
class SampleOrder:
    """The sample of each row, [rows]; splits: name -> [first row, last row + 1), {} for none."""

    samples: Samples
    splits: dict[str, tuple[int, int]]

    def part(self, start: int, stop: int) -> SampleOrder:
        """Return the order of the rows start..stop-1, with what each split has of them."""
        return SampleOrder(self.samples[start:stop], self._within(start, stop))

    def _within(self, start: int, stop: int) -> dict[str, tuple[int, int]]:
        return {
            name: (min(max(a, start), stop) - start, max(min(b, stop), start) - start)
            for name, (a, b) in self.splits.items()
        }


def arrange(members: Mapping[str, NDArray[np.int64]], *, shuffle: bool, seed: int) -> SampleOrder:
    """Put the splits one after the other.

    members: split -> its samples, int64, rising; {"": all} where there are no splits. shuffle: permute each split's rows,
    drawn from the seed and its name.
    """
    parts, splits, first = [], {}, 0
    for name, samples in members.items():
        count = len(samples)
        if shuffle and count:
            key = randomness.key(seed, "convert", name) if name else randomness.key(seed, "convert")
            samples = samples[randomness.permute(np.arange(count), count, key)]
        parts.append(samples)
        if name:
            splits[name] = (first, first + count)
        first += count
    return SampleOrder(np.concatenate(parts), splits)


def parse_split(text: str | Mapping[str, float]) -> dict[str, float]:
    """Return {"train": 0.9, "val": 0.1} from "train=0.9,val=0.1". Raises UsageError unless the shares are positive and make 1.

    Sorted by name: a pack's record of its options does not keep their order, and says all that its rows depend on.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")] if isinstance(text, str) else list(text.items())
        shares = {str(name).strip(): float(share) for name, share in pairs}
        named = shares and len(shares) == len(pairs) and all(shares)
        if not named or not all(share > 0 for share in shares.values()):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise UsageError(
            f"split {text}: is not a list of names and positive shares. Pass for example train=0.9,val=0.1."
        ) from None
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise UsageError(
            f"split {text}: the shares make {sum(shares.values()):g}; 1 is needed. Pass for example train=0.9,val=0.1."
        )
    return dict(sorted(shares.items()))


def parse_spans(split: Mapping[str, Any]) -> dict[str, range]:
    """Return splits that are given as the samples of each, sorted by name. Raises UsageError unless they have each sample once."""
    ranges = [span for span in split.values() if isinstance(span, range) and span.step == 1]
    spans = sorted((span for span in ranges if span), key=lambda span: span.start)
    ends = [0, *(span.stop for span in spans)]
    each_once = len(ranges) == len(split) and ends[:-1] == [span.start for span in spans]
    if not spans or not each_once or not all(str(name).strip() for name in split):
        raise UsageError(
            f"split {dict(split)}: does not have each sample once. Pass for example {{'train': range(900), 'val': range(900, 1000)}}."
        )
    return {str(name).strip(): split[name] for name in sorted(split)}


def members_of(spans: Mapping[str, range], count: int) -> dict[str, NDArray[np.int64]]:
    """Return name -> samples, as stratified does, of splits that are given as the samples of each. Raises UsageError."""
    total = sum(map(len, spans.values()))
    if total != count:
        raise UsageError(
            f"split: has {total:,} samples in all, and there are {count:,}. Pass ranges that have each once."
        )
    return {name: np.arange(span.start, span.stop) for name, span in spans.items()}


def stratified(
    strata: NDArray[np.integer] | None, count: int, shares: Mapping[str, float], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Draw splits so that each holds its share of every stratum.

    strata: int [count], the class of each sample, or None: all alike. shares: name -> share, together 1.
    Returns: name -> samples, int64, rising; together each sample once. A stratum's odd samples go, one each, to the splits that
    have been short-changed most so far, so that each stratum comes out to within one sample, and the whole nearly so.
    Raises UsageError when a split would be empty.
    """
    names = list(shares)
    share = np.array([shares[name] for name in names])
    groups = (
        [np.arange(count)]
        if strata is None
        else np.split(
            np.argsort(strata, kind="stable"), np.flatnonzero(np.diff(np.sort(strata, kind="stable"))) + 1
        )
    )
    owner = np.empty(count, np.int64)
    owed = np.zeros(len(names))
    # In an order of the seed's: it alone decides where the samples of very small strata go.
    for number in randomness.permute(
        np.arange(len(groups)), len(groups), randomness.key(seed, "split")
    ).tolist():
        group = groups[number]
        size = len(group)
        counts = np.floor(share * size + 1e-9).astype(np.int64)
        owed += share * size - counts
        most = np.argsort(-owed, kind="stable")[: size - int(counts.sum())]
        counts[most] += 1
        owed[most] -= 1
        order = randomness.permute(np.arange(size), size, randomness.key(seed, "split", number))
        owner[group[order]] = np.repeat(np.arange(len(names)), counts)
    members = {name: np.flatnonzero(owner == k) for k, name in enumerate(names)}
    for name, samples in members.items():
        if not len(samples):
            raise UsageError(
                f"split {name}={shares[name]:g}: none of {count} samples falls to it. Pass a larger share."
            )
    return members


def fill(
    holes: Sequence[int], splits: Mapping[str, tuple[int, int]], rows: int
) -> tuple[dict[int, int], dict[str, tuple[int, int]], int]:
    """Close the holes that skipped inputs left, with the last good rows of the split they are in.

    holes: rows without content, rising; splits: name -> [first, last + 1), {} for one; rows: planned.
    Returns: {row: the row it comes from}, to be done in this order; the splits afterwards; rows afterwards. Each split moves up
    to where the one before it ends; no more rows move than there are holes, for each split behind them.
    """
    empty = set(holes)
    moves: dict[int, int] = {}
    after: dict[str, tuple[int, int]] = {}
    first = 0
    for name, (start, stop) in (splits or {"": (0, rows)}).items():
        missing = sum(1 for hole in holes if start <= hole < stop)
        last = first + stop - start - missing
        targets = [row for row in (*range(first, min(start, last)), *holes) if first <= row < last]
        targets = sorted({row for row in targets if row < start or row in empty})
        donors = (row for row in range(max(start, last), stop) if row not in empty)
        moves.update(zip(targets, donors, strict=True))
        if name:
            after[name] = (first, last)
        first = last
    return moves, after, first
