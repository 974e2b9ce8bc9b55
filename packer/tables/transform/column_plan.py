"""What becomes of each column: a feature, the label, a field of its own, or nothing; and so, what must be read, and how."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.tables.transform.cell_checks import CellRule, bad_rows, rule_of
from packer.tables.transform.columns import TableColumn
from packer.tables.transform.records import Bad, Layout, Wanted

DTYPES = (
    "float32",
    "float16",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
)
LABELS = ("auto", "classes", "number")
MISSING = ("nan", "error", "mean", "median", "zero")
TEXTS = ("category", "text")
MOST_BAD = 100_000
SCALED = ("number", "integer", "date", "time", "timestamp")  # what can be standardized


@dataclass(frozen=True)
class ColumnChoices:
    """What a user asks for; the names are those of columns.

    label: becomes the field `label`; label_as: "classes": codes from 0, "number", or what its type suggests; features: None: all
    that have no other role; drop: left out; keep: become fields of their own; missing: what missing cells of features become, one
    of MISSING; indicators: a feature 0/1 beside each numeric one that has missing cells; one_hot: categories that become a
    feature each, "all" for those of all columns; standardize: mean 0 and deviation 1; log1p: whose log(1 + x) is taken; dtype: of
    the features, one of DTYPES; max_categories: of a column.
    """

    label: tuple[str, ...] = ()
    label_as: str = "auto"
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    missing: str = "nan"
    indicators: bool = False
    one_hot: tuple[str, ...] | str = ()
    standardize: bool = False
    log1p: tuple[str, ...] = ()
    dtype: str = "float32"
    max_categories: int = 100_000

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("--label-as", self.label_as, LABELS),
            ("--missing", self.missing, MISSING),
            ("--dtype", self.dtype, DTYPES),
        ):
            if value not in allowed:
                raise UsageError(f"{option} {value}: is not known; {_listed(allowed)} are. Pass one of them.")
        if np.dtype(self.dtype).kind in "iu":
            for option, chosen in (
                ("--standardize", self.standardize),
                ("--log1p", bool(self.log1p)),
                (f"--missing {self.missing}", self.missing in ("mean", "median")),
            ):
                if chosen:
                    raise UsageError(
                        f"--dtype {self.dtype}: holds whole numbers, but {option} gives others; float32, float16"
                        " and float64 are allowed with it. Pass one of them."
                    )
        if isinstance(self.one_hot, str) and self.one_hot != "all":
            raise UsageError(
                f"--one-hot {self.one_hot!r}: is one text; a list of columns or 'all' is allowed. Pass a list."
            )
        for option, names in self.lists():
            twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
            if twice is not None:
                raise UsageError(
                    f"{option} {','.join(names)}: names {twice!r} twice; once is allowed. Leave one of them out."
                )
        if self.label_as != "auto" and not self.label:
            raise UsageError(
                f"--label-as {self.label_as}: tells what a label becomes, but there is none; it goes with --label."
                " Pass --label, or leave it out."
            )
        if self.max_categories < 1:
            raise UsageError(f"--max-categories {self.max_categories}: is below 1. Pass a number from 1.")

    def lists(self) -> list[tuple[str, tuple[str, ...]]]:
        """The options that name columns, and the names."""
        one_hot = () if isinstance(self.one_hot, str) else self.one_hot
        return [
            ("--label", self.label),
            ("--keep", self.keep),
            ("--drop", self.drop),
            ("--features", self.features or ()),
            ("--one-hot", one_hot),
            ("--log1p", self.log1p),
        ]

    def record(self) -> dict[str, Any]:
        """What differs from the rule, as plain JSON values."""
        rule, own = asdict(ColumnChoices()), asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in own.items() if v != rule[k]}


@dataclass(frozen=True)
class LabelField:
    """How label columns become a field. kind: "classes" or "number"; dtype: of the field."""

    kind: str
    dtype: str


@dataclass(frozen=True)
class ColumnPlan:
    """The columns with the types they are read as, and their roles: "feature", "label", "keep" or "drop".

    classes: the numbers that a label may be, where they are settled beforehand; else None.
    """

    columns: tuple[TableColumn, ...]
    roles: tuple[str, ...]
    choices: ColumnChoices
    label: LabelField | None
    classes: tuple[float, ...] | None = None

    @cached_property
    def layout(self) -> Layout:
        """What must be read."""
        pairs = enumerate(zip(self.columns, self.roles, strict=True))
        return Layout(tuple(Wanted(i, c, self._single(c, role)) for i, (c, role) in pairs if role != "drop"))

    @property
    def numeric(self) -> tuple[Wanted, ...]:
        """The columns that are read and hold numbers, in order: those of a sample."""
        return tuple(w for w in self.layout.wanted if w.column.type not in TEXTS)

    @cached_property
    def rules(self) -> tuple[CellRule, ...]:
        """What cells must be, of the columns for which that can fail."""
        choices = self.choices
        label = np.dtype(self.label.dtype if self.label and self.label.kind == "number" else "O")
        rules = (
            rule_of(
                w,
                role := self.roles[w.index],
                choices.missing,
                role == "feature" and w.column.name in choices.log1p,
                role == "feature" and choices.standardize and w.column.type in SCALED,
                label if role == "label" else np.dtype(choices.dtype),
                self.classes if role == "label" else None,
            )
            for w in self.layout.wanted
        )
        return tuple(rule for rule in rules if not rule.vain)

    def bad_rows(self, records: NDArray[Any]) -> tuple[NDArray[np.bool_] | None, list[Bad]]:
        """Which rows of the layout cannot be mapped, and why: a missing label, and the like; see checks.bad_rows. At most MOST_BAD."""
        return bad_rows(records, self.rules, MOST_BAD)

    def sample(self, records: NDArray[Any]) -> NDArray[np.float64]:
        """The numbers of some records, as statistics take them: float64 [m, len(numeric)], NaN for missing."""
        return (
            np.stack([as_float(records[w.name]) for w in self.numeric], axis=1, dtype=np.float64)
            if (self.numeric)
            else np.empty((len(records), 0))
        )

    def _single(self, column: TableColumn, role: str) -> bool:
        if column.type != "number" or role == "keep":
            return False
        if role == "label":
            return self.label is not None and self.label.kind == "number" and self.label.dtype == "<f4"
        choices = self.choices
        return choices.dtype == "float32" and not choices.standardize and column.name not in choices.log1p


def as_float(x: NDArray[Any]) -> NDArray[np.float64]:
    """Raw numbers of any type as float64, NaN for missing."""
    if x.dtype.kind != "i":
        return x.astype(np.float64)
    return np.where(x == np.iinfo(np.int64).min, np.nan, x.astype(np.float64))


def plan_columns(columns: Sequence[TableColumn], choices: ColumnChoices) -> ColumnPlan:
    """Give every column its role and the type it is read as. Raises UsageError."""
    types = {c.name: c.type for c in columns}
    roles = _roles(types, choices)
    read: dict[str, str] = {}
    for name, kind in types.items():
        role = roles[name]
        read[name] = kind
        if role == "feature":
            if kind == "text":
                raise UsageError(
                    f"column {name!r}: holds texts, which are no features; numbers and categories are. Pass --keep"
                    f" {name}, --drop {name} or --type {name}=category."
                )
            # Whole numbers stay exact where features hold such numbers.
            whole = np.dtype(choices.dtype).kind in "iu"
            read[name] = "number" if kind == "integer" and not whole else kind
        elif role == "keep":
            read[name] = "text" if kind == "category" else kind
        elif role == "label":
            read[name] = "category" if kind == "text" else kind
    if "feature" not in roles.values():
        raise UsageError(
            "table: no column is left as a feature; one at least is needed. Name fewer with --label, --keep and --drop."
        )
    for name in () if choices.one_hot == "all" else choices.one_hot:
        if roles[name] != "feature" or read[name] != "category":
            raise UsageError(
                f"--one-hot {name}: is {_described(read[name], roles[name])}; features that hold categories are allowed."
                f" Leave it out, or pass --type {name}=category."
            )
    for name in choices.log1p:
        if roles[name] != "feature" or read[name] != "number":
            raise UsageError(
                f"--log1p {name}: is {_described(read[name], roles[name])}; features that hold numbers are allowed."
                " Leave it out."
            )
    label = _label([TableColumn(name, read[name]) for name in choices.label], choices)
    read_columns = tuple(TableColumn(c.name, read[c.name], c.written) for c in columns)
    return ColumnPlan(read_columns, tuple(roles[c.name] for c in columns), choices, label)


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that is not among the names: which of them may be meant."""
    names = list(names)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    if close:
        return f"the nearest is {close[0]!r}"
    return f"there are {_listed([repr(n) for n in names[:8]])}" + (" and others" if len(names) > 8 else "")


def _roles(types: dict[str, str], choices: ColumnChoices) -> dict[str, str]:
    given = {
        "label": choices.label,
        "keep": choices.keep,
        "drop": choices.drop,
        "feature": choices.features or (),
    }
    options = {"label": "--label", "keep": "--keep", "drop": "--drop", "feature": "--features"}
    for option, names in choices.lists():
        for name in names:
            if name not in types:
                raise UsageError(
                    f"{option} {name}: no column has that name; {nearest(name, types)}. Pass one that is in the table."
                )
    roles: dict[str, str] = {}
    for role, names in given.items():
        for name in names:
            if roles.setdefault(name, role) != role:
                raise UsageError(
                    f"column {name!r}: is named by {options[roles[name]]} and by {options[role]}; one role is allowed."
                    " Name it once."
                )
    rest = "feature" if choices.features is None else "drop"
    return {name: roles.get(name, rest) for name in types}


def _label(columns: Sequence[TableColumn], choices: ColumnChoices) -> LabelField | None:
    if not columns:
        return None
    texts = [c.name for c in columns if c.type in TEXTS]
    whole = all(c.type in ("integer", "boolean") for c in columns)
    number = "<f8" if choices.dtype == "float64" or any(c.type == "timestamp" for c in columns) else "<f4"
    if len(columns) > 1:
        if texts or choices.label_as == "classes":
            raise UsageError(
                f"--label {columns[0].name} {columns[1].name}: classes are asked for of several columns"
                + (f" ({texts[0]!r} holds texts)" if texts else "")
                + "; one column can be classes, several only numbers. Pass one, and --keep the others."
            )
        return LabelField("number", "<i8" if whole and choices.label_as == "auto" else number)
    (column,) = columns
    if texts and choices.label_as == "number":
        raise UsageError(
            f"--label-as number: the label {column.name!r} holds texts, not numbers; auto and classes are allowed."
            " Pass one of them."
        )
    if choices.label_as == "classes" and column.type in ("date", "time", "timestamp"):
        raise UsageError(
            f"--label-as classes: the label {column.name!r} is {_described(column.type, 'label')}; texts, booleans and"
            f" numbers can be classes. Pass --type {column.name}=category."
        )
    if texts or choices.label_as == "classes" or (column.type == "boolean" and choices.label_as == "auto"):
        return LabelField("classes", "<i8")
    return LabelField("number", "<i8" if whole and choices.label_as == "auto" else number)


def _described(kind: str, role: str) -> str:
    article = "an" if kind[0] in "aeiou" else "a"
    return {
        "drop": "a dropped column",
        "keep": "a kept column",
        "label": f"a label of type {kind}",
        "feature": f"{article} {kind}",
    }[role]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"
