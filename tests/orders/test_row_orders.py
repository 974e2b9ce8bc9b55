"""packer.orders.row_orders: a permutation, the same whoever asks; and what each order promises."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.orders.blocks import BLOCK_BYTES, WINDOW_BYTES, BlockEpoch, Blocks
from packer.orders.epochs import Context, RowOrder, Share, read_requests
from packer.orders.row_orders import BY_NAME, Rows, Sequential, Slices
from packer.orders.runs import Runs, Subset, one_run
from tests.contracts.order_contract import check_order

SIZES = st.integers(0, 2000)
LENGTHS = st.integers(1, 2200)
BOUND = st.one_of(
    st.just(Sequential()),
    st.builds(Slices, LENGTHS),
    st.builds(Blocks, LENGTHS, LENGTHS),
    st.builds(Blocks, st.integers(1, 60), st.integers(1, 20)),
    st.just(Rows()),
)
SHUFFLED = [Slices(8), Blocks(40, 5), Blocks(5, 5), Rows()]
# Blocks: as for rows of 112 bytes.
BILLION = [Sequential(), Slices(1024), Blocks(2_285_714, 9_362), Blocks(599_168, 9_362), Rows()]


def whole(order: RowOrder, n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return order.over(n, seed).within(one_run(0, n), epoch).rows().tolist()


def context(n: int, row_bytes: int = 100, global_batch: int = 32, coded: bool = False) -> Context:
    return Context(Subset([(0, n)]), row_bytes, block_rows=7, global_batch=global_batch, coded=coded)


# --- every order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "starts", "lengths"),
    [
        (Sequential(), [0], [20]),
        (Slices(6), [7, 1, 13, 0], [6, 6, 7, 1]),
        (Rows(), [11, 10, 1, 18, 4, 2, 17, 7, 14, 16, 19, 15, 9, 8, 0, 3, 6, 12, 5, 13], [1] * 20),
        (
            Blocks(9, 3),
            [11, 3, 2, 9, 1, 5, 18, 4, 0, 10, 8, 14, 12, 7, 17, 16, 13, 6],
            [1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1],
        ),
        (
            Blocks(3, 3),  # the shorter one first, and 12 to 14 behind 15 to 17
            [18, 0, 9, 3, 15, 12],
            [2, 3, 3, 6, 3, 3],
        ),
    ],
)
def test_the_orders_are_frozen(order: RowOrder, starts: list[int], lengths: list[int]) -> None:
    epoch_runs = order.over(20, 3).within(one_run(0, 20), 1)
    assert epoch_runs.starts.tolist() == starts
    assert epoch_runs.lengths.tolist() == lengths


def test_the_orders_are_frozen_far_out() -> None:
    n, at = 10**9, one_run(987_654_000, 987_654_004)
    assert Slices(1024).over(n, 3).within(at, 1).starts.tolist() == [549375801]
    assert Rows().over(n, 3).within(at, 1).rows().tolist() == [533528675, 438391524, 788671270, 227891431]
    assert Blocks(2_285_714, 9_362).over(n, 3).within(at, 1).rows().tolist() == [
        706592689,
        806728045,
        543553574,
        631044156,
    ]


@given(SIZES, st.integers(2, 60), st.integers(1, 5), st.integers(0, 99))
@settings(deadline=None)
def test_whole_blocks_are_each_in_one_window(n: int, block: int, blocks: int, epoch: int) -> None:
    """So that each is decoded once; a window of one block is read as it lies."""
    order = Blocks(blocks * block, block)
    numbers = np.array(whole(order, n, 7, epoch)) // block
    count = -(-n // block)
    places = [np.flatnonzero(numbers == number) for number in range(count)]
    if blocks == 1 and count > 1:
        assert all(place[-1] - place[0] == len(place) - 1 for place in places)
        assert order.mixed_rows(1) == 0
    windows = max(1, count // max(1, blocks))
    most = -(-count // windows) * block  # rows of the longest window
    assert all(place[-1] - place[0] < most for place in places)


def test_the_shorter_block_comes_anywhere() -> None:
    for order in (Blocks(5, 5), Blocks(20, 5)):
        last = [whole(order, 203, 1, epoch).index(202) for epoch in range(40)]
        assert min(last) < 50
        assert max(last) > 150


def test_whole_blocks_are_mixed_where_a_batch_has_few_of_them() -> None:
    assert Blocks().bind(context(10**6, global_batch=1024, coded=True)) == Blocks(7, 7)
    assert Blocks().bind(context(10**6, global_batch=64, coded=True)) == Blocks(448, 7)
    assert [Blocks(448, 7).mixed_rows(ranks) for ranks in (1, 8)] == [448, 448]  # each rank reads of all


@given(BOUND, SIZES)
def test_every_order_keeps_its_promises(order: RowOrder, n: int) -> None:
    check_order(order, n)


@given(BOUND, SIZES)
def test_touching_runs_are_joined(order: RowOrder, n: int) -> None:
    placed = order.over(n, 5).within(one_run(0, n), 2)
    assert (placed.starts[1:] != placed.starts[:-1] + placed.lengths[:-1]).all()


@pytest.mark.parametrize("order", SHUFFLED)
def test_seed_and_epoch_change_the_sequence(order: RowOrder) -> None:
    sequences = [whole(order, 200, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(sequences) for b in sequences[:i])


@pytest.mark.parametrize("order", BILLION)
def test_a_billion_rows_need_only_the_rows_asked_for(order: RowOrder) -> None:
    n = 10**9
    positions = Runs(np.arange(64) * 262_144, np.full(64, 16))
    np.unique(order.over(n).within(positions, 0).rows())  # NumPy loads parts of itself
    tracemalloc.start()
    begun = time.thread_time()  # not the clock: others may use the machine
    for epoch in (1, 2):
        placed = [order.over(n).within(positions, epoch), order.over(n).within(one_run(n - 1000, n), epoch)]
        order.over(n).upcoming(one_run(0, 1024), epoch, set())
        assert [runs.total for runs in placed] == [1024, 1000]
        assert all(len(np.unique(runs.rows())) == runs.total for runs in placed)
        assert all(runs.starts.min() >= 0 and (runs.starts + runs.lengths).max() <= n for runs in placed)
    assert time.thread_time() - begun < 1  # about 0.02 s, with all that is traced
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("order", [Slices(2**61), Slices(3), Blocks(2**61, 2**61), Blocks(100, 7), Rows()])
def test_the_most_rows_do_not_overflow(order: RowOrder) -> None:
    n = 2**62
    rows = order.over(n, 1).within(Runs(np.array([0, n - 9, 2**61]), np.array([9, 9, 9])), 0).rows()
    assert len(np.unique(rows)) == 27
    assert 0 <= rows.min() <= rows.max() < n


@pytest.mark.parametrize("name", BY_NAME)
def test_a_record_makes_the_same_order(name: str) -> None:
    bound = BY_NAME[name]().bind(context(1000))
    assert bound.name == name
    assert isinstance(bound, RowOrder)
    assert BY_NAME[name]().bind(context(1000, 50)).resumed(bound.record(), 0) == bound
    assert BY_NAME[name]().bind(context(1000, 5, 64)).resumed(bound.record(), 0) == bound


@pytest.mark.parametrize("name", BY_NAME)
def test_the_record_of_another_order_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as error:
        BY_NAME[name]().resumed({"name": "weighted"}, 0)
    assert str(error.value) == (
        f"state_dict: was taken in the order 'weighted'; this dataset has {name!r}. Pass the order of the state."
    )


@pytest.mark.parametrize("record", [{}, {"name": 3}, None, "slices"])
def test_what_is_no_record_is_refused(record: object) -> None:
    with pytest.raises(UsageError) as error:
        Slices(8).resumed(record, 0)  # type: ignore[arg-type]
    assert str(error.value) == (
        f"state_dict: the order in it is {record!r}; a name and lengths are allowed. Pass the result of state_dict()."
    )


@pytest.mark.parametrize("rows", [None, 0, 2.5, True])
def test_a_damaged_length_is_refused(rows: object) -> None:
    with pytest.raises(UsageError) as error:
        Slices(8).resumed({"name": "slices", "rows": rows}, 0)
    assert str(error.value) == (f"state_dict: slices: rows={rows!r}: is not a whole number of at least 1.")


# --- sequential --------------------------------------------------------------------------------------------


def test_sequential_gives_back_its_runs() -> None:
    positions = Runs(np.array([10**11, 10**11 + 256]), np.array([256, 256]))
    for epoch in (0, 1):
        assert Sequential().over(10**12, 5).within(positions, epoch) is positions


# --- slices ------------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(1, 600), st.integers(0, 50))
@settings(deadline=None)
def test_a_slice_is_one_run_or_two_where_the_ring_closes(n: int, slice_rows: int, epoch: int) -> None:
    closings = 0
    for start in range(0, n, slice_rows):
        part = Slices(slice_rows).over(n).within(one_run(start, min(n, start + slice_rows)), epoch)
        closings += len(part.starts) - 1
        if len(part.starts) == 2:
            assert part.starts[0] + part.lengths[0] == n
            assert part.starts[1] == 0
    assert closings <= 1


def test_the_short_slice_comes_last_and_moves() -> None:
    last_rows = {tuple(whole(Slices(10), 103, 0, epoch)[100:]) for epoch in range(60)}
    assert len(last_rows) > 30
    for rows in last_rows:
        assert all((b - a) % 103 == 1 for a, b in pairwise(rows))


def test_slices_begin_anywhere_on_the_ring() -> None:
    offsets = np.array([whole(Slices(8), 64, 0, epoch)[0] % 8 for epoch in range(800)])
    counts = np.bincount(offsets, minlength=8)
    assert ((counts - 100) ** 2 / 100).sum() < 26  # chi-square, 7 degrees of freedom: 1 in 2,000


def test_a_slice_is_a_global_batch_unless_given() -> None:
    assert Slices().bind(context(1000)) == Slices(32)
    assert Slices(5).bind(context(1000)) == Slices(5)


# --- blocks ------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 80), st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_windows_share_the_blocks_evenly_and_hold_what_was_asked(n: int, window: int, block: int) -> None:
    epoch = BlockEpoch(Blocks(window, block).over(n), 0)
    bounds = [epoch.slots(number) for number in range(epoch.windows)]
    blocks = -(-n // epoch.block)
    assert [a for a, _ in bounds] == [0, *(b for _, b in bounds[:-1])]
    assert bounds[-1][1] == blocks
    counts = [b - a for a, b in bounds]
    assert max(counts) - min(counts) <= 1
    least = -(-window // block)
    assert min(counts) >= min(least, blocks)
    assert max(counts) < 2 * least
    for position in range(n):
        first, last = bounds[epoch.window(position)]
        assert first <= position // block < last or position >= epoch._edge


def asking(order: RowOrder, share: Share, most: int = 1, epoch: int = 0) -> Iterator[tuple[list[int], Runs]]:
    """Yield the rows of each request of a rank, and those that it asks the disk for."""
    for request in read_requests(order.over(share.n), epoch, share, most):
        yield request.within().rows().tolist(), request.upcoming()


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 20), st.data())
@settings(deadline=None)
def test_rows_are_asked_for_before_they_are_needed_and_once(
    n: int, window: int, block: int, data: st.DataObject
) -> None:
    order = Blocks(max(window, block + 1), block)
    begin = data.draw(st.integers(0, n - 1))  # a resumed epoch
    world = data.draw(st.integers(1, 3))
    share = Share(n, data.draw(st.integers(1, 40)), world, data.draw(st.integers(0, world - 1)), origin=begin)
    asked: list[int] = []
    for rows, soon in asking(order, share, data.draw(st.integers(1, 4))):
        assert ((soon.starts >= 0) & (soon.starts + soon.lengths <= n)).all()
        asked += soon.rows().tolist()
        assert set(rows) <= set(asked)
    assert len(asked) == len(set(asked))


def test_the_disk_is_asked_for_two_windows_and_then_for_one_at_a_time_in_file_order() -> None:
    order, n = Blocks(40, 10), 400
    sequence = whole(order, n)
    windows = [sorted(sequence[start : start + 40]) for start in range(0, n, 40)]
    soon = [runs for _, runs in asking(order, Share(n, 8))]
    assert soon[0].rows().tolist() == windows[0] + windows[1]
    assert [runs.total for runs in soon[1:11]] == [0, 0, 0, 40, 0, 0, 0, 0, 0, 40]
    assert soon[4].rows().tolist() == windows[2]
    assert len(soon[4].starts) <= 4
    assert [runs.total for runs in soon[-9:]] == [0] * 9
    for other in (Sequential(), Slices(8), Rows(), Blocks(10, 10)):
        assert not any(runs.total for _, runs in asking(other, Share(n, 8)))


def test_of_small_rows_no_more_are_asked_for_at_once_than_are_soon_read() -> None:
    order, n = Blocks(1_000_000, 100), 3_000_000
    asked = np.cumsum([runs.total for _, runs in asking(order, Share(n, 10_000))])
    assert [int(asked[k]) for k in (0, 48, 49, 98, 99)] == [10**6, 10**6, 2 * 10**6, 2 * 10**6, 3 * 10**6]


def test_of_many_windows_a_rank_asks_for_its_own_rows_alone() -> None:
    order, n, world, rows = Blocks(40, 10), 4007, 50, 4  # global batches of 200 rows, five windows
    for rank in (0, 7, 49):
        found = [*asking(order, Share(n, rows, world, rank))]
        assert found[0][1].rows().tolist() == found[0][0] + found[1][0]
        for (_, soon), (later, _) in pairwise(found[1:]):
            assert soon.rows().tolist() == later
        assert found[-1][1].total == 0
    # Each rank has a good part of the windows: all ask for whole blocks.
    assert next(asking(order, Share(n, 50, 4, 1)))[1].total >= 80


def test_places_within_a_window_are_equally_likely() -> None:
    n, epochs = 60, 3000  # one window of 6 blocks
    rows = np.array([whole(Blocks(60, 10), n, 7, epoch) for epoch in range(epochs)])
    for position in (0, 1, 31, 59):
        counts = np.bincount(rows[:, position], minlength=n)
        assert ((counts - epochs / n) ** 2 / (epochs / n)).sum() < 103  # chi-square, 59 degrees: 1 in 3,000
    apart = np.bincount((rows[:, 1] - rows[:, 0]) % n, minlength=n)[1:]
    assert ((apart - epochs / 59) ** 2 / (epochs / 59)).sum() < 102


def test_a_batch_is_drawn_from_all_blocks_of_its_window() -> None:
    n, block = 100_000, 50
    order = Blocks(2000, block)
    rows = np.array(whole(order, n))
    for start in range(0, 1700, 256):
        batch = np.sort(rows[start : start + 256])
        places = 1 + (np.diff(batch) > block).sum()  # blocks seldom lie side by side
        assert 36 <= places <= 42  # of 40


def test_a_pack_smaller_than_a_window_is_permuted_in_full() -> None:
    order = Blocks("1GB").bind(context(5000))
    assert len({tuple(whole(order, 3, 0, epoch)) for epoch in range(200)}) == 6
    steps = np.diff(whole(order, 5000))
    assert (steps == 1).sum() < 8


def test_windows_are_counted_in_rows() -> None:
    assert Blocks().bind(context(10, 1000)) == Blocks(WINDOW_BYTES // 1000, BLOCK_BYTES // 1000)
    assert Blocks("64MB", 9).bind(context(10, 1000)) == Blocks(64_000, 9)
    assert Blocks(77).bind(context(10, 1 << 21, coded=True)) == Blocks(
        77, 7
    )  # decoded whole: the pack's blocks
    assert Blocks("1B").bind(context(10, 1 << 21)) == Blocks(2, 1)  # two blocks at least
    assert Blocks().bind(context(0, 0)).bind(context(0, 5)) == Blocks(WINDOW_BYTES, BLOCK_BYTES)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("256MB", 256_000_000), ("64 MiB", 1 << 26), ("1.5GB", 1_500_000_000), ("100kB", 100_000), ("8B", 8)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert Blocks(text, 3).bind(context(10, 1)) == Blocks(nbytes, 3)


@pytest.mark.parametrize("text", ["", "256", "MB", "0MB", "0.1B", "-1MB", "256 megabytes", "1e9B"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        Blocks(text)
    assert str(error.value) == (
        f"Blocks: window: is {text!r}; a number and a unit are allowed. Pass for example '256MB'."
    )


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True])
def test_lengths_below_one_are_refused(wrong: int) -> None:
    allowed = f"{wrong!r}: is not a whole number of at least 1."
    for make, sentence in (
        (lambda: Slices(wrong), f"Slices: rows={allowed}"),
        (lambda: Blocks(wrong), f"Blocks: window={allowed}"),
        (lambda: Blocks(block=wrong), f"Blocks: block={allowed}"),
    ):
        with pytest.raises(UsageError) as error:
            make()
        assert str(error.value) == sentence


def test_an_order_of_ones_own_that_repeats_rows_need_not_say_how_many():
    class Twice(RowOrder):
        name, repeats = "twice", True

        def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
            return positions // 2

    assert Twice().over(5).length == 5
    assert whole(Twice(), 5) == [0, 0, 1, 1, 2]
