"""Every wrong argument is a sentence that names it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.device import auto_device
from packer.packs.pack import Pack
from tests.read.conftest import make_pack

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("options") / "p.h5", 40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": True}, "batch_size=True: is not a whole number of at least 1."),
        ({"batch_size": 2.0}, "batch_size=2.0: is not a whole number of at least 1."),
        ({"prefetch": -1}, "prefetch=-1: is not a whole number of at least 0."),
        ({"threads": 0}, "threads=0: is not a whole number of at least 1."),
        ({"seed": None}, "seed=None: is not a whole number."),
        ({"shuffle": "rows"}, "shuffle='rows': is neither True nor False. Pass one of them."),
        (
            {"fields": "image"},
            "fields='image': is not a list of names. Pass a list of names, such as ['image'], or leave it out.",
        ),
        (
            {"rank": "0", "world_size": 2},
            "rank='0', world_size=2: are not two whole numbers, rank from 0 to world_size - 1. Pass both in that range, or neither.",
        ),
        ({"ends": "wrap"}, "ends='wrap': is not one of 'even', 'uneven', 'drop', 'pad'. Pass one of them."),
        (
            {"ends": "pad", "drop_last": True},
            "drop_last=True with ends='pad': they contradict each other. Pass one of them.",
        ),
        (
            {"transform": dict, "placement": "ram"},
            "placement='ram' with transform: a Python transform's processes read the rows themselves. Pass placement='disk'.",
        ),
        (
            {"augment": 3},
            "augment: int is no transform of packer.augment. Pass a list of these, or one text; a function of the sample is"
            " passed as transform=.",
        ),
        (
            {"augment": "RandomHorizontalFlip()", "fields": ["label"]},
            "augment: works on the field 'image', and there is none. Pass fields with 'image', or a transform that returns it.",
        ),
        ({"device": 99}, None),
    ],
)
def test_wrong_ones(pack: Pack, options: dict[str, Any], message: str | None):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$" if message else "^device='cuda:99': "):
        PackedBatchDataset(pack, **{"batch_size": 8} | options)


def test_integers_of_any_type_are_integers(pack: Pack):
    dataset = PackedBatchDataset(
        pack,
        np.int64(8),  # type: ignore[arg-type]
        order="rows",
        seed=np.int64(3),  # type: ignore[arg-type]
        rank=np.int32(1),  # type: ignore[arg-type]
        world_size=np.int32(2),  # type: ignore[arg-type]
        prefetch=np.int8(1),  # type: ignore[arg-type]
    )
    dataset.set_epoch(np.int64(2))  # type: ignore[arg-type]
    list(dataset)
    assert json.loads(json.dumps(dataset.state_dict()))["epoch"] == 2
    for order in ("sequential", "slices", "blocks", "rows"):
        assert len(PackedBatchDataset(pack, 8, order=order).batch(np.int64(4)).label) == 8
    with pytest.raises(UsageError, match=r"^number='a': is not a whole number from 0 to 2\.$"):
        dataset.batch("a")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^epoch=1\.5: is not a whole number of at least 0\.$"):
        dataset.set_epoch(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": 41}, "load_state_dict: rows=41: is not a whole number from 0 to 40."),
        ({"rows": -5}, "load_state_dict: rows=-5: is not a whole number from 0 to 40."),
        ({"seed": None}, "load_state_dict: seed=None: is not a whole number."),
        ({"epoch": "x"}, "load_state_dict: epoch='x': is not a whole number of at least 0."),
    ],
)
def test_a_wrong_state_changes_nothing(pack: Pack, changed: dict[str, Any], message: str):
    dataset = PackedBatchDataset(pack, 8, order="rows")
    state = dataset.state_dict()
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        dataset.load_state_dict(state | changed)
    assert dataset.state_dict() == state
    for nothing in (None, [], {"version": 1}):
        with pytest.raises(UsageError, match=r"^load_state_dict: is no state"):
            dataset.load_state_dict(nothing)  # type: ignore[arg-type]


def test_batches_larger_than_the_pack(pack: Pack):
    padded = PackedBatchDataset(pack, 1000, ends="pad")
    assert [batch.label.tolist() for batch in padded] == [[3 * (k % 40) for k in range(1000)]]
    from packer.augment import RandomCrop

    huge = PackedBatchDataset(pack, 10**9, augment=[RandomCrop((6, 4))])
    for _ in range(3):
        assert [len(batch.label) for batch in huge] == [40]


def test_a_resumed_epoch_may_be_longer(pack: Pack):
    from packer import Weighted

    weights = np.ones(40)
    long = PackedBatchDataset(pack, 400, order=Weighted(weights, rows=1000))
    state = long.state_dict()
    short = PackedBatchDataset(pack, 400, order=Weighted(weights, rows=10))
    assert [len(b.label) for b in short] == [10]
    short.load_state_dict(state)
    assert [b.label.tolist() for b in short] == [b.label.tolist() for b in long]


def test_a_state_of_a_shuffled_dataset_is_refused_by_one_in_sequence(pack: Pack):
    state = PackedBatchDataset(pack, 8, shuffle=True).state_dict()
    with pytest.raises(UsageError, match="Pass the order of the state"):
        PackedBatchDataset(pack, 8).load_state_dict(state)
    PackedBatchDataset(pack, 8, shuffle=True).load_state_dict(state)


def small(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": sample["image"][:4, :4], "label": sample["label"]}


def test_augmentation_takes_what_the_transform_returns(tmp_path: Path, pack: Pack):
    from packer.augment import RandomCrop

    with PackedBatchDataset(pack, 8, transform=small, augment=[RandomCrop((3, 3))]) as dataset:
        assert {tuple(batch.image.shape[1:]) for batch in dataset} == {(3, 3, 3)}
    with (
        PackedBatchDataset(pack, 8, transform=small, augment=[RandomCrop((6, 6))]) as dataset,
        pytest.raises(UsageError, match="RandomCrop"),
    ):
        next(iter(dataset))


def test_an_automatic_device_is_one_that_is_there(pack: Pack):
    there = "cuda" if torch.cuda.is_available() else "cpu"
    assert PackedBatchDataset(pack, 8, device="auto").batch(0).image.device.type == there
    assert PackedBatchDataset(pack, 8, device="auto").device == there
    assert PackedBatchDataset(pack, 8, device="auto", output="numpy").device == "cpu"
    with pytest.raises(UsageError, match=r"^device='auto2': is no torch device"):
        PackedBatchDataset(pack, 8, device="auto2")


@pytest.mark.parametrize(
    ("torchrun", "local", "current", "devices", "expected"),
    [
        (True, "1", 0, 2, "cuda:1"),  # all processes would share the first
        (True, "0", 0, 2, "cuda"),
        (True, "1", 1, 2, "cuda"),  # torch.cuda.set_device chose
        (True, "1", 0, 1, "cuda"),  # each process sees a device of its own
        (True, "x", 0, 2, "cuda"),
        (False, "1", 0, 2, "cuda"),
    ],
)
def test_an_automatic_device_of_a_process_among_several(
    torchrun: bool, local: str, current: int, devices: int, expected: str, monkeypatch: pytest.MonkeyPatch
):
    """No machine of the tests has two: torch is made to say so."""
    for name, value in {"is_available": True, "current_device": current, "device_count": devices}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert auto_device() == expected
