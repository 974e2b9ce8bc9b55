"""PackedBatchDataset with a Python transform: the whole way."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import TransformError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.processes.transforms import PythonTransform
from packer.orders.mixture import Mixture
from packer.orders.sampling import Weighted
from packer.packs.pack import Pack
from tests.read.conftest import ROWS, SHAPE, image_of, make_pack

torch = pytest.importorskip("torch")
from packer.augment import RandomHorizontalFlip  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("transforming") / "p.h5")


def inverted(sample: dict[str, Any], rng: Any = None) -> dict[str, Any]:
    sample["image"] ^= 255
    return sample


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"row": sample["label"] // 3, "x": rng.random(3)}


def open_dataset(
    pack: Pack, fn: Any, batch_size: int = 10, context: str | None = None, **options: Any
) -> PackedBatchDataset:
    if not isinstance(fn, PythonTransform):
        fn = PythonTransform(fn, processes=2, context=context)
    return PackedBatchDataset(pack, batch_size, transform=fn, **({"output": "numpy"} | options))


def check(batch: Any) -> list[int]:
    rows = (batch.label // 3).tolist()
    assert (batch.image == np.stack([image_of(row) ^ 255 for row in rows])).all()
    return rows


def draws_of(dataset: Any) -> dict[int, list[float]]:
    return {int(row): x.tolist() for batch in dataset for row, x in zip(batch.row, batch.x, strict=True)}


@pytest.fixture(params=["fork", "thread"])
def context(request: pytest.FixtureRequest) -> str:
    """What runs the function: processes, threads."""
    return str(request.param)


def test_every_row_once_an_epoch_from_two_iterators_at_once(pack: Pack, context: str):
    with open_dataset(pack, inverted, order="rows", context=context) as dataset:
        pairs = [(check(a), check(b)) for a, b in zip(dataset, dataset, strict=True)]
    for k in range(2):
        assert sorted(row for pair in pairs for row in pair[k]) == list(range(ROWS))
    assert pairs[0][0] != pairs[0][1]  # two epochs


def test_torch_batches_are_laid_out_as_without(pack: Pack, context: str):
    with open_dataset(pack, inverted, output="torch", context=context) as dataset:
        batch = next(iter(dataset))
        assert batch.image.shape == (10, 3, *SHAPE[:2])
        assert batch.image.is_contiguous(memory_format=torch.channels_last)
        assert check(batch._replace(image=batch.image.permute(0, 2, 3, 1).numpy(), label=batch.label.numpy()))
    with open_dataset(pack, lambda s: torch.ones(3, 5, 4), output="torch") as dataset:
        assert dataset.batch(0).image.shape == (10, 3, 5, 4)


def test_batches_that_are_kept_stay_as_they_were(pack: Pack, context: str):
    with open_dataset(pack, inverted, context=context) as dataset:
        kept = [*dataset, *dataset]
    assert [row for batch in kept for row in check(batch)] == 2 * list(range(ROWS))


def test_draws_depend_on_seed_epoch_and_row_alone(pack: Pack, context: str):
    with open_dataset(pack, noisy) as dataset:
        first, second = draws_of(dataset), draws_of(dataset)
    assert sorted(first) == list(range(ROWS))
    assert all(first[row] != second[row] for row in first)
    with open_dataset(pack, PythonTransform(noisy, processes=3, context=context), 7, order="rows") as dataset:
        assert draws_of(dataset) == first
        state = None
        for step, _ in enumerate(dataset):  # the second epoch, left in the middle
            if step == 4:
                state = dataset.state_dict()
                break
    with open_dataset(pack, noisy, 7, order="rows", context=context) as dataset:
        dataset.load_state_dict(state)
        rest = draws_of(dataset)
    assert len(rest) == ROWS - 5 * 7
    assert rest.items() <= second.items()
    with open_dataset(pack, noisy, seed=1) as dataset:
        assert draws_of(dataset) != first


def test_repetitions_have_draws_of_their_own(pack: Pack, context: str):
    """They are counted by the place in the epoch, so ranks, batches, processes and resuming change nothing."""

    def draws(dataset: PackedBatchDataset) -> list[list[float]]:
        return [x.tolist() for batch in dataset for x in batch.x]

    def fn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"x": rng.random(2)}

    transform = PythonTransform(fn, processes=2, context=context)
    order = Weighted([9.0] + [1.0] * (ROWS - 1), rows=3 * ROWS)
    with open_dataset(pack, transform, order=order) as dataset:
        whole = draws(dataset)
        assert len({tuple(x) for x in whole}) == len(whole)
        iterator = iter(dataset)
        second = [x.tolist() for _ in range(3) for x in next(iterator).x]
        state = dataset.state_dict()
    with open_dataset(pack, transform, order=order) as dataset:
        dataset.set_epoch(1)
        assert draws(dataset)[:30] == second
        dataset.load_state_dict(state)
        rest = draws(dataset)
    ranks = []
    for rank in range(2):
        share = {"rank": rank, "world_size": 2, "ends": "uneven"}
        with open_dataset(
            pack, PythonTransform(fn, processes=1, context=context), 5, order=order, **share
        ) as dataset:
            dataset.load_state_dict(state)
            ranks += draws(dataset)
    assert sorted(rest) == sorted(ranks)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "order",
    [Weighted(np.arange(ROWS) + 1.0), Weighted.balanced(rows=ROWS), Mixture("rows", rows=ROWS)],
    ids=repr,
)
def test_where_rows_repeat_transform_and_augment_draw_anew_alike(
    pack: Pack, tmp_path: Path, order: Any, world: int
):
    """Both by the place in the epoch: what row p draws where no row repeats, place p does here."""
    several = isinstance(order, Mixture)
    packs: Any = [(pack, 3), (make_pack(tmp_path / "p.h5"), 1)] if several else pack

    def upright(batch: Any) -> list[np.ndarray]:
        return [image_of(label // 3).transpose(2, 0, 1) for label in batch.label.tolist()]

    def drawn(packs: Any, order: Any, rank: int, **option: Any) -> list[list[Any]]:
        share = {"rank": rank, "world_size": world, "ends": "uneven", "seed": 3}
        with PackedBatchDataset(packs, 10, order=order, **share, **option) as dataset:
            dataset.set_epoch(2)
            if "transform" in option:
                return [batch.x.tolist() for batch in dataset]
            flipped = [
                [not np.array_equal(*pair) for pair in zip(batch.image.numpy(), upright(batch), strict=True)]
                for batch in dataset
            ]
            assert 0.2 < np.mean([flip for batch in flipped for flip in batch]) < 0.8
            return flipped

    for option in ({"transform": noisy}, {"augment": [RandomHorizontalFlip()]}):
        for rank in range(world):
            assert drawn(packs, order, rank, **option) == drawn(pack, "sequential", rank, **option)


def test_rows_that_fill_the_last_batches_draw_as_at_the_beginning(pack: Pack):
    share = {"order": "rows", "ends": "pad", "seed": 3}
    with PackedBatchDataset(pack, 40, transform=noisy, **share) as dataset:
        draws = [x for batch in dataset for x in batch.x.tolist()]
    with PackedBatchDataset(pack, 40, augment=[RandomHorizontalFlip()], **share) as dataset:
        images = [x for batch in dataset for x in batch.image.tolist()]
    assert draws[ROWS:] == draws[: 120 - ROWS]
    assert images[ROWS:] == images[: 120 - ROWS]


def test_the_loop_hears_of_errors_and_may_go_on(pack: Pack, context: str):
    def fn(sample: dict[str, Any], rng: Any = None) -> dict[str, Any]:
        if sample["label"] == 3 * 50:
            raise OverflowError("too much")
        return inverted(sample)

    with open_dataset(pack, fn, context=context) as dataset:
        seen = 0
        with pytest.raises(
            TransformError, match=re.escape("row 50 ('row/50') in epoch 0 it raised OverflowError")
        ):
            for batch in dataset:
                seen += len(batch.label)
        assert seen == 50
        assert len(next(iter(dataset)).label) == 10


def test_datasets_that_are_forked_or_pickled_have_processes_of_their_own(pack: Pack, context: str):
    with open_dataset(pack, inverted, order="rows", context=context) as dataset:
        first = [check(batch) for batch in dataset]
        child = os.fork()
        if child == 0:
            rows = sorted(row for batch in dataset for row in check(batch))
            dataset.close()
            os._exit(7 if rows == list(range(ROWS)) else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pickle.loads(pickle.dumps(dataset)) as other:
            other.set_epoch(0)
            assert [check(batch) for batch in other] == first
        assert len(list(dataset)) == len(first)


def test_leaving_the_loop_leaves_nothing_behind(pack: Pack):
    dataset = open_dataset(pack, inverted)
    for _ in dataset:
        break
    assert multiprocessing.active_children()
    del dataset
    gc.collect()
    until = time.monotonic() + 120
    while multiprocessing.active_children():
        assert time.monotonic() < until
        time.sleep(0.01)
