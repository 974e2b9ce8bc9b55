"""Declared forms, and values as rows of their dtype: what is kept, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.format.header import DTYPES
from packer.samples.field_plan import Declared, form_of, parse_fields, parse_form, plan_field, plan_rows
from packer.samples.values import ValueRefusedError, fit

NUMBERS = sorted(np.dtype(dtype).name for dtype in DTYPES if dtype != "|b1")


def declared(name: str, form: str) -> Declared:
    return Declared({name: parse_form(name, form)})


@pytest.mark.parametrize(
    ("text", "dtype", "shape", "ragged"),
    [
        ("uint8[32,32,3]", "uint8", (32, 32, 3), False),
        ("float32", "float32", None, False),
        ("int64[]", "int64", (), False),
        ("int32[*]", "int32", (), True),
        ("float16[*, 512]", "float16", (512,), True),
    ],
)
def test_forms(text: str, dtype: str, shape: Any, ragged: bool) -> None:
    form = parse_form("x", text)
    assert form.dtype is not None
    assert (form.dtype.name, form.shape, form.ragged) == (dtype, shape, ragged)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uint9",
        "uint8[",
        "uint8[0]",
        "uint8[3,*]",
        "object",
        "complex64",
        "str",
        "float32[-1]",
        "datetime64",
    ],
)
def test_what_is_no_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"is declared as .*; a dtype with or without a shape"):
        parse_form("x", text)


@pytest.mark.parametrize("fields", [[], {}, ["a", "a"], "", ["1a"], ["a b"], ["class"], ["packer"]])
def test_what_names_no_fields(fields: Any) -> None:
    with pytest.raises(UsageError):
        parse_fields(fields)


@given(
    st.sampled_from(NUMBERS),
    st.sampled_from(NUMBERS),
    st.lists(st.integers(-(2**64), 2**64) | st.floats(width=64), min_size=1, max_size=4),
)
def test_values_are_kept_or_refused(given_as: str, wanted: str, values: list[Any]) -> None:
    with np.errstate(all="ignore"):
        try:
            array = np.array(values).astype(given_as)
        except (OverflowError, TypeError):
            return
    try:
        found = fit(array, np.dtype(wanted))
    except ValueRefusedError:
        return
    assert found.dtype == wanted
    for before, after in zip(array.tolist(), found.tolist(), strict=True):
        if np.dtype(given_as).kind == np.dtype(wanted).kind == "f":
            assert np.isfinite(after) == np.isfinite(before)
        else:
            assert before == after  # numbers of Python, which compare exactly


@pytest.mark.parametrize(
    "values", [[1, 2], [1.5, 2.0], [True], ["a"], [b"a"], [[1, 2]], [[1], [1, 2]], [np.zeros((2, 3))]]
)
def test_a_form_declares_what_values_show(values: list[Any]) -> None:
    plan = plan_field("x", values, Declared())
    again = plan_field("x", values, declared("x", form_of(plan.field)))
    assert again.field == plan.field
    for value in values:
        np.testing.assert_array_equal(plan.row(value), again.row(value))


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((32, 30, 3), (32, 30, 3)),
        ((3, 32, 30), (32, 30, 3)),
        ((32, 30), (32, 30, 1)),
        ((3, 32, 3), (3, 32, 3)),
        ((5, 32, 30), (5, 32, 30)),
    ],
)
def test_the_axes_of_images(shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    plan = plan_rows("image", np.dtype("u1"), shape)
    assert plan.field.shape == stored
    assert (plan.field.about.get("layout") == "HWC") == (stored[-1] in (1, 3, 4))
    assert plan_rows("other", np.dtype("u1"), shape).field.shape == shape
    assert plan_rows("image", np.dtype("f4"), shape).field.shape == shape


def test_images_declared_as_they_are_stored_or_as_they_come() -> None:
    pixels = np.arange(3 * 8 * 6, dtype=np.uint8).reshape(3, 8, 6)
    stored = plan_field("image", [pixels], declared("image", "uint8[8,6,3]"))
    np.testing.assert_array_equal(stored.row(pixels), pixels.transpose(1, 2, 0))
    given_so = plan_field("image", [pixels], declared("image", "uint8[3,8,6]"))
    np.testing.assert_array_equal(given_so.row(pixels), pixels)


def test_an_empty_list_is_a_row_of_nothing() -> None:
    plan = plan_field("boxes", [np.ones((2, 4), np.float32)], declared("boxes", "float32[*,4]"))
    assert plan.row([]) == plan.row(np.zeros((0, 4))) == b""
    with pytest.raises(ValueRefusedError, match="has the shape \\[4\\]"):
        plan.row([1, 2, 3, 4])
