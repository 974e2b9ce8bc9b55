"""Options of fill_pack, to another process and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import Csv, Encode, Labels, Soft, Split
from packer.errors import UsageError
from packer.filling.job_options import options_of, plain_options

VALUES: list[Any] = [
    256,
    "min=256",
    None,
    True,
    0.5,
    [64, 128],
    {"train": 0.9, "val": 0.1},
    Labels("labels.csv", column=["a", "b"]),
    Labels("labels.csv", column="label", boxes=["a", "b", "c", "d"], boxes_unit="relative"),
    Split("train=80,val=20", group="patient"),
    Split({"train": 0.8, "val": 0.2}),
    {"mask": "masks", "matte": Soft("mattes")},
    Csv(header=False),
    Encode(max_categories=7),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_come_back_equal(value: Any) -> None:
    plain = json.loads(json.dumps(plain_options({"option": value})))
    assert options_of(plain) == {"option": value}


def test_paths_tuples_and_numpy_numbers_become_plain() -> None:
    given = {"a": Path("x") / "y", "b": (np.int64(3), 4), "c": np.array([1.5]), "d": Labels(Path("l.csv"))}
    assert json.loads(json.dumps(plain_options(given)))["a"] == "x/y"
    assert options_of(plain_options(given)) == {"a": "x/y", "b": [3, 4], "c": [1.5], "d": Labels("l.csv")}


@pytest.mark.parametrize("value", [b"x", {1: 2}, {"a": {1, 2}}, [len], Labels], ids=str)
def test_other_values_are_one_sentence(value: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^option=: .* cannot be sent to the process that fills the pack\. Pass"
    ):
        plain_options({"option": value})
