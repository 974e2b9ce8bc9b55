"""benchmarks/producer_consumer.py runs, and checks what is delivered."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch")

# DataLoader warns where there are fewer cores than workers; from Python 3.12 on, forking warns of threads.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*fork:DeprecationWarning"
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return pytest.importorskip("producer_consumer")


def test_every_way_has_a_line(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--processes 2 --batches 5 --rows 3 --side 8 --sleep 0.02 --step 0.005"
    assert bench.main(small.split()) == 0
    printed = capsys.readouterr().out
    assert "5 batches of 0.0 MiB, 1 rounds" in printed
    names = [line[:16].rstrip() for line in printed.splitlines()[4:]]
    assert names == ["serial", "Queue x 1", "Queue x 2", "DataLoader x 2", "packer x 2"]
    serial = [float(number) for number in printed.splitlines()[4].split()[1:]]
    assert serial[1] >= 20  # ms: the generator's sleep, which nothing hides


def test_wrong_batches_are_seen(bench: ModuleType) -> None:
    task = bench.Task("", 2, (3, 4, 4), 2, 0.0, 0.0)

    def other_seeds(task, processes):
        yield task.produce(task.seeds(0)), task.seeds(0) + 1

    def other_values(task, processes):
        yield task.produce(task.seeds(1)), task.seeds(0)

    def too_few(task, processes):
        yield task.produce(task.seeds(0)), task.seeds(0)

    for way, complaint in (
        (other_seeds, "seeds are not those of a batch"),
        (other_values, "a sample is not what its seed makes"),
        (too_few, "batches are missing"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            bench.consume(way, task, 1)
    assert task.sample(5).dtype == np.float32
