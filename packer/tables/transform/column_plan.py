"""The plan of a table: the role of each column, the type it is read as, and the rules that its cells must keep."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.sentence import Option
from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn, as_float, is_missing, shortest
from packer.tables.transform.records import BadRow, CellFault, RecordLayout, RecordMember

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
_OPTION_OF = {
    "label": Option("label"),
    "keep": Option("keep"),
    "drop": Option("drop"),
    "feature": Option("features"),
}
MISSING = ("nan", "error", "mean", "median", "zero")
MOST_BAD = 100_000


@dataclass(frozen=True)
class ColumnChoices:
    """The choices of a user; names are those of columns.

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
            ("label_as", self.label_as, LABELS),
            ("missing", self.missing, MISSING),
            ("dtype", self.dtype, DTYPES),
        ):
            if value not in allowed:
                named = f"{option}=None" if value is None else f"{Option(option, value)}"
                raise UsageError(f"{named}: is not known; {_listed(allowed)} are. Pass one of them.")
        if np.dtype(self.dtype).kind in "iu":
            for other, chosen in (
                (Option("standardize", True), self.standardize),
                (Option("Encode.log1p"), bool(self.log1p)),
                (Option("missing", self.missing), self.missing in ("mean", "median")),
            ):
                if chosen:
                    raise UsageError(
                        f"{Option('dtype', self.dtype)}: holds whole numbers, but {other} gives others;"
                        " float32, float16 and float64 are allowed with it. Pass one of them."
                    )
        if self.label_as != "auto" and not self.label:
            raise UsageError(
                f"{Option('label_as', self.label_as)}: tells what a label becomes, but there is none; "
                f"it goes with {Option('label')}. Pass {Option('label')}, or leave it out."
            )

    def lists(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the options that name columns, and the names."""
        one_hot = () if isinstance(self.one_hot, str) else self.one_hot
        return [
            ("label", self.label),
            ("keep", self.keep),
            ("drop", self.drop),
            ("features", self.features or ()),
            ("one_hot", one_hot),
            ("Encode.log1p", self.log1p),
        ]

    def record(self) -> dict[str, Any]:
        """Return the choices that differ from the defaults, as plain JSON values."""
        rule, own = asdict(ColumnChoices()), asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in own.items() if v != rule[k]}


@dataclass(frozen=True)
class LabelField:
    """The field of the label. kind: "classes" or "number"; dtype: of the field."""

    kind: str
    dtype: str


@dataclass(frozen=True)
class ColumnPlan:
    """The plan of a table: its columns with the types they are read as, and their roles: "feature", "label", "keep" or "drop".

    classes: the numbers that a label may be, where they are settled beforehand; else None.
    """

    columns: tuple[TableColumn, ...]
    roles: tuple[str, ...]
    choices: ColumnChoices
    label: LabelField | None
    classes: tuple[float, ...] | None = None

    @cached_property
    def layout(self) -> RecordLayout:
        """The columns that are read."""
        pairs = enumerate(zip(self.columns, self.roles, strict=True))
        return RecordLayout(
            tuple(
                RecordMember(i, c, self._single(c, role), self._exact(c, role))
                for i, (c, role) in pairs
                if role != "drop"
            )
        )

    @property
    def numeric(self) -> tuple[RecordMember, ...]:
        """The columns that are read and hold numbers, in order: those of a sample."""
        return tuple(w for w in self.layout.members if w.column.kind.numeric)

    def bad_rows(
        self, records: NDArray[Any], most: int = MOST_BAD
    ) -> tuple[NDArray[np.bool_] | None, list[BadRow]]:
        """Find the rows of the layout that cannot be mapped.

        Returns: bool [n], None if there are none; and at most `most` of them, by rising row: `line` of each is the row, from 0.
        """
        mask: NDArray[np.bool_] | None = None
        found: list[BadRow] = []
        for w in self.layout.members:
            x = records[w.name]
            for wrong, reason in self._faults(w, x):
                if wrong.any():
                    mask = wrong.copy() if mask is None else mask | wrong
                    rows = np.flatnonzero(wrong)[:most].tolist()
                    found += (BadRow(row, w.index, _text(x[row], w), reason) for row in rows)
        found.sort(key=lambda bad: (bad.line, bad.column))
        return mask, found[:most]

    def _faults(self, w: RecordMember, x: NDArray[Any]) -> Iterator[tuple[NDArray[np.bool_], str]]:
        """Yield which cells of a column break a rule, and the rule."""
        choices, role, kind = self.choices, self.roles[w.index], w.column.kind
        dtype, log1p = np.dtype(choices.dtype), role == "feature" and w.column.name in choices.log1p
        if role == "label":
            yield is_missing(x), "is missing; a label is needed"
            dtype = np.dtype(self.label.dtype if self.label and self.label.kind == "number" else "O")
        elif role == "keep" and kind.whole:
            yield is_missing(x), f"is missing, for which a kept {w.column.type} column has no value"
        elif role == "feature" and choices.missing == "error":
            yield is_missing(x), "is missing"
        elif role == "feature" and kind.numeric and choices.missing == "nan" and dtype.kind in "iu":
            yield is_missing(x), f"is missing, for which {dtype.name} has no value"
        if log1p:
            yield x <= -1, "has no log1p; numbers above -1 have one"
        scaled = role == "feature" and choices.standardize and kind.scaled
        fits = w.dtype == dtype or dtype.kind == "O" or (kind.whole and dtype.kind == "f")
        if not (role == "keep" or not kind.numeric or log1p or scaled or fits):
            for part in [of(x) for of in kind.parts.values()] or [x]:
                yield from _misfits(part, dtype)
        if role == "label" and self.classes is not None:
            known = np.isin(x, np.array(self.classes, x.dtype)) | is_missing(x)
            yield ~known, "is none of the label's classes"

    def sample(self, records: NDArray[Any]) -> NDArray[np.float64]:
        """Return the numbers of some records as statistics take them: float64 [m, len(numeric)], NaN for missing."""
        columns = [as_float(records[w.name]) for w in self.numeric]
        return np.stack(columns, axis=1) if columns else np.empty((len(records), 0))

    def _single(self, column: TableColumn, role: str) -> bool:
        if column.type != "number" or role == "keep":
            return False
        if role == "label":
            return self.label is not None and self.label.kind == "number" and self.label.dtype == "<f4"
        choices = self.choices
        return choices.dtype == "float32" and not choices.standardize and column.name not in choices.log1p

    def _exact(self, column: TableColumn, role: str) -> bool:
        """Tell whether whole numbers must be stored as they are written: as what is kept, or as one label that is no measure."""
        measure = self.label is not None and self.label.dtype != "<i8"
        if role == "feature" or (role == "label" and (measure or len(self.choices.label) > 1)):
            return False
        return column.type == "number" or (column.type == "integer" and column.digits is not None)


def plan_columns(columns: Sequence[TableColumn], choices: ColumnChoices) -> ColumnPlan:
    """Give every column its role and the type it is read as. Raises UsageError."""
    types = {c.name: c.type for c in columns}
    digits = {c.name: c.digits for c in columns}
    roles = _roles(types, choices)
    # Texts tell apart what numbers do not: a label that is no measure has them as classes.
    named = len(choices.label) == 1 and (
        choices.label_as == "classes"
        or (choices.label_as == "auto" and types.get(choices.label[0]) == "integer")
    )
    read: dict[str, str] = {}
    for name, kind in types.items():
        role = roles[name]
        read[name] = kind
        if role == "feature":
            if kind == "text":
                raise UsageError(
                    f"column {name!r}: holds texts, which are no features; numbers and categories are. "
                    f"Pass {Option('keep', name)}, {Option('drop', name)} or {as_category(name)}."
                )
            # Whole numbers stay exact where features hold such numbers.
            whole = np.dtype(choices.dtype).kind in "iu"
            read[name] = "number" if kind == "integer" and not whole else kind
        elif role == "keep":
            read[name] = "text" if kind == "category" or digits[name] else kind
        elif role == "label":
            read[name] = "category" if kind == "text" or (digits[name] and named) else kind
    if "feature" not in roles.values():
        raise UsageError(
            "table: no column is left as a feature; one at least is needed. Name fewer with "
            f"{Option('label')}, {Option('keep')} and {Option('drop')}."
        )
    for option, kind, names in (
        ("one_hot", "category", () if choices.one_hot == "all" else choices.one_hot),
        ("Encode.log1p", "number", choices.log1p),
    ):
        for name in names:
            if roles[name] != "feature" or read[name] != kind:
                raise UsageError(
                    f"{Option(option, name)}: is a {roles[name]} of type {read[name]}; features of type {kind} are allowed."
                    f" Leave it out, or pass {Option('types', {name: kind})}."
                )
    label = _label([TableColumn(name, read[name]) for name in choices.label], choices)
    read_columns = tuple(TableColumn(c.name, read[c.name], c.notation, c.digits) for c in columns)
    return ColumnPlan(read_columns, tuple(roles[c.name] for c in columns), choices, label)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest of the names."""
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
    for option, names in choices.lists():
        for name in names:
            if name not in types:
                raise UsageError(
                    f"{Option(option, name)}: no column has that name; {nearest(name, types)}. Pass "
                    "one that is in the table."
                )
    roles: dict[str, str] = {}
    for role, names in given.items():
        for name in names:
            if name in roles:
                raise UsageError(
                    f"column {name!r}: is named by {_OPTION_OF[roles[name]]} and by {_OPTION_OF[role]};"
                    " one role is allowed. Name it once."
                )
            roles[name] = role
    rest = "feature" if choices.features is None else "drop"
    return {name: roles.get(name, rest) for name in types}


def _label(columns: Sequence[TableColumn], choices: ColumnChoices) -> LabelField | None:
    if not columns:
        return None
    texts = [c.name for c in columns if not c.kind.numeric]
    # What no feature holds in one number, float32 holds in none.
    number = "<f8" if choices.dtype == "float64" or any(c.kind.parts for c in columns) else "<f4"
    number = "<i8" if choices.label_as == "auto" and all(c.kind.whole for c in columns) else number
    if len(columns) > 1:
        if texts or choices.label_as == "classes":
            held = f" ({texts[0]!r} holds texts)" if texts else ""
            raise UsageError(
                f"{Option('label', ','.join(choices.label))}: classes are asked for of several columns{held};"
                f" one column can be classes, several only numbers. Pass one, and {Option('keep')} the others."
            )
        return LabelField("number", number)
    (column,) = columns
    if texts and choices.label_as == "number":
        raise UsageError(
            f"{Option('label_as', 'number')}: the label {column.name!r} holds texts, not numbers; auto "
            "and classes are allowed. Pass one of them."
        )
    if choices.label_as == "classes" and column.kind.classes is None:
        raise UsageError(
            f"{Option('label_as', 'classes')}: the label {column.name!r} is of type {column.type}; texts, booleans"
            f" and numbers can be classes. Pass {as_category(column.name)}."
        )
    if texts or choices.label_as == "classes" or (column.kind.classes and choices.label_as == "auto"):
        return LabelField("classes", "<i8")
    return LabelField("number", number)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"


def as_category(name: str) -> Option:
    """Return the option by which a column is read as categories."""
    return Option("types", {name: "category"})


def _misfits(x: NDArray[Any], dtype: np.dtype[Any]) -> list[tuple[NDArray[np.bool_], str]]:
    """Find the present numbers that a dtype has no value for."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            reason = CellFault.BEYOND_SINGLE if dtype == np.float32 else f"is beyond {dtype.name}"
            return [(np.isinf(x.astype(dtype)), reason)]
    limits = np.iinfo(dtype)
    # 2.0**63 is no int64, but what its largest becomes as a float.
    beyond = (x < limits.min) | (x >= float(limits.max) + 1)
    found = [(beyond, f"is beyond {dtype.name} ({limits.min} to {limits.max})")]
    if x.dtype.kind == "i":
        beyond &= x != MISSING_INTEGER
    else:
        found.append((~beyond & ~np.isnan(x) & (x != np.trunc(x)), CellFault.NOT_WHOLE))
    return found


def _text(value: Any, w: RecordMember) -> str:
    """Return a raw value for a message; "" if it is missing or stands for a text."""
    if not w.column.kind.numeric or is_missing(np.asarray([value]))[0]:
        return ""
    return shortest(value.item())
