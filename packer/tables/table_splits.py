"""The split of each staged row of a table: named by a column, or drawn per row, per group or per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.convert.sample_order import SampleOrder
from packer.convert.splits import (
    Ints,
    Split,
    StrataDraw,
    check_groups,
    group_owners,
    names_of,
    note_on_groups,
)
from packer.errors import SourceError
from packer.format.header import TRAIN
from packer.sentence import Option
from packer.tables.staging import StagedTable
from packer.tables.transform.column_types import TEXT, is_missing, shortest
from packer.tables.transform.table_transform import TableTransform

_STEP = 1 << 18  # rows read at once
# Most distinct whole numbers of a label that is not classes for which splits get equal shares of each.
_MOST_STRATA = 1000
_SHOWN, _LETTERS = 3, 40  # most classes and splits named in a note; letters of each


class Owners(NamedTuple):
    """The split of each row.

    names: names of the splits. numbers: split number of each row not assigned by position, in the input's
    order. notes: for the user. even: True if each split has rows of each class.
    """

    names: tuple[str, ...]
    numbers: NDArray[Any]
    notes: tuple[str, ...] = ()
    even: bool = False


def find_owners(
    split: Split | None, plan: TableTransform, staged: StagedTable, seed: int, subject: str
) -> Owners | None:
    """Return the split of each row; None if no column defines it and the label has no classes.

    subject: name of the table in messages. Raises UsageError if a split would be empty or a column names no
    splits; SourceError if a cell is empty.
    """
    if split is None:
        return None
    first, last, shares = split.portions(staged.rows)

    def read(name: str) -> ColumnCodes:
        column = ColumnCodes(plan, staged, name, first, staged.rows - last)
        if empty := column.missing():  # only if the column is a feature or kept, too; else the rows are bad
            raise SourceError(
                f"{subject}: column {name!r} decides the split of each row and is empty in"
                f" {units.count(empty, 'row')}. Fill these cells, or use the column for splits alone and pass"
                " ",
                Option("on_error", "skip"),
                ".",
            )
        return column

    group = None if split.group is None else read(split.group)
    if split.column is not None:
        column = read(split.column)
        texts = [column.text(value) for value in column.values.tolist()]
        names = names_of(subject, split, texts)
        places = np.array([names.index(text) for text in texts], np.uint8)
        numbers = np.concatenate([places[codes] for codes in column.codes()])
        if group is not None:
            check_groups(subject, split, names, numbers, group.all_codes(), group.text_of_code)
        return Owners(names, numbers)
    label = _strata(plan, staged, first, staged.rows - last) if len(shares) > 1 else None
    if group is not None:
        codes = group.all_codes()
        stratum = np.zeros(len(codes), np.int64) if label is None else label.all_codes()
        owners = group_owners(codes, stratum, shares, seed)
        numbers = owners.astype(np.min_scalar_type(len(shares)))[codes]
        return Owners(tuple(shares), numbers, (note_on_groups(split, shares, owners, numbers),))
    if label is None:
        return None
    draw = StrataDraw(label.counts.tolist(), shares, seed)
    numbers = np.concatenate([draw.next(codes) for codes in label.codes()])
    even = len(numbers) == staged.rows and label.counts.min() * min(shares.values()) >= 1
    return Owners(tuple(shares), numbers, even=bool(even))


def notes_on_classes(plan: TableTransform, staged: StagedTable, order: SampleOrder) -> list[str]:
    """Return notes on classes that train lacks or one split has alone, and on splits of a single class."""
    label = _strata(plan, staged, 0, staged.rows) if len(order.splits) > 1 else None
    if label is None or len(label.values) < 2:
        return []
    if plan.label_kind != "classes" and len(label.values) ** 2 > staged.rows:
        return []  # numbers, not classes
    codes = np.concatenate([codes.astype(np.min_scalar_type(len(label.values))) for codes in label.codes()])
    names, held = list(order.splits), np.zeros((len(order.splits), len(label.values)), np.int64)
    for k, (first, stop) in enumerate(order.splits.values()):
        for start in range(first, stop, _STEP):
            rows = order.samples[start : min(start + _STEP, stop)]
            held[k] += np.bincount(codes[rows], minlength=len(label.values))
    has = held > 0
    wrong = has.sum(axis=0) == 1
    if TRAIN in names:
        wrong |= ~has[names.index(TRAIN)]
    notes, what = [], f"{'classes' if plan.label_kind == 'classes' else 'values'} of {plan.label[0]!r}"
    if wrong.any():
        shown = [
            f"{label.text_of_code(code)[:_LETTERS]!r}"
            f" ({', '.join(f'{name} {held[k, code]:,}' for k, name in enumerate(names) if has[k, code])})"
            for code in np.flatnonzero(wrong)[:_SHOWN].tolist()
        ]
        notes.append(
            f"{wrong.sum():,} of {len(wrong):,} {what} are in one split only, or not in train; splits and "
            "rows"
            f" of each: {', '.join(shown)}{' and others' if wrong.sum() > _SHOWN else ''}."
        )
    single = np.flatnonzero(has.sum(axis=1) == 1)
    if len(single):
        shown = [
            f"{names[k]} ({label.text_of_code(int(held[k].argmax()))[:_LETTERS]!r})" for k in single[:_SHOWN]
        ]
        notes.append(
            f"{len(single):,} of {units.count(len(names), 'split')} have one of the {len(wrong):,} {what}:"
            f" {', '.join(shown)}{' and others' if len(single) > _SHOWN else ''}."
        )
    return notes


def _strata(plan: TableTransform, staged: StagedTable, start: int, stop: int) -> ColumnCodes | None:
    """Return the label if splits get equal shares of its values: classes, or few whole numbers; else None."""
    if len(plan.label) != 1 or plan.separator or stop <= start:
        return None
    column = ColumnCodes(plan, staged, plan.label[0], start, stop)
    if plan.label_kind == "classes":
        return column
    whole = column.kind.whole or plan.whole_label
    few = whole and column.distinct(_MOST_STRATA) is not None
    return column if few and bool((column.values == np.trunc(column.values)).all()) else None


class ColumnCodes:
    """A column of some staged rows, with its distinct values numbered from 0."""

    def __init__(self, plan: TableTransform, staged: StagedTable, name: str, start: int, stop: int) -> None:
        member = next(w for w in plan.layout.members if w.column.name == name)
        self.kind, self._type, self._staged = member.column.kind, member.column.type, staged
        self._name, self._texts, self._rows = (
            member.name,
            staged.dictionaries.get(member.index, []),
            range(start, stop),
        )
        self._numbers: dict[bytes, int] = {}  # numbers of kept texts

    def _pieces(self) -> Iterator[NDArray[Any]]:
        """Yield the raw values, some at a time; for kept texts the number of each distinct text."""
        staged = self._staged
        records = np.memmap(staged.path, staged.dtype, "r")[self._name]
        blob = staged.mapped_blob() if records.dtype == TEXT else memoryview(b"")
        for start in range(self._rows.start, self._rows.stop, _STEP):
            x = records[start : min(start + _STEP, self._rows.stop)]
            if x.dtype != TEXT:
                yield np.asarray(x)
                continue
            ends = (x["at"] + x["length"]).tolist()
            texts = (bytes(blob[a:b]) for a, b in zip(x["at"].tolist(), ends, strict=True))
            yield np.array([self._numbers.setdefault(text, len(self._numbers)) for text in texts])

    def missing(self) -> int:
        """Return the number of empty cells."""
        records = np.memmap(self._staged.path, self._staged.dtype, "r")[self._name]
        pieces = range(self._rows.start, self._rows.stop, _STEP)
        return sum(int(is_missing(records[at : min(at + _STEP, self._rows.stop)]).sum()) for at in pieces)

    def distinct(self, most: int) -> NDArray[Any] | None:
        """Return the distinct values in ascending order, None if there are more than `most`."""
        counts: Counter[Any] = Counter()
        for piece in self._pieces():
            values, some = np.unique(piece, return_counts=True)
            counts.update(dict(zip(values.tolist(), some.tolist(), strict=True)))
            if len(counts) > most:
                return None
        self._counts = counts
        return np.array(sorted(counts))

    @cached_property
    def values(self) -> NDArray[Any]:
        """The distinct values in ascending order."""
        values = self.distinct(len(self._rows))
        assert values is not None
        return values

    @property
    def counts(self) -> Ints:
        """Number of rows of each of the values."""
        return np.array([self._counts[value] for value in self.values.tolist()])

    def codes(self) -> Iterator[Ints]:
        """Yield the number of each row's value, some rows at a time."""
        values = self.values
        return (np.searchsorted(values, piece) for piece in self._pieces())

    def all_codes(self) -> Ints:
        """Return the number of each row's value."""
        return np.concatenate(list(self.codes()))

    def text(self, value: Any) -> str:
        """Return a value as the table writes it."""
        if self._type == "category":
            return str(self._texts[value])
        if self._type == "text":
            return str(list(self._numbers)[value], "utf-8", "replace")
        return str(self.kind.classes[int(value)]) if self.kind.classes else shortest(value)

    def text_of_code(self, code: int) -> str:
        """Return the text of the value with this number."""
        return self.text(self.values.tolist()[code])
