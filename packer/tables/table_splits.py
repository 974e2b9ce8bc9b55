"""The split of each row of a table, found from its staged rows: by a column, by whole groups, or with equal shares of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import units
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
from packer.sentence import Option
from packer.tables.staging import StagedTable
from packer.tables.transform.column_types import TEXT, is_missing, shortest
from packer.tables.transform.table_transform import TableTransform

_STEP = 1 << 18  # rows read at once
_MOST_STRATA = 1000  # different whole numbers of a label that are dealt out evenly, where they are no classes


class Owners(NamedTuple):
    """The split of each row.

    names: of the splits; numbers: of each row that is not taken by its place, in the order of the input; notes: what to tell of it.
    """

    names: tuple[str, ...]
    numbers: NDArray[Any]
    notes: tuple[str, ...] = ()


def find_owners(
    split: Split | None, plan: TableTransform, staged: StagedTable, seed: int, subject: str
) -> Owners | None:
    """Return the split of each row; None where it follows from no column: there is no label of classes either.

    subject: what the table is called. Raises UsageError when a split would be empty, or a column names no splits; SourceError.
    """
    if split is None:
        return None
    first, last, shares = split.portions(staged.rows)

    def read(name: str) -> ColumnCodes:
        column = ColumnCodes(plan, staged, name, first, staged.rows - last)
        if empty := column.missing():  # of a column that is a feature or kept, too: no bad rows
            raise SourceError(
                f"{subject}: column {name!r} decides the split of each row and is empty in"
                f" {units.count(empty, 'row')}. Fill these cells, or use the column for splits alone and pass ",
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
    return Owners(tuple(shares), np.concatenate([draw.next(codes) for codes in label.codes()]))


def _strata(plan: TableTransform, staged: StagedTable, start: int, stop: int) -> ColumnCodes | None:
    """Return the label, where splits get equal shares of its values: classes, or whole numbers that are not too many; else None."""
    if len(plan.label) != 1 or stop <= start:
        return None
    column = ColumnCodes(plan, staged, plan.label[0], start, stop)
    if plan.label_kind == "classes":
        return column
    whole = column.kind.whole or plan.whole_label
    few = whole and column.different(_MOST_STRATA) is not None
    return column if few and bool((column.values == np.trunc(column.values)).all()) else None


class ColumnCodes:
    """A column of some staged rows, and numbers from 0 of its different values."""

    def __init__(self, plan: TableTransform, staged: StagedTable, name: str, start: int, stop: int) -> None:
        member = next(w for w in plan.layout.members if w.column.name == name)
        self.kind, self._type, self._staged = member.column.kind, member.column.type, staged
        self._name, self._texts, self._rows = (
            member.name,
            staged.dictionaries.get(member.index, []),
            range(start, stop),
        )
        self._numbers: dict[bytes, int] = {}  # of kept texts

    def _pieces(self) -> Iterator[NDArray[Any]]:
        """Yield the raw values, some at a time; of kept texts a number for each different one."""
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

    def different(self, most: int) -> NDArray[Any] | None:
        """Return the different values, rising, None if there are more than so many."""
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
        """The different values, rising."""
        found = self.different(len(self._rows))
        assert found is not None
        return found

    @property
    def counts(self) -> Ints:
        """Rows of each of the values."""
        return np.array([self._counts[value] for value in self.values.tolist()])

    def codes(self) -> Iterator[Ints]:
        """Yield the number of the value of each row, some rows at a time."""
        values = self.values
        return (np.searchsorted(values, piece) for piece in self._pieces())

    def all_codes(self) -> Ints:
        """Return the number of the value of each row."""
        return np.concatenate(list(self.codes()))

    def text(self, value: Any) -> str:
        """Return a value as the table has it."""
        if self._type == "category":
            return str(self._texts[value])
        if self._type == "text":
            return str(list(self._numbers)[value], "utf-8", "replace")
        return str(self.kind.classes[int(value)]) if self.kind.classes else shortest(value)

    def text_of_code(self, code: int) -> str:
        """Return the text of the value that has this number."""
        return self.text(self.values.tolist()[code])
