"""packer.arguments: whole numbers and sizes, as all functions take them."""

from __future__ import annotations

import numpy as np
import pytest

from packer.arguments import as_bytes, as_whole, one_of, whole
from packer.errors import UsageError


def test_whole_numbers_are_ints_of_any_type() -> None:
    assert [as_whole(value) for value in (3, np.int64(3), True, 3.0, "3", None)] == [
        3,
        3,
        None,
        None,
        None,
        None,
    ]
    assert [as_whole(value, 1, 3) for value in (0, 1, 3, 4)] == [None, 1, 3, None]
    assert [as_whole(np.array(value)) for value in (3, [3, 4], 2.5)] == [3, None, None]


def test_others_are_refused_in_a_sentence() -> None:
    for bounds, allowed in (((), ""), ((1,), " of at least 1"), ((1, 3), " from 1 to 3")):
        with pytest.raises(UsageError) as error:
            whole("rows", 0.5, *bounds)
        assert str(error.value) == f"rows=0.5: is not a whole number{allowed}."
    with pytest.raises(UsageError, match=r"^fit='x': is not one of 'crop', 'pad'\. Pass one of them\.$"):
        one_of("fit", "x", ("crop", "pad"))


def test_text_may_need_a_unit() -> None:
    sizes = {
        "256MB": 256_000_000,
        "64 MiB": 1 << 26,
        "1.5GB": 1_500_000_000,
        "100kB": 100_000,
        "8B": 8,
        "8": None,
        "": None,
    }
    assert {text: as_bytes(text, unit=True) for text in sizes} == sizes
