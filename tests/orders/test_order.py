"""packer.orders.order: complete, disjoint, a permutation, whatever the ranks; and what each order promises."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.orders.order import ORDERS, runs, span, steps
from packer.orders.runs import Runs

orders = st.sampled_from(sorted(ORDERS))
sizes = st.integers(1, 700)


def whole(order: str, n: int, seed: int = 0, epoch: int = 0, slice_rows: int = 8) -> list[int]:
    epoch_runs = runs(order, n, seed=seed, epoch=epoch, slice_rows=slice_rows, start=0, stop=n)
    return [int(row) for row in epoch_runs.rows()]


# --- runs --------------------------------------------------------------------------------------------------


def test_runs_expand_to_rows() -> None:
    some = Runs(np.array([5, 0, 9]), np.array([2, 3, 1]))
    assert some.rows().tolist() == [5, 6, 0, 1, 2, 9]
    assert some.rows().dtype == np.int64
    assert some.total == 6


@pytest.mark.parametrize(
    ("order", "starts", "lengths"),
    [
        ("sequential", [0], [20]),
        ("slices", [7, 1, 13, 0], [6, 6, 7, 1]),
        ("rows", [11, 10, 1, 18, 4, 2, 17, 7, 14, 16, 19, 15, 9, 8, 0, 3, 6, 12, 5, 13], [1] * 20),
    ],
)
def test_the_orders_are_frozen(order: str, starts: list[int], lengths: list[int]) -> None:
    epoch_runs = runs(order, 20, seed=3, epoch=1, slice_rows=6, start=0, stop=20)
    assert epoch_runs.starts.tolist() == starts
    assert epoch_runs.lengths.tolist() == lengths


@given(orders, sizes, st.integers(), st.integers(0, 99), st.integers(1, 800))
def test_an_epoch_holds_every_row_once(order: str, n: int, seed: int, epoch: int, slice_rows: int) -> None:
    assert sorted(whole(order, n, seed, epoch, slice_rows)) == list(range(n))


@given(orders, sizes, st.integers(0, 9), st.integers(1, 800), st.lists(st.integers(0, 700), max_size=6))
def test_pieces_of_an_epoch_join_to_the_epoch(
    order: str, n: int, seed: int, slice_rows: int, cuts: list[int]
) -> None:
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    pieces = [
        runs(order, n, seed=seed, epoch=1, slice_rows=slice_rows, start=start, stop=stop)
        for start, stop in pairwise(edges)
    ]
    joined = [row for piece in pieces for row in piece.rows().tolist()]
    assert joined == whole(order, n, seed, 1, slice_rows)
    for piece, (start, stop) in zip(pieces, pairwise(edges), strict=True):
        assert piece.total == stop - start
        assert (piece.lengths > 0).all()
        # Touching runs are merged.
        assert (piece.starts[1:] != piece.starts[:-1] + piece.lengths[:-1]).all()


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_no_positions_are_no_runs(order: str) -> None:
    for n, at in ((0, 0), (5, 5), (5, 2)):
        assert runs(order, n, seed=0, epoch=0, slice_rows=4, start=at, stop=at).rows().tolist() == []


@pytest.mark.parametrize("order", ["slices", "rows"])
def test_seed_and_epoch_change_the_sequence(order: str) -> None:
    sequences = [whole(order, 200, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(sequences) for b in sequences[:i])
    assert whole(order, 200, 0, 1) == sequences[1]


def test_sequential_is_one_run_in_every_epoch() -> None:
    for epoch in (0, 1):
        part = runs("sequential", 10**12, seed=5, epoch=epoch, slice_rows=1, start=10**11, stop=10**11 + 256)
        assert (part.starts.tolist(), part.lengths.tolist()) == ([10**11], [256])


@given(st.integers(1, 5000), st.integers(1, 600), st.integers(0, 50))
def test_a_slice_is_one_run_or_two_where_the_ring_closes(n: int, slice_rows: int, epoch: int) -> None:
    closings = 0
    for start in range(0, n, slice_rows):
        stop = min(n, start + slice_rows)
        part = runs("slices", n, seed=0, epoch=epoch, slice_rows=slice_rows, start=start, stop=stop)
        closings += len(part.starts) - 1
        if len(part.starts) == 2:
            assert part.starts[0] + part.lengths[0] == n
            assert part.starts[1] == 0
    assert closings <= 1


def test_the_short_slice_comes_last_and_moves() -> None:
    last_rows = {tuple(whole("slices", 103, 0, epoch, 10)[100:]) for epoch in range(60)}
    assert len(last_rows) > 30
    for rows in last_rows:
        assert all((b - a) % 103 == 1 for a, b in pairwise(rows))


def test_slices_begin_anywhere_on_the_ring() -> None:
    offsets = np.array([whole("slices", 64, 0, epoch, 8)[0] % 8 for epoch in range(800)])
    counts = np.bincount(offsets, minlength=8)
    assert ((counts - 100) ** 2 / 100).sum() < 26  # chi-square, 7 degrees of freedom: 1 in 2,000


def test_rows_of_a_billion_need_only_the_rows_asked_for() -> None:
    part = runs("rows", 10**9, seed=0, epoch=0, slice_rows=1, start=10**9 - 1000, stop=10**9)
    assert part.total == len(np.unique(part.rows())) == 1000


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        runs("random", 5, seed=0, epoch=0, slice_rows=1, start=0, stop=5)
    assert str(error.value) == "order: 'random' is not one; sequential, slices, rows are. Pass one of them."


def test_an_empty_slice_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        runs("slices", 5, seed=0, epoch=0, slice_rows=0, start=0, stop=5)
    assert str(error.value) == "slice_rows: it is 0; 1 or more is allowed. Pass the global batch size."


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 6)])
def test_positions_outside_the_epoch_are_refused(start: int, stop: int) -> None:
    with pytest.raises(UsageError) as error:
        runs("rows", 5, seed=0, epoch=0, slice_rows=1, start=start, stop=stop)
    assert str(error.value) == (
        f"order: positions {start} to {stop} were asked for; the epoch has 5 rows. "
        "Ask for positions inside it."
    )


# --- ranks -------------------------------------------------------------------------------------------------


@given(st.integers(0, 700), st.integers(1, 40), st.integers(1, 64))
def test_the_ranks_together_get_every_position_once(n: int, batch_size: int, world_size: int) -> None:
    positions: list[int] = []
    counts = [steps(n, batch_size, world_size, rank, drop_last=False) for rank in range(world_size)]
    for step in range(max(counts)):
        shares = []
        for rank in range(world_size):
            if step < counts[rank]:
                start, stop = span(step, n, batch_size, world_size, rank)
                positions += range(start, stop)
                shares.append(stop - start)
        assert 1 <= min(shares) <= max(shares) <= batch_size
        assert max(shares) - min(shares) <= 1
    # In rank order within each global batch, so the concatenation is the sequence itself.
    assert positions == list(range(n))
    assert max(counts) - min(counts) <= 1


@given(st.integers(0, 5000), st.integers(1, 40), st.integers(1, 64), st.integers(0, 63))
def test_dropping_the_last_leaves_full_batches(n: int, batch_size: int, world_size: int, rank: int) -> None:
    assume(rank < world_size)
    count = steps(n, batch_size, world_size, rank, drop_last=True)
    assert count == n // (batch_size * world_size)
    for step in range(count):
        start, stop = span(step, n, batch_size, world_size, rank)
        assert start == step * batch_size * world_size + rank * batch_size
        assert stop - start == batch_size


@given(orders, st.integers(1, 300), st.integers(1, 12), st.integers(0, 5))
def test_the_sequence_does_not_depend_on_the_ranks(order: str, n: int, world_size: int, epoch: int) -> None:
    global_batch = 12 * 8
    assume(global_batch % world_size == 0)
    batch_size = global_batch // world_size
    seen = []
    for step in range(steps(n, batch_size, world_size, 0, drop_last=False)):
        for rank in range(world_size):
            if step < steps(n, batch_size, world_size, rank, drop_last=False):
                start, stop = span(step, n, batch_size, world_size, rank)
                part = runs(order, n, seed=0, epoch=epoch, slice_rows=global_batch, start=start, stop=stop)
                seen += part.rows().tolist()
    assert seen == whole(order, n, 0, epoch, global_batch)


def test_a_rank_without_a_row_gets_no_last_batch() -> None:
    # 19 rows, 4 ranks of 4: after one global batch of 16 there are 3 rows, for the first three ranks.
    assert [steps(19, 4, 4, rank, drop_last=False) for rank in range(4)] == [2, 2, 2, 1]
    assert [span(1, 19, 4, 4, rank) for rank in range(3)] == [(16, 17), (17, 18), (18, 19)]


@pytest.mark.parametrize("step", [-1, 1])
def test_a_batch_beyond_the_epoch_is_refused(step: int) -> None:
    with pytest.raises(UsageError) as error:
        span(step, 19, 4, 4, 3)
    assert str(error.value) == (
        f"batch {step}: rank 3 of 4 has 1 batches; "
        "numbers from 0 to one less are allowed. Ask for one of these."
    )
