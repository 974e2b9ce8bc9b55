"""packer.orders.sampling: how often rows and classes come, and that it depends on position, seed and epoch alone."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer import randomness
from packer.errors import UsageError
from packer.orders.epochs import Context, RowOrder
from packer.orders.row_orders import Slices
from packer.orders.runs import Subset, one_run
from packer.orders.sampling import Weighted
from tests.contracts.order_contract import check_order

WEIGHTS = st.lists(st.sampled_from([0.0, 0.1, 1 / 3, 1.0, 2.5, 40.0]), min_size=1, max_size=200).filter(any)
LABELS = st.lists(st.sampled_from([-1, 0, 0, 0, 1, 2, 7]), min_size=1, max_size=200)


def context(n: int, labels: object = None, **more: Any) -> Context:
    return Context(
        Subset([(0, n)]), 100, 10, 32, labels=None if labels is None else lambda _: np.asarray(labels), **more
    )


def weighted(weights: object, rows: int | None = None) -> Weighted:
    return Weighted(weights, rows).bind(context(len(weights)))  # type: ignore[arg-type]


def balanced(labels: object, rows: int | None = None) -> Weighted:
    return Weighted.balanced(rows=rows).bind(context(len(labels), labels))  # type: ignore[arg-type]


def whole(order: RowOrder, n: int, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    return order.over(n, seed).within(one_run(0, order.over(n).length), epoch).rows()


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Standard deviations that the statistic lies above its mean."""
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


# --- both --------------------------------------------------------------------------------------------------


def test_the_samplers_are_frozen() -> None:
    assert whole(weighted([0, 1, 2, 0.5, 0, 4], 15), 6, 3, 1).tolist() == [
        5,
        1,
        2,
        2,
        5,
        1,
        3,
        5,
        5,
        5,
        5,
        2,
        5,
        2,
        5,
    ]
    labels = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2]
    assert whole(balanced(labels, 15), 10, 3, 1).tolist() == [9, 0, 3, 5, 8, 1, 7, 9, 9, 9, 8, 4, 7, 7, 9]


@given(st.one_of(WEIGHTS.map(weighted), LABELS.map(balanced)))
def test_every_sampler_keeps_its_promises(order: RowOrder) -> None:
    check_order(order, order.subset.rows)


@pytest.mark.parametrize("order", [weighted(np.arange(100)), balanced(np.arange(100) % 7)])
def test_seed_and_epoch_change_the_sequence(order: RowOrder) -> None:
    sequences = [whole(order, 100, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1, -1, 2**70)]
    assert all(a != b for i, a in enumerate(sequences) for b in sequences[:i])


@pytest.mark.parametrize(("make", "of"), [(weighted, np.ones(9)), (balanced, np.zeros(9, np.int64))])
def test_an_epoch_is_as_long_as_asked_for(make: Any, of: object) -> None:
    assert make(of).length == 9
    assert make(of, 4).length == len(whole(make(of, 4), 9)) == 4
    assert make(of, 40).length == len(whole(make(of, 40), 9)) == 40


@pytest.mark.parametrize("make", [weighted, balanced])
def test_no_rows_have_no_epoch(make: Any) -> None:
    none = make(np.empty(0, np.int64))
    assert none.length == 0
    assert len(none.over(0).within(one_run(0, 0), 0).starts) == 0
    assert none.resumed(none.record(), 0).length == 0


@pytest.mark.parametrize(
    ("make", "of", "others"), [(weighted, [1, 2, 3], [1, 2, 4]), (balanced, [0, 1, 1], [0, 0, 1])]
)
def test_resuming_takes_the_rows_and_refuses_others(make: Any, of: list[int], others: list[int]) -> None:
    what = "weights" if make is weighted else "labels"
    record = make(of, 50).record()
    assert make(of).resumed(record, 0).length == 50
    assert whole(make(of).resumed(record, 0), 3).tolist() == whole(make(of, 50), 3).tolist()
    with pytest.raises(UsageError) as error:
        make(others).resumed(record, 0)
    here = make(others).record()[what]
    assert str(error.value) == (
        f"state_dict: was taken with other {what} ({record[what]} there, {here} here); equal ones are needed to resume."
        f" Pass the same {what}, or start again without the state."
    )
    with pytest.raises(UsageError, match=r"^state_dict: was taken in the order 'slices'; this dataset has"):
        make(of).resumed(Slices(8).record(), 0)
    with pytest.raises(UsageError, match=r"^state_dict: .*: rows='x': is not a whole number"):
        make(of).resumed(record | {"rows": "x"}, 0)


@pytest.mark.parametrize(
    "make", [lambda rows: Weighted([1], rows), lambda rows: Weighted.balanced(rows=rows)]
)
def test_an_empty_epoch_is_refused(make: Any) -> None:
    with pytest.raises(UsageError) as error:
        make(0)
    assert str(error.value) == "Weighted: rows=0: is not a whole number of at least 1."


def test_a_batch_of_many_is_placed_in_microseconds() -> None:
    n = 200_000
    for order in (weighted(np.arange(n)), balanced(np.arange(n) % 1000)):
        order.over(n).within(one_run(0, 8192), 0)
        begun = time.thread_time()  # not the clock: others may use the machine
        order.over(n).within(one_run(0, 8192), 1)
        assert time.thread_time() - begun < 0.1  # about 2 ms: no step of Python a row


# --- weighted ----------------------------------------------------------------------------------------------


@given(WEIGHTS, st.integers(1, 300), st.integers(0, 99))
@settings(deadline=None)
def test_a_row_comes_as_often_as_its_weight_says_up_to_rounding(
    weights: list[float], rows: int, epoch: int
) -> None:
    counts = np.bincount(whole(weighted(weights, rows), len(weights), 0, epoch), minlength=len(weights))
    expected = rows * np.array(weights) / sum(weights)
    assert counts.sum() == rows
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


def test_equal_weights_give_each_row_once() -> None:
    for weight in (1, 0.1, 1e-300, 1e300):
        assert sorted(whole(weighted(np.full(1000, weight)), 1000).tolist()) == list(range(1000))


def test_over_epochs_and_seeds_rows_come_in_proportion_to_their_weights() -> None:
    weights = np.random.default_rng(0).random(50)
    order, drawn = weighted(weights, 1), 8_000
    for rows in (
        [whole(order, 50, seed, 0)[0] for seed in range(drawn)],
        [
            weighted(weights, 7).over(50, seed).within(one_run(3, 4), seed % 5).rows()[0]
            for seed in range(drawn)
        ],
    ):
        counts = np.bincount(rows, minlength=50)
        assert abs(chi_square(counts, drawn * weights / weights.sum())) < 4


def test_the_rows_of_a_short_epoch_are_others_in_the_next() -> None:
    order = weighted(np.ones(1000), 100)
    seen = np.concatenate([whole(order, 1000, 0, epoch) for epoch in range(20)])
    assert len(np.unique(seen)) == 1000  # 878 if epochs were drawn independently


def test_picks_are_permuted() -> None:
    rows = whole(weighted(np.ones(5000)), 5000)
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 4 / math.sqrt(5000)


def test_weights_may_be_given_for_the_whole_pack() -> None:
    weights = np.arange(10)
    about = replace(context(4, pack_rows=10), subset=Subset.from_rows(np.array([9, 7, 5, 3])))
    order = Weighted(weights, 24).bind(about)
    assert np.bincount(whole(order, 4)).tolist() == [9, 7, 5, 3]  # weights 9, 7, 5, 3
    assert order.record() == Weighted([9, 7, 5, 3], 24).bind(context(4)).record()


def test_as_many_weights_as_rows_are_those_of_the_dataset() -> None:
    """Also where the dataset has all rows of the pack in another order."""
    about = replace(context(4, pack_rows=4), subset=Subset.from_rows(np.array([3, 2, 1, 0])))
    assert np.bincount(whole(Weighted([0, 1, 2, 3], 6).bind(about), 4)).tolist() == [0, 1, 2, 3]


def test_the_last_mark_stays_within_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "key", lambda *_: 2**64 - 1)  # a mark just below 1
    assert set(whole(weighted([1.0, 0.0], 3000), 2).tolist()) == {0}


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([1, -2, 3], "the weight of row 1 is -2; finite numbers from 0 are allowed. Correct it."),
        ([1, math.nan], "the weight of row 1 is nan; finite numbers from 0 are allowed. Correct it."),
        (
            [math.inf, -1],
            "the weight of row 0 is inf; finite numbers from 0 are allowed. Correct these 2 weights.",
        ),
        ("abc", "weights are no list of numbers; one number a row is needed. Pass an array [n]."),
        ([[1, 2]], "weights are no list of numbers; one number a row is needed. Pass an array [n]."),
        (3, "weights are no list of numbers; one number a row is needed. Pass an array [n]."),
    ],
)
def test_weights_that_are_none_are_refused(weights: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        Weighted(weights)
    assert str(error.value) == f"Weighted: {sentence}"


@pytest.mark.parametrize(("weights", "total"), [([0, 0], "0"), ([1e308, 1e308], "inf")])
def test_weights_without_a_sum_are_refused(weights: list[float], total: str) -> None:
    with pytest.raises(UsageError) as error:
        weighted(weights)
    assert str(error.value) == (
        f"Weighted: the weights sum to {total}; finite sums above 0 are allowed. Give some rows a weight."
    )


def test_as_many_weights_as_rows_are_needed() -> None:
    for about, allowed in (
        (context(4), "4, one a row, are allowed"),
        (context(4, pack_rows=9), "4, one a row, or 9, one a row of the whole pack, are allowed"),
    ):
        with pytest.raises(UsageError) as error:
            Weighted([1, 2, 3]).bind(about)
        assert str(error.value) == f"Weighted: has 3 weights; {allowed}. Pass one for each."


# --- balanced ----------------------------------------------------------------------------------------------


@given(LABELS, st.integers(1, 300), st.integers(0, 99))
@settings(deadline=None)
def test_classes_and_their_rows_come_equally_often_up_to_one(
    labels: list[int], rows: int, epoch: int
) -> None:
    drawn = whole(balanced(labels, rows), len(labels), 0, epoch)
    counts = np.unique(np.array(labels)[drawn], return_counts=True)[1].tolist()
    counts += [0] * (len(set(labels)) - len(counts))
    assert max(counts) - min(counts) <= 1
    for label in set(labels):
        of_class = np.bincount(drawn, minlength=len(labels))[np.array(labels) == label]
        assert of_class.max() - of_class.min() <= 1


def test_batches_hold_all_classes() -> None:
    labels = np.array([0] * 800 + [1] * 150 + [2] * 50)
    classes = labels[whole(balanced(labels, 6400), 1000)].reshape(100, 64)
    counts = np.stack([np.bincount(batch, minlength=3) for batch in classes])
    assert counts.min() > 5
    assert abs(counts - 64 / 3).mean() < 4


def test_a_large_class_gives_other_rows_in_the_next_epochs() -> None:
    order = balanced([0] * 90 + [1] * 9, 30)  # 15 rows of each class: 6 epochs have room for the large one
    drawn = np.concatenate([whole(order, 99, 0, epoch) for epoch in range(12)])
    assert np.bincount(drawn, minlength=99)[:90].min() >= 1


def test_rows_of_a_class_are_equally_likely_everywhere() -> None:
    labels = np.array([0] * 20 + [1] * 5)
    drawn = np.array([whole(balanced(labels, 10), 25, seed, 3) for seed in range(2000)])
    for position in (0, 5, 9):
        rows = drawn[:, position]
        for low, size in ((0, 20), (20, 5)):
            counts = np.bincount(rows[(rows >= low) & (rows < low + size)] - low, minlength=size)
            assert abs(chi_square(counts, np.full(size, counts.sum() / size))) < 4


def test_the_field_is_asked_for_by_its_name() -> None:
    asked: list[str] = []
    about = Context(Subset([(0, 3)]), 1, 1, 1, labels=lambda name: asked.append(name) or np.array([0, 1, 1]))  # type: ignore[func-returns-value]
    Weighted.balanced("breed").bind(about)
    assert asked == ["breed"]


def test_a_field_of_classes_is_a_name() -> None:
    with pytest.raises(UsageError, match=r"^by=3: is not text\. Pass text"):
        Weighted.balanced(3)  # type: ignore[arg-type]
