from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

SCRIPT = Path(__file__).parents[2] / "tools/draw_loading.py"
draw_loading = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_the_committed_chart_is_drawn_from_the_committed_figures():
    assert draw_loading.OUT.read_text() == draw_loading.draw(draw_loading.bars())


def test_bars_are_medians_of_paired_ratios():
    found = draw_loading.bars()
    assert found[0] == ("packer", 1.0)
    shares = [bar.share for bar in found]
    assert shares == sorted(shares, reverse=True)
    # The table of benchmarks/results/README.md, made by another program, says 2.10 for ffcv.
    assert round(1 / dict(found)["FFCV, raw"], 1) == 2.1


def test_a_bar_is_as_long_as_its_share():
    chart = draw_loading.draw([draw_loading.Bar("packer", 1.0), draw_loading.Bar("half", 0.5)])
    assert f'width="{draw_loading.FULL}"' in chart
    assert f'width="{draw_loading.FULL // 2}"' in chart
