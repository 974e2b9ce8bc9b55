"""Shuffle quality of each order of a pack: distance of its batches from those of a uniform shuffle.

    python benchmarks/order_quality.py train.h5                    every order, batches of 256 rows
    python benchmarks/order_quality.py train.h5 --batch-size 1024

    label mix    variation of the batches' class counts: 1 as in a uniform shuffle, k if a batch of b rows
                 is as informative about the classes as b / k random rows
    neighbours   share of a batch's rows whose next row in the file is in the batch too
    repeats      share of the pairs of rows in a batch that are together in a batch of the next epoch too
    score        share of a batch's pairs that are new (0 if all repeat, 1 if as few as in a uniform shuffle),
                 times the share of a batch that counts (1 / label mix, at most 1): 1 is a uniform shuffle

Label mix is Pearson's chi-square of a batch's class counts against the epoch's, over its mean for draws
without replacement, (classes - 1) (n - b) / (n - 1), which is exact. Over batches this is the design effect
of cluster samples (Kish, "Survey Sampling", 1965): their size over that of an equally good random sample.
Neighbours do no harm by themselves; look at them where adjacent rows are alike and there are no labels. The
score measures the distance from uniform, not its cost: many training runs cannot tell 0.3 from 1.

The figures are estimated from random batches with a million rows. Repeats need complete epochs, so above
65,536 rows (or 16 batches) they are computed for that many rows in the same order with the same lengths:
beyond some windows or slices they no longer depend on n.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.load.base_dataset import open_packs
from packer.load.order_choice import context, parse_order
from packer.orders.buckets import Buckets
from packer.orders.epochs import RowOrder
from packer.orders.row_orders import BY_NAME
from packer.orders.runs import Runs, one_run
from packer.read.array_store import PackStore
from packer.read.row_selection import select, select_fields

_ROWS = 1 << 20  # rows in the sampled batches
_EPOCHS = 4, 256  # least and most epochs that they come from
_WHOLE_ROWS = 1 << 16  # rows in a completely placed epoch
_WHOLE_BATCHES = 16  # or this many batches, if they have more rows
_PLACED = 1 << 22  # rows in all completely placed epochs together
_MET = 1 << 14  # rows of an epoch that are searched in the next


class Quality(NamedTuple):
    """Figures of an order, see the module's text. label_mix: None without labels, or if always balanced."""

    label_mix: float | None
    neighbours: float
    repeats: float
    score: float


def measure(
    order: RowOrder, n: int, batch_size: int, *, labels: NDArray[np.int64] | None = None, seed: int = 0
) -> Quality:
    """Return the figures of an order, from the batches of a few epochs.

    order: bound; yields each row once an epoch. n: rows, at least 1.
    batch_size: rows of a batch on all ranks together.
    labels: int [n], the class of each row, any integers. Takes a fraction of a second ("blocks" of few rows a
    second), with labels 20 ms more a million; memory as for a million rows, for any n. Deterministic; another
    seed gives another estimate: repeats to within 0.02, label mix to within 2 % (10 classes, 1 million rows).
    """
    b = min(batch_size, n)
    per_epoch = max(1, min(n // b, _ROWS // b // _EPOCHS[0]))
    epochs = min(max(_ROWS // b // per_epoch, _EPOCHS[0]), _EPOCHS[1])
    classes = None if labels is None else _ClassCounts(labels)
    mixes, follow = [], 0
    for epoch in range(epochs):
        rows = _some_batches(order, n, b, per_epoch, seed, epoch)
        rows.sort(axis=1)
        follow += int((rows[:, 1:] - rows[:, :-1] == 1).sum())
        if classes is not None:
            mixes.append(classes.spread(rows))
    ideal = uniform(n, b)
    mix = None
    if classes is not None and classes.count > 1 and b < n:
        mix = float(np.mean(mixes)) / ((classes.count - 1) * (n - b) / (n - 1))
    some = (
        n if isinstance(order, Buckets) else min(n, max(_WHOLE_ROWS, _WHOLE_BATCHES * b))
    )  # whose rows are known
    met = _repeats(order, some, b, seed)
    # With fewer rows more pairs repeat by chance; only the excess over chance is kept.
    chance = uniform(some, b).repeats
    excess = max(0.0, (met - chance) / (1 - chance)) if chance < 1 else 0.0
    repeats = met if some == n else ideal.repeats + excess * (1 - ideal.repeats)
    score = (1 - excess) * min(1.0, 1 / mix if mix else 1.0)
    return Quality(mix, follow / (epochs * per_epoch * b), repeats, score)


def uniform(n: int, batch_size: int, *, labels: NDArray[np.int64] | None = None) -> Quality:
    """Return the exact figures of a uniform shuffle; the arguments are those of `measure`."""
    b = min(batch_size, n)
    whole, rest = divmod(n, b)
    repeats = (whole * b * (b - 1) + rest * (rest - 1)) / (n * (n - 1)) if n > 1 else 0.0
    mixed = labels is not None and b < n and bool((labels != labels[0]).any())
    return Quality(1.0 if mixed else None, (b - 1) / n, repeats, 1.0)


class _ClassCounts:
    """Labels as numbers from 0, with the count of each."""

    def __init__(self, labels: NDArray[np.int64]) -> None:
        low, high = int(labels.min()), int(labels.max())
        if high - low > 4 * len(labels):
            _, labels = np.unique(labels, return_inverse=True)
            low = 0
        self._codes = (labels - low).astype(np.int32)
        self._totals = np.bincount(self._codes)
        self.count = int((self._totals > 0).sum())

    def spread(self, rows: NDArray[np.int64]) -> float:
        """Return the mean chi-square of the class counts of batches, int64 [k, b], against all rows."""
        codes = np.sort(self._codes[rows], axis=1)
        first = np.ones(codes.shape, bool)
        first[:, 1:] = codes[:, 1:] != codes[:, :-1]
        heads = np.flatnonzero(first)
        counts = np.diff(heads, append=codes.size)
        # sum((x - b p)**2 / (b p)) = sum(x**2 / (b p)) - b, so only classes that occur are summed.
        squares = float((counts**2 / self._totals[codes.reshape(-1)[heads]]).sum())
        k, b = codes.shape
        mean: float = squares * len(self._codes) / (b * k) - b
        return mean


def _some_batches(order: RowOrder, n: int, b: int, count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the rows of random full batches of an epoch: int64 [count, b]."""
    numbers = randomness.permute(np.arange(count), n // b, randomness.key(seed, "quality", epoch))
    numbers.sort()
    positions = Runs(numbers * b, np.full(count, b))
    return order.over(n, seed).within(positions, epoch).rows().reshape(count, b)


def _repeats(order: RowOrder, n: int, b: int, seed: int) -> float:
    """Return the share of pairs of a full batch that are together again in the next epoch."""
    if b < 2:
        return 0.0
    epochs = min(max(_PLACED // n, _EPOCHS[0]), _EPOCHS[1])
    count = min(n // b, max(1, _MET // b))
    batch_of = np.empty(n, np.int32)
    order = order.over(n, seed)
    sequence = order.within(one_run(0, n), 0).rows()
    batches = np.arange(n, dtype=np.int32) // b
    shares = []
    for epoch in range(epochs):
        first = randomness.key(seed, "quality", epoch) % (n // b - count + 1) * b
        rows = sequence[first : first + count * b]
        sequence = order.within(one_run(0, n), epoch + 1).rows()
        batch_of[sequence] = batches
        then = np.sort(batch_of[rows].reshape(count, b), axis=1)
        edges = np.ones(then.shape, bool)
        edges[:, 1:] = then[:, 1:] != then[:, :-1]
        together = np.diff(np.flatnonzero(edges), append=then.size)
        shares.append(float((together * (together - 1)).sum()) / (count * b * (b - 1)))
    return float(np.mean(shares))


def main() -> None:
    """Print the figures of every order of a pack."""
    parser = argparse.ArgumentParser(description="How good a shuffle each order of a pack is.")
    parser.add_argument("pack")
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a batch on all ranks together")
    given = parser.parse_args()
    pack, _ = open_packs(given.pack, None, None)
    fields, subset = select_fields(pack, None), select(pack)
    label = next((f for f in fields if f.name == "label" and f.shape == () and f.dtype[1] in "iu"), None)
    labels = PackStore(pack, (), subset).column("label") if label else None
    about = context(PackStore(pack, fields), subset, given.batch_size)
    orders = {name: parse_order(name, False, about) for name in BY_NAME}
    orders["shuffle=True"] = parse_order(None, True, about)
    found = {name: measure(one, subset.rows, given.batch_size, labels=labels) for name, one in orders.items()}
    found["uniform"] = uniform(subset.rows, given.batch_size, labels=labels)
    print(f"{'order':14}  label mix  neighbours  repeats  score")
    for name, (mix, neighbours, repeats, score) in found.items():
        shown = "-" if mix is None else f"{mix:.2f}"
        print(f"{name:14}  {shown:>9}  {neighbours:>10.2%}  {repeats:>7.2%}  {score:>5.2f}")


if __name__ == "__main__":
    main()
