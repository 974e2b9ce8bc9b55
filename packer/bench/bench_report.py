"""The benchmark's report: rates by round, ratios within rounds and conditions, as text, JSON or a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from packer import units
from packer.errors import MissingDependencyError
from packer.format.file_io import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 24  # characters of the longest bar
LIMIT = "limit: "
"""Prefix of the limit's lane; its short name, a comma and the threads follow."""
LOUD = 0.5
"""Spread of a lane, (highest - lowest) / median, above which the report warns of noise."""
NOISY = (
    "rounds differ by up to {:.0%}: is something else running?"
    " Measure again on a quiet machine, or with more "
)
_BESIDE = "of the limit measured just before the lane; the limit's own row is the median of all of these."
BEYOND = {
    "memcpy": "more than 1 x memcpy: packer writes whole rows past the CPU's cache (non-temporal stores),"
    " which memcpy of a batch does not.",
    "whole decode": "more than 1 x whole decode: packer decodes only the parts that crops need, and at 1/2,"
    " 1/4 or 1/8 where that is enough.",
}
"""Limit -> the reason why a lane may be faster."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
PICTURES = (".png", ".svg", ".pdf")
# Colours by prefix of the lane's name, as in the site's charts (tools/draw_results.py) and the report.
_COLOURS = {LIMIT: "#c3cad3", "packed": "#d9480f"}
_OTHERS, _MODEL, _MUTED = "#8d99ae", "#1d2127", "#667080"
_LANE_INCHES, _WIDTH_INCHES = 0.34, 9.0


@dataclass(frozen=True)
class MeasuredLane:
    """Rates of one way to get batches, in rows/s by round.

    rates: its own; baseline, limit: those of the baseline and of the limit, in the same rounds.
    """

    name: str
    rates: tuple[float, ...]
    baseline: tuple[float, ...] | None = None
    limit: tuple[float, ...] | None = None

    @property
    def rate(self) -> float:
        """Median rows/s."""
        return median(self.rates)

    @property
    def spread(self) -> float:
        """(Highest - lowest) / median of the rates."""
        return (max(self.rates) - min(self.rates)) / self.rate

    @property
    def times_baseline(self) -> float | None:
        """Median of the ratios to the baseline, round by round."""
        return self._ratio(self.baseline)

    @property
    def of_limit(self) -> float | None:
        """Median of the ratios to the limit, round by round."""
        return self._ratio(self.limit)

    def _ratio(self, others: tuple[float, ...] | None) -> float | None:
        return None if others is None else median(a / b for a, b in zip(self.rates, others, strict=True))


@dataclass(frozen=True)
class Diagnosis:
    """The limiting stage, and what would help.

    limit: the stage that limits the script's loop, or the model if only its rate is given, or else loading
        the source: "disk", "store", "memory", "reading", "decoding", "resizing", "Python", "transform",
        "copy",
        "augmenting" or "training".
    cold: the stage that limits loading the source with an empty page cache; None if not measured.
    text: sentences for people.
    step_rate: rows/s of the model when batches never have to be waited for; None if unknown.
    """

    limit: str
    cold: str | None
    text: str
    step_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """The result of a benchmark.

    source: the images or table that the pack was converted from.
    heading: both sides of the comparison, in a line.
    unit: the noun for a row, "images" or "rows".
    sections: title -> lanes.
    conditions: machine, versions and sizes, as JSON values.
    notes: sentences.
    """

    source: str
    pack: str
    heading: str
    unit: str
    rows: int
    batch_size: int
    rounds: int
    seconds: float
    sections: Mapping[str, tuple[MeasuredLane, ...]]
    conditions: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def measured(self) -> str:
        """The machine and the kind of figures, in a line."""
        return (
            f"{self.conditions['cpu']}, {self.conditions['cores']} cores;"
            f" medians of {units.count(self.rounds, 'round')} of {self.seconds:g} s;"
            " ratios: medians of those of each round"
        )

    @property
    def below(self) -> tuple[str, ...]:
        """Sentences below the table: notes, an explanation of rates above a limit, a warning of noise."""
        sentences = dict.fromkeys(self.notes)
        limits = dict.fromkeys(f"x {limit_of(lanes)}" for lanes in self.sections.values() if _limited(lanes))
        if limits:
            sentences[f"{', '.join(limits)}: {_BESIDE}"] = None
        for lanes in self.sections.values():
            if limit_of(lanes) in BEYOND and any((lane.of_limit or 0) > 1 for lane in lanes):
                sentences[BEYOND[limit_of(lanes)]] = None
        noise = max(lane.spread for lanes in self.sections.values() for lane in lanes)
        noisy = (f"{NOISY.format(noise)}rounds=.",) if noise > LOUD else ()
        return (*sentences, *noisy)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values: rates by round, with their medians, spreads and ratios."""
        record = asdict(self)
        for title, ways in self.sections.items():
            for lane, way in zip(record["sections"][title], ways, strict=True):
                lane |= {
                    "median": way.rate,
                    "spread": way.spread,
                    "times_baseline": way.times_baseline,
                    "of_limit": way.of_limit,
                    "seconds_per_epoch": self.rows / way.rate,
                }
        return record

    def table(self) -> str:
        """Return the report as text for people, one line a lane."""
        names = [
            name for title, ways in self.sections.items() for name in (title, *(way.name for way in ways))
        ]
        name_width = max(map(len, names))
        lines = [self.heading, self.measured]
        for title, ways in self.sections.items():
            times, beside = f"x {ways[0].name.split(',')[0]}", f"x {limit_of(ways)}"
            wide, narrow = max(6, len(times)), max(7, len(beside))
            lines += [
                "",
                f"{title:<{name_width}}  {f'{self.unit}/s':>11}  {times:>{wide}}  {beside:>{narrow}}  "
                "s/epoch",
            ]
            top = max(way.rate for way in ways)
            lines += [
                f"{way.name:<{name_width}}  {way.rate:>11,.0f}  {_shown(way.times_baseline, wide, 1)}"
                f"  {_shown(way.of_limit, narrow, 2)}  {self.rows / way.rate:>7.3f}"
                f"  {bar(way.rate / top)}".rstrip()
                for way in ways
            ]
        paragraphs = ["\n".join(lines)]
        paragraphs += ["\n".join(self.below)] if self.below else []
        paragraphs += [] if self.diagnosis is None else [self.diagnosis.text]
        return "\n\n".join(paragraphs)


def limit_of(lanes: Sequence[MeasuredLane]) -> str:
    """Return the short name of the limit in a section, such as "memcpy"; "limit" if it has no limit."""
    limit = next((lane.name for lane in lanes if lane.name.startswith(LIMIT)), LIMIT)
    return limit.removeprefix(LIMIT).split(",")[0] or "limit"


def _limited(lanes: Sequence[MeasuredLane]) -> bool:
    return any(lane.limit is not None for lane in lanes)


def bar(share: float) -> str:
    """Return a bar of blocks, BAR characters long at 1.0, to an eighth of a character."""
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _shown(value: float | None, width: int, digits: int) -> str:
    return " " * width if value is None else f"{value:>{width},.{digits}f}"


def check_matplotlib() -> None:
    """Raise MissingDependencyError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError("matplotlib", "a plot") from None


def draw(report: BenchReport, path: str) -> None:
    """Draw all rates as bars, and the model's rate as a line. path: a name that ends in one of PICTURES.

    Raises MissingDependencyError (matplotlib), PackerError (the file cannot be written).
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    counts = [len(lanes) for lanes in report.sections.values()]
    height = sum(_LANE_INCHES * n + 0.9 for n in counts) + 0.6
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    paths = f"{report.source} beside {report.pack}"
    names = f"{_file_name(report.source)} beside {_file_name(report.pack)}"
    heading = report.heading.replace(paths, names, 1)
    figure.suptitle(heading, x=0.01, ha="left", fontsize=10, wrap=True, parse_math=False)
    figure.supxlabel(report.measured, x=0.01, ha="left", fontsize=7, color=_MUTED, parse_math=False)
    axes = figure.subplots(len(counts), 1, squeeze=False, height_ratios=[n + 1 for n in counts])[:, 0]
    for axis, (title, lanes) in zip(axes, report.sections.items(), strict=True):
        _draw_section(axis, title, lanes, report)
    memory = io.BytesIO()
    figure.savefig(
        memory, format=path.lower().rpartition(".")[2], dpi=150, bbox_inches="tight", pad_inches=0.15
    )
    write_file(path, memory.getvalue())


def _file_name(path: str) -> str:
    """Return the last name of a path, or of a URL."""
    return path.rstrip("/").rpartition("/")[2] or path


def _draw_section(axis: Axes, title: str, lanes: tuple[MeasuredLane, ...], report: BenchReport) -> None:
    top = max(lane.rate for lane in lanes)
    colours = [
        next((colour for start, colour in _COLOURS.items() if lane.name.startswith(start)), _OTHERS)
        for lane in lanes
    ]
    axis.barh(range(len(lanes)), [lane.rate for lane in lanes], color=colours)
    for at, lane in enumerate(lanes):
        times = "" if lane.times_baseline is None else f"  ({lane.times_baseline:,.1f}x)"
        rate = axis.text(lane.rate + 0.01 * top, at, f"{lane.rate:,.0f}{times}", va="center", fontsize=8)
        rate.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    step_rate = report.diagnosis.step_rate if report.diagnosis is not None else None
    if step_rate is not None and step_rate <= 1.2 * top:
        axis.axvline(step_rate, color=_MODEL, linewidth=1, zorder=0)
        axis.text(step_rate, -0.75, f" the model: {step_rate:,.0f}", color=_MODEL, fontsize=8)
    axis.set_yticks(range(len(lanes)), [lane.name for lane in lanes], fontsize=8)
    axis.set_ylim(len(lanes) - 0.4, -1)
    axis.set_xlim(0, 1.2 * top)
    axis.set_title(f"{title}, {report.unit}/s", fontsize=9, loc="left")
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_visible(False)
    axis.spines[:].set_visible(False)
