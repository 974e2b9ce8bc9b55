"""packer.orders.buckets: every row once, batches alike in size, and an epoch that goes on elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.orders.buckets import Buckets, permute_each
from packer.orders.epochs import Context, Share, read_requests
from packer.orders.row_orders import Rows
from packer.orders.runs import Subset
from tests.contracts.order_contract import check_order
from tests.orders.test_sampling import chi_square


def sizes_of(n: int, seed: int = 0) -> NDArray[np.int32]:
    """Photos of a longest side of 64: many 3:4, others of any aspect."""
    rng = np.random.default_rng(seed)
    aspects = np.where(rng.random(n) < 0.3, 0.75, np.exp(rng.normal(0, 0.5, n)))
    sides = np.stack([np.where(aspects < 1, 64, 64 / aspects), np.where(aspects < 1, 64 * aspects, 64)], 1)
    return np.maximum(sides, 4).astype(np.int32)


def bound(sizes: Any, batch: int = 8, ranks: int = 1, rows: int | None = None) -> Buckets:
    """rows: of a bucket, at most."""
    whole, batch = Subset([(0, len(sizes))]), batch * ranks
    order = Buckets().bind(Context(whole, 100, 10, batch, sizes=lambda: np.asarray(sizes)))
    return order if rows is None else order.having(bucket=rows).over(whole)


def batches(
    order: Any, n: int, batch: int = 8, seed: int = 0, number: int = 0, **share: Any
) -> list[list[int]]:
    """The rows of each batch of a rank."""
    share = {"ends": "uneven", **share}
    requests = read_requests(order.over(n, seed), number, Share(n, batch, **share), 1)
    return [request.rows().rows().tolist() for request in requests]


def padding(sizes: NDArray[np.int32], rows: list[list[int]]) -> float:
    padded = sum(len(one) * int(sizes[one].max(axis=0).prod()) for one in rows)
    return padded / int(sizes.prod(axis=1).sum()) - 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([3, 3, 3, 4, 70_000])), min_size=1, max_size=90),
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_every_row_once(sizes: list[tuple[int, int]], rows: int, batch: int, epoch: int) -> None:
    n = len(sizes)
    order = bound(sizes, batch, rows=rows)
    found = batches(order, n, batch, number=epoch)
    check_order(order, n)
    assert max(map(len, found)) <= batch
    assert [len(one) for one in found[:-1]] == [batch] * (len(found) - 1)


def test_batches_are_alike_and_new_each_epoch() -> None:
    n, sizes = 3000, sizes_of(3000)
    order = bound(sizes)
    first, second = (batches(order, n, number=epoch) for epoch in range(2))
    plain = padding(sizes, batches(Rows(), n))
    assert padding(sizes, first) < 0.15 * plain
    of = {row: number for number, one in enumerate(second) for row in one}
    met = [np.bincount([of[row] for row in one]).max() for one in first]
    assert np.mean(met) < 3  # of 8 that met once
    areas = [int(sizes[one].max(axis=0).prod()) for one in first]
    assert abs(np.corrcoef(areas[1:], areas[:-1])[0, 1]) < 0.2  # neither sorted by size
    assert len(first) == len(second)


def test_an_epoch_goes_on_with_other_ranks() -> None:
    n, sizes = 1000, sizes_of(1000)
    order = bound(sizes, ranks=2)
    ranks = [batches(order, n, world_size=2, rank=rank, ends="even") for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    handed = 10 * 2 * 8
    begun = [row for one in ranks for batch in one[:10] for row in batch]
    for world in (1, 3):
        resumed = bound(sizes, ranks=world).resumed(order.record(), 0)
        rest = [
            row
            for rank in range(world)
            for batch in batches(resumed, n, world_size=world, rank=rank, origin=handed)
            for row in batch
        ]
        assert sorted(begun + rest) == [*range(n)]


def test_sequences_are_frozen() -> None:
    sizes = sizes_of(40)
    assert batches(bound(sizes, rows=12), 40)[0] == [22, 7, 39, 26, 9, 8, 34, 6]


def test_what_is_refused() -> None:
    sizes = sizes_of(40)
    with pytest.raises(UsageError, match=r"Buckets: the heights and widths of the rows are not known"):
        Buckets().bind(Context(Subset([(0, 4)]), 1, 1, 2))
    with pytest.raises(UsageError, match="was taken with other heights and widths"):
        bound(sizes).resumed(bound(sizes + 1).record(), 0)
    with pytest.raises(UsageError, match="this dataset has 'buckets'"):
        bound(sizes).resumed(Rows().record(), 0)


# --- permutations of many sizes ----------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(0, 2**64 - 1)), min_size=1, max_size=8))
def test_each_size_and_key_has_a_permutation(ranges: list[tuple[int, int]]) -> None:
    positions = np.concatenate([np.arange(size) for size, _ in ranges])
    sizes = np.concatenate([np.full(size, size) for size, _ in ranges])
    keys = np.concatenate([np.full(size, key, np.uint64) for size, key in ranges])
    numbers = np.split(permute_each(positions, sizes, keys), np.cumsum([size for size, _ in ranges])[:-1])
    assert all(sorted(part.tolist()) == list(range(len(part))) for part in numbers)


@pytest.mark.parametrize("size", [2, 3, 5, 6, 17, 40, 257])
def test_every_number_and_every_distance_is_equally_likely_everywhere(size: int) -> None:
    keys = 20_000
    hashed = np.random.default_rng(1).integers(0, 2**64, keys, np.uint64)
    columns = [
        permute_each(np.full(keys, at), np.full(keys, size), hashed) for at in (0, 1, size // 2, size - 1)
    ]
    for column in columns:
        counts = np.bincount(column, minlength=size)
        assert abs(chi_square(counts, np.full(size, keys / size))) < 4.5
    if size > 3:
        apart = np.bincount((columns[1] - columns[0]) % size, minlength=size)[1:]
        assert abs(chi_square(apart, np.full(size - 1, keys / (size - 1)))) < 4.5


def test_the_permutations_are_frozen() -> None:
    keys = np.arange(6, dtype=np.uint64) + np.uint64(2**63)
    sizes = np.array([1, 2, 3, 300, 10**6, 2**52])
    assert permute_each(np.array([0, 1, 2, 3, 4, 2**52 - 1]), sizes, keys).tolist() == [
        0,
        0,
        2,
        231,
        271466,
        4420160457957927,
    ]
