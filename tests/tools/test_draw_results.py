from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from PIL import ImageFont

from packer.bench.bench_report import _COLOURS, _OTHERS

SCRIPT = Path(__file__).parents[2] / "tools/draw_results.py"
REPORT = Path(__file__).parents[2] / "packer/reports/report.html"
draw_results = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.mark.parametrize("name", sorted(draw_results.CHARTS))
def test_the_committed_charts_are_drawn_from_the_committed_figures(name: str):
    assert (draw_results.OUT / name).read_text() == draw_results.draw(draw_results.CHARTS[name]())


def test_every_chart_is_on_a_page():
    results = (draw_results.RESULTS / "README.md").read_text()
    assert {path.name for path in draw_results.OUT.iterdir()} == set(draw_results.CHARTS)
    assert [name for name in draw_results.CHARTS if f"docs/charts/{name})" not in results] == []


def test_bars_are_medians_of_paired_ratios():
    found = draw_results.loading().bars
    assert found[0][:2] == ("packer", 1.0)
    assert found[0].text.endswith(" images/s")
    shares = [bar.value for bar in found]
    assert shares == sorted(shares, reverse=True)
    # The table of benchmarks/results/README.md, made by another program, says 3.9 for FFCV.
    assert {bar.name: bar.text for bar in found}["FFCV, raw"] == "1 / 3.9"


def test_charts_reports_and_plots_have_one_colour():
    assert f"--bar:{draw_results.COLOURS['packer']}" in REPORT.read_text()
    assert (_COLOURS["packed"], _OTHERS) == (draw_results.COLOURS["packer"], draw_results.OTHERS)


def test_where_less_is_better_the_least_comes_first():
    seconds = [bar.value for bar in draw_results.parsing().bars]
    assert seconds == sorted(seconds)


def test_a_bar_is_as_long_as_its_share():
    bars = [draw_results.Bar("packer", 3.0, ""), draw_results.Bar("half", 1.5, "")]
    chart = draw_results.draw(draw_results.Chart("title", bars))
    assert f'width="{draw_results.FULL}"' in chart
    assert f'width="{draw_results.FULL // 2}"' in chart


@pytest.mark.parametrize("name", sorted(draw_results.CHARTS))
def test_text_fits_in_a_browser_whose_font_is_wide(name: str) -> None:
    manager = pytest.importorskip("matplotlib.font_manager")
    chart = ElementTree.fromstring(draw_results.draw(draw_results.CHARTS[name]()))
    for text in chart.iter("{http://www.w3.org/2000/svg}text"):
        weight = text.get("font-weight", "normal")
        font = ImageFont.truetype(
            manager.findfont(f"DejaVu Sans:weight={weight}"), int(chart.attrib["font-size"])
        )
        width, x = font.getlength(text.text or ""), float(text.attrib["x"])
        left = x - width if text.get("text-anchor") == "end" else x
        assert 0 <= left <= left + width <= draw_results.WIDTH, text.text
