"""Lanes with an empty page cache, beside plain reads of the same files in order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from lanes.client import Interpreter, Running
from lanes.lane import Lane, Setting, files_of
from lanes.residency import forget
from packer.bench.limits import read_rate

ORDERS = ("packer h5 sequential", "packer h5 slices", "packer h5 blocks", "packer h5 rows")


@dataclass
class Cold:
    """rates: images/s of the lane's first epoch; reads: of the plain reads, before the first and after each."""

    rates: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Median of the rates over the mean of the reads before and after."""
        around = (sum(two) / 2 for two in pairwise(self.reads))
        return median(rate / read for rate, read in zip(self.rates, around, strict=True))


def measure(
    lanes: Mapping[str, Lane], pythons: Mapping[str, Interpreter], setting: Setting, rows: int, rounds: int
) -> dict[str, Cold]:
    """The first epoch of a loader made anew, round by round."""
    found: dict[str, Cold] = {name: Cold() for name in lanes}

    def read(files: Sequence[str]) -> float:
        forget(files)
        rate = read_rate(files, setting.threads, float("inf"))
        return rate / sum(map(os.path.getsize, files)) * rows

    for number in range(rounds):
        names = list(lanes)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            files = files_of(os.path.join(setting.work, lanes[name].store))
            if not found[name].reads:
                found[name].reads.append(read(files))
            with Running(pythons[name], lanes[name], setting) as running:
                forget(files)
                running.ask("open")
                answer = running.ask("run", seconds=0, touch=False)
            found[name].rates.append(answer["images"] / answer["seconds"])
            found[name].reads.append(read(files))
    return found


def table(found: Mapping[str, Cold]) -> str:
    """Markdown, a line a lane."""
    lines = ["| cold | images/s | plain read, images/s | x plain read |", "|---|---|---|---|"]
    for name, cold in found.items():
        lines.append(f"| {name} | {median(cold.rates):,.0f} | {median(cold.reads):,.0f} | {cold.share:.2f} |")
    return "\n".join(lines)
