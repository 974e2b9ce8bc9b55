"""packer.given_values: what messages show of given values, and how long they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer.errors import PackerError, TransformError, UsageError
from packer.given_values import LONGEST, brief, shown


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("train", "'train'"),
        (None, "None"),
        (np.int64(3), repr(np.int64(3))),
        (np.zeros((2, 3), np.uint8), "<ndarray uint8 [2, 3]>"),
        (np.zeros(()), "<ndarray float64 []>"),
        ((np.zeros(3), np.arange(3)), "(<ndarray float64 [3]>, <ndarray int64 [3]>)"),
        ({"a": {"b": np.zeros(3)}}, "{'a': {'b': <ndarray float64 [3]>}}"),
        ([*range(10_000)], "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]"),
        (object(), "<object object>"),
        (Odd(), "<Odd>"),
    ],
)
def test_given_values_are_short(value: Any, text: str):
    assert shown(value).startswith(text)
    assert len(shown(value)) <= LONGEST
    assert len(shown(10**5000)) <= LONGEST  # str() refuses it


def test_tensors_and_frames_are_shown_by_shape():
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    assert shown([torch.zeros(2, 3)]) == "[<Tensor float32 [2, 3]>]"
    assert shown(pandas.DataFrame({"a": range(1000)})) == "<DataFrame [1000, 1]>"


@pytest.mark.parametrize("long", ["x" * 100_000, "a b, " * 20_000, "[1,\n" * 20_000])
def test_no_message_is_long(long: str):
    """Wherever the text comes from: a path, a header, an error of another library."""
    for error in (PackerError(f"{long}: is wrong. Leave it out."), UsageError(f"name {long}. Leave it out.")):
        text = str(error)
        assert len(text) <= 1000
        assert "\n" not in text
        assert text.endswith(". Leave it out.")
        assert long[:401] not in text


def test_a_message_of_usual_length_is_unchanged():
    text = f"{'folder/' * 40}a.png: is cut short. " * 2
    assert brief(text) == text == str(PackerError(text))


def test_a_traceback_keeps_its_lines():
    lines = "\n".join(f"line {number}" for number in range(300))
    assert str(TransformError(f"transform: raised\n\n{lines}")).count("\n") == 301
