"""The size of rows: one for all, or a rule by which each picture gets its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.pixels.row_size import RowSize, note_on_size, parse_size


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


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        ("big", "size big: is not a number or HxW. Pass for example 256 or 128x256."),
        ((32.0, 32.0), "size (32.0, 32.0): is not a number or HxW. Pass for example 256 or 128x256."),
        ("1x2x3", "size 1x2x3: is not a number or HxW. Pass for example 256 or 128x256."),
        (
            "max=512",
            "size max=512: whole pictures are made of image files and of packs of them. Pass a number or HxW, for example 256.",
        ),
        (0, "size 0: 0 is too small; 1 is the least. Pass for example 256."),
        (-4, "size -4: -4 is too small; 1 is the least. Pass for example 256."),
    ],
)
def test_each_wrong_size_is_one_sentence(size: object, sentence: str):
    with pytest.raises(UsageError) as error:
        parse_size(size)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("size", "note"),
    [
        (
            224,
            "224: no power of two; the nearest are 128 and 256. Training usually takes size=256 and augment='RandomCrop(224)'.",
        ),
        (
            "256x100",
            "100: no power of two; the nearest are 64 and 128. Training usually takes size='256x128' and "
            "augment='RandomCrop((256, 100))'.",
        ),
        (
            "250x100",
            "250 and 100: no powers of two; the nearest are 128 and 256, and 64 and 128. Training usually takes "
            "size='256x128' and augment='RandomCrop((250, 100))'.",
        ),
        ("128x256", None),
        (1, None),
    ],
)
def test_other_sizes_than_powers_of_two_are_noted(size: object, note: str | None):
    assert note_on_size(*parse_size(size)) == ([] if note is None else [note])


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
    assert RowSize.of_option(option) == found
    assert found.ragged is (words is not None)
    assert words is None or found.words == words


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        ("max=", "is neither max=N, the longest side in pixels, nor min=N, the shortest. Pass for example max=512."),
        ("longest=5", "is neither max=N, the longest side in pixels, nor min=N, the shortest. Pass for example max=512."),
        ("min=-1", "is neither max=N, the longest side in pixels, nor min=N, the shortest. Pass for example max=512."),
        ("min=0", "0 is not within 1 to 65536. Pass for example min=512."),
        ("max=99999999999999999999", "99999999999999999999 is not within 1 to 65536. Pass for example max=512."),
    ],
)  # fmt: skip
def test_each_wrong_rule_is_one_sentence(size: str, sentence: str):
    with pytest.raises(UsageError) as error:
        RowSize.parse(size)
    assert str(error.value) == f"size {size}: {sentence}"


sides = st.integers(1, 5000)


@given(sides, sides, st.integers(1, 600), st.sampled_from(["max", "min"]))
def test_a_rule_gives_the_size_of_torchvisions_resize(height: int, width: int, limit: int, rule: str):
    rows, columns = RowSize.of_option(f"{rule}={limit}").of(height, width)
    short, long = sorted((height, width))
    if limit >= (long if rule == "max" else short):
        assert (rows, columns) == (height, width)
        return
    # _compute_resized_output_size of torchvision.transforms.v2.functional: Resize(limit), and Resize(None, max_size=limit)
    expected = [limit, int(limit * long / short)] if rule == "min" else [int(limit * short / long), limit]
    assert sorted((rows, columns)) == [max(1, side) for side in expected]
    assert (rows <= columns) == (height <= width) or rows == columns
