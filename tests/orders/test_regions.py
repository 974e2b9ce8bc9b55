"""packer.orders.regions: every row once, each rank its own part of the pack, stretches fetched once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.order_quality import measure
from packer.errors import UsageError
from packer.orders.epochs import Context, Reach, Share
from packer.orders.regions import SORTED_WINDOW, WINDOW, Regions
from packer.orders.row_orders import Blocks, Slices
from packer.orders.runs import Runs, one_run

# Some of every kind: regions shorter than a stretch, batches longer than the pack, regions of one row a batch, windows of everything.
BOUND = st.builds(
    lambda regions, each, window, block: Regions(regions, window, block, regions * each),
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(1, 50),
    st.integers(1, 40),
)


def epoch_of(order: Regions, n: int, epoch: int = 0, seed: int = 0) -> list[int]:
    return order.place(one_run(0, n), n, seed, epoch).rows().tolist()


def test_the_sequences_are_frozen() -> None:
    assert epoch_of(Regions(2, 2, 2, 4), 19, 1, 3) == [
        1,
        6,
        14,
        15,
        4,
        5,
        11,
        18,
        7,
        0,
        9,
        10,
        8,
        2,
        17,
        12,
        3,
        16,
        13,
    ]
    assert epoch_of(Regions(3, 1, 4, 6), 20, 0, 3) == [
        4,
        5,
        10,
        8,
        19,
        18,
        3,
        0,
        9,
        11,
        16,
        17,
        2,
        1,
        7,
        6,
        15,
        14,
        12,
        13,
    ]
    assert epoch_of(Regions(4, 8, 3, 4), 18, 5, 7) == [
        3,
        8,
        10,
        17,
        0,
        5,
        12,
        14,
        2,
        7,
        9,
        16,
        1,
        4,
        11,
        13,
        6,
        15,
    ]


@given(BOUND, st.integers(1, 1500), st.integers(0, 3))
def test_every_row_comes_once(order: Regions, n: int, epoch: int) -> None:
    assert sorted(epoch_of(order, n, epoch)) == list(range(n))


@given(BOUND, st.integers(1, 400), st.data())
@settings(max_examples=50)
def test_positions_can_be_asked_for_in_any_runs(order: Regions, n: int, data: st.DataObject) -> None:
    whole = np.array(epoch_of(order, n, 2))
    starts = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9))
    runs = Runs(np.array(starts), np.array([data.draw(st.integers(1, n - start)) for start in starts]))
    assert (order.place(runs, n, 0, 2).rows() == whole[runs.rows()]).all()


def test_epochs_and_seeds_differ() -> None:
    order = Regions(4, 2, 5, 16)
    assert len({tuple(epoch_of(order, 300, epoch, seed)) for epoch in range(3) for seed in range(3)}) == 9


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_a_rank_reads_its_own_part_of_the_pack_in_every_epoch(world: int) -> None:
    order, n, batch = Regions(16, 3, 10, 64), 6_400, 64
    for rank in range(world):
        share = Share(n, batch // world, world, rank)
        own = [
            set(order.place(share.positions(0, share.steps), n, 0, epoch).rows().tolist())
            for epoch in range(3)
        ]
        assert own[0] == own[1] == own[2] == set(range(rank * n // world, (rank + 1) * n // world))


def test_four_ranks_then_two_read_every_row_once() -> None:
    n = 1_003
    order = Regions(8, 2, 7, 32)
    heads = [Share(n, 8, 4, rank).positions(0, 12) for rank in range(4)]
    tails = [Share(n, 16, 2, rank, ends="uneven", origin=12 * 32) for rank in range(2)]
    rows = [order.place(runs, n, 5, 1).rows() for runs in heads]
    rows += [order.place(share.positions(0, share.steps), n, 5, 1).rows() for share in tails]
    assert sorted(np.concatenate(rows).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [6_400, 6_417, 61])
def test_stretches_are_the_packs_own_and_come_window_after_window(n: int) -> None:
    """But for the two at the ends of a region, the rows of a stretch all come while its window does."""
    order, block = Regions(4, 3, 10, 16), 10
    rows = np.array(epoch_of(order, n, 1))
    seen: dict[int, list[int]] = {}
    for position, row in enumerate(rows.tolist()):
        seen.setdefault(row // block, []).append(position // 16)
    wide = [stretch for stretch, batches in seen.items() if max(batches) - min(batches) > 2 * 3 * block // 4]
    assert len(wide) <= 4 + 4  # those that two regions share


def test_no_rows_of_a_region_are_asked_for_after_they_were_needed_nor_those_of_other_ranks() -> None:
    order, n = Regions(8, 2, 7, 32), 2_011
    for world in (1, 2, 4):
        for rank in range(world):
            share, asked, calls = Share(n, 32 // world, world, rank, ends="uneven"), set(), 0
            for step in range(share.steps):
                own = share.positions(step, step + 1)
                soon = order.ahead(Reach(32 * step, min(32 * step + 32, n), own, begins=step == 0), n, 4, 0)
                calls += len(soon.starts) > 0
                asked |= set(soon.rows().tolist())
                if 32 * step + 32 <= n:
                    assert set(order.place(own, n, 4, 0).rows().tolist()) <= asked
            assert len(asked) <= n / world + 2 * 8
            assert 1 < calls < share.steps
    assert set(order.ahead(Reach(0, n, begins=True), n, 4, 0).rows().tolist()) == set(range(n))
    assert order.ahead(Reach(64, 64), n, 4, 0).total == 0


def test_a_region_that_lacks_the_last_stretch_of_others_is_asked_for() -> None:
    """Of 81 rows in two regions, one has five stretches of 8 rows, and the other one a row more."""
    order, asked = Regions(2, 1, 8, 16), set()
    for start in range(0, 81, 16):
        asked |= set(
            order.ahead(Reach(start, min(start + 16, 81), begins=not start), 81, 0, 0).rows().tolist()
        )
    assert asked == set(range(81))


def test_asking_begins_anew_where_an_epoch_is_resumed() -> None:
    order, n = Regions(8, 2, 7, 32), 2_011
    asked: set[int] = set()
    for start in range(640, 1984, 32):
        asked |= set(order.ahead(Reach(start, start + 32, begins=start == 640), n, 4, 1).rows().tolist())
        assert set(order.place(one_run(start, start + 32), n, 4, 1).rows().tolist()) <= asked


def test_a_billion_rows_need_no_memory() -> None:
    n = 1_000_000_007
    order = Regions().bind(Context(n, 112, 74_899, 8_192))
    tracemalloc.start()
    rows = order.place(one_run(n - 20_000, n), n, 0, 3).rows()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(np.unique(rows)) == 20_000
    assert rows.min() >= 0
    assert rows.max() < n
    assert peak < 5_000_000


@pytest.mark.parametrize(
    ("given_order", "facts", "expected"),
    [
        (Regions(), {}, Regions(64, WINDOW, 43, 2048)),
        (Regions(), {"shuffled": False}, Regions(64, SORTED_WINDOW, 43, 2048)),
        (Regions(), {"global_batch": 256}, Regions(8, WINDOW, 43, 256)),
        (Regions(), {"coded": True, "block_rows": 5}, Regions(64, 1, 40, 2048)),
        (Regions(), {"global_batch": 1_500}, Regions(60, WINDOW, 43, 1_500)),
        (Regions(), {"global_batch": 127}, Regions(1, WINDOW, 43, 127)),
        (Regions(), {"n": 1_000}, Regions(4, WINDOW, 43, 2048)),
        (Regions(), {"n": 10}, Regions(1, WINDOW, 43, 2048)),
        (Regions(regions=100, window=3, block=7), {}, Regions(128, 3, 7, 2048)),
        (Regions(), {"share": 0.25}, Regions(16, WINDOW, 43, 2048)),
        (Regions(), {"global_batch": 1}, Regions(1, WINDOW, 43, 1)),
    ],
)
def test_lengths_are_chosen_by_pack_and_batch(
    given_order: Regions, facts: dict[str, int], expected: Regions
) -> None:
    about = Context(**({"n": 400_000, "row_bytes": 196_608, "block_rows": 43, "global_batch": 2048} | facts))  # type: ignore[arg-type]
    assert given_order.bind(about) == expected


def test_a_record_is_resumed() -> None:
    order = Regions(8, 2, 7, 32)
    assert order.record() == {"name": "regions", "regions": 8, "window": 2, "block": 7, "batch": 32}
    assert Regions(4, 4, 4, 4).resumed(order.record()) == order
    with pytest.raises(
        UsageError, match="state_dict: was taken in the order 'rows'; this dataset has 'regions'"
    ):
        order.resumed({"name": "rows"})


@pytest.mark.parametrize("name", ["regions", "window", "block", "batch"])
def test_lengths_are_whole_numbers(name: str) -> None:
    with pytest.raises(UsageError, match=f"Regions: {name}: is 0; whole numbers from 1 are allowed."):
        Regions(**{name: 0})


def fetched(order: Regions | Blocks | Slices, n: int, nodes: int, stretch: int) -> list[float]:
    """What nodes that keep a quarter of the pack fetch in three epochs, in readings of it."""
    kept = np.zeros((nodes, -(-n // stretch)), bool)
    found = []
    for epoch in range(3):
        count = 0
        for node in range(nodes):
            share = Share(n, 32, nodes, node, ends="drop")
            for step in range(share.steps):
                rows = order.place(share.positions(step, step + 1), n, 0, epoch).rows()
                missing = [s for s in np.unique(rows // stretch) if not kept[node, s]]
                count += len(missing)
                room = kept.shape[1] // 4 - int(kept[node].sum())
                kept[node, missing[: max(0, room)]] = True
        found.append(count / kept.shape[1])
    return found


def test_nodes_fetch_their_share_once() -> None:
    n, stretch = 25_600, 10
    assert fetched(Regions(64, 4, stretch, 256), n, 8, stretch) == [1, 0, 0]
    for other in (Blocks(2_560, stretch), Slices(256)):
        assert fetched(other, n, 8, stretch)[2] > 0.7


def test_batches_are_as_mixed_as_a_uniform_shuffles() -> None:
    n, labels = 102_400, np.arange(102_400) // 1_024
    shuffled = measure(Regions(64, 8, 10, 2_048), n, 2_048)
    assert shuffled.score > 0.99
    mixes = [
        measure(order, n, 2_048, labels=labels).label_mix
        for order in (Regions(64, 8, 10, 2_048), Regions(64, 32, 10, 2_048), Blocks(1_300, 5), Slices(2_048))
    ]
    assert [mix is not None and mix < most for mix, most in zip(mixes, (3, 1.05, 6, 2_500), strict=True)] == [
        True
    ] * 4
    assert mixes[0] < mixes[2] < mixes[3]  # type: ignore[operator]
