"""The report of a benchmark as a picture (matplotlib), and as a web page of its own that loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from packer.bench.bench_report import LIMIT, BenchReport, MeasuredLane, limit_of
from packer.errors import MissingDependencyError, PackerError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
_OURS, _OTHERS, _LIMIT, _MODEL, _MUTED = "#2a7ab9", "#9aa5b1", "#d9dee3", "#c8453b", "#5b6570"
_LANE_INCHES, _WIDTH_INCHES = 0.34, 9.0

_STYLE = """
:root { color-scheme: light dark; --ours: #2a7ab9; --other: #9aa5b1; --limit: #d9dee3; --line: #e3e6ea; --muted: #5b6570 }
@media (prefers-color-scheme: dark) { :root { --ours: #5aa9e6; --other: #7d8894; --limit: #4a525b; --line: #363c43; --muted: #a3acb6 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem }
.conditions, td.n, .notes { color: var(--muted) } table { border-collapse: collapse; width: 100% }
td, th { padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); text-align: left; font-weight: normal }
th { color: var(--muted); font-size: .85rem } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.bar { width: 40% } td.bar div { height: .8rem; border-radius: 2px; background: var(--other); min-width: 1px }
td.bar .ours { background: var(--ours) } td.bar .limit { background: var(--limit) }
.diagnosis { border-left: 4px solid var(--ours); padding: .2rem 1rem; margin: 1.5rem 0 }
"""


def check_matplotlib() -> None:
    """Raise MissingDependencyError where nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError("matplotlib", "a plot") from None


def draw(report: BenchReport, path: str) -> None:
    """Draw all rates as bars, and the model's as a line. path: ends in one of PICTURES.

    Raises MissingDependencyError (matplotlib), PackerError (it cannot be written).
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    counts = [len(lanes) for lanes in report.sections.values()]
    height = sum(_LANE_INCHES * n + 0.9 for n in counts) + 0.6
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    figure.suptitle(report.heading, fontsize=10, wrap=True)
    figure.supxlabel(report.measured, fontsize=7, color=_MUTED)
    axes = figure.subplots(len(counts), 1, squeeze=False, height_ratios=[n + 1 for n in counts])[:, 0]
    for axis, (title, lanes) in zip(axes, report.sections.items(), strict=True):
        _draw_section(axis, title, lanes, report)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise PackerError(f"{path}: cannot be written ({error.strerror}). Pass another name.") from error


def _draw_section(axis: Axes, title: str, lanes: tuple[MeasuredLane, ...], report: BenchReport) -> None:
    top = max(lane.rate for lane in lanes)
    colours = [
        _LIMIT if _kind(lane) == "limit" else _OURS if _kind(lane) == "ours" else _OTHERS for lane in lanes
    ]
    axis.barh(range(len(lanes)), [lane.rate for lane in lanes], color=colours)
    for at, lane in enumerate(lanes):
        times = "" if lane.times_raw is None else f"  ({lane.times_raw:,.1f}x)"
        axis.text(lane.rate + 0.01 * top, at, f"{lane.rate:,.0f}{times}", va="center", fontsize=8)
    step_rate = report.diagnosis.step_rate if report.diagnosis is not None else None
    if step_rate is not None and step_rate <= 1.2 * top:
        axis.axvline(step_rate, color=_MODEL, linewidth=1, zorder=0)
        axis.text(step_rate, -0.75, f" the model: {step_rate:,.0f}", color=_MODEL, fontsize=8)
    axis.set_yticks(range(len(lanes)), [lane.name for lane in lanes], fontsize=8)
    axis.set_ylim(len(lanes) - 0.4, -1)
    axis.set_xlim(0, 1.2 * top)
    axis.set_title(f"{title}, {report.UNIT}/s", fontsize=9, loc="left")
    axis.tick_params(axis="x", labelsize=8)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.spines[["top", "right"]].set_visible(False)


def page(report: BenchReport, worded: Callable[[str], str] = str) -> str:
    """Return the report as HTML. worded: gives a sentence as it is to be read, its options as Python or a shell takes them."""
    conditions: dict[str, Any] = dict(report.conditions)
    versions = ", ".join(f"{name} {number}" for name, number in conditions.get("versions", {}).items())
    about = f"{report.measured}; {conditions.get('system', '')}; {versions}"
    sections = "".join(_section(title, lanes, report) for title, lanes in report.sections.items())
    diagnosis = (
        "" if report.diagnosis is None else "<br>".join(escape(worded(report.diagnosis.text)).split("\n"))
    )
    notes = "".join(f"<p class=notes>{escape(worded(sentence))}</p>" for sentence in report.below)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(report.pack)}: benchmark</title><style>{_STYLE}</style>"
        f"<h1>{escape(report.heading)}</h1><p class=conditions>{escape(about)}</p>"
        f"<p class=diagnosis>{diagnosis}</p>{sections}{notes}</html>\n"
    )


def _section(title: str, lanes: tuple[MeasuredLane, ...], report: BenchReport) -> str:
    top = max(lane.rate for lane in lanes)
    rows = "".join(
        f"<tr><td>{escape(lane.name)}<td class=n>{lane.rate:,.0f}<td class=n>{_number(lane.times_raw, 1)}"
        f"<td class=n>{_number(lane.of_limit, 2)}<td class=n>{report.rows / lane.rate:.3f}"
        f'<td class=bar><div class="{_kind(lane)}" style="width:{100 * lane.rate / top:.1f}%"></div>'
        for lane in lanes
    )
    return (
        f"<h2>{escape(title)}</h2><table><tr><th><th class=n>{report.UNIT}/s<th class=n>x {report.BASELINE}"
        f"<th class=n>x {limit_of(lanes)}<th class=n>s/epoch<th>{rows}</table>"
    )


def _kind(lane: MeasuredLane) -> str:
    """Return whose lane it is: "ours", "limit" or "other"."""
    return "limit" if lane.name.startswith(LIMIT) else "ours" if lane.name.startswith("packed") else "other"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
