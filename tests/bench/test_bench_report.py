from __future__ import annotations

import json
from dataclasses import replace

import pytest

from packer.bench.bench_report import (
    BEYOND,
    BEYOND_DECODE,
    FirstBatch,
    ImageBenchReport,
    MeasuredLane,
    TableBenchReport,
    bar,
)


@pytest.fixture
def report() -> ImageBenchReport:
    raw = MeasuredLane("images, DataLoader, 2 workers", (800.0, 1000.0, 900.0), (800.0, 1000.0, 900.0))
    packed = MeasuredLane(
        "packed, slices", (8000.0, 40000.0, 18000.0), (800.0, 1000.0, 900.0), (16000.0, 50000.0, 20000.0)
    )
    limit = MeasuredLane("limit: memcpy, 2 threads", (16000.0, 50000.0, 20000.0))
    return ImageBenchReport(
        images="photos/train",
        pack="train.h5",
        rows=9000,
        shape=(256, 256, 3),
        stored="raw",
        whole=False,
        compared="all labels",
        batch_size=256,
        rounds=3,
        seconds=1.0,
        sections={"warm page cache": (raw, packed, limit)},
        conditions={"cpu": "Abacus 1", "cores": 2},
        notes=("one note.",),
    )


def test_ratios_are_taken_round_by_round(report: ImageBenchReport) -> None:
    raw, packed, limit = report.sections["warm page cache"]
    assert packed.rate == 18000
    assert packed.times_raw == 20  # of 10, 40 and 20; the ratio of the medians happens to agree
    assert packed.of_limit == 0.8  # of 0.5, 0.8 and 0.9; the ratio of the medians would be 0.9
    assert packed.spread == pytest.approx(32 / 18)
    assert raw.times_raw == 1
    assert limit.times_raw is None


def test_the_table_shows_every_way_once(report: ImageBenchReport) -> None:
    assert report.table().splitlines() == [
        "photos/train beside train.h5: 9,000 images of 256x256x3 (raw), batches of 256",
        "Abacus 1, 2 cores; medians of 3 rounds of 1 s; ratios: medians of those of each round",
        "",
        "warm page cache                images/s   x raw  x memcpy  s/epoch",
        "images, DataLoader, 2 workers       900     1.0             10.000  █▏",
        "packed, slices                   18,000    20.0      0.80    0.500  █████████████████████▋",
        "limit: memcpy, 2 threads         20,000                      0.450  ████████████████████████",
        "",
        "compared: all labels.",
        "one note.",
        "rounds differ by up to 178%: is something else running? Measure again on a quiet machine, or with more rounds=.",
    ]


def test_more_than_memcpy_is_explained(report: ImageBenchReport) -> None:
    raw, packed, limit = report.sections["warm page cache"]
    faster = replace(packed, limit=(7000.0, 30000.0, 17000.0))
    assert BEYOND in replace(report, sections={"warm page cache": (raw, faster, limit)}).table()
    assert BEYOND not in report.table()
    plain = replace(limit, name="limit: plain reads, 2 threads")
    cold = replace(report, sections={"cold": (raw, faster, plain)}).table()
    assert "x plain reads" in cold
    assert BEYOND not in cold


def test_more_than_decoding_is_explained_where_rows_are_whole_pictures(report: ImageBenchReport) -> None:
    raw, packed, limit = report.sections["warm page cache"]
    faster = replace(packed, limit=(7000.0, 30000.0, 17000.0))
    for name, explained in {"whole decode": True, "decode": False}.items():
        named = replace(limit, name=f"limit: {name}, 2 threads")
        table = replace(report, sections={"warm": (raw, faster, named)}).table()
        assert f"x {name}" in table
        assert (BEYOND_DECODE in table) is explained
        assert BEYOND not in table


def test_whole_pictures_and_long_titles(report: ImageBenchReport) -> None:
    (ways,) = report.sections.values()
    stored = "JPEG, longest side at most 512"
    title = "warm, RandomResizedCrop(224) and flip"
    lines = replace(report, whole=True, stored=stored, sections={title: ways}).table().splitlines()
    assert lines[0] == (
        "photos/train beside train.h5: 9,000 whole pictures (JPEG, longest side at most 512) cut to 256x256x3, batches of 256"
    )
    assert lines[3].index("images/s") == lines[4].index("     900")


def test_the_json_holds_raw_numbers_and_what_is_made_of_them(report: ImageBenchReport) -> None:
    record = json.loads(json.dumps(report.to_dict()))
    assert record["conditions"] == {"cpu": "Abacus 1", "cores": 2}
    packed = record["sections"]["warm page cache"][1]
    assert packed == {
        "name": "packed, slices",
        "rates": [8000, 40000, 18000],
        "raw": [800, 1000, 900],
        "limit": [16000, 50000, 20000],
        "median": 18000,
        "spread": pytest.approx(32 / 18),
        "times_raw": 20,
        "of_limit": 0.8,
        "seconds_per_epoch": 0.5,
    }


@pytest.mark.parametrize(("share", "text"), [(0, ""), (1 / 192, "▏"), (0.5, "█" * 12), (1, "█" * 24)])
def test_a_bar_is_as_long_as_its_share(share: float, text: str) -> None:
    assert bar(share) == text


def test_a_tables_report_has_wider_columns_and_tells_the_first_batch() -> None:
    rows = MeasuredLane("DataLoader, rows, 0 workers", (200_000.0,), (200_000.0,))
    packed = MeasuredLane("packed, slices", (40_000_000.0,), (200_000.0,), (80_000_000.0,))
    report = TableBenchReport(
        source="higgs.csv",
        pack="higgs.h5",
        fields={"features": (28,), "label": ()},
        rows=1_000_000,
        batch_size=1024,
        rounds=1,
        seconds=0.5,
        sections={"warm page cache": (rows, packed)},
        first_batch=FirstBatch(parser="pandas.read_csv", parse=(1.0, 3.0, 2.0), pack=(0.01, 0.01, 0.01)),
        conditions={"cpu": "Abacus 1", "cores": 2},
        notes=("one note.",),
    )
    assert report.table().splitlines() == [
        "higgs.csv beside higgs.h5: 1,000,000 rows of features [28], label, batches of 1,024",
        "Abacus 1, 2 cores; medians of 1 round of 0.5 s; ratios: medians of those of each round",
        "",
        "warm page cache                   rows/s  x DataLoader  x limit  s/epoch",
        "DataLoader, rows, 0 workers      200,000           1.0             5.000  ▏",
        "packed, slices                40,000,000         200.0     0.50    0.025  ████████████████████████",
        "",
        "first batch: 0.01 s after the pack is opened; pandas.read_csv parses the table for 2 s, 200 times as long.",
        "one note.",
    ]


@pytest.mark.parametrize(
    ("parse", "end"),
    [
        (0.005, "0.005 s, 0.5 times as long."),
        (0.0123, "0.0123 s, 1.2 times as long."),
        (12.0, "12 s, 1,200 times as long."),
    ],
)
def test_a_first_batch_that_is_no_earlier_is_told(parse: float, end: str) -> None:
    assert str(FirstBatch(parser="p", parse=(parse,), pack=(0.01,))).endswith(f"p parses the table for {end}")
