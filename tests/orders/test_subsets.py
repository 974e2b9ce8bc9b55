"""packer.orders.runs: positions of some rows, against a plain list of them."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.orders.runs import Runs, Subset, consecutive, one_run

LENGTHS = st.integers(0, 6)
SPANS = st.lists(st.tuples(st.integers(0, 3), LENGTHS), max_size=120)
"""(rows left out, rows taken), again and again."""


def spans_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    spans, row = [], 0
    for gap, length in steps:
        spans.append((row + gap, row + gap + length))
        row += gap + length
    return spans


def plain(spans: list[tuple[int, int]]) -> list[int]:
    return [row for a, b in spans for row in range(a, b)]


def draw_runs(data: st.DataObject, n: int) -> Runs:
    """Runs of positions below n, of any lengths, in any order."""
    starts = data.draw(st.lists(st.integers(0, n - 1), max_size=6))
    lengths = [data.draw(st.integers(1, n - start)) for start in starts]
    return Runs(np.array(starts, np.int64), np.array(lengths, np.int64))


def check(subset: Subset, rows: list[int], runs: Runs) -> None:
    found = subset.place(runs)
    assert found.rows().tolist() == [rows[position] for position in runs.rows()]
    assert (found.lengths >= 1).all()
    assert found.starts.dtype == found.lengths.dtype == np.int64


@given(SPANS, st.sampled_from([0, 16, 1000]), st.data())
def test_positions_of_spans_are_their_rows(steps: list[tuple[int, int]], listed: int, data: st.DataObject):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.orders.runs._LISTED_ROWS", listed)
        patch.setattr("packer.orders.runs._FEW_SPANS", 2)
        spans = spans_of(steps)
        rows, subset = plain(spans), Subset(spans)
    assert subset.rows == len(rows)
    if rows:
        check(subset, rows, draw_runs(data, len(rows)))
        check(subset, rows, one_run(0, len(rows)))


@given(st.permutations(range(90)), st.integers(0, 90), st.data())
def test_positions_of_a_list_are_its_rows_as_they_stand(rows: list[int], count: int, data: st.DataObject):
    subset = Subset.from_rows(np.array(rows[:count], np.int64))
    assert subset.rows == count
    if count:
        check(subset, rows, draw_runs(data, count))


def test_a_run_across_spans_is_one_run_a_span():
    found = Subset([(0, 10), (20, 30), (40, 50)]).place(one_run(8, 22))
    assert (found.starts.tolist(), found.lengths.tolist()) == ([8, 20, 40], [2, 10, 2])


def test_spans_that_touch_are_one():
    found = Subset([(0, 10), (10, 10), (10, 30)]).place(one_run(8, 22))
    assert (found.starts.tolist(), found.lengths.tolist()) == ([8], [14])


@pytest.mark.parametrize("spans", [[], [(3, 3)], np.empty((0, 2), np.int64)])
def test_nothing_is_a_subset_too(spans: list[tuple[int, int]]):
    subset = Subset(spans)
    assert subset.rows == 0
    assert subset.place(one_run(0, 0)).total == 0
    assert Subset.from_rows(np.empty(0, np.int64)).rows == 0


def test_rows_beyond_32_bits():
    found = Subset([(1 << 40, 1 << 41)]).place(Runs(np.array([0, 5]), np.array([3, 1])))
    assert found.rows().tolist() == [(1 << 40) + k for k in (0, 1, 2, 5)]


def test_the_fingerprint_is_of_the_rows_in_their_order():
    rows = np.flatnonzero(np.random.default_rng(0).random(4000) < 0.5)
    runs = consecutive(rows)
    spans = np.stack([runs.starts, runs.starts + runs.lengths], axis=1)
    halves = [(a, b) for start, stop in spans.tolist() for a, b in ((start, start + 1), (start + 1, stop))]
    same = {Subset(spans).fingerprint, Subset.from_rows(rows).fingerprint, Subset(halves).fingerprint}
    assert len(same) == 1
    assert Subset([(0, 5)]).fingerprint == "a922f69011003ca5"  # kept in states: never to change
    others = [Subset([(0, 5)]), Subset([(0, 6)]), Subset([(1, 6)]), Subset([]), Subset.from_rows(rows[::-1])]
    assert len({subset.fingerprint for subset in others} | same) == 6


def test_memory_is_by_spans_or_by_rows():
    whole = Subset([(k, k + 1000) for k in range(0, 10**9, 10**6)])
    every_second = Subset.from_rows(np.arange(0, 20_000, 2))
    assert len(pickle.dumps(whole)) < 20_000
    assert len(pickle.dumps(every_second)) < 8 * 10_000 + 1000
    assert pickle.loads(pickle.dumps(whole)).fingerprint == whole.fingerprint


def test_no_python_step_a_span():
    """A run over 50,000 spans costs as many lines of Python as one over two."""

    def lines(subset: Subset, runs: Runs) -> int:
        count = 0

        def trace(frame: object, event: str, arg: object) -> object:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            subset.place(runs)
        finally:
            sys.settrace(before)
        return count

    apart = [(40 * k, 40 * k + 20) for k in range(50_000)]
    for subset in (Subset(apart), Subset.from_rows(np.arange(0, 2_000_000, 2))):
        two = Runs(np.array([0, 100]), np.array([30, 30]))
        many = Runs(np.array([0, 100]), np.array([subset.rows, subset.rows - 100]))
        assert lines(subset, one_run(0, 30)) == lines(subset, one_run(0, subset.rows))
        assert lines(subset, two) == lines(subset, many)


def test_rows_that_lie_backwards_in_memory_are_runs_that_c_code_can_read():
    runs = consecutive(np.arange(10)[::-1])
    assert runs.starts.tolist() == list(range(9, -1, -1))
    assert runs.lengths.tolist() == [1] * 10
    assert runs.starts.flags.c_contiguous
    assert runs.lengths.flags.c_contiguous
