"""Rows given as dicts are mapped cell by cell, without Arrow, to the fields that it gives for each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import convert_table, open_pack
from packer.errors import UsageError
from packer.tables import apply, frames
from packer.tables.transform.column_plan import ColumnChoices
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.row_mapper import Fields
from packer.tables.transform.table_transform import TableTransform
from tests.tables.rawtables import CELLS, Table, fit, tables
from tests.tables.transform.test_table_transform import choices_for

pytest.importorskip("pyarrow")

TEXTS = [
    "", " ", "NA", "nan", "?", "1", " 2\t", "-3.5", "1e3", "1e400", "1e39", "007", "1.0", "+4", "1,5", "1.234,5", "9007199254740993",
    "9223372036854775808", "true", "Yes", "false", "2020-01-31", "2020/02/30", "2020-01-31 10:11:12.5", "10:11", "a", "B", "café",
    "10", "9", "x,y", "x\ny", "x\x1fy", "x\r", '"', "\0", "\ud800", "#",
]  # fmt: skip
ANY = st.one_of(
    st.none(), st.booleans(), st.sampled_from([np.bool_(True), np.float64("nan"), np.float64(1.5), np.int64(9), np.float32(0.1)]),
    st.integers(-3, 12), st.sampled_from([2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**64, 10**30]),
    st.floats(), st.sampled_from([0.0, -0.0, 1e39, 3.4e38, 65_504.0, 65_520.0, 1e16, 9.0, 10.0]),
    st.sampled_from(TEXTS),
)  # fmt: skip


def both(record: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[Fields | None, Fields | None]:
    """What the rows become without Arrow and with it; None: refused."""
    mapping = frames._Mapping(TableTransform.from_json(record))
    found: list[Fields | None] = []
    for read in (mapping.rows, mapping.frame):
        try:
            found += read(rows)
        except UsageError:
            found.append(None)
    return found[0], found[1]


def same(a: Any, b: Any) -> bool:
    """Equal, but for the sign of zero: -0.0 is the boolean false."""
    if isinstance(a, list):
        return bool(a == b)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(a, b, equal_nan=True)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_rows_become_what_arrow_makes_of_them(data):
    table = data.draw(tables())
    choices = data.draw(choices_for(table))
    names = [c.name for c in table.columns]
    if data.draw(st.booleans()):
        label = data.draw(st.sampled_from(names))
        others = {c.name: c for c in table.columns}
        classes = others[label].type in ("category", "boolean", "integer")
        kept = tuple(name for name in choices.keep if name != label)
        log1p = tuple(name for name in choices.log1p if name != label)
        chosen = {"label": (label,), "label_as": "classes"} if classes else {"label": (label,)}
        choices = ColumnChoices(**{**vars(choices), **chosen, "keep": kept, "log1p": log1p})
    try:
        record = fit(table, choices).transform.to_json()
        TableTransform.from_json(record)
    except (UsageError, ValueError):  # a fill value may be beyond float16
        return
    record["reading"] = data.draw(
        st.sampled_from([{}, {"na": []}, {"na": ["?"]}, {"na": [], "decimal": ",", "thousands": "."}])
    )
    count = data.draw(st.integers(1, 3))
    own = {c.name: CELLS[c.type] for c in table.columns}
    rows = [
        {name: data.draw(st.one_of(own[name], own[name], st.none(), ANY)) for name in names}
        for _ in range(count)
    ]
    singles = []
    for row in rows:
        mapped, by_arrow = both(record, [row])
        assert mapped is not None or by_arrow is None
        if by_arrow is not None:
            assert mapped is not None
            assert mapped.keys() == by_arrow.keys()
            assert all(same(mapped[name], by_arrow[name]) for name in mapped)
        singles.append(mapped)
    together = both(record, rows)[0]
    if None in singles:
        assert together is None
    elif len({*map(tuple, singles)}) == 1:  # the label may be empty in some rows
        assert together is not None
        for name, values in together.items():
            parts = [single[name] for single in singles]
            if isinstance(values, list):
                assert values == [text for part in parts for text in part]
            else:
                assert values.tobytes() == np.concatenate(parts).tobytes()


TABLE = Table(
    [TableColumn(f"x{i}", "number") for i in range(3)]
    + [TableColumn("c", "category"), TableColumn("k", "text")],
    [[1.0, 2.0], [0.5, None], [7.0, 8.0], ["a", "2"], ["one", "two"]],
)
RECORD = fit(TABLE, ColumnChoices(keep=("k",))).transform.to_json()


@pytest.mark.parametrize(
    "row",
    [
        {"x0": 1, "x1": 2.5, "x2": True, "c": "a", "k": "text"},
        {"x0": "1", "x1": "", "x2": " 2.5", "c": 2, "k": None},
        {"x0": np.True_, "x1": float("nan"), "x2": np.float64(1), "c": 2.0, "k": 7, "more": object()},
    ],
)
def test_usual_rows_are_read_without_arrow(monkeypatch, row):
    expected = apply(RECORD, {name: [cell] for name, cell in row.items()})
    monkeypatch.setattr(frames._Mapping, "frame", None)
    found = apply(RECORD, row)
    assert {name: np.asarray(value).tolist() for name, value in found.items()} == {
        name: np.asarray(value)[0].tolist() for name, value in expected.items()
    } or str(found) == str({name: value[0] for name, value in expected.items()})


def test_dropped_columns_and_a_label_in_part_are_passed_over(monkeypatch):
    table = Table(
        [TableColumn(name, "number") for name in "abyz"], [[1.0, 2.0], [3.0, 5.0], [0.5, 1.5], [0.0, 2.5]]
    )
    record = fit(table, ColumnChoices(label=("y", "z"), drop=("a",))).transform.to_json()
    monkeypatch.setattr(frames._Mapping, "frame", None)
    assert apply(record, {"a": object(), "b": 4, "y": 1.0})["features"].tolist() == [4.0]
    assert apply(record, {"a": "x", "b": 4, "z": 2, "y": 1.0})["label"].tolist() == [1.0, 2.0]


def test_the_mappings_of_the_latest_packs_are_kept():
    headers = [SimpleNamespace(table=dict(RECORD)) for _ in range(frames._KEPT + 3)]
    row = {"x0": 1, "x1": 2, "x2": 3, "c": "a"}
    for header in headers:
        apply(header, row)
    assert [id(header.table) for header in headers[3:]] == list(frames._latest)
    assert frames._mapping(headers[-1]) is frames._mapping(headers[-1])
    assert frames._mapping(RECORD) is not frames._mapping(RECORD)


def test_an_unknown_class_is_refused_beside_an_unknown_category(tmp_path):
    text = "".join(f"{'xyz'[n % 3]},{['p q', 'p', 'q'][n % 3]}\n" for n in range(9))
    (tmp_path / "t.csv").write_text(f"c,y\n{text}")
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y", label_separator="space")
    pack = open_pack(tmp_path / "t.h5")
    rows = [{"c": "x", "y": "p r"}, {"c": "new", "y": "p"}]
    with pytest.raises(UsageError, match="row 0, column 'y': 'p r' is not one of the label's classes"):
        apply(pack, rows)
    assert apply(pack, rows[1:])["categories"].tolist() == [[0]]


@pytest.mark.parametrize("cell", [b"\xff", 1j, "\ud800"])
def test_a_cell_that_cannot_be_read_is_the_one_that_is_told(cell, tmp_path):
    (tmp_path / "t.csv").write_text("x,c,k,y\n" + "1.5,a,t,p\n2.5,b,u,q\n" * 9)
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y", keep=["k"])
    name = "k" if type(cell) is str else "x"
    row = {"x": 1.5, "c": "a", "k": "t", "y": "p"} | {name: cell}
    with pytest.raises(UsageError, match=rf"row 0, column {name!r}"):
        apply(open_pack(tmp_path / "t.h5"), row)


def test_rows_with_an_empty_label_need_no_new_reader(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "1.5,p\n2.5,q\n" * 9)
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5", label="y")
    pack = open_pack(tmp_path / "t.h5")
    readers = []
    for _ in range(2):
        assert [*apply(pack, {"x": 1.5, "y": None})] == ["features"]
        readers.append([*frames._mapping(pack)._readers.values()])
    assert readers[0] == readers[1]
