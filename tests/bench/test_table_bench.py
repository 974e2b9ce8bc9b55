from __future__ import annotations

import json
import multiprocessing
import re
import threading
from pathlib import Path

import pytest

from packer import convert_table
from packer.bench import table_baseline
from packer.bench.bench import bench
from packer.errors import PackerError, SourceError

pytestmark = [
    pytest.mark.usefixtures("flushed"),
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
    report = bench(table, packed, batch_size=32, rounds=2, seconds=0.02, workers=[0, 1])
    (ways,) = report.sections.values()
    assert [re.sub(r"\d workers?", "N workers", way.name) for way in ways[:-1]] == WAYS
    assert re.fullmatch(r"limit: memcpy, \d threads?", ways[-1].name)
    for way in ways[3:7]:
        assert way.baseline == ways[0].rates
        assert way.limit is not None
        assert len(way.rates) == len(way.limit) == 2
        assert min(way.rates) > 0
    assert report.rows == ROWS - 45
    assert report.conditions["rows_held"] == ROWS - 45
    assert report.notes == (
        "left out: name, of any length.",
        f"cold page cache: {table} is not read file by file; not measured.",
    )
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
    empty, left_out, *_ = lines[4 + len(ways) :]  # remarks about the rates may come behind
    assert empty == ""
    assert left_out == "left out: name, of any length."
    record = json.loads(json.dumps(report.to_dict()))
    assert record["source"] == str(table)
    assert record["sections"]["warm page cache"][3]["median"] == ways[3].rate


def test_shards_directories_and_several_files(tmp_path: Path) -> None:
    for part in range(2):
        rows = "".join(f"{i},{i % 3},{i / 3}\n" for i in range(part * 100, part * 100 + 100))
        (tmp_path / f"part{part}.csv").write_text(rows)
    sources = [tmp_path / "part0.csv", tmp_path / "part1.csv"]
    convert_table(sources, tmp_path / "all", csv={"header": False}, label="1", format="npy", shards=64)
    report = bench(sources, tmp_path / "all", rounds=1, seconds=0.01, workers=[0])
    assert report.source == f"{sources[0]} and 1 other"
    assert bench(tmp_path / "part*.csv", tmp_path / "all", rounds=1, seconds=0.01, workers=[0]).rows == 200


def test_rows_that_take_too_much_memory_are_held_in_part(
    table: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_baseline, "memory", lambda: 8 * 20 * 101)  # 20 bytes a row
    report = bench(table, packed, rounds=1, seconds=0.01, workers=[0])
    assert report.conditions["rows_held"] == 101
    assert report.notes[1] == ("tensors hold the first 101 rows, an eighth of the memory; packer loads all.")


def test_other_tables_are_refused(table: Path, packed: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "others.csv"
    renamed.write_bytes(table.read_bytes())
    assert bench(renamed, packed, rounds=1, seconds=0.01, workers=[0]).source == str(renamed)
    table.write_text(table.read_text().replace("12.5,red", "12.4,red"))  # of the same length
    with pytest.raises(PackerError) as caught:
        bench(table, packed)
    assert str(caught.value) == (
        f"{table}: is not the source of {packed} (rows.csv, as it was then);"
        " a comparison needs the same source on both sides. Pass that, or convert this one."
    )
    with pytest.raises(SourceError):
        bench(tmp_path / "none.csv", packed)
