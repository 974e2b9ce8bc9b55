"""The paragraph below a benchmark's figures: what limits training, what a model needs, what would help."""

from __future__ import annotations

from collections.abc import Mapping

from packer import units
from packer.bench.bench_report import BenchReport, Diagnosis

WAITING = 0.1
"""Share of the time below which waiting does not limit a model."""
NEAR = 0.5
"""A loader that reaches this share of a stage's own rate is limited by it, else by Python and processes."""


def diagnose(report: BenchReport, *, step_rate: float | None = None) -> Diagnosis:
    """Derive from the figures which stage limits training.

    step_rate: rows/s of a model that never waits, if known.
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
    if step_rate is None:
        sentences.append(
            "To learn whether your model waits, pass its rate, model_rate=1000: train.replay() measures it."
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
    return Diagnosis(limit, cold, "\n".join(sentences), step_rate)


def _of_source(rate: float, stages: Mapping[str, float], unit: str) -> tuple[str, str]:
    """Return the stage that limits a DataLoader over the source, and the sentence about it."""
    ordered = sorted(stages, key=lambda name: stages[name])
    slow = bool(ordered) and rate >= NEAR * stages[ordered[0]]
    limit = ordered[0] if slow else "Python"
    by = limit if slow else "Python and the DataLoader's processes"
    alone = "".join(f"; {name} alone {stages[name]:,.0f}" for name in ordered)
    return limit, f"Loading the {unit} as they are is limited by {by}: {rate:,.0f} {unit}/s{alone}."


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
