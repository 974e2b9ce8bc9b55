"""The contract of a row order: complete epochs, independent of requests, varying by seed and epoch."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.orders.epochs import RowOrder, Share, read_requests
from packer.orders.runs import Runs, one_run


def check_order(order: RowOrder, rows: int) -> None:
    """Check that an order is a pure function of position, seed and epoch that covers every row of an epoch.

    order: not bound to rows yet; `over` binds it. rows: of the dataset. If an epoch holds at least 20 distinct
    rows, sequences must differ between seeds and between epochs. Raises AssertionError.
    """
    bound = order.over(rows, 5)
    n = bound.length
    sequence = _sequence(bound, 2)
    draws = np.random.default_rng(rows)
    starts = draws.integers(0, n, (20 if n else 0, 6))
    asked = [Runs(some, draws.integers(1, n - some + 1)) for some in starts]
    edges = np.unique(np.append(starts[:1], [0, n])).tolist()
    asked += [one_run(first, stop) for first, stop in pairwise(edges)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda positions: bound.within(positions, 2), asked))
    for positions, placed in zip(asked, found, strict=True):
        assert placed.starts.dtype == placed.lengths.dtype == np.int64, "runs are not int64"
        assert (placed.lengths > 0).all(), "a run is empty"
        expected = sequence[positions.rows()]
        assert np.array_equal(placed.rows(), expected), (
            "rows depend on the other positions of a request, or on threads"
        )
    for none in (bound.within(one_run(0, 0), 2), *bound.upcoming(one_run(0, 0), 2, set())):
        assert none.total == 0, "no positions, but rows are returned"
    _check_draws(order, rows, differs=np.unique(sequence).size >= 20)
    _check_record(order, bound)
    if bound.mixed_rows(1):
        _check_upcoming(bound, n)


def _sequence(bound: RowOrder, epoch: int) -> NDArray[np.int64]:
    """Return the rows of an epoch, each once unless the order repeats rows."""
    rows = bound.within(one_run(0, bound.length), epoch).rows()
    if bound.repeats:
        assert len(rows) == bound.length, "an epoch's length differs from `length`"
        assert np.isin(rows, np.arange(bound.subset.rows)).all(), "a row number is out of range"
    else:
        assert np.array_equal(np.sort(rows), np.arange(bound.subset.rows)), (
            "an epoch does not hold every row once"
        )
    return rows


def _check_draws(order: RowOrder, rows: int, differs: bool) -> None:
    """Check that sequences vary with seed and epoch, and not only with their sum; fixed ones with neither."""
    numbers = 0, 1, 2, -1, 2**70
    for pairs in (
        [(0, epoch) for epoch in numbers],
        [(seed, 0) for seed in numbers],
        [(seed, 4 - seed) for seed in numbers],
    ):
        found = {_sequence(order.over(rows, seed), epoch).tobytes() for seed, epoch in pairs}
        if order.fixed:
            assert len(found) == 1, "the order is fixed, but sequences differ"
        else:
            assert len(found) > 1 or not differs, f"the same sequence for all these seeds and epochs: {pairs}"


def _check_record(order: RowOrder, bound: RowOrder) -> None:
    """Check that an order resumes from its record or a pickle and refuses the record of another order."""
    record = json.loads(json.dumps(bound.record()))
    for again in (order.over(bound.subset).resumed(record, 5), pickle.loads(pickle.dumps(bound))):
        assert again.length == bound.length, "a copy's epoch has another length"
        assert np.array_equal(_sequence(again, 2), _sequence(bound, 2)), "a copy's sequence differs"
    for other in ({**record, "name": "another"}, {}, None):
        try:
            order.resumed(other, 0)  # type: ignore[arg-type]
        except UsageError:
            continue
        raise AssertionError(f"the record {other} of another order is accepted")


def _check_upcoming(bound: RowOrder, n: int) -> None:
    """Check that requests prefetch every row before it is read, from the start and the middle of an epoch."""
    for origin, batch in ((0, n // 50 + 1), (0, 32), (n // 2, 32)):
        asked: set[int] = set()
        for request in read_requests(bound, 1, Share(n, batch, origin=origin), 2):
            asked.update(request.upcoming().rows().tolist())
            assert asked.issuperset(request.within().rows().tolist()), (
                "rows are read that were not prefetched"
            )
