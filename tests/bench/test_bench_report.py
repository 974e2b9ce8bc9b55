from __future__ import annotations

import json
from dataclasses import replace

import pytest

from packer.bench.bench_report import BEYOND, BenchReport, MeasuredLane, bar


@pytest.fixture
def report() -> BenchReport:
    raw = MeasuredLane("folder, DataLoader, 2 workers", (800.0, 1000.0, 900.0), (800.0, 1000.0, 900.0))
    packed = MeasuredLane(
        "packed, slices", (8000.0, 40000.0, 18000.0), (800.0, 1000.0, 900.0), (16000.0, 50000.0, 20000.0)
    )
    limit = MeasuredLane("limit: memcpy, 2 threads", (16000.0, 50000.0, 20000.0))
    return BenchReport(
        source="photos/train",
        pack="train.h5",
        heading="photos/train beside train.h5: 9,000 images",
        unit="images",
        rows=9000,
        batch_size=256,
        rounds=3,
        seconds=1.0,
        sections={"warm page cache": (raw, packed, limit)},
        conditions={"cpu": "Abacus 1", "cores": 2},
        notes=("one note.",),
    )


def test_ratios_are_taken_round_by_round(report: BenchReport) -> None:
    raw, packed, limit = report.sections["warm page cache"]
    assert packed.rate == 18000
    assert packed.times_baseline == 20  # of 10, 40 and 20; the ratio of the medians happens to agree
    assert packed.of_limit == 0.8  # of 0.5, 0.8 and 0.9; the ratio of the medians would be 0.9
    assert packed.spread == pytest.approx(32 / 18)
    assert raw.times_baseline == 1
    assert limit.times_baseline is None


def test_the_table_shows_every_way_once(report: BenchReport) -> None:
    assert report.table().splitlines() == [
        "photos/train beside train.h5: 9,000 images",
        "Abacus 1, 2 cores; medians of 3 rounds of 1 s; ratios: medians of those of each round",
        "",
        "warm page cache                   images/s  x folder  x memcpy  s/epoch",
        "folder, DataLoader, 2 workers          900       1.0             10.000  █▏",
        "packed, slices                      18,000      20.0      0.80    0.500  █████████████████████▋",
        "limit: memcpy, 2 threads            20,000                        0.450  ████████████████████████",
        "",
        "one note.",
        "x memcpy: of the limit measured just before the lane; the limit's own row is the median of all of these.",
        "rounds differ by up to 178%: is something else running? Measure again on a quiet machine, or with more rounds=.",
    ]


def test_more_than_memcpy_is_explained(report: BenchReport) -> None:
    raw, packed, limit = report.sections["warm page cache"]
    faster = replace(packed, limit=(7000.0, 30000.0, 17000.0))
    assert BEYOND["memcpy"] in replace(report, sections={"warm page cache": (raw, faster, limit)}).table()
    assert BEYOND["memcpy"] not in report.table()
    plain = replace(limit, name="limit: plain reads, 2 threads")
    cold = replace(report, sections={"cold": (raw, faster, plain)}).table()
    assert "x plain reads" in cold
    assert BEYOND["memcpy"] not in cold


def test_more_than_decoding_is_explained_where_rows_are_whole_pictures(report: BenchReport) -> None:
    raw, packed, limit = report.sections["warm page cache"]
    faster = replace(packed, limit=(7000.0, 30000.0, 17000.0))
    for name, explained in {"whole decode": True, "decode": False}.items():
        named = replace(limit, name=f"limit: {name}, 2 threads")
        table = replace(report, sections={"warm": (raw, faster, named)}).table()
        assert f"x {name}" in table
        assert (BEYOND["whole decode"] in table) is explained
        assert BEYOND["memcpy"] not in table


def test_long_titles_stand_above_their_columns(report: BenchReport) -> None:
    (ways,) = report.sections.values()
    lines = replace(report, sections={"a title that is longer than the lanes": ways}).table().splitlines()
    assert lines[3].index("images/s") == lines[4].index("     900")


def test_the_json_holds_raw_numbers_and_what_is_made_of_them(report: BenchReport) -> None:
    record = json.loads(json.dumps(report.to_dict()))
    assert record["conditions"] == {"cpu": "Abacus 1", "cores": 2}
    packed = record["sections"]["warm page cache"][1]
    assert packed == {
        "name": "packed, slices",
        "rates": [8000, 40000, 18000],
        "baseline": [800, 1000, 900],
        "limit": [16000, 50000, 20000],
        "median": 18000,
        "spread": pytest.approx(32 / 18),
        "times_baseline": 20,
        "of_limit": 0.8,
        "seconds_per_epoch": 0.5,
    }


@pytest.mark.parametrize(("share", "text"), [(0, ""), (1 / 192, "▏"), (0.5, "█" * 12), (1, "█" * 24)])
def test_a_bar_is_as_long_as_its_share(share: float, text: str) -> None:
    assert bar(share) == text
