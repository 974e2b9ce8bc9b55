from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from packer.cli.option_words import in_options
from packer.errors import UsageError
from packer.tables.transform.column_plan import ColumnChoices, plan_columns
from packer.tables.transform.column_types import TEXT, TYPES, TableColumn

COLUMNS = [TableColumn(kind, kind) for kind in TYPES]


def test_roles_and_types_that_are_read():
    plan = plan_columns(COLUMNS, ColumnChoices(label=("integer",), keep=("text", "category"), drop=("date",)))
    assert [c.type for c in plan.columns] == [
        "number",
        "integer",
        "boolean",
        "date",
        "time",
        "timestamp",
        "text",
        "text",
    ]
    roles = [c.role for c in plan.columns]
    assert roles == ["feature", "label", "feature", "drop", "feature", "feature", "keep", "keep"]
    assert [w.index for w in plan.layout.members] == [0, 1, 2, 4, 5, 6, 7]
    assert plan.layout.dtype == np.dtype(
        [
            ("c0", "<f4"),
            ("c1", "<i8"),
            ("c2", "<f4"),
            ("c4", "<f8"),
            ("c5", "<f8"),
            ("c6", TEXT),
            ("c7", TEXT),
        ]
    )
    assert [w.name for w in plan.numeric] == ["c0", "c1", "c2", "c4", "c5"]


@pytest.mark.parametrize(
    ("kind", "digits", "choices", "read", "exact"),
    [
        ("integer", "007", {}, "number", False),
        ("integer", "007", {"keep": ("a",)}, "text", False),
        ("number", "9007199254740993", {"keep": ("a",)}, "text", False),
        ("integer", "", {"keep": ("a",)}, "integer", True),
        ("integer", None, {"keep": ("a",)}, "integer", False),  # a type that was given
        ("number", None, {"keep": ("a",)}, "number", True),
        ("integer", "007", {"label": ("a",)}, "category", False),
        ("integer", "007", {"label": ("a",), "label_as": "number"}, "integer", False),
        ("integer", "007", {"label": ("a", "b")}, "integer", False),
        ("integer", "", {"label": ("a",)}, "integer", True),
        ("number", "9007199254740993", {"label": ("a",)}, "number", False),
        ("number", "9007199254740993", {"label": ("a",), "label_as": "classes"}, "category", False),
        ("number", "", {"label": ("a",), "label_as": "classes"}, "number", True),
        ("number", "", {"label": ("a",), "dtype": "float64"}, "number", False),
    ],
)
def test_digits_that_numbers_lose_are_kept_as_texts_or_bad_cells(kind, digits, choices, read, exact):
    columns = [TableColumn("a", kind, digits=digits), TableColumn("b", "integer"), TableColumn("c", "number")]
    member = plan_columns(columns, ColumnChoices(**choices)).layout.members[0]
    assert (member.column.type, member.exact) == (read, exact)


def test_only_named_features_are_read():
    plan = plan_columns(COLUMNS, ColumnChoices(features=("number", "category"), label=("boolean",)))
    assert [(w.column.name, w.column.type) for w in plan.layout.members] == [
        ("number", "number"), ("boolean", "boolean"), ("category", "category"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choices", "dtype"),
    [
        ({}, "<f4"),
        ({"missing": "mean"}, "<f4"),
        ({"standardize": True}, "<f8"),
        ({"log1p": ("a",)}, "<f8"),
        ({"log1p": ("b",)}, "<f4"),
        ({"dtype": "float64"}, "<f8"),
        ({"dtype": "float16"}, "<f8"),
        ({"dtype": "int8"}, "<f8"),
        ({"label": ("a",)}, "<f8"),  # whole numbers are stored as such
        ({"label": ("a",), "label_as": "number"}, "<f4"),
        ({"label": ("a",), "label_as": "classes"}, "<f8"),
        ({"keep": ("a",)}, "<f8"),
    ],
)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_numbers_are_read_as_float32_where_nothing_is_computed(choices, dtype, kind):
    plan = plan_columns([TableColumn("a", kind), TableColumn("b", "number")], ColumnChoices(**choices))
    if kind == "integer" and ("label" in choices or "keep" in choices or choices.get("dtype") == "int8"):
        dtype = "<i8"
    assert plan.layout.dtype["c0"] == dtype


@pytest.mark.parametrize(
    ("types", "choices", "kind", "dtype"),
    [
        ("category", {}, "classes", "<i8"), ("text", {}, "classes", "<i8"), ("boolean", {}, "classes", "<i8"),
        ("integer", {}, "number", "<i8"), ("number", {}, "number", "<f4"), ("number", {"dtype": "float64"}, "number", "<f8"),
        ("time", {}, "number", "<f4"), ("timestamp", {}, "number", "<f8"), ("number", {"label_as": "classes"}, "classes", "<i8"),
        ("boolean", {"label_as": "number"}, "number", "<f4"), ("integer boolean", {}, "number", "<i8"),
        ("integer number", {}, "number", "<f4"), ("integer boolean", {"label_as": "number"}, "number", "<f4"),
    ],
)  # fmt: skip
def test_labels(types, choices, kind, dtype):
    plan = plan_columns(
        COLUMNS,
        ColumnChoices(label=tuple(types.split()), drop=() if types == "text" else ("text",), **choices),
    )
    assert (plan.label_kind, plan.label_dtype) == (kind, dtype)


def test_choices_as_a_record():
    record = ColumnChoices(label=("a",), one_hot="all", features=("b", "c")).record()
    assert json.loads(json.dumps(record)) == record
    assert (record["label"], record["one_hot"], record["features"]) == (["a"], "all", ["b", "c"])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"label_as": "class"},
            "--label-as class: is not one of 'auto', 'classes', 'number'. Pass one of them.",
        ),
        (
            {"missing": "mode"},
            "--missing mode: is not one of 'nan', 'error', 'mean', 'median', 'zero'. Pass one of them.",
        ),
        (
            {"dtype": "uint16"},
            "--dtype uint16: is not one of 'float32', 'float16', 'float64', 'int8', 'int16', 'int32', 'int64', 'uint8'. Pass one of them.",
        ),
        (
            {"dtype": "int8", "standardize": True},
            "--dtype int8: holds whole numbers, but --standardize gives fractions; float32, float16 and float64 are allowed with it."
            " Pass one of them.",
        ),
        (
            {"dtype": "int8", "missing": "median"},
            "--dtype int8: holds whole numbers, but --missing median gives fractions; float32, float16 and float64 are allowed with"
            " it. Pass one of them.",
        ),
        (
            {"dtype": "int8", "log1p": ("number",)},
            "--dtype int8: holds whole numbers, but --log1p gives fractions; float32, float16 and float64 are allowed with it."
            " Pass one of them.",
        ),
        (
            {"label": ("numer",)},
            "--label numer: no column has that name; the nearest is 'number'. Pass a column of the table.",
        ),
        (
            {"drop": ("zzz",)},
            "--drop zzz: no column has that name; there are 'number', 'integer', 'boolean', 'date', 'time', 'timestamp', 'category'"
            " and 'text'. Pass a column of the table.",
        ),
        (
            {"label": ("date",), "keep": ("date",)},
            "column 'date': is named by --label and by --keep; one role is allowed. Name it once.",
        ),
        (
            {"features": ("date",), "drop": ("date",)},
            "column 'date': is named by --drop and by --features; one role is allowed. Name it once.",
        ),
        (
            {},
            "column 'text': holds texts, which cannot be features; numbers and categories can. Pass --keep text, --drop text or --type"
            " text=category.",
        ),
        (
            {"label": ("number", "number")},
            "column 'number': is named by --label and by --label; one role is allowed. Name it once.",
        ),
        (
            {"label_as": "classes"},
            "--label-as classes: is given without a label; it is allowed with --label. Pass --label, or leave it out.",
        ),
        (
            {"features": ()},
            "table: no column is left as a feature; at least one is needed. Name fewer with --label, --keep and --drop.",
        ),
        (
            {"drop": ("text",), "log1p": ("category",)},
            "--log1p category: is a feature of type category; features of type number are allowed."
            " Leave it out, or pass --type category=number.",
        ),
        (
            {"drop": ("text",), "label": ("number",), "log1p": ("number",)},
            "--log1p number: is a label of type number; features of type number are allowed. Leave it out, or pass --type number=number.",
        ),
        (
            {"drop": ("text",), "one_hot": ("number",)},
            "--one-hot number: is a feature of type number; features of type category are allowed."
            " Leave it out, or pass --type number=category.",
        ),
        (
            {"drop": ("text",), "label": ("category", "number")},
            "--label category,number: several columns cannot become classes ('category' holds texts); a single column"
            " can, or several of numbers. Pass one, and --keep the others.",
        ),
        (
            {"drop": ("text",), "label": ("category",), "label_as": "number"},
            "--label-as number: the label 'category' holds texts, not numbers; auto and classes are allowed. Pass one of them.",
        ),
        (
            {"drop": ("text",), "label": ("date",), "label_as": "classes"},
            "--label-as classes: the label 'date' is of type date; texts, booleans and numbers can be classes. Pass --type"
            " date=category.",
        ),
    ],
)
def test_choices_that_cannot_be_met(choices: dict[str, Any], message: str):
    with pytest.raises(UsageError) as error:
        plan_columns(COLUMNS, ColumnChoices(**choices))
    assert in_options(str(error.value)) == message


@pytest.mark.parametrize("option", ["label", "keep", "drop", "features"])
def test_no_list_names_a_column_twice(option):
    with pytest.raises(
        UsageError, match=rf"^column 'number': is named by {option}= and by {option}=; one role"
    ):
        plan_columns(COLUMNS, ColumnChoices(**{option: ("number", "category", "number")}))
