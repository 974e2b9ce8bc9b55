"""packer.orders.regions: every row once, each rank its own part of the pack, stretches fetched once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import order_quality
from benchmarks.order_quality import measure
from packer.errors import UsageError
from packer.orders.blocks import Blocks
from packer.orders.epochs import Context, RowOrder, Share, read_requests
from packer.orders.regions import SORTED_WINDOW, WINDOW, Regions
from packer.orders.row_orders import Slices
from packer.orders.runs import Subset, one_run
from tests.contracts.order_contract import check_order

# Some of every kind: regions shorter than a stretch, batches longer than the pack, regions of one row a batch, windows of everything.
BOUND = st.builds(
    lambda regions, each, window, block: Regions(regions, window, block, regions * each),
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(1, 50),
    st.integers(1, 40),
)


def epoch_of(order: Regions, n: int, epoch: int = 0, seed: int = 0) -> list[int]:
    return order.over(n, seed).within(one_run(0, n), epoch).rows().tolist()


def test_the_sequences_are_frozen() -> None:
    for order, n, epoch, seed, expected in (
        (Regions(2, 2, 2, 4), 19, 1, 3, [1, 5, 16, 14, 0, 4, 11, 17, 8, 7, 15, 10, 3, 2, 12, 18, 6, 9, 13]),
        (
            Regions(3, 1, 4, 6),
            20,
            0,
            3,
            [4, 5, 7, 12, 15, 14, 0, 1, 6, 11, 13, 19, 2, 3, 8, 9, 18, 17, 10, 16],
        ),
        (Regions(4, 8, 3, 4), 18, 5, 7, [2, 4, 10, 14, 1, 7, 11, 15, 0, 8, 9, 13, 3, 6, 12, 17, 5, 16]),
    ):
        assert epoch_of(order, n, epoch, seed) == expected


@given(BOUND, st.integers(0, 1500))
def test_every_order_of_regions_keeps_its_promises(order: Regions, n: int) -> None:
    check_order(order, n)


def test_epochs_and_seeds_differ() -> None:
    order = Regions(4, 2, 5, 16)
    assert len({tuple(epoch_of(order, 300, epoch, seed)) for epoch in range(3) for seed in range(3)}) == 9


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_a_rank_reads_its_own_part_of_the_pack_in_every_epoch(world: int) -> None:
    order, n, batch = Regions(16, 3, 10, 64), 6_400, 64
    for rank in range(world):
        share = Share(n, batch // world, world, rank)
        own = [
            set(order.over(n).within(share.positions(0, share.steps), epoch).rows().tolist())
            for epoch in range(3)
        ]
        assert own[0] == own[1] == own[2] == set(range(rank * n // world, (rank + 1) * n // world))


def test_four_ranks_then_two_read_every_row_once() -> None:
    n = 1_003
    order = Regions(8, 2, 7, 32)
    heads = [Share(n, 8, 4, rank).positions(0, 12) for rank in range(4)]
    tails = [Share(n, 16, 2, rank, ends="uneven", origin=12 * 32) for rank in range(2)]
    rows = [order.over(n, 5).within(runs, 1).rows() for runs in heads]
    rows += [order.over(n, 5).within(share.positions(0, share.steps), 1).rows() for share in tails]
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


def asking(order: RowOrder, share: Share, epoch: int = 0) -> Iterator[tuple[set[int], set[int]]]:
    """Yield the rows of each batch of a rank, and those that are asked for when it is read."""
    for request in read_requests(order.over(share.n, 4), epoch, share, 1):
        yield set(request.within().rows().tolist()), set(request.upcoming().rows().tolist())


def test_no_rows_of_a_region_are_asked_for_after_they_were_needed_nor_those_of_other_ranks() -> None:
    order, n = Regions(8, 2, 7, 32), 2_011
    for world in (1, 2, 4):
        for rank in range(world):
            share, asked, calls = Share(n, 32 // world, world, rank, ends="uneven"), set(), 0
            for step, (rows, soon) in enumerate(asking(order, share)):
                calls += len(soon) > 0
                assert not asked & soon or step + 9 > share.steps  # once; the last batch is cut otherwise
                asked |= soon
                assert rows <= asked
            assert len(asked) <= n / world + 2 * 8 + 7 * 14
            assert 1 < calls < share.steps


def test_a_region_that_lacks_the_last_stretch_of_others_is_asked_for() -> None:
    """Of 81 rows in two regions, one has five stretches of 8 rows, and the other one a row more."""
    asked = [soon for _, soon in asking(Regions(2, 1, 8, 16), Share(81, 16))]
    assert set.union(*asked) == set(range(81))


def test_a_billion_rows_need_no_memory() -> None:
    n = 1_000_000_007
    order = Regions().bind(Context(Subset([(0, n)]), 112, 74_899, 8_192))
    tracemalloc.start()
    rows = order.over(n).within(one_run(n - 20_000, n), 3).rows()
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
    known = {"n": 400_000, "row_bytes": 196_608, "block_rows": 43, "global_batch": 2048} | facts
    about = Context(Subset([(0, known.pop("n"))]), **known)  # type: ignore[arg-type]
    assert given_order.bind(about) == expected


def test_a_record_is_resumed() -> None:
    order = Regions(8, 2, 7, 32)
    assert order.record() == {"name": "regions", "regions": 8, "window": 2, "block": 7, "batch": 32}
    assert Regions(4, 4, 4, 4).over(100).resumed(order.record(), 0) == order
    with pytest.raises(
        UsageError, match="state_dict: was taken in the order 'rows'; this dataset has 'regions'"
    ):
        order.over(100).resumed({"name": "rows"}, 0)


@pytest.mark.parametrize("name", ["regions", "window", "block", "batch"])
def test_lengths_are_whole_numbers(name: str) -> None:
    with pytest.raises(UsageError, match=f"Regions: {name}=0: is not a whole number of at least 1."):
        Regions(**{name: 0})


def fetched(order: Regions | Blocks | Slices, n: int, nodes: int, stretch: int) -> list[float]:
    """What nodes that keep a quarter of the pack fetch in three epochs, in readings of it."""
    kept = np.zeros((nodes, -(-n // stretch)), bool)
    found = []
    for epoch in range(3):
        count = 0
        for node in range(nodes):
            share = Share(n, 32, nodes, node, ends="drop")
            batches = order.over(n).within(share.positions(0, share.steps), epoch).rows().reshape(-1, 32)
            for rows in batches:
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


def test_batches_are_as_mixed_as_a_uniform_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_quality, "_ROWS", 1 << 17)  # fewer batches tell as much here
    monkeypatch.setattr(order_quality, "_PLACED", 1 << 18)
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
