from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.orders.runs import Runs
from packer.orders.spans import Spans

SPANS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=6)


def spans_of(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rising spans, each so far behind the one before it, and so long."""
    spans, at = [], 0
    for gap, length in gaps:
        spans.append((at + gap, at + gap + length))
        at += gap + length
    return spans


@given(SPANS, st.data())
def test_positions_mean_the_rows_of_the_spans(gaps: list[tuple[int, int]], data: st.DataObject):
    spans = spans_of(gaps)
    rows = [row for a, b in spans for row in range(a, b)]
    placed = Spans(spans)
    assert placed.rows == len(rows)
    starts = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    lengths = [data.draw(st.integers(1, len(rows) - start)) for start in starts]
    runs = Runs(np.array(starts, np.int64), np.array(lengths, np.int64))
    found = placed.place(runs)
    assert found.rows().tolist() == [rows[position] for position in runs.rows().tolist()]
    assert (found.lengths >= 1).all()
    assert (found.starts.dtype, found.lengths.dtype) == (np.int64, np.int64)
    # No run leaves its span, nor is one cut where it need not be.
    assert all(
        any(a <= start and start + length <= b for a, b in spans)
        for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
    )
    touched = [
        sum(1 for a, b in spans if set(range(a, b)) & set(rows[s : s + n]))
        for s, n in zip(*runs, strict=True)
    ]
    assert len(found.starts) == sum(touched)


def test_one_span_shifts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(np, "searchsorted", None)  # the usual case costs an addition
    found = Spans([(1 << 40, 1 << 41)]).place(Runs(np.array([0, 5]), np.array([3, 1])))
    assert found.starts.tolist() == [1 << 40, (1 << 40) + 5]


@pytest.mark.parametrize("spans", [[], [(3, 9)], [(3, 9), (12, 13)]])
def test_no_positions_are_no_rows(spans: list[tuple[int, int]]):
    found = Spans(spans).place(Runs(np.empty(0, np.int64), np.empty(0, np.int64)))
    assert (len(found.starts), len(found.lengths), found.starts.dtype) == (0, 0, np.int64)


def test_no_spans_have_no_rows():
    assert Spans([]).rows == 0
