from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer.errors import FormatError, UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.load.batch import as_tensor
from packer.read.loaded_fields import ROW, decode_ragged, is_mask, select_fields, select_rows, stored
from tests.read.conftest import SHAPE, make_pack


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("fields") / "p.h5", rows=3)


def test_texts_are_left_out_unless_asked_for(small: Pack):
    assert [f.name for f in select_fields(small, None)] == ["image", "label"]
    assert [f.name for f in select_fields(small, ["key", "image"])] == ["key", "image"]
    with pytest.raises(UsageError, match=r"^fields=\['key', 'key'\]: is empty or names one twice\."):
        select_fields(small, ["key", "key"])


def test_the_row_number_is_a_field_where_it_is_asked_for(small: Pack):
    chosen = select_fields(small, ["row", "image"])
    assert [f.name for f in chosen] == ["row", "image"]
    assert chosen[0] == ROW
    assert stored(chosen) == chosen[1:]
    with pytest.raises(
        UsageError, match=r"has no field 'rows'; it has image, label, key\. Pass some of these\.$"
    ):
        select_fields(small, ["rows"])


@pytest.mark.parametrize(
    ("shape", "about", "mask"),
    [
        ((8, 6), {"sampling": "nearest"}, True),
        ((8, 6), {"sampling": "nearest", "layout": "HW"}, True),
        ((8, 6, 3), {"sampling": "nearest", "layout": "HWC"}, True),
        ((8, 6, 3), {"sampling": "nearest"}, False),
        ((8, 6), {}, False),
        ((6, 8), {"sampling": "nearest"}, False),
        ((8,), {"sampling": "nearest"}, False),
        (None, {"sampling": "nearest"}, False),
    ],
)
def test_masks_are_of_the_images_size(shape: tuple[int, ...] | None, about: dict[str, Any], mask: bool):
    assert is_mask(Field("x", "|u1", shape, about), (8, 6)) == mask


def test_no_split_is_all_rows(small: Pack):
    assert select_rows(small, None) == ((0, 3),)


@pytest.mark.parametrize(
    ("about", "row", "value"),
    [
        ({}, b"\x00\xff", b"\x00\xff"),
        ({"encoding": "utf-8"}, "caf\u00e9".encode() + b"\xff", "caf\u00e9\udcff"),
        ({"encoding": "utf-8"}, b"", ""),
        (
            {"dtype": "<f4", "row_shape": [4]},
            np.arange(8, dtype="<f4").tobytes(),
            np.arange(8.0).reshape(2, 4),
        ),
        ({"dtype": "<i8", "row_shape": []}, np.arange(3, dtype="<i8").tobytes(), np.arange(3)),
        ({"dtype": "<f4", "row_shape": [2, 3]}, b"", np.empty((0, 2, 3))),
    ],
)
def test_rows_are_what_their_field_says(small: Pack, about: dict[str, Any], row: bytes, value: Any):
    (found,) = decode_ragged(small, Field("x", "|u1", None, about), [row], [7])
    if isinstance(value, np.ndarray):
        assert (found.shape, found.dtype.str) == (value.shape, about["dtype"])
        assert (found == value).all()
        assert found.flags.writeable
    else:
        assert found == value


@pytest.mark.parametrize(
    ("about", "row"),
    [
        ({"dtype": "<f4", "row_shape": [4]}, bytes(15)),
        ({"dtype": "<f4", "row_shape": [4]}, bytes(20)),
        ({"dtype": "|O", "row_shape": [4]}, bytes(32)),
        ({"dtype": "no type", "row_shape": [4]}, bytes(32)),
        ({"row_shape": [4]}, bytes(32)),
        ({"dtype": "<f4", "row_shape": 5}, bytes(32)),
        ({"dtype": "<f4", "row_shape": [0]}, bytes(32)),
        ({"encoding": "utf-16"}, b"abc"),
        ({"encoding": "no such code"}, b"abc"),
        ({"encoding": "hex"}, b"abc"),
        ({"encoding": 5}, b"abc"),
    ],
)
def test_damaged_rows_are_named(small: Pack, about: dict[str, Any], row: bytes):
    good = (
        np.zeros(8, "<f4").tobytes() if about.get("row_shape") == [4] and about.get("dtype") == "<f4" else row
    )
    with pytest.raises(FormatError) as error:
        decode_ragged(small, Field("x", "|u1", None, about), [good, row], [40, 41])
    start = f"{small.path}: row {41 if good != row else 40} of 'x' is damaged ("
    assert str(error.value).startswith(start)
    assert str(error.value).endswith("). Run packer verify, or convert the images again.")


def test_tensors():
    pytest.importorskip("torch")
    image = np.zeros(SHAPE, np.uint8)
    assert tuple(as_tensor(image, Field("image", "|u1", None, {"layout": "HWC"})).shape) == (3, *SHAPE[:2])
    assert tuple(as_tensor(image, Field("x", "|u1", None)).shape) == SHAPE
    assert as_tensor("text", Field("x", "|u1", None)) == "text"
