"""packer.read.row_selection: splits, classes and lists of rows against plain Python over the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.codecs.block_codecs import block_codec, codec_record
from packer.errors import FormatError, UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.load.batch import as_tensor
from packer.orders.runs import Subset, one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read import array_store
from packer.read.array_store import PackStore, plain_rows
from packer.read.row_selection import ROW, is_mask, select, select_fields, select_rows, stored
from packer.writing.pack_writer import PackWriter
from tests.read.conftest import ROWS, SHAPE, SPLITS, make_pack

CLASSES = ("ant", "bee", "cat", "dog")
LABELS = np.random.default_rng(0).integers(0, 4, ROWS)
HOT = (np.random.default_rng(1).random((ROWS, 4)) < 0.3).astype(np.uint8)
LABEL = Field("label", "<i8", ())


def make(out: Path, field: Field, values: np.ndarray, classes: Sequence[str] | None = CLASSES) -> Pack:
    with PackWriter(str(out), fields=(field,), rows=ROWS, block_rows=16, format="h5") as writer:
        for block in range(-(-ROWS // 16)):
            writer.write_block(block, {field.name: values[16 * block : 16 * block + 16]})
        writer.finish(rows=ROWS, ragged={}, classes=classes and tuple(classes), splits=SPLITS)
    return open_pack(out)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make(tmp_path_factory.mktemp("single") / "p.h5", LABEL, LABELS)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make(tmp_path_factory.mktemp("numbered") / "p.h5", LABEL, LABELS, None)


@pytest.fixture(scope="module", params=["raw", "gzip"])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    field = Field("label", "|u1", (4,), {"columns": list(CLASSES)})
    if request.param == "gzip":
        field = replace(field, codec=codec_record(block_codec("gzip", (4,), np.dtype("u1"))))
    return make(tmp_path_factory.mktemp("several") / "p.h5", field, HOT, None)


def rows_of(subset: Subset) -> list[int]:
    return subset.place(one_run(0, subset.rows)).rows().tolist()


def in_split(split: str | None) -> list[int]:
    return [r for a, b in SPLITS[split] for r in range(a, b)] if split else list(range(ROWS))


def test_everything_and_splits(single: Pack):
    for split in (None, "train", "val"):
        assert rows_of(select(single, split=split)) == in_split(split)


@pytest.mark.parametrize("names", [["train", "val"], ("val", "train"), ["none", "val"], ["train"]])
def test_several_splits_are_read_in_the_order_of_the_pack(single: Pack, names: Sequence[str]):
    wanted = sorted(row for name in names for row in in_split(name))
    assert rows_of(select(single, split=names)) == wanted
    some = select(single, split=names, subset=[95, 3, 40, 0])
    assert rows_of(some) == [row for row in (95, 3, 40, 0) if row in wanted]


def test_rows_that_splits_share_are_read_once(single: Pack):
    shared = {"a": ((0, 20), (40, 50)), "b": ((10, 30), (30, 35)), "c": ((12, 15),)}
    pack = replace(single, header=replace(single.header, splits=shared))
    assert rows_of(select(pack, split=["c", "b", "a"])) == [*range(35), *range(40, 50)]


@pytest.mark.parametrize(
    "wrong", [[], ["val", "val"], 3, np.array(["train", "val"]), [3], {"val": 1}, {"val"}]
)
def test_what_chooses_no_splits(single: Pack, wrong: Any):
    with pytest.raises(UsageError) as error:
        select(single, split=wrong)
    assert str(error.value) == (
        f"split={shown(wrong)}: is not the name of a split, nor a list of different names; splits of {single.path}:"
        " none, train, val. Pass one of these, or several, such as ['fold0', 'fold1']."
    )
    with pytest.raises(UsageError, match="has no split 'fold0'; its splits: none, train, val"):
        select(single, split=["val", "fold0"])


@pytest.mark.parametrize("split", [None, "train"])
@pytest.mark.parametrize(
    ("classes", "numbers"),
    [
        ("bee", {1}),
        (2, {2}),
        (np.int64(2), {2}),
        (["ant", 3], {0, 3}),
        (("dog", "dog"), {3}),
        ({"cat"}, {2}),
        (np.array([1, 3]), {1, 3}),
    ],
)
def test_classes_by_name_and_number(
    single: Pack, split: str | None, classes: Any, numbers: set[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        array_store, "_PIECE_BYTES", 8 * 10
    )  # many pieces, and rows that meet where two pieces do
    found = select(single, split=split, classes=classes)
    assert rows_of(found) == [row for row in in_split(split) if LABELS[row] in numbers]


def test_numbers_without_names(numbered: Pack):
    assert rows_of(select(numbered, classes=[1, 77, 2**40])) == np.flatnonzero(LABELS == 1).tolist()


@pytest.mark.parametrize("large", [-1, 2**17 - 1, 2**17, 2**62])
def test_labels_of_any_size(tmp_path: Path, large: int):
    labels = np.where(LABELS == 1, large, LABELS)
    pack = make(tmp_path / "p.h5", LABEL, labels, None)
    expected = np.flatnonzero((labels == 2) | (labels == large) & (large >= 0)).tolist()
    assert rows_of(select(pack, classes=[2, max(large, 0)])) == sorted(
        expected + (np.flatnonzero(labels == 0).tolist() if large < 0 else [])
    )


@pytest.mark.parametrize(("classes", "columns"), [("bee", [1]), (["ant", 3], [0, 3])])
def test_rows_that_have_any_of_the_classes(several: Pack, classes: Any, columns: list[int]):
    expected = [row for row in in_split("train") if HOT[row, columns].any()]
    assert rows_of(select(several, split="train", classes=classes)) == expected


def test_every_way_to_store_labels(stored: Pack):
    split = "train" if "train" in stored.header.splits else None
    found = select(stored, split=split, classes=[3 * 7, 3 * 60, 3 * 40])
    assert rows_of(found) == [row for row in in_split(split) if row in (7, 40, 60)]
    assert PackStore(stored, (), found).column("label").tolist() == [3 * row for row in rows_of(found)]


@pytest.mark.parametrize("split", [None, "train"])
@pytest.mark.parametrize(
    "subset",
    [
        slice(10, 60),
        slice(None, None, 7),
        slice(-50, -3),
        slice(80, 20, -1),
        range(90, 10, -3),
        [5, 3, 99, 50, 49],
        np.arange(7, 29, dtype=np.uint8),
        np.array([True, False] * 51 + [True]),
        [True] * 60 + [False] * 43,
    ],
    ids=range(9),
)
def test_forms_of_a_subset(single: Pack, split: str | None, subset: Any):
    wanted = np.arange(ROWS)[subset].tolist() if not isinstance(subset, range) else list(subset)
    expected = [row for row in wanted if row in in_split(split)]
    assert rows_of(select(single, split=split, subset=subset)) == expected
    both = [row for row in expected if LABELS[row] in (1, 2)]
    assert rows_of(select(single, split=split, classes=["bee", "cat"], subset=subset)) == both


@given(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), st.sampled_from([None, "train", "val"]))
def test_a_mask_is_the_list_of_its_rows(single: Pack, mask: list[bool], split: str | None):
    rows = [row for row in in_split(split) if mask[row]]
    if rows:
        by_mask = select(single, split=split, subset=mask)
        assert rows_of(by_mask) == rows
        assert by_mask.fingerprint == select(single, split=split, subset=np.flatnonzero(mask)).fingerprint


def test_tensors(single: Pack):
    torch = pytest.importorskip("torch")
    assert rows_of(select(single, subset=torch.tensor([9, 4]))) == [9, 4]
    assert rows_of(select(single, subset=torch.arange(ROWS) < 5)) == [0, 1, 2, 3, 4]
    assert rows_of(select(single, classes=torch.tensor([1]))) == np.flatnonzero(LABELS == 1).tolist()


def test_a_list_is_not_held(single: Pack):
    rows = np.array([4, 2, 9])
    subset = select(single, subset=rows)
    rows[:] = 0
    assert rows_of(subset) == [4, 2, 9]


def test_a_column_of_a_subset(several: Pack, monkeypatch: pytest.MonkeyPatch):
    rows = [90, 3, 4, 5, 17]
    for piece in (4, 1 << 20):
        monkeypatch.setattr(array_store, "_PIECE_BYTES", piece)
        assert (PackStore(several, (), Subset.from_rows(np.array(rows))).column("label") == HOT[rows]).all()
    assert PackStore(several, (), Subset([])).column("label").shape == (0, 4)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"split": "test"}, "{p}: has no split 'test'; its splits: none, train, val. Pass one of these."),
    *(
        (
            {"classes": given},
            f"classes: {wrong!r} is not in {{p}}; its 4 classes: ant, bee, cat, dog. Pass some of these, by name or number.",
        )
        for given, wrong in (("cart", "cart"), (["ant", "x"], "x"), (4, 4), ([0, -1], -1), (1.0, 1.0))
    ),
    ({"classes": []}, "{p}: none of its 103 rows is left by classes=[]. Pass another selection of rows."),
    ({"split": "none"}, "{p}: none of its 103 rows is left by split='none'. Pass another selection of rows."),
    (
        {"split": "none", "subset": [5]},
        "{p}: none of its 103 rows is left by split='none', subset=.... Pass another selection of rows.",
    ),
    (
        {"split": "val", "subset": [5]},
        "{p}: none of its 103 rows is left by split='val', subset=...; subset= counts through the pack, in which "
        "split 'val' is rows 30 to 49 and 90 to 102. Pass another selection of rows.",
    ),
    (
        {"subset": slice(5, 5)},
        "{p}: none of its 103 rows is left by subset=.... Pass another selection of rows.",
    ),
    ({"subset": []}, "{p}: none of its 103 rows is left by subset=.... Pass another selection of rows."),
    ({"subset": [0, 103]}, "subset: row 103 was given; the pack has rows 0 to 102. Leave it out."),
    ({"subset": [0, -1]}, "subset: row -1 was given; the pack has rows 0 to 102. Leave it out."),
    (
        {"subset": [9, 4, 9]},
        "subset: row 9 is given twice; each row is allowed once. "
        "Leave out the second, or draw rows more often with order=Weighted(...).",
    ),
    (
        {"subset": [True, False]},
        "subset: a mask of shape [2] was given; the pack has 103 rows. "
        "Pass one boolean for each row of the pack, whatever the split.",
    ),
    (
        {"subset": [0.0, 1.0]},
        "subset: float64 of shape [2] was given; row numbers, keys, a slice or a mask are allowed. "
        "Pass for example a list of row numbers.",
    ),
    (
        {"subset": 7},
        "subset: int64 of shape [] was given; row numbers, keys, a slice or a mask are allowed. "
        "Pass for example a list of row numbers.",
    ),
]


@pytest.mark.parametrize(("choice", "sentence"), REFUSED, ids=[str(choice) for choice, _ in REFUSED])
def test_what_cannot_be_chosen_is_said(single: Pack, choice: dict[str, Any], sentence: str):
    with pytest.raises(UsageError) as error:
        select(single, **choice)
    assert str(error.value) == sentence.format(p=single.path)


def test_a_ragged_list_is_refused(single: Pack):
    with pytest.raises(UsageError, match=r"^subset: list is no array of numbers \(.*\)\. Pass a list of row"):
        select(single, subset=[[1], [2, 3]])


@pytest.mark.parametrize(
    ("field", "values", "found"),
    [
        (Field("label", "<f4", ()), LABELS.astype("<f4"), "its labels are f4 of shape []"),
        (Field("label", "<f4", (4,)), HOT.astype("<f4"), "its labels are f4 of shape [4]"),
        (Field("target", "<i8", ()), LABELS, "has no field 'label'"),
    ],
)
def test_classes_need_class_numbers(tmp_path: Path, field: Field, values: np.ndarray, found: str):
    pack = make(tmp_path / "p.h5", field, values, None)
    with pytest.raises(UsageError) as error:
        select(pack, classes=1)
    assert (
        str(error.value) == f"{pack.path}: {found}; classes= needs class numbers there. Pass subset= instead."
    )


def test_names_where_there_are_numbers_only(numbered: Pack):
    with pytest.raises(UsageError) as error:
        select(numbered, classes="bee")
    sentence = f"is not in {numbered.path}; its classes are numbers from 0 on. Pass some of these, by name or number."
    assert str(error.value) == f"classes: 'bee' {sentence}"
    with pytest.raises(UsageError) as error:
        select(numbered, classes=-1)
    assert str(error.value) == f"classes: -1 {sentence}"


def test_many_classes_are_not_all_listed(tmp_path: Path):
    pack = make(tmp_path / "p.h5", LABEL, LABELS, [f"class {k}" for k in range(1000)])
    with pytest.raises(UsageError) as error:
        select(pack, classes="?")
    listed = ", ".join(f"class {k}" for k in range(12))
    assert (
        str(error.value)
        == f"classes: '?' is not in {pack.path}; its 1,000 classes: {listed}, .... Pass some of these, by name or number."
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("fields") / "p.h5", rows=3)


def test_texts_are_left_out_unless_asked_for(small: Pack):
    assert [f.name for f in select_fields(small, None)] == ["image", "label"]
    assert [f.name for f in select_fields(small, ["key", "image"])] == ["key", "image"]
    with pytest.raises(UsageError, match=r"^fields=\['key', 'key'\]: is empty or repeats a name\."):
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
def test_rows_are_what_their_field_says(about: dict[str, Any], row: bytes, value: Any):
    (found,) = plain_rows("p", Field("x", "|u1", None, about), [row], [7])
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
        list(plain_rows(small.path, Field("x", "|u1", None, about), [good, row], [40, 41]))
    start = f"{small.path}: row {41 if good != row else 40} of 'x' is damaged ("
    assert str(error.value).startswith(start)
    assert str(error.value).endswith("). Run packer verify, or convert the images again.")


def test_decoded_arrays_become_tensors():
    pytest.importorskip("torch")
    image = np.zeros(SHAPE, np.uint8)
    assert tuple(as_tensor(image, Field("image", "|u1", None, {"layout": "HWC"})).shape) == (3, *SHAPE[:2])
    assert tuple(as_tensor(image, Field("x", "|u1", None)).shape) == SHAPE
    assert as_tensor("text", Field("x", "|u1", None)) == "text"
