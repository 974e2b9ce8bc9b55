"""The order of frames by their names: what is sorted, what is told, and the orders of texts in a column."""

from __future__ import annotations

import random

import pytest

from packer.errors import SourceError
from packer.inputs.frame_names import sort_frames
from packer.natural_order import rank_texts

DATES = [
    f"{year}-{month:02}-{day:02}" for year in (2023, 2024) for month in (1, 2) for day in (9, 31 - 4 * month)
]


@pytest.mark.parametrize(
    "names",
    [
        [f"frame{k}" for k in range(8, 13)],
        [f"{k:03}" for k in range(8, 13)],
        [f"img ({k})" for k in range(8, 13)],
        [f"IMG_{k}" for k in range(98, 103)],
        [f"part{part}_{k}" for part, k in [(1, 8), (1, 9), (2, 10), (2, 11)]],
        DATES,
        [f"cam_{date.replace('-', '')}_{hour:02}" for date in DATES for hour in (0, 12)],
        [f"{date.replace('-', '.')}_{minute}" for date in DATES for minute in (8, 9, 10)],
        ["1305031102.175304", "1305031102.211214", "1305031103.011214"],
        ["123456789012345678901", "123456789012345678902"],
        ["alone"],
    ],
    ids=lambda names: names[0],
)
def test_frames_are_sorted_by_their_numbers(names: list[str]) -> None:
    keys = [f"take1/{name}.png" for name in names]
    mixed = random.Random(0).sample(keys, len(keys))
    order, gaps = sort_frames("clips/take1", mixed)
    assert [mixed[place] for place in order] == keys
    assert not gaps


def test_listed_frames_keep_their_order_unless_numbers_contradict_it() -> None:
    for names in (
        ["08", "09", "0a"],
        ["left_1", "right_1", "left_2"],
        ["31-01-2024", "01-02-2024"],
        ["9", "10"],
        ["f_-3", "f_-2"],
    ):
        assert sort_frames("a", [f"a/{name}.png" for name in names], listed=True)[0] == [*range(len(names))]
    with pytest.raises(
        SourceError, match=r"1 time, such as after a/10.png in a/9.png, .* List them by their numbers"
    ):
        sort_frames("a", ["a/10.png", "a/9.png"], listed=True)


def test_gaps_in_the_numbers_are_counted() -> None:
    def gaps(numbers: list[int]) -> int:
        return sort_frames("a", [f"a/{number}.png" for number in numbers])[1]

    assert gaps([*range(20), *range(22, 40)]) == 1
    assert gaps([*range(0, 100, 5)]) == 0
    assert gaps([1, 5, 7, 30, 31, 99]) == 0  # no count of frames


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["f_-3", "f_-2"], "the minus in a/f_-3 may be a sign or a dash"),
        (["-3", "-2"], "the minus in a/-3 may be a sign or a dash"),
        (
            ["left_1", "left_2", "right_1"],
            "its frames are named in 2 ways (left_# 2, right_# 1), as those of several",
        ),
        (["1", "2", "1 (2)"], "its frames are named in 2 ways (# 2, # (#) 1)"),
        (["1", "2", "1 - Copy"], "its frames are named in 2 ways (# 2, # - copy 1)"),
        (["08", "09", "0a", "0b"], "its frames are named in 3 ways (# 2, #a 1, #b 1)"),
        (["1", "2", "poster"], "its frames are named in 2 ways (# 2, poster 1)"),
        (["01-02-2024", "02-01-2024"], "names such as a/01-02-2024.png hold dates with the year last"),
        (
            ["cam1_1", "cam1_2", "cam2_1", "cam2_2"],
            "its numbers begin again, or repeat, 1 time, such as after a/cam1_2.png in a/cam2_1.png, as those of",
        ),
        (["1_cam1", "1_cam2", "2_cam1", "2_cam2"], "its numbers begin again, or repeat, 1 time"),
        (["cam1_20240101", "cam1_20240102", "cam2_20240101"], "its numbers begin again, or repeat, 1 time"),
        (["1", "01", "2"], "its numbers begin again, or repeat, 1 time, such as after a/1.png in a/01.png"),
        (["0.5", "0.25"], "its numbers begin again, or repeat, 1 time"),
    ],
)
def test_names_that_give_no_order_are_told(names: list[str], found: str) -> None:
    with pytest.raises(SourceError) as error:
        sort_frames("clips/a", [f"a/{name}.png" for name in names])
    assert str(error.value).startswith(f"clips/a: {found}")


@pytest.mark.parametrize(
    "texts",
    [
        ["2", "10", "1e2"],
        ["007", "8", "9.5"],
        ["step_2", "step_10"],
        ["2023-12-31", "2024-01-01"],
        ["2024-01-01 9:59", "2024-01-01 10:00"],
        ["a12345678901234567890123", "a12345678901234567890124"],
    ],
)
def test_texts_of_a_column_have_an_order(texts: list[str]) -> None:
    ranks = rank_texts(texts)
    assert ranks is not None
    assert sorted(ranks) == ranks.tolist()


@pytest.mark.parametrize(
    "texts",
    [
        ["31/12/2023", "01/01/2024"],
        ["a", "b"],
        ["1", "nan"],
        ["1a", "2b"],
        ["take 1, 2", "take 1, 3"],
        ["1", ""],
        ["1_2", "1_10", "2_1"],
        ["v1.9", "v1.10"],
        ["t_-3s", "t_-2s"],
        ["2024-01-01 10:00:00.5", "2024-01-01 10:00:00.25"],
    ],
)
def test_texts_of_a_column_may_have_none(texts: list[str]) -> None:
    assert rank_texts(texts) is None


def test_equal_numbers_of_a_column_are_equal() -> None:
    ranks = rank_texts(["step01", "Step1", "step2"])
    assert ranks is not None
    assert ranks.tolist() == [0, 0, 1]
