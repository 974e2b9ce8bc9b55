"""Minutes of misuse: concurrent iterators, early breaks, exceptions, kept batches. Run with `make soak`."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from pathlib import Path

import pytest

from packer.load.batches import PackedBatchDataset
from packer.orders.order import ORDERS
from tests.read.conftest import image_of, make_pack

torch = pytest.importorskip("torch")

SECONDS = 60
ROWS = 400


def own_memory() -> int:
    """Anonymous resident bytes of this process."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def misuse(
    dataset: PackedBatchDataset, images: list[bytes], until: float, seed: int, checked: list[int]
) -> None:
    draw = random.Random(seed)
    kept: list[object] = []
    while time.monotonic() < until:
        stop = draw.choice([None, *range(len(dataset))])
        try:
            for step, batch in enumerate(dataset):
                for image, label in zip(batch.image, batch.label.tolist(), strict=True):
                    assert image.permute(1, 2, 0).numpy().tobytes() == images[label // 3]
                checked[seed] += len(batch.label)
                kept = [*kept[-draw.randrange(4) :], batch] if draw.random() < 0.5 else []
                if step == stop:
                    raise ZeroDivisionError if draw.random() < 0.5 else StopIteration
        except (ZeroDivisionError, StopIteration):
            pass


@pytest.mark.soak
def test_memory_threads_and_files_stay_flat(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "p.h5", rows=ROWS)
    images = [image_of(row).tobytes() for row in range(ROWS)]
    checked = [0] * 4

    def soak(seconds: float) -> tuple[int, int, int]:
        datasets = [PackedBatchDataset(pack, 16, order=order, prefetch=3) for order in ORDERS]
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=misuse, args=(datasets[k % 3], images, until, k, checked))
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for dataset in datasets:
            dataset.close()
        gc.collect()
        return own_memory(), threading.active_count(), len(os.listdir("/proc/self/fd"))

    before = soak(5)
    rounds = [soak(SECONDS / 4) for _ in range(4)]
    assert min(checked) > 10_000
    assert {(threads, files) for _, threads, files in rounds} == {before[1:]}
    assert max(memory for memory, _, _ in rounds) < before[0] + (16 << 20)
