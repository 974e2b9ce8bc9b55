"""What limits training on this machine, what a model needs, and what would help: a paragraph below the figures of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from packer import units
from packer.bench.bench_report import BenchReport, Diagnosis, MeasuredLane
from packer.bench.training_loop import LoopReport
from packer.sentence import Option, Part, Sentence

WAITING = 0.1
"""Of the time: a loop that waits less waits for nothing."""
NEAR = 0.5
"""Of the rate of a stage alone: a loader that is as fast is limited by that stage, one that is slower by what lies between."""
_BY = {
    "disk": "the disk",
    "store": "the network, or the store at its other end",
    "memory": "copying from memory",
    "decoding": "decoding",
    "resizing": "resizing",
    "reading": "reading files",
    "Python": "Python",
    "transform": "the function in Python (`transform`)",
    "copy": "the copy to the GPU",
    "augmenting": "augmentation",
    "training": "the model's own step",
}


_REMEDIES = {
    "disk": "Fewer bytes help ("
    + Option("store", "jpeg")
    + ", a smaller "
    + Option("size")
    + "), or rows in memory: placement='ram'.",
    "store": Sentence(
        "Later epochs read the disk, with cache=; a nearer store, or more bandwidth, helps the first one."
    ),
    "memory": "Smaller rows help: a smaller " + Option("size") + ", fewer fields=.",
    "transform": Sentence("What packer.augment has runs in C, or on the GPU: augment=[...] instead."),
    "copy": Sentence("Copy uint8 rows, and leave augment= to the GPU."),
    "augmenting": Sentence(
        "On a GPU it costs nearly nothing: device='cuda'; else fewer operations or more cores."
    ),
    "training": Sentence("No loader makes it faster: larger batches, mixed precision and torch.compile may."),
}
_PACKED = Sentence("A pack holds rows as they come out of all that, and is read without Python a row.")


def diagnose(
    report: BenchReport,
    *,
    cores: int,
    stored: str = "raw",
    loop: LoopReport | None = None,
    step_rate: float | None = None,
) -> Diagnosis:
    """Say what limits. cores: of the machine; stored: how the pack's images are; loop: of a script that was measured; step_rate:
    rows/s that a model takes with batches at hand, where only that is known.
    """
    warm = [lanes for title, lanes in report.sections.items() if not title.startswith("cold")]
    cold = [lanes for title, lanes in report.sections.items() if title.startswith("cold")]
    stages, unit = report.conditions.get("stages", {}), report.UNIT
    limit, said = _of_source(warm[0][0].rate, stages, unit)
    if report.conditions["cores"] < cores:
        said += f" This process may use {report.conditions['cores']} of the machine's {units.count(cores, 'core')}: give the job more."
    sentences = [Sentence(said)]
    cold_limit = None
    if cold:
        cold_limit = "disk" if cold[0][0].rate < NEAR * warm[0][0].rate else limit
        if cold_limit == "disk":
            sentences.append(
                Sentence(
                    f"With an empty page cache by the disk: {cold[0][0].rate:,.0f} {unit}/s; from the pack {_pack(cold[0]).rate:,.0f}."
                )
            )
    raw, pack = warm[-1][0].rate, _pack(warm[-1]).rate
    if loop is not None:
        limit = "training" if loop.waiting <= WAITING else loop.limit
        sentences.append(Sentence(_of_loop(loop, limit, unit)))
        sentences.append(_remedy(limit, loop.loader, stored))
        if limit != "training" and loop.loader == "DataLoader":
            sentences.append(Sentence(_gain(loop.rate, loop.step_rate, pack, unit)))
    elif step_rate is not None:
        if raw >= (1 - WAITING) * step_rate:
            limit = "training"
            sentences.append(
                Sentence(
                    f"A model of {step_rate:,.0f} {unit}/s takes no more than the DataLoader gives ({raw:,.0f}):"
                    " its own step is the limit, and a pack saves processor time only."
                )
            )
        else:
            sentences.append(
                Sentence(
                    f"A model of {step_rate:,.0f} {unit}/s waits for {1 - raw / step_rate:.0%} of the time."
                )
            )
            sentences.append(Sentence(_gain(raw, step_rate, pack, unit)))
    else:
        sentences.append(
            "Whether your model waits: pass "
            + Option("script", "train.py")
            + ", or what it takes, "
            + Option("model_rate", 1000)
            + "."
        )
    known = loop.step_rate if loop is not None else step_rate
    return Diagnosis(limit, cold_limit, _joined(sentences), known)


def _joined(sentences: list[Sentence]) -> Sentence:
    parts: list[Part] = list(chain.from_iterable((*sentence.parts, "\n") for sentence in sentences))
    return Sentence(*parts[:-1])


def _pack(lanes: tuple[MeasuredLane, ...]) -> MeasuredLane:
    """Return the lane of "slices", or the first one of the pack."""
    packed = [lane for lane in lanes if lane.name.startswith("packed, ")]
    return next((lane for lane in packed if lane.name == "packed, slices"), packed[0])


def _of_source(rate: float, stages: Mapping[str, float], unit: str) -> tuple[str, str]:
    """Return what limits loading SRC by a DataLoader, and the sentence."""
    slowest = min(stages, key=lambda name: stages[name], default=None)
    alone = ", ".join(
        f"{name} alone {stages[name]:,.0f}" for name in sorted(stages, key=lambda name: stages[name])
    )
    if slowest is not None and rate >= NEAR * stages[slowest]:
        return (
            slowest,
            f"Loading the {unit} as they are is limited by {_BY[slowest]}: {rate:,.0f} {unit}/s; {alone}.",
        )
    beside = f"; {alone}" if alone else ""
    return (
        "Python",
        f"Loading the {unit} as they are is limited by Python and the DataLoader's processes: {rate:,.0f} {unit}/s{beside}.",
    )


def _of_loop(loop: LoopReport, limit: str, unit: str) -> str:
    """Tell what the loop of the script does."""
    what = f"The script takes {loop.rate:,.0f} {unit}/s from its {loop.loader}"
    if limit == "training":
        return f"{what}, {loop.step_rate:,.0f} with batches at hand: it is limited by {_BY[limit]}."
    said = f"{what} and waits for {loop.waiting:.0%} of the time, for {_BY[limit]};"
    said += f" with batches at hand it would take {loop.step_rate:,.0f}."
    total = sum(loop.stages.values())
    if loop.loader == "DataLoader" and total:
        shares = sorted(loop.stages.items(), key=lambda item: -item[1])
        parts = ", ".join(
            f"{name} {seconds / total:.0%}" for name, seconds in shares if seconds >= 0.01 * total
        )
        said += f" A row takes {1000 * total:.2f} ms: {parts}"
        if limit == "Python" and loop.heaviest is not None:
            said += f", most of it in {loop.heaviest[0]}"
        said += "."
    return said


def _remedy(limit: str, loader: str, stored: str) -> Sentence:
    """Return what can be done about the limit of a loop."""
    if limit == "decoding" and loader == "PackedBatchDataset" and stored != "raw":
        return (
            "Raw rows are not decoded ("
            + Option("store", "raw")
            + "), smaller ones decode faster ("
            + Option("size")
            + ")."
        )
    return _REMEDIES.get(limit, _PACKED)


def _gain(now: float, step_rate: float, pack: float, unit: str) -> str:
    """Tell what a loop would gain with the pack."""
    then = min(step_rate, pack)
    if then <= 1.05 * now:
        return f"The pack here gives up to {pack:,.0f} {unit}/s."
    left = "" if pack >= step_rate else f" It would still wait for {1 - pack / step_rate:.0%} of the time."
    return f"The pack gives {pack:,.0f} {unit}/s, so that an epoch would take {now / then:.0%} of its time.{left}"
