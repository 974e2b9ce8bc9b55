"""The paragraph below a benchmark's figures: what limits training, what a model needs, what would help."""

from __future__ import annotations

from collections.abc import Mapping

from packer import units
from packer.bench.bench_report import BenchReport, Diagnosis
from packer.bench.training_loop import LoopReport
from packer.sentence import Option, Sentence

WAITING = 0.1
"""Share of the time, by the rates with and without waiting, below which waiting does not limit a loop."""
DISAGREE = 0.15
"""Difference of that share from the measured one above which the diagnosis says that they disagree."""
NEAR = 0.5
"""A loader that reaches this share of a stage's own rate is limited by it, else by Python and processes."""
_STAGES = {
    "disk": (
        "the disk",
        f"Fewer bytes help ({Option('store', 'jpeg')}, a smaller {Option('size')}), or placement='ram'.",
    ),
    "store": (
        "the network, or the store at its other end",
        "With open_pack(url, cache=...) later epochs read the disk; a nearer store, or more bandwidth,"
        " helps the first epoch.",
    ),
    "memory": ("copying from memory", f"Smaller rows help: a smaller {Option('size')}, fewer fields=."),
    "reading": ("reading files", ""),
    "decoding": (
        "decoding",
        f"Raw rows need no decoding ({Option('store', 'raw')}); smaller rows need less ({Option('size')}).",
    ),
    "transform": (
        "the function in Python (`transform`)",
        "Operations of packer.augment run in C, or on the GPU: pass augment=[...] instead.",
    ),
    "copy": ("the copy to the GPU", "Copy uint8 rows, and leave augment= to the GPU."),
    "augmenting": (
        "augmentation",
        "On a GPU (device='cuda') it costs nearly nothing; on the CPU fewer operations or more cores help.",
    ),
    "training": (
        "the model's own step",
        "No loader makes it faster, but larger batches, mixed precision and torch.compile may.",
    ),
}
"""Stage -> its name in sentences, and advice for a loop over a pack; other stages are named as they are."""


def diagnose(
    report: BenchReport, *, loop: LoopReport | None = None, step_rate: float | None = None
) -> Diagnosis:
    """Derive from the figures which stage limits training.

    loop: figures of a measured script; step_rate: rows/s of a model that never waits, if only that is known.
    """
    sections, unit = list(report.sections.values()), report.unit
    rates = [{lane.name: lane.rate for lane in lanes} for lanes in sections]
    raw, pack = sections[0][0].rate, rates[0]["packed, slices"]
    limit, sentence = _of_source(raw, report.conditions.get("stages", {}), unit)
    ours, all_cores = report.conditions["cores"], report.conditions["machine_cores"]
    if ours < all_cores:
        sentence += (
            f" This process may use {ours} of the machine's {units.count(all_cores, 'core')}:"
            " give the job more."
        )
    cold, sentences = None, [sentence]
    if len(sections) > 1:
        rate = sections[1][0].rate
        cold = "disk" if rate < NEAR * raw else limit
        if cold == "disk":
            packed = f"from the pack {rates[1]['packed, slices']:,.0f}"
            sentences.append(f"With an empty page cache the disk limits it: {rate:,.0f} {unit}/s; {packed}.")
    if loop is not None:
        step_rate, ours_loaded = loop.step_rate, loop.loader == "PackedBatchDataset"
        by_rates = 1 - loop.rate / step_rate
        limit = "training" if by_rates <= WAITING else loop.limit
        sentences.append(_of_loop(loop, limit, unit))
        if abs(by_rates - loop.waiting) > DISAGREE:
            sentences.append(_disagreement(loop, by_rates, unit))
        if ours_loaded or limit == "training":
            sentences.append(_STAGES[limit][1])
        else:
            sentences += [
                "A pack stores rows after all these steps, and reading it runs no Python code per row.",
                _gain(loop.rate, step_rate, pack, unit),
            ]
    elif step_rate is None:
        sentences.append(
            f"To learn whether your model waits, pass {Option('script', 'train.py')},"
            f" or its rate, {Option('model_rate', 1000)}."
        )
    elif raw >= (1 - WAITING) * step_rate:
        limit = "training"
        sentences.append(
            f"A model of {step_rate:,.0f} {unit}/s takes no more than the DataLoader gives ({raw:,.0f}):"
            " its own step is the limit, and a pack saves processor time only."
        )
    else:
        sentences += [
            f"A model of {step_rate:,.0f} {unit}/s waits for {1 - raw / step_rate:.0%} of the time.",
            _gain(raw, step_rate, pack, unit),
        ]
    return Diagnosis(limit, cold, Sentence("\n".join(sentences)), step_rate)


def _of_source(rate: float, stages: Mapping[str, float], unit: str) -> tuple[str, str]:
    """Return the stage that limits a DataLoader over the source, and the sentence about it."""
    ordered = sorted(stages, key=lambda name: stages[name])
    slow = bool(ordered) and rate >= NEAR * stages[ordered[0]]
    limit = ordered[0] if slow else "Python"
    by = _STAGES.get(limit, (limit,))[0] if slow else "Python and the DataLoader's processes"
    alone = "".join(f"; {name} alone {stages[name]:,.0f}" for name in ordered)
    return limit, f"Loading the {unit} as they are is limited by {by}: {rate:,.0f} {unit}/s{alone}."


def _of_loop(loop: LoopReport, limit: str, unit: str) -> str:
    """Return the sentence about the script's loop."""
    what = f"The script takes {loop.rate:,.0f} {unit}/s from its {loop.loader}"
    by = _STAGES.get(limit, (limit,))[0]
    if limit == "training":
        return f"{what}, {loop.step_rate:,.0f} with batches at hand: it is limited by {by}."
    sentence = f"{what} and waits for {loop.waiting:.0%} of the time, for {by};"
    sentence += f" with batches at hand it would take {loop.step_rate:,.0f}."
    total = sum(loop.stages.values())
    if loop.loader == "DataLoader" and total:
        shares = sorted(loop.stages.items(), key=lambda item: -item[1])
        parts = [f"{name} {seconds / total:.0%}" for name, seconds in shares if seconds >= 0.01 * total]
        sentence += f" A row takes {1000 * total:.2f} ms: {', '.join(parts)}."
    return sentence


def _disagreement(loop: LoopReport, by_rates: float, unit: str) -> str:
    """Return the sentence about a share of waiting that contradicts the two rates.

    by_rates: the share that the rates give.
    """
    predicted = loop.rate / (1 - loop.waiting)
    reason = "do waits hide behind a GPU's kernels"
    if by_rates > loop.waiting:
        reason = "does the loader take cores from the step"
    return (
        f"The two disagree: waiting for {loop.waiting:.0%} of the time predicts {predicted:,.0f} {unit}/s"
        f" with batches at hand, not {loop.step_rate:,.0f}. The rates decide. Is the machine busy, or {reason}?"
        " Measure again."
    )


def _gain(now: float, step_rate: float, pack: float, unit: str) -> str:
    """Return the sentence about what a loop would gain with the pack."""
    then = min(step_rate, pack)
    if then <= 1.05 * now:
        return f"The pack here gives up to {pack:,.0f} {unit}/s."
    left = "" if pack >= step_rate else f" It would still wait for {1 - pack / step_rate:.0%} of the time."
    return (
        f"The pack gives {pack:,.0f} {unit}/s, so that an epoch would take {now / then:.0%} of its time."
        f"{left}"
    )
