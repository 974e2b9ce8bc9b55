"""packer.bench.diagnosis: what is said to limit, for figures of many kinds."""

from __future__ import annotations

from typing import Any

import pytest

from packer.bench.bench_report import BenchReport, Diagnosis, MeasuredLane
from packer.bench.diagnosis import diagnose


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


@pytest.mark.parametrize(
    ("figures", "limit"), [({}, "decoding"), ({"raw": 500}, "Python"), ({"reading": 1100}, "reading")]
)
def test_what_limits_loading_the_images(figures: dict[str, float], limit: str) -> None:
    found = diagnosis(**figures)
    assert (found.limit, found.cold, found.step_rate) == (limit, None, None)
    assert (
        "To learn whether your model waits, pass its rate, model_rate=1000: train.replay() measures it."
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
