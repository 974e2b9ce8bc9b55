from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.orders.epochs import ENDS, Share

CUTS = st.tuples(st.integers(1, 600), st.integers(1, 9), st.integers(1, 64))


def batches(share: Share) -> list[list[int]]:
    """Positions of each batch of a rank, asked for one by one."""
    return [share.positions(step, step + 1).rows().tolist() for step in range(share.steps)]


def everyone(n: int, batch: int, world: int, ends: str, origin: int = 0) -> list[list[list[int]]]:
    """Rank -> its batches."""
    return [batches(Share(n, batch, world, rank, ends, origin)) for rank in range(world)]


def joined(ranks: list[list[list[int]]]) -> list[int]:
    """All ranks' positions, global batch after global batch."""
    steps = max(map(len, ranks))
    return [p for step in range(steps) for rank in ranks if step < len(rank) for p in rank[step]]


@given(CUTS, st.data())
@settings(max_examples=150, deadline=None)
def test_uneven_shares_are_the_sequence_itself(cut: tuple[int, int, int], data: st.DataObject):
    n, batch, world = cut
    origin = data.draw(st.integers(0, n - 1))
    ranks = everyone(n, batch, world, "uneven", origin)
    assert joined(ranks) == list(range(origin, n))
    sizes = [len(last) for last in (rank[-1] for rank in ranks if rank) if len(last) < batch]
    assert not sizes or max(sizes) - min(sizes) <= 1
    counts = {len(rank) for rank in ranks}
    assert max(counts) - min(counts) <= 1
    assert Share(n, batch, world, 0, "uneven", origin).differs == (len(counts) > 1)


@given(CUTS, st.data())
@settings(max_examples=150, deadline=None)
def test_dropped_and_padded_shares_have_full_batches_on_every_rank(
    cut: tuple[int, int, int], data: st.DataObject
):
    n, batch, world = cut
    origin = data.draw(st.integers(0, n - 1))
    whole, left = batch * world, n - origin
    for ends, steps in (("drop", left // whole), ("pad", -(-left // whole))):
        ranks = everyone(n, batch, world, ends, origin)
        assert {len(rank) for rank in ranks} == {steps}
        assert all(len(each) == batch for rank in ranks for each in rank)
        expected = np.arange(origin, origin + steps * whole)
        assert joined(ranks) == np.where(expected < n, expected, (expected - n) % n).tolist()
        assert not Share(n, batch, world, 0, ends, origin).differs


@given(CUTS, st.data())
@settings(max_examples=150, deadline=None)
def test_even_shares_have_equally_many_rows_on_every_rank(cut: tuple[int, int, int], data: st.DataObject):
    n, batch, world = cut
    origin = data.draw(st.integers(0, n - 1))
    ranks = everyone(n, batch, world, "even", origin)
    assert len({tuple(map(len, rank)) for rank in ranks}) == 1
    assert not Share(n, batch, world, 0, "even", origin).differs
    missing = -(n - origin) % (batch * world) % world
    assert joined(ranks) == [*range(origin, n), *(p % n for p in range(n, n + missing))]
    assert len(ranks[0]) == -(-(n - origin) // (batch * world))
    if world == 1:
        assert ranks == everyone(n, batch, 1, "uneven", origin)


def test_641_rows_on_two_ranks_and_on_three():
    assert [len(rank[-1]) for rank in everyone(641, 10, 2, "even")] == [1, 1]
    assert [rank[-1] for rank in everyone(641, 10, 3, "even")] == [
        [*range(630, 634)],
        [*range(634, 638)],
        [638, 639, 640, 0],
    ]


@given(CUTS, st.sampled_from(ENDS), st.data())
@settings(max_examples=150, deadline=None)
def test_several_batches_at_once_are_the_same_as_one_by_one(
    cut: tuple[int, int, int], ends: str, data: st.DataObject
):
    n, batch, world = cut
    share = Share(
        n, batch, world, data.draw(st.integers(0, world - 1)), ends, data.draw(st.integers(0, n - 1))
    )
    first = data.draw(st.integers(0, share.steps))
    last = data.draw(st.integers(first, share.steps))
    single = batches(share)[first:last]
    runs = share.positions(first, last)
    assert runs.rows().tolist() == [p for each in single for p in each]
    assert share.sizes(first, last) == [len(each) for each in single]
    assert (runs.lengths > 0).all()
    assert world > 1 or len(runs.starts) <= 2 or ends == "pad"


@given(CUTS, st.integers(1, 9), st.integers(1, 64), st.sampled_from(["even", "uneven"]), st.data())
@settings(max_examples=150, deadline=None)
def test_going_on_with_other_ranks_loses_and_repeats_nothing(
    cut: tuple[int, int, int], batch: int, world: int, ends: str, data: st.DataObject
):
    """But for the fewer than `world` rows that even ranks are given twice at the end."""
    n, first_batch, first_world = cut
    before = Share(n, first_batch, first_world)
    steps = data.draw(st.integers(0, before.steps))
    head = joined([each[:steps] for each in everyone(n, first_batch, first_world, "uneven")]) if steps else []
    origin = min(n, steps * before.global_batch)
    assert len(head) == origin
    tail = joined(everyone(n, batch, world, ends, origin)) if origin < n else []
    twice = -(n - origin) % (batch * world) % world if ends == "even" else 0
    assert head + tail == [*range(n), *(p % n for p in range(n, n + twice))]


def test_batches_that_a_rank_does_not_have_are_refused():
    with pytest.raises(
        UsageError,
        match=r"^batches 3 to 4: rank 1 of 2 has 3; numbers below that are allowed\. Pass these\.$",
    ):
        Share(13, 2, 2, 1).positions(3, 4)


def test_no_rows_no_batches():
    for ends in ENDS:
        share = Share(0, 4, 2, 0, ends)
        assert (share.steps, share.differs) == (0, False)
        assert share.positions(0, 0).total == 0


def test_a_thousand_million_million_positions_cost_nothing():
    share = Share(10**15, 256, 64, 63, "uneven", origin=10**14 + 7)
    assert share.positions(share.steps - 1, share.steps).total <= 256
    assert share.positions(10**9, 10**9 + 64).total == 64 * 256
