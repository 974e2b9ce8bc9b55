"""packer.bench.bench_drawing: the report as a picture and as a page."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from packer.bench.bench_drawing import draw, page
from packer.bench.bench_report import Diagnosis, ImageBenchReport, MeasuredLane
from packer.errors import PackerError
from packer.sentence import Option, Sentence

REPORT = ImageBenchReport(
    pack="p<b>.h5",
    rows=100,
    batch_size=10,
    rounds=2,
    seconds=1,
    sections={
        "warm page cache": (
            MeasuredLane("images, DataLoader, 2 workers", (100.0, 120.0), (100.0, 120.0)),
            MeasuredLane("packed, slices", (3000.0, 3300.0), (100.0, 120.0), (4000.0, 4000.0)),
            MeasuredLane("limit: memcpy, 2 threads", (4000.0, 4000.0)),
        )
    },
    conditions={"cores": 2, "cpu": "x", "versions": {"packer": "1.2"}},
    images="photos",
    shape=(8, 8, 3),
    stored="raw",
    whole=False,
    compared="all labels",
    diagnosis=Diagnosis("decoding", None, "Limited. Pass " + Option("size", 64) + ".", 1500.0),
)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.bars: list[str] = []
        self.text: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "div":
            self.bars.append(f"{given['class']} {given['style']}")
        self.loaded += [str(given[name]) for name in ("src", "href") if name in given]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_page_shows_all_figures_and_loads_nothing() -> None:
    tags = Tags()
    tags.feed(page(REPORT))
    assert tags.bars == ["other width:2.8%", "ours width:78.8%", "limit width:100.0%"]
    text = "\n".join(tags.text)
    for said in (
        "photos beside p<b>.h5: 100 images of 8x8x3",
        "3,150",
        "28.8",
        "0.79",
        "packer 1.2",
        "x, 2 cores; medians of 2 rounds of 1 s",
        "x memcpy",
        "compared: all labels.",
        "Limited. Pass size=64.",
    ):
        assert said in text
    assert tags.loaded == []
    assert "Limited" not in page(replace(REPORT, diagnosis=None))


def test_what_stands_below_the_table_stands_on_the_page_too() -> None:
    lanes = REPORT.sections["warm page cache"]
    noisy = replace(lanes[1], rates=(1000.0, 6000.0), limit=(900.0, 1000.0))
    report = replace(REPORT, sections={"warm page cache": (lanes[0], noisy, lanes[2])})
    assert [str(sentence)[:25] for sentence in report.below] == [
        "compared: all labels.",
        "more than 1 x memcpy: pac",
        "rounds differ by up to 14",
    ]
    table = report.table().render(lambda option: f"<{option}>")
    assert table.endswith("\n\nLimited. Pass <size=64>.")
    made = unescape(page(report, lambda sentence: f"in a shell: {sentence}"))
    for sentence in report.below:
        assert sentence in table.replace("<", "").replace(">", "")
        assert f"in a shell: {sentence}" in made
    assert "in a shell: Limited." in made


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
    assert str(REPORT.table()).endswith("\n\nLimited. Pass size=64.")
    assert isinstance(REPORT.table(), Sentence)
    assert REPORT.to_dict()["diagnosis"]["limit"] == "decoding"
