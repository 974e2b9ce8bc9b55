"""The size of rows: one for all, or a rule by which each picture gets its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.pixels.row_size import RowSize, parse_size


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (256, (256, 256)),
        (np.int64(256), (256, 256)),
        ("64", (64, 64)),
        ("128x256", (128, 256)),
        ((8, 16), (8, 16)),
    ],
)
def test_sizes(size: object, expected: tuple[int, int]):
    assert parse_size(size) == expected


@pytest.mark.parametrize("size", ["big", (32.0, 32.0), "1x2x3", "max=512", 0, -4, 65_537, "0x5"])
def test_each_wrong_size_is_one_sentence(size: object):
    with pytest.raises(UsageError) as error:
        parse_size(size)
    sentence = f"size {size}: is not a number or HxW of 1 to 65,536 pixels. Pass for example 256 or 128x256."
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("size", "option", "words"),
    [
        (32, [32, 32], None),
        ("16x8", [16, 8], None),
        ("keep", "keep", "their own size"),
        ("max=500", "max=500", "longest side at most 500"),
        ("min=0256", "min=256", "shortest side at most 256"),
    ],
)
def test_rules_are_recorded_and_read_again(size: object, option: object, words: str | None):
    found = RowSize.parse(size)
    assert found.option == option
    assert RowSize.from_record(option) == found
    assert found.ragged is (words is not None)
    assert words is None or found.words == words


@pytest.mark.parametrize("size", ["max=", "longest=5", "min=-1", "min=0", "max=99999999999999999999"])
def test_each_wrong_rule_is_one_sentence(size: str):
    with pytest.raises(UsageError) as error:
        RowSize.parse(size)
    assert str(error.value) == (
        f"size {size}: is neither max=N, the longest side in pixels, nor min=N, the shortest, of at most 65,536."
        " Pass for example max=512."
    )


sides = st.integers(1, 5000)


@given(sides, sides, st.integers(1, 600), st.sampled_from(["max", "min"]))
def test_a_rule_gives_the_size_of_torchvisions_resize(height: int, width: int, limit: int, rule: str):
    rows, columns = RowSize.from_record(f"{rule}={limit}").row_sides(height, width)
    short, long = sorted((height, width))
    if limit >= (long if rule == "max" else short):
        assert (rows, columns) == (height, width)
        return
    # _compute_resized_output_size of torchvision.transforms.v2.functional: Resize(limit), and Resize(None, max_size=limit)
    expected = [limit, int(limit * long / short)] if rule == "min" else [int(limit * short / long), limit]
    assert sorted((rows, columns)) == [max(1, side) for side in expected]
    assert (rows <= columns) == (height <= width) or rows == columns
