"""Columns of staged rows as numbers, of which splits are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.convert.row_sequence import RowSequence, Sequences
from packer.convert.split_assignment import MOST_STRATA, Codes, RowSource
from packer.convert.splits import refuse_alike
from packer.errors import SourceError
from packer.natural_order import rank_texts
from packer.tables.staging import StagedTable
from packer.tables.transform.cell_values import moment_text
from packer.tables.transform.column_types import TEXT, is_missing, shortest
from packer.tables.transform.records import RecordMember
from packer.tables.transform.table_transform import TableTransform

_STEP = 1 << 18  # rows read at once


class StagedColumns(RowSource):
    """The columns of a staged table."""

    def __init__(
        self,
        plan: TableTransform,
        staged: StagedTable,
        subject: str,
        sequences: Sequences | None = None,
    ) -> None:
        self._plan, self._staged, self.subject, self.count = plan, staged, subject, staged.rows
        self._sequences = sequences

    @cached_property
    def sequence(self) -> RowSequence | None:
        """See RowSource. Raises SourceError."""
        if (given := self._sequences) is None:
            return None
        groups, keys = Codes(np.zeros(self.count, np.uint8), ["all rows"]), np.arange(self.count)
        if given.group is not None:
            codes = self.codes(given.group)
            assert codes is not None
            groups = codes
            refuse_alike(SourceError, f"{self.subject}: column {given.group}", "sequence", groups.names)
        if given.order is not None:
            keys = self._sort_keys(given.order)
        gaps = self._staged.gaps

        def name(row: int) -> str:
            return f"{self.subject}, row {row + int(np.searchsorted(gaps, row, 'right')) + 1:,}"

        return RowSequence.sort_rows(*groups, keys, np.arange(self.count), gaps, name)

    def _sort_keys(self, column: str) -> NDArray[Any]:
        """Return a number for each row, in the order of the values. Raises SourceError."""
        member = self._filled(column)
        if member.column.type not in ("category", "text"):
            return np.concatenate([*self._records(member)])
        codes = self._codes(member)
        assert codes is not None  # all values are counted
        if (ranks := rank_texts(codes.names)) is None:
            raise SourceError(
                f"{self.subject}: column {column!r} holds texts, such as {codes.names[0]!r}, that have no"
                " known order; numbers, dates, and texts with one number do. Pass its type with types=, or"
                " another column."
            )
        return np.asarray(ranks[codes.numbers])

    def codes(self, column: str | None) -> Codes | None:
        """Return the values of a column, of None those of the label; None if splits cannot get shares of it.

        Raises SourceError for empty cells of a column.
        """
        return self.label if column is None else self._codes(self._filled(column))

    def _filled(self, column: str) -> RecordMember:
        """Return a column's place in the records. Raises SourceError for empty cells."""
        member = self._member(column)
        if empty := sum(int(is_missing(piece).sum()) for piece in self._records(member)):
            # Only if the column is a feature or kept, too; else the rows are bad.
            raise SourceError(
                f"{self.subject}: column {column!r} decides the split or place of each row and is empty in"
                f" {units.count(empty, 'row')}. Fill these cells, or use the column for that alone and pass"
                " on_error='skip'."
            )
        return member

    @cached_property
    def label(self) -> Codes | None:
        """Values of the label if they are classes, or few whole numbers; else None."""
        plan = self._plan
        if len(plan.label) != 1 or plan.separator:
            return None
        member = self._member(plan.label[0])
        if plan.label_kind == "classes":
            return self._codes(member)
        return self._codes(member, MOST_STRATA) if member.column.kind.whole or plan.whole_label else None

    def _member(self, name: str) -> RecordMember:
        return next(w for w in self._plan.layout.members if w.column.name == name)

    def _records(self, member: RecordMember) -> Iterator[NDArray[Any]]:
        """Yield the raw values, some at a time."""
        records = np.memmap(self._staged.path, self._staged.dtype, "r")[member.name]
        return (records[at : at + _STEP] for at in range(0, self.count, _STEP))

    def _codes(self, member: RecordMember, most_whole: int | None = None) -> Codes | None:
        """Number the distinct values in ascending order, texts in their order in the table.

        most_whole: return None unless there are at most so many values, all of them whole numbers.
        """
        texts: dict[bytes, int] = {}
        blob = self._staged.mapped_blob()

        def pieces() -> Iterator[NDArray[Any]]:
            for x in self._records(member):
                if x.dtype != TEXT:
                    yield np.asarray(x)
                    continue
                places = zip(x["at"].tolist(), (x["at"] + x["length"]).tolist(), strict=True)
                yield np.array([texts.setdefault(bytes(blob[a:b]), len(texts)) for a, b in places])

        found: list[NDArray[Any]] = []
        for piece in pieces():
            found.append(np.unique(piece))
            if most_whole is not None:
                found = [np.unique(np.concatenate(found))]
                if len(found[0]) > most_whole or not (found[0] == np.trunc(found[0])).all():
                    return None
        values = np.unique(np.concatenate(found))
        dtype = np.min_scalar_type(len(values))
        numbers = np.concatenate([np.searchsorted(values, piece).astype(dtype) for piece in pieces()])
        return Codes(numbers, self._names(member, values.tolist(), list(texts)))

    def _names(self, member: RecordMember, values: list[Any], texts: list[bytes]) -> list[str]:
        """Return values as the table writes them. texts: those of kept texts, by number."""
        kind, kinds = member.column.kind, member.column.type
        if kinds == "category":
            categories = self._staged.dictionaries[member.index]
            return [str(categories[value]) for value in values]
        if kinds == "text":
            return [str(texts[value], "utf-8", "replace") for value in values]
        if kinds in ("date", "time", "timestamp"):
            return [moment_text(kinds, value) for value in values]
        return [str(kind.classes[int(value)]) if kind.classes else shortest(value) for value in values]
