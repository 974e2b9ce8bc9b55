"""A transform that changes nothing is noticed; one that spares a row now and then is not blamed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from packer.format.pack import Pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.processes.calling import is_unchanged, unchanged_warning
from packer.load.processes.transforms import PythonTransform
from tests.read.conftest import ROWS, make_pack

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

NAN = np.array([1.0, np.nan])


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("unchanged") / "p.h5")


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({"a": NAN, "k": "x", "b": np.int64(3)}, {"k": "x", "b": np.int64(3), "a": NAN.copy()}, True),
        ({"a": NAN}, {"a": NAN, "b": 1}, False),
        ({"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}, False),
        ({"a": np.zeros(2)}, {"a": np.zeros((1, 2))}, False),
        ({"a": np.zeros(2)}, {"a": [0.0, 0.0]}, False),
        ({"a": np.array([1, 2])}, {"a": np.array([1, 3])}, False),
        ({"a": [NAN, np.zeros(0)]}, {"a": [NAN, np.zeros(0)]}, True),
        ({"a": [NAN, np.zeros(0)]}, {"a": [NAN]}, False),
        ({"k": "x"}, {"k": "y"}, False),
        ({"k": b"x"}, {"k": b"x"}, True),
        ({}, None, False),
    ],
)
def test_unchanged_is_names_dtypes_shapes_and_numbers(before: Any, after: Any, same: bool):
    assert is_unchanged(before, after) is same


def identity(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_the_sentence():
    assert unchanged_warning(identity, "p.h5", 64) == (
        "p.h5: transform=identity left all fields of the first 64 rows as they were."
        " Transforms that are made for tensors or PIL images pass NumPy arrays through unchanged."
        " Return the changed arrays, or pass augment=[...] with transforms of packer.augment."
    )


@pytest.mark.parametrize(("batch_size", "batches"), [(32, 1), (50, 1), (31, 2), (1, 32)])
@pytest.mark.parametrize("batched", [False, True])
def test_it_is_said_once_as_soon_as_enough_rows_were_seen(
    pack: Pack, batch_size: int, batches: int, batched: bool
):
    made = PythonTransform(identity, processes=2, batched=batched)
    with PackedBatchDataset(pack, batch_size, output="numpy", transform=made) as dataset:
        batch = iter(dataset)
        for _ in range(batches - 1):
            next(batch)
        with pytest.warns(UserWarning, match="left all fields of the first"):
            next(batch)
        assert sum(len(rest.label) for rest in batch) == ROWS - batches * batch_size
        assert len(list(dataset)) == len(dataset)


def test_it_is_said_for_a_batch_by_its_number(pack: Pack):
    made = PythonTransform(identity, processes=1)
    with PackedBatchDataset(pack, 40, output="numpy", transform=made) as dataset:
        with pytest.warns(UserWarning, match="left all fields of the first 40 rows"):
            dataset[0]
        dataset[1]


def seldom(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    if sample["label"] == 3 * 30:
        sample["image"] ^= 255
    return sample


def add(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "more": 0.0}


def as_float(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"].astype(np.float32)}


@pytest.mark.parametrize("fn", [seldom, add, as_float])
def test_whatever_changes_something_is_not_blamed(pack: Pack, fn: Any):
    """In the first 32 rows, that is: one row in place, a field more, another dtype."""
    with (
        warnings.catch_warnings(),
        PackedBatchDataset(pack, 16, output="numpy", transform=PythonTransform(fn, processes=2)) as dataset,
    ):
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            assert len(list(dataset)) == 7
