"""benchmarks/order_quality.py: baselines against counting, known orders against known figures."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from benchmarks import order_quality
from benchmarks.order_quality import measure, uniform
from packer import randomness
from packer.orders.blocks import Blocks
from packer.orders.epochs import RowOrder
from packer.orders.regions import Regions
from packer.orders.row_orders import BY_NAME, Rows, Sequential, Slices
from packer.orders.runs import one_run
from tests.conftest import Script
from tests.read.conftest import make_pack

BLOCKS = Blocks(window=400, block=10)


@dataclass(frozen=True)
class Frozen(RowOrder):
    """The same full permutation in every epoch."""

    name: ClassVar[str] = "frozen"

    def rows_at(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        return randomness.permute(positions, self.length, self.seed)


def counted(rows: np.ndarray, b: int, labels: np.ndarray) -> tuple[float, float]:
    """Chi-square of full batches' class counts and share of file neighbours, one row and class at a time."""
    n, chi, follow = len(rows), [], []
    for start in range(0, n - b + 1, b):
        batch = rows[start : start + b].tolist()
        for c in np.unique(labels):
            mean = b * (labels == c).mean()
            chi.append(((labels[batch] == c).sum() - mean) ** 2 / mean)
        follow.append(sum(row + 1 in batch for row in batch) / b)
    return float(np.sum(chi)) / len(follow), float(np.mean(follow))


def pairs(rows: np.ndarray, b: int, full: bool) -> set[tuple[int, int]]:
    """The pairs of rows that meet in a batch."""
    stop = len(rows) // b * b if full else len(rows)
    batches = [sorted(rows[start : start + b].tolist()) for start in range(0, stop, b)]
    return {pair for batch in batches for pair in itertools.combinations(batch, 2)}


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what does not depend on how well a figure is estimated."""
    monkeypatch.setattr(order_quality, "_EPOCHS", (4, 16))


@pytest.mark.parametrize(("n", "b"), [(24, 4), (25, 4), (30, 7), (12, 6), (9, 8)])
def test_the_baselines_are_those_of_a_uniform_shuffle(n: int, b: int):
    """Means over 2,000 shuffles lie within four standard errors of what uniform() says is exact."""
    draws = np.random.default_rng(n)
    labels = np.arange(n) % 5 % 3  # classes of 40, 40 and 20 %
    chi, follow, again = [], [], []
    for _ in range(1000):
        rows, then = draws.permutation(n), draws.permutation(n)
        one = counted(rows, b, labels)
        chi.append(one[0] / (2 * (n - b) / (n - 1)))
        follow.append(one[1])
        met = pairs(rows, b, full=True)
        again.append(len(met & pairs(then, b, full=False)) / len(met))
    expected = uniform(n, b, labels=labels)
    for values, exact in ((chi, 1.0), (follow, expected.neighbours), (again, expected.repeats)):
        assert abs(np.mean(values) - exact) < 4 * np.std(values) / np.sqrt(len(values))
    assert (expected.label_mix, expected.score) == (1.0, 1.0)


@pytest.mark.parametrize("order", [Sequential(), Slices(8), Blocks(20, 4), Rows(), Slices(20)])
@pytest.mark.parametrize("n", [64, 67])
def test_figures_are_what_counting_gives(order: RowOrder, n: int, monkeypatch: pytest.MonkeyPatch):
    b, epochs = 8, 5
    monkeypatch.setattr(order_quality, "_EPOCHS", (epochs, epochs))
    labels = np.random.default_rng(0).integers(0, 3, n)
    sequences = [order.over(n, 3).within(one_run(0, n), epoch).rows() for epoch in range(epochs + 1)]
    by_hand = np.array([counted(rows, b, labels) for rows in sequences[:-1]]).mean(axis=0)
    again = [
        len(pairs(before, b, True) & pairs(after, b, False)) / len(pairs(before, b, True))
        for before, after in itertools.pairwise(sequences)
    ]
    found = measure(order, n, b, labels=labels, seed=3)
    assert found.label_mix == pytest.approx(by_hand[0] / (2 * (n - b) / (n - 1)))
    assert found.neighbours == pytest.approx(by_hand[1])
    assert found.repeats == pytest.approx(np.mean(again))
    new = min(1.0, (1 - found.repeats) / (1 - uniform(n, b).repeats))
    assert found.score == pytest.approx(new * min(1.0, 1 / found.label_mix))


@pytest.mark.parametrize(
    ("n", "b"), [(3000, 32), (3000, 500), (200_000, 64), (257 * 64, 64)]
)  # 256 are looked for
def test_a_full_permutation_is_as_good_as_uniform(n: int, b: int):
    labels = np.arange(n) * 10 // n  # sorted
    found, ideal = measure(Rows(), n, b, labels=labels), uniform(n, b)
    assert found.label_mix == pytest.approx(1, abs=0.05)
    assert found.neighbours == pytest.approx(ideal.neighbours, rel=0.05)
    assert found.repeats == pytest.approx(ideal.repeats, rel=0.05)
    assert found.score > 0.95


def test_a_sorted_pack_in_sequence_is_as_bad_as_can_be():
    n, b = 4000, 100
    found = measure(Sequential(), n, b, labels=np.arange(n) // 400)
    # Each batch holds one class: a batch of b tells of the classes what one row does, but for the draws without replacement.
    assert found.label_mix == pytest.approx(b * (n - 1) / (n - b))
    assert found == (found.label_mix, 0.99, 1.0, 0.0)


def test_classes_that_take_turns_are_better_than_uniform():
    found = measure(Sequential(), 4000, 100, labels=np.arange(4000) % 10)
    assert found.label_mix == pytest.approx(0, abs=1e-9)
    assert found.score == 0


@pytest.mark.parametrize("n", [5000, 300_000, 10**9])
def test_slices_keep_two_pairs_of_three(n: int):
    """Cut elsewhere, at a place drawn anew, a slice of b keeps (s * s + (b - s) * (b - s)) / (b * b) of its pairs."""
    found = measure(Slices(100), n, 100)
    assert found.repeats == pytest.approx(2 / 3, abs=0.04)
    assert found.neighbours == pytest.approx(0.99, abs=0.001)
    assert found.score == pytest.approx((1 - found.repeats) / (1 - uniform(n, 100).repeats), abs=0.01)


def test_blocks_are_between_slices_and_rows():
    labels = np.arange(20_000) // 2000
    mixed = {o.name: measure(o, 20_000, 100, labels=labels) for o in (Slices(100), BLOCKS, Rows())}
    for better, worse in (("rows", "blocks"), ("blocks", "slices")):
        assert mixed[better].score > mixed[worse].score + 0.1
        assert mixed[better].neighbours < mixed[worse].neighbours
    # A window of 400 rows is 40 blocks, so a batch of 100 holds about 2.5 rows of each of 40 blocks.
    assert mixed["blocks"].label_mix == pytest.approx(1 + 99 * 9 / 399, rel=0.1)


def test_the_same_shuffle_every_epoch_scores_nothing():
    found = measure(Frozen(), 3000, 100, labels=np.arange(3000) // 300)
    assert found.label_mix == pytest.approx(1, abs=0.3)
    assert found.repeats == 1
    assert found.score == 0


@pytest.mark.usefixtures("few_epochs")
def test_labels_may_be_any_numbers():
    labels = np.random.default_rng(0).integers(0, 5, 3000)
    expected = measure(Slices(50), 3000, 50, labels=labels)
    for names in (
        np.array([-7, 3, 0, 900, 12]),
        np.array([2**62, -(2**62), 5, 1, 0]),
        np.arange(5, dtype=np.uint8),
    ):
        assert measure(Slices(50), 3000, 50, labels=names[labels]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("few_epochs")
@pytest.mark.parametrize(
    ("n", "b", "classes"), [(1, 1, 1), (1, 8, 1), (5, 1, 2), (5, 5, 2), (5, 9, 2), (2, 1, 1), (7, 6, 3)]
)
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_tiny_packs(name: str, n: int, b: int, classes: int):
    bound = {"slices": Slices(b), "blocks": Blocks(4, 2), "regions": Regions(b, 2, 2, b)}
    order = bound.get(name) or BY_NAME[name]()
    labels = np.arange(n) % classes
    found, ideal = measure(order, n, b, labels=labels), uniform(n, b, labels=labels)
    assert (found.label_mix is None) == (ideal.label_mix is None) == (classes == 1 or b >= n)
    assert 0 <= found.score <= 1
    assert 0 <= found.repeats <= 1
    if b >= n:  # one batch: nothing could be better
        assert found == ideal


@pytest.mark.parametrize("order", [Sequential(), Slices(256), Blocks(571_000, 9000), Rows()])
def test_a_billion_rows_cost_no_more_than_a_million(order: RowOrder):
    tracemalloc.start()
    try:
        found = measure(order, 10**9, 256)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000
    assert found.label_mix is None
    assert (found.score > 0.99) == (order.name in ("rows", "blocks"))


@pytest.mark.usefixtures("few_epochs")
def test_it_is_a_pure_function():
    labels = np.arange(3000) % 7
    assert measure(BLOCKS, 3000, 64, labels=labels) == measure(BLOCKS, 3000, 64, labels=labels)
    assert measure(BLOCKS, 3000, 64, labels=labels) != measure(BLOCKS, 3000, 64, labels=labels, seed=1)


@pytest.mark.usefixtures("few_epochs")
def test_the_script_prints_every_order_of_a_pack(tmp_path: Path, script: Script) -> None:
    pack = make_pack(tmp_path / "a.h5", 60)
    done = script("benchmarks/order_quality.py", pack.path, "--batch-size", "10")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["order", *BY_NAME, "shuffle=True", "uniform"]
    assert float(lines[1][-1]) == 0
    assert float(lines[-1][-1]) == 1
