from __future__ import annotations

import re

import pytest

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.own_size import partner
from packer.load.processes.transforms import PythonTransform, roles
from packer.machine import cores


def test_the_number_of_processes():
    assert PythonTransform(len, processes=3).count == 3
    assert PythonTransform(len).count == min(cores(), 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fn": 5},
            "transform: 5 is no function. Pass one that takes a sample, or PythonTransform(fn, ...).",
        ),
        ({"processes": 0}, "transform: processes=0 is not a whole number from 1 to 512."),
        ({"processes": 2.0}, "transform: processes=2.0 is not a whole number from 1 to 512."),
        (
            {"context": "thread"},
            "transform: context='thread' is not one of 'fork', 'spawn', 'forkserver'. Pass one of them.",
        ),
        ({"ragged": "boxes"}, "transform: ragged='boxes' is a text. Pass a list of names: ['boxes']."),
    ],
)
def test_wrong_arguments(options: dict[str, object], message: str):
    with pytest.raises(UsageError, match=re.escape(message)):
        PythonTransform(**({"fn": len} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [True, False])
def test_masks_of_sizes_of_their_own_move_with_their_image(raw: bool):
    codec = None if raw else {"name": "jpeg", "shape": None}
    fields = (
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}, codec),
        Field("mask", "|u1", None, *partner("|u1", 1, soft=False, raw=raw)),
        Field("layers", "|u1", None, *partner("|u1", 3, soft=False, raw=raw)),
    )
    assert roles(fields).masks == {"mask": False, "layers": True}
