"""The report of a benchmark as a picture, drawn by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer.bench.bench_report import LIMIT, BenchReport, MeasuredLane
from packer.errors import MissingDependencyError, PackerError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = (".png", ".svg", ".pdf")
_COLOURS = {LIMIT: "#d9dee3", "packed": "#2a7ab9"}  # of lanes, by how their names begin
_OTHERS, _MODEL, _MUTED = "#9aa5b1", "#c8453b", "#5b6570"
_LANE_INCHES, _WIDTH_INCHES = 0.34, 9.0


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
        next((colour for start, colour in _COLOURS.items() if lane.name.startswith(start)), _OTHERS)
        for lane in lanes
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
    axis.set_title(f"{title}, {report.unit}/s", fontsize=9, loc="left")
    axis.tick_params(axis="x", labelsize=8)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.spines[["top", "right"]].set_visible(False)
