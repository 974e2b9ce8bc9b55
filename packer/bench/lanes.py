"""Ways to get batches, measured in turn, round after round, each beside its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from packer.bench.bench_report import MeasuredLane


@dataclass
class Lane:
    """A way to be measured: its name, and functions that measure its rate and its limit now, in rows/s."""

    name: str
    measure: Callable[[], float]
    limit: Callable[[], float] | None = None
    rates: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)


def run_rounds(sections: Mapping[str, Sequence[Lane]], rounds: int, say: Callable[[str], None]) -> None:
    """Measure every lane in turn, `rounds` times over."""
    for number in range(1, rounds + 1):
        for title, lanes in sections.items():
            for lane in lanes:
                say(f"round {number} of {rounds}: {lane.name} ({title})")
                if lane.limit is not None:
                    lane.limits.append(lane.limit())
                lane.rates.append(lane.measure())


def measured(lanes: Sequence[Lane], limit_name: str = "") -> tuple[MeasuredLane, ...]:
    """Return the lanes of a section with their rates; the first one is the baseline. The limit, if there is one, comes last."""
    raw = tuple(lanes[0].rates)
    ways = [MeasuredLane(lane.name, tuple(lane.rates), raw, tuple(lane.limits) or None) for lane in lanes]
    limits = tuple(rate for lane in lanes for rate in lane.limits)
    return (*ways, MeasuredLane(limit_name, limits)) if limits else tuple(ways)
