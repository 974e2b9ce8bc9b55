"""The label file: its rows matched to images, its columns chosen.

The column of file names is the one that names most images, unless another column is chosen. These names match
image cat/1.jpg, unless they match a second image:

    cat/1.jpg  cat\\1.jpg     its path relative to the images' folder
    1.jpg                     the end of its path, beginning at a folder or at the file name
    1                         its name without folder and extension
    /data/photos/cat/1.jpg    its path after a prefix that the names of all rows share

Names match in any Unicode form. Any other name is an error. A prefix that ends in another folder is an error,
too: names in test/ do not match images in train/.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import SourceError
from packer.inputs.file_names import is_image, shorten, split_in
from packer.inputs.findings import Findings
from packer.inputs.label_rows import HEAD, Row, read_rows
from packer.inputs.label_values import NUMBER, CheckedRows
from packer.path_text import compose, show_differences
from packer.sentence import Option

_UNKNOWN, _AMBIGUOUS = -1, -2
_COUNTED = 3
"""Rows from which consecutive numbers count the rows."""


class LabelTable(CheckedRows):
    """The rows of a label file: the image of each row, and the cells of the chosen columns."""

    images: NDArray[np.int64]
    lines: NDArray[np.int64]

    def __init__(
        self,
        path: str,
        keys: list[str],
        chosen: Sequence[str],
        findings: Findings | None = None,
        *,
        file_column: str | None = None,
        beside: Sequence[str] = (),
        folder: str = "",
        content: Any = None,
    ) -> None:
        """Read the file.

        keys: paths of the images. chosen: columns to read; empty: there are two columns, and the one without
        file names is read. file_column: the column of file names; None: the one that names most images.
        beside: further columns to read. folder: the images' folder. content: parsed JSON of the file.
        findings: leaves out invalid rows and rows that name no image.
        """
        super().__init__(path, array("q"), findings)
        self._keys, self._names = keys, list(map(compose, keys))
        self._paths = self._by(lambda name: name)
        self._prefix: str | None = None  # common prefix of the names in all rows; None before the first row
        self._folder, self._ends = os.path.abspath(folder), dict[int, dict[str, int]]()
        self.columns: dict[str, list[str]] = {name: [] for name in (*(chosen or ("",)), *beside)}
        """Cells of each column that is read; key "" for the label column if no columns were chosen."""
        images, lines, left_out = array("q"), array("q"), len(self.findings.skipped)
        names, rows, self.unit, note = read_rows(path, self._weigh, content)
        self._note = f" {note}" if note else ""
        self.findings.notes += [note] if note else []
        for line, image, cells in self._read(names, rows, chosen, file_column, beside):
            images.append(image)
            lines.append(line)
            for column, cell in zip(self.columns.values(), cells, strict=True):
                column.append(sys.intern(cell.strip()))
        for name in beside:
            self.columns[name] = list(map(compose, self.columns[name]))
        if not images:
            found = "holds no rows; a row for each image is needed. Add them."
            if skipped := self.findings.skipped[left_out:]:
                found = (
                    f"none of its {len(skipped):,} rows can be used; the first, {skipped[0]['key']}: "
                    f"{skipped[0]['reason']}"
                )
            raise SourceError(f"{path}: {found}")
        self.images, self.lines = np.array(images, np.int64), np.array(lines, np.int64)

    def _read(
        self,
        names: list[str] | None,
        rows: Iterator[Row],
        chosen: Sequence[str],
        file_column: str | None,
        beside: Sequence[str],
    ) -> Iterator[tuple[int, int, list[str]]]:
        """Yield line, image and chosen cells of each row that names an image; leave out other rows.

        names: of the columns; None if the first row may hold them.
        """
        chosen, beside = list(map(compose, chosen)), list(map(compose, beside))
        file_column = None if file_column is None else compose(file_column)
        head = list(islice(rows, HEAD))
        if not head:
            return
        wanted = [*chosen, *beside, *(() if file_column is None else (file_column,))]
        where = self.subject if names else f"{self.subject} {self.unit} {head[0][0]}"
        header = list(map(compose, names or _trim(head[0][1])))
        cells = [row[: len(header)] for _, row in head]
        if names is None:
            free = [k for k, name in enumerate(header) if name not in wanted or name == file_column]
            headed = bool(wanted) and set(wanted) <= set(header)
            file = header.index(file_column) if file_column in header else self._file_column(cells, free)
            if headed or not self._is_data(cells, file):
                del head[0], cells[0]
            else:
                header = [str(number) for number in range(len(header))]
        file, places = self._find(header, where, cells, chosen, file_column, beside)
        for line, row in chain(head, rows):
            if len(row) != len(header) and (len(row) < len(header) or any(row[len(header) :])):
                found, allowed = (
                    units.count(len(row), "column"),
                    f"the first row has {len(header)}. Correct it",
                )
            else:
                image = self._image(row[file], line)
                if image >= 0:
                    yield line, image, [row[place] for place in places]
                    continue
                found, allowed = self._unnamed(row[file], image, header)
            where = f"{self.unit} {line}"
            key = f"{os.path.basename(self.subject)} {where}"
            self.findings.leave_out(key, f"{found}.", f"{self.subject} {where}: {found}; {allowed}")

    def _unnamed(self, name: str, image: int, header: list[str]) -> tuple[str, str]:
        """Return what is wrong with a name that no image has, or several, and the rule and remedy."""
        near = [self._keys[k] for k in self._alike.get(compose(name).casefold(), ())]
        found, link = f"no image is called {shorten(name)}", ", but there is "
        if image == _AMBIGUOUS:
            found, link = f"several images are called {shorten(name)}", ": "
        found += f"{link}{shorten(' and '.join(map(show_differences, near[:2])))}" if near else ""
        return found, (
            f"names are paths relative to the images' folder, such as {shorten(self._keys[0])}, "
            "their ends, or unique names without extension, in one of the columns "
            f"{shorten(', '.join(header))}. Correct the row, pass {Option('Labels.file_column')} "
            "for another column"
        )

    def _find(
        self,
        header: list[str],
        where: str,
        rows: Sequence[list[str]],
        chosen: Sequence[str],
        file_column: str | None,
        beside: Sequence[str],
    ) -> tuple[int, list[int]]:
        """Return the index of the file column, and those of the columns to read. Raises: SourceError.

        rows: the first rows, without the header.
        """
        shown = shorten(", ".join(header))
        for name in (*chosen, *beside, *(() if file_column is None else (file_column,))):
            if header.count(name) != 1:
                many = f"{header.count(name)} columns are called" if name in header else "no column"
                raise SourceError(f"{where}: {many} {name}; the columns are {shown}. Pass one of them.")
        more = [header.index(name) for name in beside]
        taken = {*more, *(header.index(name) for name in chosen)}
        free = [place for place in range(len(header)) if place not in taken]
        file = self._file_column(rows, free) if file_column is None else header.index(file_column)
        if header[file] in (*chosen, *beside):
            raise SourceError(
                f"{where}: {header[file]} names the files; the columns are {shown}. Choose another column, "
                f"or pass the column of file names as {Option('Labels.file_column')}."
            )
        others = [place for place in free if place != file]
        self._check_alone(header, where, rows, file, others if file_column is None else [])
        counting = [place for place in others if place < file and _counts_rows(header[place], rows, place)]
        others = [place for place in others if place not in counting]
        if not chosen and len(others) != 1:
            besides = f", besides {' and '.join(beside)}" if beside else ""
            besides += f" ({header[counting[0]]} counts the rows)" if counting else ""
            if len(header) == 1 and self.unit == "line":
                besides += ", separated by commas, tabs, semicolons, bars or blanks"
            raise SourceError(
                f"{where}: {units.count(len(header), 'column')} ({shown}); two are expected, file and "
                f"label{besides}. Choose the label column with {Option('Labels.column')}.{self._note}"
            )
        if file and file_column is None:
            self.findings.notes.append(f"{self.subject}: the column {header[file]} names the images.")
        return file, ([header.index(name) for name in chosen] or others) + more

    def _check_alone(
        self, header: list[str], where: str, rows: Sequence[list[str]], file: int, others: Sequence[int]
    ) -> None:
        """Raise SourceError if another column names images as well as that of the files, but others."""
        others = [place for place in others if any(map(is_image, _distinct(rows, place)))]
        weights = self._weights(rows, [file, *others], True) if others else [0]
        for place, weight in zip(others, weights[1:], strict=True):
            named = ([row[k] for row in rows if max(file, place) < len(row)] for k in (file, place))
            for one, other in zip(*named, strict=True):
                if weight >= weights[0] and is_image(one) and is_image(other) and self._differ(one, other):
                    raise SourceError(
                        f"{where}: the columns {header[file]} and {header[place]} name images ({shorten(one)}, "
                        f"{shorten(other)}); labels belong to those of one. Choose it with "
                        f"{Option('Labels.file_column')}."
                    )

    def _differ(self, one: str, other: str) -> bool:
        """Return True if two names are those of different images."""
        return self._match(one)[0] != self._match(other)[0]

    def _is_data(self, rows: Sequence[list[str]], file: int) -> bool:
        """Return True if the first of these rows is like the others, and not a header."""
        first, *rest = rows
        name, others = first[file], [row for row in rest if row[file : file + 1] != first[file : file + 1]]
        if is_image(name) or self._match(name)[0] != _UNKNOWN:
            return True
        if first == [str(number) for number in range(len(first))]:
            return False
        form = re.sub("[0-9]+", "0", name)
        return any(form == re.sub("[0-9]+", "0", row[file]) for row in others[:1] if form != name) or any(
            cell and not NUMBER.fullmatch(cell) and any(row[k : k + 1] == [cell] for row in others)
            for k, cell in enumerate(first)
            if k != file
        )

    def _file_column(self, rows: Sequence[list[str]], places: Sequence[int]) -> int:
        """Return the column that names most images; the first of file names, or the first, if none does."""
        for loose in (False, True):
            weights = self._weights(rows, places, loose)
            if any(weights):
                return places[weights.index(max(weights))]
        called = (place for place in places if any(map(is_image, _distinct(rows, place))))
        return next(called, places[0] if places else 0)

    def _weigh(self, rows: Sequence[list[str]], loose: bool) -> int:
        """Return how much the best column of some rows names images; 0 without a second column."""
        width = max(map(len, rows), default=0)
        return max(self._weights(rows, range(width), loose), default=0) if width > 1 else 0

    def _weights(self, rows: Sequence[list[str]], places: Sequence[int], loose: bool) -> list[int]:
        """Return a weight for each column: of each distinct cell that names an image, 2 for a file, else 1.

        loose: accept ends, stems and prefixes, not only paths; numbers only if no column holds file names.
        """
        columns = [_distinct(rows, place) for place in places]
        files = any(2 * sum(map(is_image, names)) > len(names) for names in columns)
        weights = []
        for names in columns:
            found = [(name, *self._match(name, loose)) for name in names if not (files and name.isdecimal())]
            weights.append(
                sum(1 + (not prefix and is_image(name)) for name, index, prefix in found if index != _UNKNOWN)
            )
        return weights

    def _image(self, name: str, line: int = 1) -> int:
        """Return the index of the image that a name matches, _UNKNOWN for none, _AMBIGUOUS for several.

        Raises SourceError if the prefixes of two names differ, or if a prefix is that of another folder.
        """
        index, prefix = self._match(name)
        if index < 0:
            return index
        if self._prefix is None:
            self._check_prefix(prefix, self._keys[index], line)
            self._prefix = prefix
            if prefix:
                shown = f"{name!r} is {self._keys[index]!r}"
                self.findings.notes.append(
                    f"{self.subject}: its names begin with {prefix!r}, which is ignored: {shown}."
                )
        if prefix != self._prefix:
            raise SourceError(
                f"{self.subject} line {line}: {shorten(name)} does not begin with {self._prefix}, as the "
                "names before it do; all names have the same prefix, or none, before the path relative to "
                "the images' folder. Pass the folder that holds all images."
            )
        return index

    def _match(self, name: str, loose: bool = True) -> tuple[int, str]:
        """Return the index of the image that a name matches, or _UNKNOWN or _AMBIGUOUS; and the prefix.

        loose: match ends, stems and prefixes, too.
        """
        name = compose(name)
        path = name.removeprefix("./")
        if path not in self._paths:
            path = path.replace("\\", "/").removeprefix("./")
        index = self._paths.get(path, _UNKNOWN)
        if not loose:
            return index, ""
        if index == _UNKNOWN and os.path.splitext(path)[1]:
            index = self._ending(path)
        if index == _UNKNOWN:
            index = self._stems.get(name, _UNKNOWN)
        if index == _UNKNOWN and self._prefix != "":
            return self._behind_prefix(path)
        return index, ""

    def _behind_prefix(self, path: str) -> tuple[int, str]:
        """Return the image whose path ends `path`, or _UNKNOWN or _AMBIGUOUS; and the prefix before it."""
        found: list[str] = []
        rest = path
        while "/" in rest:
            rest = rest.partition("/")[2]
            found += [rest] if rest in self._paths else []
        if len(found) != 1:
            return (_AMBIGUOUS if found else _UNKNOWN), ""
        return self._paths[found[0]], path.removesuffix(found[0])

    def _check_prefix(self, prefix: str, key: str, line: int) -> None:
        """Raise SourceError if `prefix` shows that the rows name files of another folder than the images'."""
        parent, folder = os.path.split(self._folder)
        last = os.path.basename(prefix.rstrip("/"))
        if last in ("", folder):
            return
        mine, other = os.path.join(self._folder, key), os.path.join(parent, last, key)
        splits = split_in(last), split_in(folder)
        twin = os.path.isfile(mine) and os.path.isfile(other) and not os.path.samefile(mine, other)
        if twin or (None not in splits and splits[0] != splits[1]):
            raise SourceError(
                f"{self.subject} line {line}: {shorten(prefix + key)} is in the folder {last}, but the "
                f"images are those of {folder}; labels of another folder are not used. Pass that folder, or "
                "write the names as paths relative to the images' folder."
            )

    def _ending(self, path: str) -> int:
        """Return the image whose path ends in `path`, or _UNKNOWN or _AMBIGUOUS."""
        parts = path.count("/") + 1
        if parts not in self._ends:
            self._ends[parts] = self._by(lambda key: "/".join(key.split("/")[-parts:]))
        return self._ends[parts].get(path, _UNKNOWN)

    @cached_property
    def _stems(self) -> dict[str, int]:
        """Name without folder and extension -> image, or _AMBIGUOUS."""
        return self._by(lambda key: os.path.splitext(key.rpartition("/")[2])[0])

    @cached_property
    def _alike(self) -> dict[str, list[int]]:
        """Path in lower case -> images, for messages."""
        found: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            found.setdefault(name.casefold(), []).append(index)
        return found

    def _by(self, called: Callable[[str], str]) -> dict[str, int]:
        """Return an index, called(key) -> image or _AMBIGUOUS. On demand: ten million images take 2 GB."""
        found: dict[str, int] = {}
        for index, key in enumerate(self._names):
            name = called(key)
            found[name] = _AMBIGUOUS if name in found else index
        return found

    def taken(self, rows: NDArray[np.intp]) -> LabelTable:
        """Return a table of some of the rows."""
        table = copy(self)
        table.images, table.lines, table.refused = self.images[rows], self.lines[rows], set()
        table.columns = {name: [cells[row] for row in rows.tolist()] for name, cells in self.columns.items()}
        return table

    def one_an_image(self, columns: Sequence[Sequence[str]], what: str) -> NDArray[np.int64]:
        """Return the first row of each image, int64 [N]; refuse images with no row or contradicting rows.

        columns: the cells that must agree. what: their name in messages. Refused images get an arbitrary row.
        """
        first = np.full(len(self._keys), -1, np.int64)
        owners, rows = np.unique(self.images, return_index=True)
        first[owners] = rows
        path, called, refuse = self.subject, os.path.basename(self.subject), self.findings.refuse
        for row in np.flatnonzero(first[self.images] != np.arange(len(self.images))).tolist():
            image, line = int(self.images[row]), self.lines[row]
            earlier = self.lines[first[image]]
            now, then = (",".join(column[r] for column in columns) for r in (row, int(first[image])))
            if now != then:
                refuse(
                    image,
                    f"its {what} is {then} ({called} line {earlier}) and {now} (line {line}).",
                    f"{path} line {line}: {self._keys[image]} has the {what} {now}, but {then} in line "
                    f"{earlier}; each image has one. Remove one of the rows",
                )
        missing = np.flatnonzero(first < 0).tolist()
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        for image in missing:
            error = f"{path}: no {what} for {self._keys[image]}{others}; every image needs one. Add the rows"
            refuse(image, f"has no row in {called}.", error)
        first[missing] = 0
        return first


def _distinct(rows: Sequence[list[str]], place: int) -> set[str]:
    return {row[place] for row in rows if place < len(row)}


def _trim(row: list[str]) -> list[str]:
    """Return a row without the empty cells at its end."""
    return row[: max((k + 1 for k, cell in enumerate(row) if cell), default=0)]


def _counts_rows(name: str, rows: Sequence[list[str]], place: int) -> bool:
    """Return True if a column before the file names is an index: without a name, or consecutive numbers."""
    cells = [row[place] for row in rows]
    if not all(cell.isascii() and cell.isdecimal() for cell in cells):
        return not name and not any(cells)
    numbers = [int(cell[:20]) for cell in cells]
    counted = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return not name or (counted and len(numbers) >= _COUNTED)
