"""Minutes of misuse: concurrent iterators, early breaks, exceptions, kept batches, resumed epochs. Run with `make soak`."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import xxhash

from packer.errors import PackerError
from packer.load.batch_dataset import PackedBatchDataset
from tests.format.packs import write_content
from tests.load.conftest import ORDERS
from tests.read.conftest import content_of

torch = pytest.importorskip("torch")

SECONDS = float(os.environ.get("PACKER_SOAK_SECONDS", "60"))
ROWS = 400
ITERATORS = 4


def own_memory() -> int:
    """Anonymous resident bytes of this process."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def upside_down(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a user's transform might do."""
    return {"image": sample["image"][::-1], "label": sample["label"]}


class Kind:
    """A dataset, and the checksum of each row that it should give."""

    def __init__(self, path: Path, images: np.ndarray, **options) -> None:
        self.path, self.options = path, {"batch_size": 16, "prefetch": 3} | options
        upright = images[:, ::-1] if "transform" in options else images
        self.sums = [xxhash.xxh3_64_intdigest(np.ascontiguousarray(image)) for image in upright]
        self.dataset = self.made()

    def made(self) -> PackedBatchDataset:
        return PackedBatchDataset(self.path, **self.options)

    def check(self, batch) -> int:
        for image, label in zip(batch.image, batch.label.tolist(), strict=True):
            bytes_of = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
            assert xxhash.xxh3_64_intdigest(bytes_of) == self.sums[label // 3]
        return len(batch.label)


def misuse(kinds: list[Kind], until: float, number: int, seed: int, checked: list[int]) -> None:
    draw = random.Random(seed)
    kept: list[tuple[Kind, object]] = []
    while time.monotonic() < until:
        kind = draw.choice(kinds)
        dataset = kind.dataset
        stop = draw.choice([None, *range(len(dataset))])
        try:
            for step, batch in enumerate(dataset):
                checked[number] += kind.check(batch)
                kept = [*kept[-draw.randrange(4) :], (kind, batch)] if draw.random() < 0.5 else []
                if step == stop:
                    raise ZeroDivisionError if draw.random() < 0.5 else StopIteration
        except (ZeroDivisionError, StopIteration):
            pass
        for other, batch in kept:
            other.check(batch)
        if draw.random() < 0.05:  # another process's copy goes on where one stopped
            copy = kind.made() if draw.random() < 0.5 else pickle.loads(pickle.dumps(dataset))
            copy.load_state_dict(dataset.state_dict() | {"rows": 16 * draw.randrange(ROWS // 16)})
            with copy:
                checked[number] += sum(kind.check(batch) for batch in copy)


@pytest.mark.soak
def test_memory_threads_processes_and_files_stay_flat(tmp_path: Path) -> None:
    raw, jpeg = content_of("raw", ROWS), content_of("jpeg", ROWS)
    write_content(tmp_path / "raw.h5", raw, block_rows=16)
    write_content(tmp_path / "jpeg", jpeg, block_rows=16)
    checked, errors = [0] * ITERATORS, []

    def soak(seconds: float, seed: int) -> tuple[int, int, int, int]:
        images = raw.loaded_images()
        kinds = [Kind(tmp_path / "raw.h5", images, order=order) for order in ORDERS]
        kinds += [
            Kind(tmp_path / "raw.h5", images, order="rows", placement="ram"),
            Kind(tmp_path / "jpeg", jpeg.loaded_images(), order="slices"),
            Kind(tmp_path / "raw.h5", images, order="rows", transform=upside_down),
        ]
        until = time.monotonic() + seconds

        def run(number: int) -> None:
            try:
                misuse(kinds, until, number, ITERATORS * seed + number, checked)
            except (AssertionError, PackerError, OSError) as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(ITERATORS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for kind in kinds:
            kind.dataset.close()
        kinds.clear()
        gc.collect()
        return (
            own_memory(),
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),
            len(multiprocessing.active_children()),
        )

    before = soak(10, 0)
    rounds = [soak(SECONDS / 6, number) for number in range(1, 7)]
    print(
        f"{sum(checked):,} rows checked; MB, threads, files, processes:",
        [(m >> 20, *rest) for m, *rest in [before, *rounds]],
    )
    assert not errors, errors
    assert min(checked) > 10_000
    assert {tuple(rest) for _, *rest in rounds} == {before[1:]}
    assert max(memory for memory, *_ in rounds) < before[0] + (24 << 20)
