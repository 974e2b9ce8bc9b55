"""The results, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from lanes.ours import SLICES
from lanes.residency import WARM


@dataclass(frozen=True)
class Run:
    """A lane's figures in one round.

    first: seconds to the first batch of each epoch; cpu: seconds.
    copy: images/s of the copy limit just before.
    warm: share of the store in the page cache.
    beside: images/s of the lanes in every group, in the same round.
    """

    images: int
    seconds: float
    first: Sequence[float]
    cpu: float
    copy: float
    warm: float = 1.0
    beside: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Images/s."""
        return self.images / self.seconds


@dataclass
class Found:
    """The results of a lane.

    workers: the fastest count, None without a choice.
    open: seconds to import the peer and construct the loader; fresh: seconds to its first batch.
    own, all: peak MB, see process.Memory; fidelity: PSNR against the pack.
    """

    workers: int | None
    open: float = 0.0
    fresh: float | None = None
    own: float = 0.0
    all: float = 0.0
    fidelity: Mapping[str, float] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median images/s."""
        return median(run.rate for run in self.runs)


def ratio(lanes: Mapping[str, Found], one: str, other: str) -> float | None:
    """Return the median ratio within rounds; None if the lanes were not measured together."""
    if one not in lanes or other not in lanes:
        return None
    if other in lanes[one].runs[0].beside:
        return median(run.rate / run.beside[other] for run in lanes[one].runs)
    if one in lanes[other].runs[0].beside:
        return median(run.beside[one] / run.rate for run in lanes[other].runs)
    return median(a.rate / b.rate for a, b in zip(lanes[one].runs, lanes[other].runs, strict=True))


def of_copy(found: Found) -> float:
    """Return the median ratio to the copy limit just before."""
    return median(run.rate / run.copy for run in found.runs)


def table(lanes: Mapping[str, Found]) -> str:
    """Return a Markdown table, a line a lane."""
    lines = [
        f"| {'':24} | workers | images/s | spread | x slices | x copy | CPU s/M | own MB | with files"
        " | first ms, fresh | later |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in lanes.items():
        rates = [run.rate for run in found.runs]
        first = [seconds for run in found.runs for seconds in run.first]
        cells = [
            f"{name:24}",
            "" if found.workers is None else str(found.workers),
            f"{found.rate:,.0f}",
            f"{(max(rates) - min(rates)) / found.rate:.0%}",
            "" if (times := ratio(lanes, name, SLICES)) is None else f"{times:.3f}",
            f"{of_copy(found):.3f}",
            f"{median(run.cpu / run.images for run in found.runs) * 1e6:,.1f}",
            f"{found.own:,.0f}" if first else "",
            f"{found.all:,.0f}" if first else "",
            "" if found.fresh is None else f"{found.fresh * 1e3:,.1f}",
            f"{median(first) * 1e3:,.1f}" if first else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def chills(lanes: Mapping[str, Found]) -> list[str]:
    """Return a sentence for each lane whose store left the page cache."""
    least = {name: min(run.warm for run in found.runs) for name, found in lanes.items()}
    return [
        f"{name}: NOT WARM, {share:.0%} of its store were in the page cache"
        for name, share in least.items()
        if share < WARM
    ]
