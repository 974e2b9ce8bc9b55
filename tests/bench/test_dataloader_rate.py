from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable

import pytest
import torch

from packer.bench.lanes import best_workers, item_seconds, loader_rate, worker_counts

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on a machine of one core
    pytest.mark.filterwarnings(
        "ignore:.*use of fork.*:DeprecationWarning"
    ),  # Python 3.12; the workers only load
]


class Slow:
    """Items that take a known time, and where they were made."""

    def __init__(self, rows: int, seconds: float) -> None:
        self.rows, self.seconds = rows, seconds
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.seconds)
        self.asked.append(item)
        return torch.zeros(1, dtype=torch.uint8), item


def once(passes: Callable[[], bool]) -> bool:
    """True when one of some attempts passes: a machine that others use makes rates lower."""
    return any(passes() for _ in range(20))


def test_the_rate_is_that_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert loader_rate(Slow(64, 0.002), batch_size=8, workers=0, seconds=0.2) == pytest.approx(500)


def test_workers_add_up_and_end() -> None:
    rates: list[float] = []

    def two() -> bool:
        rates.append(loader_rate(Slow(64, 0.01), batch_size=4, workers=2, seconds=0.4))
        return rates[-1] > 110

    assert once(two)
    assert max(rates) < 300  # of 200: batches that were ready when the clock started come on top
    assert multiprocessing.active_children() == []


def test_one_epoch_asks_for_every_item_once() -> None:
    items = Slow(32, 0)
    loader_rate(items, batch_size=8, workers=0, seconds=60, epochs=1)
    assert sorted(items.asked) == list(range(32))
    assert items.asked != sorted(items.asked)


@pytest.mark.parametrize(("cores", "counts"), [(1, [0, 1]), (2, [0, 1, 2]), (6, [0, 1, 2, 4, 6])])
def test_worker_counts_double_up_to_the_cores(cores: int, counts: list[int]) -> None:
    assert worker_counts(cores) == counts


def test_the_best_count_is_the_fastest_one() -> None:
    said: list[str] = []

    def best() -> int:
        said.clear()
        return best_workers(Slow(64, 0.01), batch_size=4, counts=[0, 2], seconds=0.1, say=said.append)

    assert once(lambda: best() == 2)
    assert said == ["DataLoader, 0 workers", "DataLoader, 2 workers"]


def test_the_seconds_of_an_item_are_the_median_of_a_few() -> None:
    assert 0.002 <= item_seconds(Slow(64, 0.002)) < 0.1
