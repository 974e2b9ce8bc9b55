"""The report of a benchmark: rates round by round, ratios of the same round, and the conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, ClassVar

from packer import units
from packer.sentence import Option, Part, Sentence

BAR = 24  # characters of the longest bar
LIMIT = (
    "limit: "  # begins the name of the way that is the limit; then what it is, a comma and how many threads
)
LOUD = 0.5
"""A way's (highest - lowest) / median from which on a reader should know of it."""
NOISY = "rounds differ by up to {:.0%}: is something else running? Measure again on a quiet machine, or with more "
BEYOND = "more than 1 x memcpy: packer writes whole rows past the CPU's cache (non-temporal stores), which memcpy of a batch does not."
WHOLE_DECODE = "whole decode"
"""Name of the limit of whole pictures in JPEG: each of them decoded from edge to edge, at its full size."""
BEYOND_DECODE = (
    "more than 1 x whole decode: packer decodes only the rows of pixels that a crop needs, and at 1/2, 1/4 or 1/8 where"
    " that is enough."
)
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class MeasuredLane:
    """A way to get batches, measured. rates: rows/s in each round; raw, limit: the baseline and the limit, in the same rounds."""

    name: str
    rates: tuple[float, ...]
    raw: tuple[float, ...] | None = None
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
    def times_raw(self) -> float | None:
        """Median of the ratios to the baseline, round by round."""
        return None if self.raw is None else median(a / b for a, b in zip(self.rates, self.raw, strict=True))

    @property
    def of_limit(self) -> float | None:
        """Median of the ratios to the limit, round by round."""
        return (
            None if self.limit is None else median(a / b for a, b in zip(self.rates, self.limit, strict=True))
        )


@dataclass(frozen=True)
class Diagnosis:
    """Statement of what limits, and what would help.

    limit: what limits the loop of the script or the model of that rate, if they were given, else loading SRC: "disk", "store",
    "memory", "reading", "decoding", "resizing", "Python", "transform", "copy", "augmenting" or "training"; cold: what limits loading
    SRC with an empty page cache, None if that was not measured; text: for people; step_rate: rows/s of the model with batches at
    hand, None if it is not known.
    """

    limit: str
    cold: str | None
    text: Sentence
    step_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """The result of a benchmark. sections: title -> lanes; conditions: machine, versions and sizes, as JSON values."""

    UNIT: ClassVar[str] = "rows"
    BASELINE: ClassVar[str] = "raw"
    WIDTH: ClassVar[int] = 8  # characters of a rate

    pack: str
    rows: int
    batch_size: int
    rounds: int
    seconds: float
    sections: Mapping[str, tuple[MeasuredLane, ...]]
    conditions: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def heading(self) -> str:
        """Both sides of the comparison, in a line."""
        raise NotImplementedError

    @property
    def measured(self) -> str:
        """The machine and what the figures are, in a line."""
        return (
            f"{self.conditions['cpu']}, {self.conditions['cores']} cores;"
            f" medians of {units.count(self.rounds, 'round')} of {self.seconds:g} s; ratios: medians of those of each round"
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about this kind of pack."""
        return self.notes

    @property
    def below(self) -> tuple[Sentence, ...]:
        """Sentences below the table: the remarks, what rates beyond a limit mean, and whether the rounds differ much."""
        said = dict.fromkeys(self.remarks)
        for lanes in self.sections.values():
            why = {"memcpy": BEYOND, WHOLE_DECODE: BEYOND_DECODE}.get(limit_of(lanes))
            if why is not None and any((lane.of_limit or 0) > 1 for lane in lanes):
                said[why] = None
        noise = max(lane.spread for lanes in self.sections.values() for lane in lanes)
        noisy = (NOISY.format(noise) + Option("rounds") + ".",) if noise > LOUD else ()
        return (*map(Sentence, said), *noisy)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values: the rates of each round, and medians, spreads and ratios made from them."""
        record = asdict(self)
        record["sections"] = {
            title: [
                asdict(way)
                | {
                    "median": way.rate,
                    "spread": way.spread,
                    "times_raw": way.times_raw,
                    "of_limit": way.of_limit,
                    "seconds_per_epoch": self.rows / way.rate,
                }
                for way in ways
            ]
            for title, ways in self.sections.items()
        }
        return record

    def table(self) -> Sentence:
        """Return the report as text for people, one line a lane."""
        name_width = max(
            len(name)
            for title, ways in self.sections.items()
            for name in (title, *(way.name for way in ways))
        )
        rate, times = f"{self.UNIT}/s", f"x {self.BASELINE}"
        wide, broad = max(self.WIDTH, len(rate)), max(6, len(times))
        lines = [self.heading, self.measured]
        for title, ways in self.sections.items():
            beside = f"x {limit_of(ways)}"
            narrow = max(7, len(beside))
            lines += [
                "",
                f"{title:<{name_width}}  {rate:>{wide}}  {times:>{broad}}  {beside:>{narrow}}  s/epoch",
            ]
            top = max(way.rate for way in ways)
            lines += [
                f"{way.name:<{name_width}}  {way.rate:>{wide},.0f}  {_ratio(way.times_raw, broad, 1)}"
                f"  {_ratio(way.of_limit, narrow, 2)}  {self.rows / way.rate:>7.3f}  {bar(way.rate / top)}".rstrip()
                for way in ways
            ]
        parts: list[Part] = ["\n".join(lines)]
        for at, sentence in enumerate(self.below):
            parts += ["\n" if at else "\n\n", sentence]
        if self.diagnosis is not None:
            parts += ["\n\n", self.diagnosis.text]
        return Sentence(*parts)


def limit_of(lanes: Sequence[MeasuredLane]) -> str:
    """Return the short name of the limit that lanes are beside, as "memcpy"; "limit" if there is none."""
    limit = next((lane.name for lane in lanes if lane.name.startswith(LIMIT)), LIMIT)
    return limit.removeprefix(LIMIT).split(",")[0] or "limit"


@dataclass(frozen=True, kw_only=True)
class ImageBenchReport(BenchReport):
    """The result of image_bench.bench(). images: what the pack was made from; shape: of an image in a batch.

    stored: how the pack holds them, in words; whole: True if each has a size of its own there; compared: what was found equal, in words.
    """

    UNIT: ClassVar[str] = "images"

    images: str
    shape: tuple[int, int, int]
    stored: str
    whole: bool
    compared: str

    @property
    def heading(self) -> str:
        """Both sides of the comparison, in a line."""
        height, width, channels = self.shape
        size = f"{height}x{width}x{channels}"
        kind = (
            f"whole pictures ({self.stored}) cut to {size}"
            if self.whole
            else f"images of {size} ({self.stored})"
        )
        return f"{self.images} beside {self.pack}: {self.rows:,} {kind}, batches of {self.batch_size}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about this kind of pack."""
        return (f"compared: {self.compared}.", *self.notes)


@dataclass(frozen=True, kw_only=True)
class FirstBatch:
    """Seconds until the first batch, round by round. parser: what parsed the table, without making a batch; pack: opened, one batch."""

    parser: str
    parse: tuple[float, ...]
    pack: tuple[float, ...]

    def __str__(self) -> str:
        once = units.duration(median(self.pack))
        if not self.parse:
            return f"first batch: {once} after the pack is opened."
        ratio = median(a / b for a, b in zip(self.parse, self.pack, strict=True))
        parsed = units.duration(median(self.parse))
        return f"first batch: {once} after the pack is opened; {self.parser} parses the table for {parsed}, {_times(ratio)} times as long."


@dataclass(frozen=True, kw_only=True)
class TableBenchReport(BenchReport):
    """The result of table_bench.bench(). source: what the pack was made from; fields: name -> shape of a row."""

    BASELINE: ClassVar[str] = "DataLoader"
    WIDTH: ClassVar[int] = 11

    source: str
    fields: Mapping[str, tuple[int, ...]]
    first_batch: FirstBatch

    @property
    def heading(self) -> str:
        """Both sides of the comparison, in a line."""
        shown = ", ".join(
            name + (f" [{', '.join(map(str, shape))}]" if shape else "")
            for name, shape in self.fields.items()
        )
        return (
            f"{self.source} beside {self.pack}: {self.rows:,} rows of {shown}, batches of {self.batch_size:,}"
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about this kind of pack."""
        return (str(self.first_batch), *self.notes)


def bar(share: float) -> str:
    """Return a bar of blocks, BAR characters long at 1.0, to an eighth of a character."""
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _ratio(value: float | None, width: int, digits: int) -> str:
    return " " * width if value is None else f"{value:>{width},.{digits}f}"
