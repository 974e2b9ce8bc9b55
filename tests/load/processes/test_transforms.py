from __future__ import annotations

import re

import pytest

from packer.errors import UsageError
from packer.load.processes.transforms import PythonTransform
from packer.starting import cores


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
