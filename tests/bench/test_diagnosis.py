"""packer.bench.diagnosis: what is said to limit, for figures of many kinds."""

from __future__ import annotations

from typing import Any

import pytest

from packer.bench.bench_report import BenchReport, Diagnosis, MeasuredLane
from packer.bench.diagnosis import diagnose
from packer.bench.training_loop import LoopReport


def diagnosis(
    raw: float = 1000,
    pack: float = 20_000,
    *,
    reading: float = 30_000,
    decoding: float = 1200,
    cold: tuple[float, float] | None = None,
    ours: int = 2,
    **options: Any,
) -> Diagnosis:
    sections = {
        "warm page cache": (
            MeasuredLane("folder, DataLoader, 2 workers", (raw,)),
            MeasuredLane("packed, slices", (pack,)),
        )
    }
    if cold is not None:
        sections["cold page cache"] = (
            MeasuredLane("folder, DataLoader, 2 workers", (cold[0],)),
            MeasuredLane("packed, slices", (cold[1],)),
        )
    report = BenchReport(
        pack="p.h5",
        rows=100,
        batch_size=10,
        rounds=1,
        seconds=1,
        sections=sections,
        conditions={
            "cores": ours,
            "machine_cores": 2,
            "cpu": "x",
            "stages": {"reading": reading, "decoding": decoding},
        },
        source="photos",
        heading="photos beside p.h5",
        unit="images",
    )
    return diagnose(report, **options)


def loop(rate: float, step_rate: float, waiting: float, **stages: float) -> LoopReport:
    return LoopReport("DataLoader", rate, step_rate, waiting, stages)


@pytest.mark.parametrize(
    ("figures", "limit"),
    [
        ({}, "decoding"),
        ({"raw": 500}, "Python"),
        ({"reading": 1100}, "reading"),
    ],
)
def test_what_limits_loading_the_images(figures: dict[str, float], limit: str) -> None:
    found = diagnosis(**figures)
    assert (found.limit, found.cold, found.step_rate) == (limit, None, None)
    assert (
        "To learn whether your model waits, pass script='train.py', or its rate, model_rate=1000."
        in found.text
    )


def test_a_cold_disk() -> None:
    assert diagnosis(cold=(900, 9000)).cold == "decoding"
    found = diagnosis(cold=(100, 2000))
    assert (found.limit, found.cold) == ("decoding", "disk")
    assert "With an empty page cache the disk limits it: 100 images/s; from the pack 2,000." in found.text


def test_cores_that_are_not_ours_are_told() -> None:
    assert "cores: give" not in diagnosis().text
    assert "This process may use 1 of the machine's 2 cores: give the job more." in diagnosis(ours=1).text


def test_what_a_model_needs() -> None:
    found = diagnosis(step_rate=4000)
    assert (found.limit, found.step_rate) == ("decoding", 4000)
    assert "A model of 4,000 images/s waits for 75% of the time." in found.text
    assert "The pack gives 20,000 images/s, so that an epoch would take 25% of its time." in found.text
    assert "It would still wait for 50% of the time." in diagnosis(step_rate=40_000).text
    assert diagnosis(step_rate=900).limit == "training"


@pytest.mark.parametrize("stage", ["resizing", "Python", "transform", "store", "copy"])
def test_a_loop_that_waits(stage: str) -> None:
    found = diagnosis(loop=loop(500, 2000, 0.7, decoding=0.001, **{stage: 0.002}))
    assert (found.limit, found.step_rate) == (stage, 2000)
    assert "The script takes 500 images/s from its DataLoader and waits for 70% of the time" in found.text
    assert f"{stage} 67%, decoding 33%" in found.text
    assert "so that an epoch would take 25% of its time." in found.text


@pytest.mark.parametrize(
    ("figures", "limit", "said"),
    [
        (
            (30, 50, 0.03),
            "decoding",
            "waiting for 3% of the time predicts 31 images/s with batches at hand, not 50. The rates decide. "
            "Is the machine busy, or does the loader take cores from the step? Measure again.",
        ),
        (
            (414, 383, 0.18),
            "training",
            "waiting for 18% of the time predicts 505 images/s with batches at hand, not 383. The rates decide. "
            "Is the machine busy, or do waits hide behind a GPU's kernels? Measure again.",
        ),
        ((279, 354, 0.09), "decoding", ""),
        ((100, 105, 0.12), "training", ""),
    ],
)
def test_the_rates_decide_where_the_share_of_waiting_disagrees(
    figures: tuple[float, float, float], limit: str, said: str
) -> None:
    found = diagnosis(loop=loop(*figures, decoding=0.001))
    assert found.limit == limit
    assert ("No loader makes it faster" in found.text) is (limit == "training")
    assert (f"The two disagree: {said}" in found.text) if said else ("disagree" not in found.text)


def test_a_loop_that_does_not_wait() -> None:
    found = diagnosis(loop=loop(500, 505, 0.01, decoding=0.001))
    assert found.limit == "training"
    assert "500 images/s from its DataLoader, 505 with batches at hand" in found.text
    assert "The pack gives" not in found.text
