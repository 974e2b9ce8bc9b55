"""The plan of a table: the user's choices, and the role and type of each column that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from packer.arguments import one_of
from packer.cell_names import SEPARATORS
from packer.errors import UsageError
from packer.format.table_record import POLICIES
from packer.given_values import option_text
from packer.tables.transform.column_types import DEALING, TableColumn, as_category, nearest
from packer.tables.transform.table_transform import DTYPES, TableTransform, kept_fields

LABELS = ("auto", "classes", "number")


@dataclass(frozen=True)
class ColumnChoices:
    """The user's choices; names are column names.

    label: columns of the field `label`; label_as: "classes" (codes from 0), "number", or "auto" (by type);
    features: None for all columns without another role; drop: columns left out; keep: columns stored as
    fields; missing: policy for missing cells of features, one of POLICIES; indicators: add a 0/1 feature for
    each numeric column with missing cells; one_hot: columns with one feature per category, "all" for all
    columns of categories; standardize: scale to mean 0 and deviation 1; log1p: columns mapped by log(1 + x);
    dtype: dtype of the features, one of DTYPES; max_categories: most categories of a column; classes: those
    of the label, in order, () for all that occur; label_separator: of several classes in a cell, a character
    or one of SEPARATORS, None for one class.
    """

    label: tuple[str, ...] = ()
    label_as: str = "auto"
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    missing: str = "nan"
    one_hot: tuple[str, ...] | str = ()
    standardize: bool = False
    dtype: str = "float32"
    log1p: tuple[str, ...] = ()
    indicators: bool = False
    max_categories: int = 100_000
    classes: tuple[str, ...] = ()
    label_separator: str | None = None

    def __post_init__(self) -> None:
        """Convert names (see column_names) and check the choices. Raises UsageError."""
        for option in ("label", "drop", "keep", "one_hot", "log1p"):
            given = getattr(self, option)
            if option != "one_hot" or given != "all":
                object.__setattr__(self, option, column_names(given or ()))
        if self.features is not None:
            object.__setattr__(self, "features", column_names(self.features))
        if self.label_as == "float":  # as for images
            object.__setattr__(self, "label_as", "number")
        one_of("label_as", self.label_as, LABELS)
        one_of("missing", self.missing, POLICIES)
        one_of("dtype", self.dtype, DTYPES)
        if np.dtype(self.dtype).kind in "iu":
            for other, chosen in (
                ("standardize=True", self.standardize),
                ("encode=Encode(log1p=)", bool(self.log1p)),
                (option_text("missing", self.missing), self.missing in ("mean", "median")),
            ):
                if chosen:
                    raise UsageError(
                        f"dtype={self.dtype!r}: holds whole numbers, but {other} gives fractions;"
                        " float32, float16 and float64 are allowed with it. Pass one of them."
                    )
        if self.named_classes and (
            len(self.label) != 1 or self.label_as == "number" or self.label_separator == ""
        ):
            given = "label_separator" if self.label_separator is not None else "classes"
            raise UsageError(
                f"{option_text(given)}: is about the class names in one column, the label. Pass"
                " label='COLUMN', without label_as='number', or leave it out."
            )
        if self.label_as != "auto" and not self.label:
            raise UsageError(
                f"label_as={self.label_as!r}: is given without a label; it is allowed with "
                "label=. Pass label=, or leave it out."
            )

    @property
    def named_classes(self) -> bool:
        """True if the label is read as text, because its classes are given, or several stand in a cell."""
        return bool(self.classes) or self.label_separator is not None

    def lists(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return the options that name columns: option, role that it gives ("" for none), names."""
        one_hot = () if isinstance(self.one_hot, str) else self.one_hot
        return [
            ("label", "label", self.label),
            ("keep", "keep", self.keep),
            ("drop", "drop", self.drop),
            ("features", "feature", self.features or ()),
            ("one_hot", "", one_hot),
            ("Encode.log1p", "", self.log1p),
        ]

    def record(self) -> dict[str, Any]:
        """Return the choices that differ from the defaults, as plain JSON values."""
        defaults, chosen = asdict(ColumnChoices()), asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in chosen.items() if v != defaults[k]}


def column_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return ("a", "b") for "a,b" or ["a", "b"]."""
    return (
        tuple(name.strip() for name in given.split(",")) if isinstance(given, str) else tuple(map(str, given))
    )


def plan_columns(
    columns: Sequence[TableColumn], choices: ColumnChoices, dealing: Sequence[str] = ()
) -> TableTransform:
    """Plan the role of each column, and the type it is read as.

    dealing: columns that define the split of each row. Raises UsageError.
    """
    if choices.named_classes:
        texts: dict[str, Any] = {"type": "category", "digits": None, "categories": choices.classes or None}
        columns = [
            c.but(**texts, notation=c.notation if c.cells.verbatim else "") if c.name in choices.label else c
            for c in columns
        ]
    named = {name for _, role, names in choices.lists() if role for name in names}
    roles = _roles(columns, choices) | {name: DEALING for name in dealing if name not in named}
    read = [_as_read(c, roles[c.name], choices) for c in columns]
    if "feature" not in roles.values():
        raise UsageError(
            "table: no column is left as a feature; at least one is needed. Name fewer with "
            "label=, keep= and drop=."
        )
    by_name = {c.name: c for c in read}
    for option, role, names in choices.lists():
        kind = "category" if option == "one_hot" else "number"
        for name in () if role else names:
            if (by_name[name].role, by_name[name].type) != ("feature", kind):
                raise UsageError(
                    f"{option_text(option, name)}: is a {by_name[name].role} of type {by_name[name].type};"
                    f" features of type {kind} are allowed."
                    f" Leave it out, or pass {option_text('types', {name: kind})}."
                )
    label_kind, label_dtype = _label([by_name[name] for name in choices.label], choices)
    fields = kept_fields([c.name for c in read if c.role == "keep"])
    logs = frozenset(choices.log1p)
    hot = None if choices.one_hot == "all" else frozenset(choices.one_hot)
    separator = choices.label_separator or ""
    plan = TableTransform(
        tuple(
            _as_feature(c, choices, logs, hot) if c.role == "feature" else c.but(field=fields.get(c.name))
            for c in read
        ),
        np.dtype(choices.dtype).str,
        choices.label,
        label_kind,
        label_dtype,
        max_categories=choices.max_categories,
        whole_label=choices.label_as == "auto"
        and [by_name[name].type for name in choices.label] == ["number"],
        separator=SEPARATORS.get(separator, separator),
    )
    return with_dealing(plan, columns, dealing)


def with_dealing(
    plan: TableTransform, columns: Sequence[TableColumn], dealing: Sequence[str]
) -> TableTransform:
    """Return the plan of a given transform, with the columns that define the split of each row.

    columns: of the table. Raises UsageError.
    """
    names = [c.name for c in columns]
    for name in (name for name in dealing if name not in names):
        raise UsageError(
            f"split: no column is named {name!r}; {nearest(name, names)}. Pass a column of the table."
        )
    planned = tuple(
        c.but(type="category" if c.type == "text" or c.digits else c.type, role=DEALING)
        if planned.role in ("drop", DEALING) and c.name in dealing
        else planned
        for planned, c in zip(plan.columns, columns, strict=True)
    )
    return replace(plan, columns=planned)


def with_kept(
    transform: TableTransform, columns: Sequence[TableColumn], names: Sequence[str]
) -> TableTransform:
    """Return a transform with further columns as fields: columns that it drops, or does not have.

    columns: of the table. Raises UsageError.
    """
    given = {c.name: c for c in columns}
    choices = ColumnChoices(keep=tuple(names))
    _roles(columns, choices)  # are there, each once
    roles = {c.name: c.role for c in transform.columns}
    for name in names:
        if (role := roles.get(name)) in ("feature", "label"):
            raise UsageError(
                f"keep={name!r}: is a {role} of the pack given as like; columns that it drops, or"
                " does not have, can be kept. Leave it out."
            )
    kept = {name: _as_read(given[name], "keep", choices) for name in names if roles.get(name) != "keep"}
    planned = [kept.pop(c.name, c) for c in transform.columns]
    planned += kept.values()
    fields = kept_fields([c.name for c in planned if c.role == "keep"])
    return replace(transform, columns=tuple(replace(c, field=fields.get(c.name)) for c in planned))


def _as_read(c: TableColumn, role: str, choices: ColumnChoices) -> TableColumn:
    """Return a column with its role, and the type it is read as in this role. Raises UsageError."""
    kind = c.type
    if role == "feature":
        if kind == "text":
            raise UsageError(
                f"column {c.name!r}: holds texts, which cannot be features; numbers and categories can. "
                f"Pass keep={c.name!r}, drop={c.name!r} or {as_category(c.name)}."
            )
        # Whole numbers stay exact only in features that hold whole numbers.
        kind = "number" if kind == "integer" and np.dtype(choices.dtype).kind not in "iu" else kind
    elif role == "keep":
        kind = "text" if kind == "category" or c.digits else kind
    elif role == "label":
        # A class label is read as text if numbers would lose digits, so that classes stay distinct.
        exact = choices.label_as == "classes" or (choices.label_as == "auto" and kind == "integer")
        exact = exact and len(choices.label) == 1
        kind = "category" if kind == "text" or (c.digits and exact) else kind
    return c.but(type=kind, role=role)


def _as_feature(
    c: TableColumn, choices: ColumnChoices, logs: Collection[str], hot: Collection[str] | None
) -> TableColumn:
    """Return a feature with its treatment. logs, hot: columns of log1p and one_hot, None for all."""
    return c.but(
        missing=choices.missing,
        indicator=choices.indicators and c.kind.numeric,
        log1p=c.name in logs,
        standardize=() if choices.standardize and c.kind.scaled else None,
        one_hot=c.type == "category" and (hot is None or c.name in hot),
    )


def _roles(columns: Sequence[TableColumn], choices: ColumnChoices) -> dict[str, str]:
    given = [c.name for c in columns]
    present = frozenset(given)
    roles: dict[str, str] = {}
    named: dict[str, str] = {}  # role -> option that gave it
    for option, role, names in choices.lists():
        for name in names:
            if name not in present:
                raise UsageError(
                    f"{option_text(option, name)}: no column has that name; {nearest(name, given)}. Pass "
                    "a column of the table."
                )
            if role and name in named:
                raise UsageError(
                    f"column {name!r}: is named by {option_text(named[name])} and by {option_text(option)};"
                    " one role is allowed. Name it once."
                )
            if role:
                roles[name], named[name] = role, option
    rest = "feature" if choices.features is None else "drop"
    return {name: roles.get(name, rest) for name in given}


def _label(columns: Sequence[TableColumn], choices: ColumnChoices) -> tuple[str | None, str | None]:
    """Return the kind of the label and its field's dtype."""
    if not columns:
        return None, None
    texts = [c.name for c in columns if not c.kind.numeric]
    # float32 does not hold values whose type needs several features.
    number = "<f8" if choices.dtype == "float64" or any(c.kind.parts for c in columns) else "<f4"
    number = "<i8" if choices.label_as == "auto" and all(c.kind.whole for c in columns) else number
    if len(columns) > 1:
        if texts or choices.label_as == "classes":
            why = f" ({texts[0]!r} holds texts)" if texts else ""
            raise UsageError(
                f"label={','.join(choices.label)!r}: several columns cannot become classes{why};"
                " a single column can, or several of numbers. Pass one, and keep= the others."
            )
        return "number", number
    (column,) = columns
    if texts and choices.label_as == "number":
        raise UsageError(
            f"label_as='number': the label {column.name!r} holds texts, not numbers; auto "
            "and classes are allowed. Pass one of them."
        )
    if choices.label_as == "classes" and column.kind.classes is None:
        raise UsageError(
            f"label_as='classes': the label {column.name!r} is of type {column.type}; texts,"
            f" booleans and numbers can be classes. Pass {as_category(column.name)}."
        )
    if choices.label_separator is not None:
        return "classes", "|u1"
    if texts or choices.label_as == "classes" or (column.kind.classes and choices.label_as == "auto"):
        return "classes", "<i8"
    return "number", number
