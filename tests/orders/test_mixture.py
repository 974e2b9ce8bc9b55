"""packer.orders.mixture: shares of packs in every stretch of an epoch, and each pack's rows once a pass."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.order_quality import measure
from packer.errors import UsageError
from packer.orders.blocks import Blocks
from packer.orders.epochs import Context, RowOrder, Share, read_requests
from packer.orders.mixture import Mixture
from packer.orders.row_orders import Rows, Sequential, Slices
from packer.orders.runs import Subset, one_run
from packer.orders.sampling import Weighted
from tests.contracts.order_contract import check_order

ORDERS = [Sequential(), Slices(5), Blocks(40, 5), Blocks(5, 5), Rows()]


def members_of(sizes: Sequence[int], weights: Sequence[float]) -> list[Context]:
    ends = np.cumsum(sizes).tolist()
    return [
        Context(Subset([(end - size, end)]), 100, 7, 32, weight=weight)
        for weight, size, end in zip(weights, sizes, ends, strict=True)
    ]


def mixture_of(
    sizes: Sequence[int],
    weights: Sequence[float],
    order: RowOrder | None = None,
    *,
    batch: int = 8,
    rows: int | None = None,
) -> Mixture:
    about = Context(Subset([(0, sum(sizes))]), 100, 7, batch, members=tuple(members_of(sizes, weights)))
    return Mixture(rows=rows).bind_packs(about, lambda about: (order or Rows()).bind(about))


def epoch_of(mixture: Mixture, n: int, epoch: int = 0, seed: int = 3) -> list[int]:
    return mixture.over(n, seed).within(one_run(0, mixture.length), epoch).rows().tolist()


@pytest.mark.parametrize(
    ("sizes", "weights", "order", "epoch", "expected"),
    [
        (
            (12, 8),
            (0.7, 0.3),
            Rows(),
            0,
            [13, 0, 5, 4, 18, 6, 2, 11, 9, 3, 1, 19, 12, 10, 7, 15, 14, 9, 8, 11],
        ),
        (
            (12, 8),
            (0.7, 0.3),
            Rows(),
            5,
            [6, 4, 6, 18, 9, 1, 5, 14, 11, 16, 8, 9, 2, 15, 17, 0, 10, 14, 3, 7],
        ),
        ((9, 4, 2), (1, 1, 2), Blocks(4, 2), 1, [9, 14, 14, 8, 12, 14, 13, 1, 13, 14, 11, 7, 13, 10, 0]),
    ],
)
def test_the_sequences_are_frozen(
    sizes: Sequence[int], weights: Sequence[float], order: RowOrder, epoch: int, expected: list[int]
) -> None:
    assert epoch_of(mixture_of(sizes, weights, order), sum(sizes), epoch) == expected


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 50)), min_size=1, max_size=6),
    st.integers(1, 40),
    st.integers(0, 3),
)
def test_shares_are_exact_in_an_epoch_and_within_two_rows_in_a_batch(
    packs: list[tuple[int, int]], batch: int, epoch: int
) -> None:
    sizes, weights = zip(*packs, strict=True)
    n = 40 * len(packs) + sum(sizes)
    mixture = mixture_of(sizes, weights, batch=batch, rows=20 * n)
    positions = one_run(0, 20 * n)
    packs_of = np.searchsorted(np.cumsum(sizes), mixture.over(n, 1).within(positions, epoch).rows(), "right")
    exact = np.array(weights) * 20 * n / sum(weights)
    counts = np.bincount(packs_of, minlength=len(sizes))
    assert (abs(counts - exact) < 1).all()
    assert counts.tolist() == mixture.record()["weights"]
    # Of every global batch, and of the halves that two ranks read.
    for size, most in ((batch, 2.0), (-(-batch // 2), 4.0)):
        for number in range(len(sizes)):
            own = np.concatenate(([0], np.cumsum(packs_of == number)))
            ends = np.append(np.arange(0, 20 * n, size), 20 * n)
            found = np.diff(own[ends])
            assert abs(found - np.diff(ends) * counts[number] / (20 * n)).max() < most


@pytest.mark.parametrize("order", ORDERS)
def test_a_pass_over_a_pack_holds_each_of_its_rows_once_whatever_epochs_it_spans(order: RowOrder) -> None:
    sizes = 50, 7, 301
    mixture = mixture_of(sizes, (0.3, 0.3, 0.4), order, batch=16, rows=200)
    sequence = np.concatenate([epoch_of(mixture, 358, epoch) for epoch in range(12)])
    counts = np.bincount(sequence, minlength=358)
    for own in np.split(counts, [50, 57]):
        assert own.max() - own.min() <= 1  # whole passes, and a part of one without repetition
    small = [row - 50 for row in epoch_of(mixture, 358, 0) if 50 <= row < 57]
    assert len(small) == 60


def test_passes_differ_in_their_order_and_packs_of_one_size_too() -> None:
    mixture = mixture_of((40, 40), (1, 1), batch=1, rows=160)
    rows = np.array(epoch_of(mixture, 80))
    first, second = rows[rows < 40], rows[rows >= 40] - 40
    for one in (first, second):
        assert sorted(one[:40].tolist()) == sorted(one[40:].tolist()) == list(range(40))
        assert (one[:40] != one[40:]).any()
    assert (first != second).any()


def test_rows_drawn_by_many_small_passes_at_once() -> None:
    mixture = mixture_of((1, 3, 1000), (5, 5, 1), batch=64, rows=1100)
    rows = np.array(epoch_of(mixture, 1004))
    assert np.bincount(rows)[:4].tolist() == [500, 167, 167, 166] or sorted(np.bincount(rows)[1:4]) == [
        166,
        167,
        167,
    ]
    assert (rows == 0).sum() == 500


@pytest.mark.parametrize("order", ORDERS)
def test_every_mixture_keeps_its_promises(order: RowOrder) -> None:
    check_order(mixture_of((50, 7, 130), (0.3, 0.3, 0.4), order, batch=16), 187)


def test_four_ranks_then_two_read_every_position_once() -> None:
    mixture = mixture_of((500, 90), (0.6, 0.4), batch=32)
    whole = epoch_of(mixture, 590, 1)
    heads = [Share(590, 8, 4, rank).positions(0, 5) for rank in range(4)]
    tails = [Share(590, 8, 2, rank, origin=160) for rank in range(2)]
    positions = heads + [share.positions(0, share.steps) for share in tails]
    found = np.concatenate([mixture.over(590, 3).within(runs, 1).rows() for runs in positions])
    places = np.concatenate([runs.rows() for runs in positions])
    assert sorted(places.tolist()) == list(range(590))
    assert (found == np.array(whole)[places]).all()


def test_no_rank_gets_one_pack_alone_where_batches_are_of_one_row() -> None:
    mixture = mixture_of((1000, 1000), (1, 1), batch=2)
    for rank in range(2):
        rows = np.array(epoch_of(mixture, 2000))[rank::2]
        assert 0.4 < (rows < 1000).mean() < 0.6


def test_rows_of_a_subset_in_any_order_are_dealt_by_their_pack() -> None:
    # The mixture's rows 0..5: those of the second pack first, and one of the first between.
    members = [
        Context(Subset([(2, 3), (5, 6)]), 1, 4, 4, weight=0.5),
        Context(Subset([(0, 2), (3, 5)]), 1, 4, 4, weight=0.5),
    ]
    about = Context(Subset([(0, 6)]), 1, 4, 4, members=tuple(members))
    mixture = Mixture(rows=8).bind_packs(about, lambda about: Sequential().bind(about))
    rows = epoch_of(mixture, 6)
    assert [row for row in rows if row in (2, 5)] in ([2, 5, 2, 5], [5, 2, 5, 2])
    assert sorted(row for row in rows if row not in (2, 5)) == [0, 1, 3, 4]


def test_a_billion_rows_and_more_need_no_memory_and_exact_numbers() -> None:
    sizes = 7_000_000_000, 2_999_999_999
    n = sum(sizes)
    mixture = mixture_of(sizes, (0.9, 0.1), batch=1024)
    assert mixture.record()["weights"] == [round(n * 0.9), n - round(n * 0.9)]
    tracemalloc.start()
    rows = mixture.over(n).within(one_run(n - 1024, n), 7).rows()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < n
    assert abs((rows < sizes[0]).sum() - 0.9 * 1024) < 2
    assert peak < 2_000_000


@pytest.mark.parametrize("world", [1, 2])
def test_blocks_of_each_pack_are_asked_for_before_they_are_read(world: int) -> None:
    mixture = mixture_of((400, 60), (0.6, 0.4), Blocks(40, 5), batch=20)
    for rank in range(world):
        asked: set[int] = set()
        for epoch in range(2):
            for request in read_requests(mixture, epoch, Share(460, 20 // world, world, rank), 1):
                asked |= set(request.upcoming().rows().tolist())
                assert set(request.within().rows().tolist()) <= asked
        assert asked <= set(range(460))


@pytest.mark.parametrize("ends", ["even", "pad"])
def test_rows_that_come_again_at_the_end_of_an_epoch_are_asked_for_and_nothing_between(ends: str) -> None:
    mixture = mixture_of((4000, 600), (0.6, 0.4), Blocks(40, 5), batch=30)
    last = list(read_requests(mixture, 1, Share(4600, 10, 3, 2, ends, origin=4530), 1))
    asked = [row for request in last for row in request.upcoming().rows().tolist()]
    assert len(asked) <= 7 * 40
    assert {row for request in last for row in request.within().rows().tolist()} <= {*asked}


def test_of_many_windows_a_rank_asks_for_its_own_rows_alone() -> None:
    mixture = mixture_of((4000, 600), (0.6, 0.4), Blocks(40, 5), batch=500)
    requests = list(read_requests(mixture, 1, Share(4600, 10, 50, 7), 1))
    for one, later in pairwise(requests[1:]):
        assert one.upcoming().rows().tolist() == later.within().rows().tolist()


def test_an_order_without_blocks_asks_for_nothing() -> None:
    mixture = mixture_of((400, 60), (0.6, 0.4))
    assert not any(one.upcoming().total for one in read_requests(mixture, 1, Share(460, 100), 1))


def test_windows_of_bytes_are_shared_by_the_packs() -> None:
    big = [replace(m, row_bytes=100_000) for m in members_of((10, 10), (3, 1))]
    about = Context(Subset([(0, 20)]), 100_000, 100, 256, members=tuple(big))
    mixture = Mixture().bind_packs(about, lambda about: Blocks().bind(about))
    assert [order.window for order in mixture.orders if isinstance(order, Blocks)] == [1920, 640]
    assert Rows().orders == (Rows(),)


def test_a_record_goes_on_with_its_lengths() -> None:
    mixture = mixture_of((50, 30), (2, 1), Slices(5), batch=8)
    other = mixture_of((50, 30), (2, 1), Slices(9), batch=12)
    record = mixture.record()
    assert record == {
        "name": "mixture",
        "rows": 80,
        "batch": 8,
        "packs": [50, 30],
        "weights": [53, 27],
        "orders": [{"name": "slices", "rows": 5}] * 2,
    }
    assert epoch_of(other, 80) != epoch_of(mixture, 80)
    assert epoch_of(other.resumed(record, 3), 80) == epoch_of(mixture, 80)


@pytest.mark.parametrize(
    ("sizes", "weights", "change", "sentence"),
    [
        ((50, 30), (1, 1), {}, r"state_dict: was taken with other weights \(\[53, 27\] there,"),
        (
            (49, 31),
            (2, 1),
            {},
            r"state_dict: was taken with other packs \(\[50, 30\] there, \[49, 31\] here\)",
        ),
        (
            (50, 30),
            (2, 1),
            {"orders": []},
            r"state_dict: the orders of its packs are \[\]; one for each pack is needed.",
        ),
        (
            (50, 30),
            (2, 1),
            {"name": "rows"},
            "state_dict: was taken in the order 'rows'; this dataset has 'mixture'.",
        ),
    ],
)
def test_a_record_of_others_is_refused(
    sizes: Sequence[int], weights: Sequence[float], change: dict[str, object], sentence: str
) -> None:
    record = mixture_of((50, 30), (2, 1)).record() | change
    with pytest.raises(UsageError, match=sentence):
        mixture_of(sizes, weights).resumed(record, 0)


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match="Mixture: the order of each pack is 'weighted', which draws rows by weights or classes;",
    ):
        Mixture(Weighted.balanced())
    with pytest.raises(UsageError, match=r"Mixture: rows=0: is not a whole number of at least 1."):
        Mixture(rows=0)
    with pytest.raises(
        UsageError,
        match=r"pack 2 of 2: of 80 rows of an epoch its weight of 0.001 gives 0, and it has 30 to draw; at least one",
    ):
        mixture_of((50, 30), (1, 0.001))
    with pytest.raises(
        UsageError,
        match="pack 1 of 2: of 30 rows of an epoch its weight of 1 gives 15, and it has 0 to draw;",
    ):
        mixture_of((0, 30), (1, 1))


@pytest.mark.parametrize("order", [Rows(), Blocks(2_560, 10)])
def test_a_mixture_by_sizes_is_as_good_a_shuffle_as_a_uniform_one(order: RowOrder) -> None:
    sizes = 14_000, 6_000
    mixture = mixture_of(sizes, sizes, order, batch=256)
    classes = measure(mixture, 20_000, 256, labels=np.arange(20_000) % 10)
    assert classes.label_mix == pytest.approx(1, abs=0.05)
    assert classes.score > 0.97
    packs = measure(mixture, 20_000, 256, labels=np.arange(20_000) // 14_000).label_mix
    assert packs is not None
    assert packs < 0.02  # the packs' shares hardly vary at all
    uniform = measure(Rows(), 20_000, 256, labels=np.arange(20_000) // 14_000).label_mix
    assert uniform == pytest.approx(1, abs=0.1)
