from __future__ import annotations

import json
import multiprocessing
import re
import sys
import threading
from pathlib import Path

import pytest

from packer import convert_table
from packer.bench import table_bench, table_lanes
from packer.bench.table_bench import bench
from packer.errors import PackerError, SourceError, UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on a machine of one core
    pytest.mark.filterwarnings(
        "ignore:.*use of fork.*:DeprecationWarning"
    ),  # Python 3.12; the workers only load
]

ROWS = 400
WAYS = [
    "DataLoader, rows, N workers",
    "DataLoader, batches by a sampler",
    "tensors, copied each epoch, slices",
    "packed, sequential",
    "packed, slices",
    "packed, blocks",
    "packed, rows",
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """400 rows: a number with gaps, a category, a text, a whole number; every ninth has no label."""
    lines = ["height,colour,name,grade"]
    lines += [
        f"{'' if i % 7 == 0 else i / 8},{('red', 'blue')[i % 2]},row {i},{'' if i % 9 == 0 else i % 5}"
        for i in range(ROWS)
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def packed(table: Path, tmp_path: Path) -> Path:
    """The pack of it; the names are kept, rows without a label left out."""
    out = tmp_path / "rows.h5"
    convert_table(table, out, label="grade", keep=["name"], on_error="skip")
    return out


def test_every_way_is_measured_beside_its_limit(table: Path, packed: Path) -> None:
    threads = set(threading.enumerate())
    said: list[str] = []
    report = bench(table, packed, batch_size=32, rounds=2, seconds=0.02, workers=[0, 1], progress=said.append)
    (ways,) = report.sections.values()
    assert [re.sub(r"\d workers?", "N workers", way.name) for way in ways[:-1]] == WAYS
    assert re.fullmatch(r"limit: memcpy, \d threads?", ways[-1].name)
    for way in ways[3:7]:
        assert way.raw == ways[0].rates
        assert way.limit is not None
        assert len(way.rates) == len(way.limit) == 2
        assert min(way.rates) > 0
    assert report.rows == ROWS - 45
    assert report.fields == {"features": (1,), "categories": (1,), "label": ()}
    assert report.conditions["rows_compared"] == ROWS - 45
    assert report.notes == ("left out: name, of any length.",)
    assert len(report.first_batch.parse) == len(report.first_batch.pack) == 2
    assert report.first_batch.parser == "pandas.read_csv"
    assert said[0] == "comparing rows"
    assert "round 2 of 2: packed, rows (warm page cache)" in said
    assert multiprocessing.active_children() == []
    assert set(threading.enumerate()) <= threads


def test_the_table_and_the_json_tell_the_same(table: Path, packed: Path) -> None:
    report = bench(table, packed, rounds=1, seconds=0.01, workers=[0])
    lines = report.table().splitlines()
    assert lines[0] == (
        f"{table} beside {packed}: 355 rows of features [1], categories [1], label, batches of 88"
    )
    assert re.fullmatch(r"warm page cache +rows/s  x DataLoader  x memcpy  s/epoch", lines[3])
    (ways,) = report.sections.values()
    for line, way in zip(lines[4:], ways, strict=False):
        assert line.startswith(way.name)
        assert f" {way.rate:,.0f} " in line
    empty, first, left_out, *_ = lines[4 + len(ways) :]  # remarks about the rates may come behind
    assert empty == ""
    assert first.startswith("first batch: ")
    assert "pandas.read_csv parses the table for " in first
    assert left_out == "left out: name, of any length."
    record = json.loads(json.dumps(report.to_dict()))
    assert record["source"] == str(table)
    assert record["sections"]["warm page cache"][3]["median"] == ways[3].rate
    assert record["first_batch"]["pack"] == list(report.first_batch.pack)


def test_shards_directories_and_several_files(tmp_path: Path) -> None:
    for part in range(2):
        rows = "".join(f"{i},{i % 3},{i / 3}\n" for i in range(part * 100, part * 100 + 100))
        (tmp_path / f"part{part}.csv").write_text(rows)
    sources = [tmp_path / "part0.csv", tmp_path / "part1.csv"]
    convert_table(sources, tmp_path / "all", header=False, label="1", format="npy", shards=64)
    report = bench(sources, tmp_path / "all", rounds=1, seconds=0.01, workers=[0])
    assert report.source == f"{sources[0]} and 1 other"
    assert report.conditions["rows_compared"] == 100  # those of the first piece
    assert bench(tmp_path / "part*.csv", tmp_path / "all", rounds=1, seconds=0.01, workers=[0]).rows == 200


def test_rows_that_take_too_much_memory_are_held_in_part(
    table: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_bench, "memory", lambda: 8 * 20 * 101)  # 20 bytes a row
    report = bench(table, packed, rounds=1, seconds=0.01, workers=[0])
    assert report.conditions["rows_held"] == 101
    assert report.notes[-1] == ("tensors: the first 101 rows, an eighth of the memory; packer loads all.")


def test_other_tables_are_refused(table: Path, packed: Path, tmp_path: Path) -> None:
    other = tmp_path / "others.csv"
    other.write_bytes(table.read_bytes())
    with pytest.raises(UsageError) as caught:
        bench(other, packed)
    assert str(caught.value) == (
        f"{other}: is others.csv, {packed} was made from rows.csv; bench compares a pack with the table it was"
        " made from. Pass that, or convert this one."
    )
    size = table.stat().st_size
    table.write_text(table.read_text() + "1,red,row 400,2\n")
    with pytest.raises(UsageError, match=f"has {size + 16:,} bytes, .* was made from one of {size:,}; bench"):
        bench(table, packed)
    with pytest.raises(SourceError):
        bench(tmp_path / "none.csv", packed)


def test_a_table_whose_cells_have_changed_is_refused(table: Path, packed: Path) -> None:
    table.write_text(table.read_text().replace("12.5,red", "12.4,red"))  # row 100, of the same length
    with pytest.raises(
        PackerError, match=r"rows\.csv: line 102: .*rows\.h5 holds no such row; .* Convert the table again"
    ):
        bench(table, packed)


def test_packs_that_are_no_tables_are_refused(photo_folder: Path, pack: Path, table: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a pack of a table. Pass one that was made from a table"):
        bench(table, pack)


@pytest.mark.parametrize(
    ("most", "missing", "note"),
    [
        (10, False, r"parsing with pandas: left out, the table is [\d.]+ kB, more than 10 bytes\."),
        (1 << 20, True, r"parsing with pandas: left out, pandas is not installed\."),
    ],
)
def test_parsing_is_left_out_and_that_is_said(
    table: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, most: int, missing: bool, note: str
) -> None:
    monkeypatch.setattr(table_lanes, "MOST_BYTES", most)
    if missing:
        monkeypatch.setitem(sys.modules, "pandas", None)
    report = bench(table, packed, rounds=1, seconds=0.01, workers=[0])
    assert report.first_batch.parse == ()
    assert re.fullmatch(note, report.notes[0])
    assert re.search(r"^first batch: [\d.e-]+ s after the pack is opened\.$", report.table(), re.MULTILINE)


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^bench: batch_size=1024, rounds=0, seconds=1.0, workers=None; at least 1"
    ):
        bench(tmp_path / "none.csv", tmp_path / "none.h5", rounds=0)
