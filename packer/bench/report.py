"""What a benchmark found: rates round by round, ratios of the same round, and the conditions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

BAR = 24  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Way:
    """One way to get batches. rates: images/s in each round; raw, limit: what it stands beside, in the same rounds."""

    name: str
    rates: tuple[float, ...]
    raw: tuple[float, ...] | None = None
    limit: tuple[float, ...] | None = None

    @property
    def rate(self) -> float:
        """Median images/s."""
        return median(self.rates)

    @property
    def spread(self) -> float:
        """(Highest - lowest) / median of the rates."""
        return (max(self.rates) - min(self.rates)) / self.rate

    @property
    def times_raw(self) -> float | None:
        """Median of the ratios to reading the images, round by round."""
        return None if self.raw is None else median(a / b for a, b in zip(self.rates, self.raw, strict=True))

    @property
    def of_limit(self) -> float | None:
        """Median of the ratios to the limit, round by round."""
        return (
            None if self.limit is None else median(a / b for a, b in zip(self.rates, self.limit, strict=True))
        )


@dataclass(frozen=True)
class BenchReport:
    """The result of bench(). sections: title -> ways; conditions: machine, versions and sizes, as JSON values."""

    images: str
    pack: str
    rows: int
    shape: tuple[int, int, int]
    batch_size: int
    rounds: int
    seconds: float
    sections: Mapping[str, tuple[Way, ...]]
    conditions: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Everything: the rates of each round, and medians, spreads and ratios made from them."""
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
        return json.dumps(record, indent=2) + "\n"

    def table(self) -> str:
        """The same for people, one line a way."""
        name_width = max(len(way.name) for ways in self.sections.values() for way in ways)
        height, width, channels = self.shape
        lines = [
            f"{self.images} beside {self.pack}: {self.rows:,} images of {height}x{width}x{channels},"
            f" batches of {self.batch_size}",
            f"{self.conditions['cpu']}, {self.conditions['cores']} cores;"
            f" medians of {self.rounds} rounds of {self.seconds:g} s",
        ]
        for title, ways in self.sections.items():
            lines += ["", f"{title:<{name_width}}  images/s   x raw  x limit  s/epoch"]
            top = max(way.rate for way in ways)
            lines += [
                f"{way.name:<{name_width}}  {way.rate:>8,.0f}  {_ratio(way.times_raw, 1)}  {_ratio(way.of_limit, 2)}"
                f"  {self.rows / way.rate:>7.3f}  {bar(way.rate / top)}".rstrip()
                for way in ways
            ]
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])


def bar(share: float) -> str:
    """A bar of blocks, BAR characters long at 1.0, to an eighth of a character."""
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _ratio(value: float | None, digits: int) -> str:
    return (
        " " * (6 if digits == 1 else 7) if value is None else f"{value:>{6 if digits == 1 else 7},.{digits}f}"
    )
