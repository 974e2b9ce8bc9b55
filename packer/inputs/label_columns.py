"""The columns of a label file: the header, the column that names the images, and those that are read.

The column of file names is the one that names most images. The first row is a header unless it is like the
rows below: it names a file or a number, or one of its other cells comes again. Without a header the columns
are called 0, 1, 2 ...
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from packer import units
from packer.errors import SourceError
from packer.inputs.file_names import is_image, shorten
from packer.inputs.image_names import UNKNOWN, ImageNames
from packer.inputs.label_values import NUMBER
from packer.path_text import compose

_COUNTED = 3
"""Rows from which consecutive numbers count the rows."""

_CODE = 6
"""Length from which names of equal length are codes."""

Rows = Sequence[list[str]]


class ChosenColumns(NamedTuple):
    """The columns of a file. headed: the first row is a header. file, read: indices of columns."""

    header: list[str]
    headed: bool
    file: int
    read: list[int]


class ColumnFinder:
    """Finds the columns of a label file by its first rows.

    chosen: columns to read; empty: there are two columns, and the one without file names is read, if there is
    one. beside: further columns to read. file_column: the column of file names, or None.
    """

    def __init__(
        self, names: ImageNames, chosen: Sequence[str], beside: Sequence[str], file_column: str | None
    ) -> None:
        self._names = names
        self._chosen, self._beside = list(map(compose, chosen)), list(map(compose, beside))
        self._file_column = None if file_column is None else compose(file_column)
        self._wanted = [
            *self._chosen,
            *self._beside,
            *([] if file_column is None else [compose(file_column)]),
        ]

    def find(self, where: str, names: list[str] | None, rows: Rows) -> ChosenColumns:
        """Return the columns. where: subject of messages. names: those of the columns, or None if unknown.

        Raises: SourceError if columns are missing or the label column is not certain.
        """
        header = list(map(compose, names or _trim(rows[0])))
        rows = [row[: len(header)] for row in rows]
        headed, shown = False, ", ".join(header)
        if names is None:
            headed = self._is_headed(header, rows)
            if not headed:
                shown = ", ".join(f"{number} ({cell})" for number, cell in enumerate(header))
                header = [str(number) for number in range(len(header))]
        if names is None and len(header) == 1:
            shown += ", separated by commas, tabs, semicolons, bars or blanks"
        file, read = self._choose(where, header, shorten(shown), rows[headed:])
        return ChosenColumns(header, headed, file, read)

    def weigh(self, rows: Rows, loose: bool) -> int:
        """Return how much the best column of some rows names images; 0 without a second column."""
        width = max(map(len, rows), default=0)
        return max(self._weights(rows, range(width), loose), default=0) if width > 1 else 0

    def _is_headed(self, header: list[str], rows: Rows) -> bool:
        """Return True if the first row names the columns, and is not like the others."""
        if set(self._wanted) <= set(header) and not all(map(str.isdecimal, self._wanted)):
            return True
        free = [place for place, name in enumerate(header) if name not in self._chosen + self._beside]
        if self._file_column in header:
            file = header.index(self._file_column)
        else:
            file = self._find_file(rows, free)
        first, *rest = rows
        name, labels = first[file], [(k, cell) for k, cell in enumerate(first) if k != file and cell]
        if is_image(name) or self._names.find(name) != UNKNOWN:
            return False
        names = [cell for cell in first if cell]
        if names == list(map(str, range(len(names)))):
            return True  # as pandas calls columns without names
        others = [row for row in rest if row[file : file + 1] != [name]]
        return not (
            _is_like(name, _distinct(others, file))
            or any(NUMBER.fullmatch(cell) for _, cell in labels)
            or any(row[k : k + 1] == [cell] for row in others for k, cell in labels)
        )

    def _choose(self, where: str, header: list[str], shown: str, rows: Rows) -> tuple[int, list[int]]:
        """Return the index of the file column, and those of the columns to read. Raises: SourceError."""
        for name in self._wanted:
            if header.count(name) != 1:
                many = f"{header.count(name)} columns are called" if name in header else "no column"
                raise SourceError(f"{where}: {many} {name}; the columns are {shown}. Pass one of them.")
        read = [header.index(name) for name in (*self._chosen, *self._beside)]
        free = [place for place in range(len(header)) if place not in read]
        if len(free) > 1 and not header[free[0]]:  # the numbers that pandas writes
            free = free[1:]
        file = self._find_file(rows, free) if self._file_column is None else header.index(self._file_column)
        if file in read:
            raise SourceError(
                f"{where}: {header[file]} names the files; the columns are {shown}. Choose another column, "
                "or pass the column of file names as labels=Labels(file_column=)."
            )
        others = [place for place in free if place != file]
        if self._file_column is None:
            self._check_alone(where, header, rows, file, others)
        if self._chosen:
            return file, read
        counting = [place for place in others if place < file and _counts_rows(rows, place)]
        if len(counting) < len(others) or (counting and header[counting[0]] == "0"):
            # Else the only column, which has a name, may hold labels.
            others = [place for place in others if place not in counting]
        if len(others) != 1 and (others or not self._beside):
            remedy = "Choose the label column with labels=Labels(column=)"
            if not others:
                remedy = "Leave out labels= if it has no labels, or remove lines above its header"
            besides = f", besides {' and '.join(self._beside)}" if self._beside else ""
            besides += f" ({header[counting[0]]} counts the rows)" if counting else ""
            raise SourceError(
                f"{where}: {units.count(len(header), 'column')}, {shown}; two are expected, file and "
                f"label{besides}. {remedy}."
            )
        return file, others + read

    def _check_alone(
        self, where: str, header: list[str], rows: Rows, file: int, others: Sequence[int]
    ) -> None:
        """Raise SourceError if another column names images as well as that of the files, but others."""
        loose = all(self._names.find(name, loose=False) == UNKNOWN for name in _distinct(rows, file))
        named = self._count(rows, file, loose)
        # Numbers name images only if the label column is none of the others.
        counting = bool(self._chosen) and _counts_rows(rows, file)
        for place in others:
            files = any(map(is_image, _distinct(rows, place)))
            if not (files or counting) or not 0 < named <= self._count(rows, place, loose):
                continue
            for row in rows:
                if max(file, place) < len(row) and self._differ(row[file], row[place]):
                    raise SourceError(
                        f"{where}: the columns {header[file]} and {header[place]} name images "
                        f"({shorten(row[file])}, {shorten(row[place])}); labels belong to those of one. "
                        "Choose it with labels=Labels(file_column=)."
                    )

    def _differ(self, one: str, other: str) -> bool:
        return self._names.find(one) != self._names.find(other)

    def _count(self, rows: Rows, place: int, loose: bool) -> int:
        """Return the number of distinct cells of a column that name images."""
        return sum(self._names.find(name, loose=loose) != UNKNOWN for name in _distinct(rows, place))

    def _find_file(self, rows: Rows, places: Sequence[int]) -> int:
        """Return the column that names most images; the first of file names, or the first, if none does."""
        for loose in (False, True):
            weights = self._weights(rows, places, loose)
            if any(weights):
                return places[weights.index(max(weights))]
        called = (place for place in places if any(map(is_image, _distinct(rows, place))))
        return next(called, places[0] if places else 0)

    def _weights(self, rows: Rows, places: Sequence[int], loose: bool) -> list[int]:
        """Return a weight for each column: of each distinct cell that names an image, 2 for a file, else 1.

        loose: match not only paths; numbers only if no column holds file names,
        and in another column than the first only if cells of that come again, or count the rows.
        """
        columns = [_distinct(rows, place) for place in places]
        files = any(2 * sum(map(is_image, names)) > len(names) for names in columns)
        first = bool(columns) and len(columns[0]) == len(rows) and not _counts_rows(rows, places[0])
        weights = []
        for place, names in enumerate(columns):
            numbers = not files and (place == 0 or not first)
            tried = [name for name in names if numbers or not name.isdecimal()]
            found = [name for name in tried if self._names.find(name, loose=loose) != UNKNOWN]
            weights.append(sum(1 + is_image(name) for name in found))
        return weights


def _trim(row: list[str]) -> list[str]:
    """Return a row without the empty cells at its end."""
    return row[: max((k + 1 for k, cell in enumerate(row) if cell), default=0)]


def _is_like(name: str, others: set[str]) -> bool:
    """Return True for a name with digits that differs from others in them only, or is as long as all are."""
    form = re.sub("[0-9]+", "0", name)
    alike = {len(other) for other in others} == {len(name)} and len(name) >= _CODE
    return form != name and (alike or any(form == re.sub("[0-9]+", "0", other) for other in others))


def _distinct(rows: Rows, place: int) -> set[str]:
    return {row[place] for row in rows if place < len(row)}


def _counts_rows(rows: Rows, place: int) -> bool:
    """Return True if a column holds consecutive numbers."""
    cells = [row[place] for row in rows if place < len(row)]
    if len(cells) < _COUNTED or not all(cell.isascii() and cell.isdecimal() for cell in cells):
        return False
    first = int(cells[0][:20])
    return [int(cell[:20]) for cell in cells] == list(range(first, first + len(cells)))
