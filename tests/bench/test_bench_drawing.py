"""packer.bench.bench_report: the report as a picture; and the text of the same report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from packer.bench.bench_report import BenchReport, Diagnosis, MeasuredLane, draw
from packer.cli.option_words import in_options
from packer.errors import PackerError

REPORT = BenchReport(
    pack="p<b>.h5",
    rows=100,
    batch_size=10,
    rounds=2,
    seconds=1,
    sections={
        "warm page cache": (
            MeasuredLane("folder, DataLoader, 2 workers", (100.0, 120.0), (100.0, 120.0)),
            MeasuredLane("packed, slices", (3000.0, 3300.0), (100.0, 120.0), (4000.0, 4000.0)),
            MeasuredLane("limit: memcpy, 2 threads", (4000.0, 4000.0)),
        )
    },
    conditions={"cores": 2, "cpu": "x", "versions": {"packer": "1.2"}},
    source="photos",
    heading="photos beside p<b>.h5",
    unit="images",
    notes=("compared: all.",),
    diagnosis=Diagnosis("decoding", None, "Limited. Pass size=64.", 1500.0),
)


def test_notes_stand_below_the_table() -> None:
    lanes = REPORT.sections["warm page cache"]
    noisy = replace(lanes[1], rates=(1000.0, 6000.0), limit=(900.0, 1000.0))
    report = replace(REPORT, sections={"warm page cache": (lanes[0], noisy, lanes[2])})
    assert [str(sentence)[:25] for sentence in report.below] == [
        "compared: all.",
        "x memcpy: of the limit me",
        "more than 1 x memcpy: pac",
        "rounds differ by up to 14",
    ]
    lines = report.table().splitlines()
    assert set(report.below) < set(lines)
    assert in_options(lines[-1]) == "Limited. Pass --size 64."


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_a_picture(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"bench.{ending}"
    draw(REPORT, str(out))
    assert out.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_a_plot_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(PackerError, match=r"cannot be written \(No such file or directory\)"):
        draw(REPORT, str(tmp_path / "none" / "bench.png"))


def test_the_text_ends_with_what_limits() -> None:
    assert REPORT.table().endswith("\n\nLimited. Pass size=64.")
    assert REPORT.to_dict()["diagnosis"]["limit"] == "decoding"
