"""LabelTable: the rows of a label file, matched to images (image_names.py), with the chosen columns."""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import SourceError
from packer.inputs.file_names import SPLIT_NAMES, shorten
from packer.inputs.image_names import AMBIGUOUS, UNKNOWN, ImageNames
from packer.inputs.label_columns import ColumnFinder
from packer.inputs.label_options import Labels
from packer.inputs.label_rows import HEAD, LabelRows, read_rows
from packer.inputs.label_values import CheckedRows
from packer.inputs.opened_source import ImageSource
from packer.inputs.spare_columns import SpareColumns, find_spare
from packer.path_text import show_differences

_LIST = re.compile(r"[\[(]\s*[-+.\d][-+.\deE]*(?:[\s,]+[-+.\d][-+.\deE]*)+\s*[\])]")


class LabelTable(CheckedRows):
    """The rows of a label file: the image of each row, and the cells of the chosen columns."""

    def __init__(
        self, labels: Labels, images: ImageSource, beside: Sequence[str] = (), content: Any = None
    ) -> None:
        """Read the file.

        labels: the file and its columns. images: their findings leave out invalid rows and rows that name no
        image. beside: further columns to read. content: parsed JSON of the file.
        """
        super().__init__(os.fspath(labels.file or ""), array("q"), images.findings)
        self.labels, self.spare = labels, SpareColumns()
        """The options; the columns besides the chosen ones, if boxes or keypoints are read."""
        chosen = [name for role in ("column", "boxes", "keypoints") for name in labels.columns(role)]
        beside = [name for name in beside if name not in chosen]
        self._keys, self._names = images.keys, ImageNames(images.keys, images.name)
        self._folder = os.path.basename(images.name)
        self.columns: dict[str, list[str]] = {name: [] for name in (*(chosen or ("",)), *beside)}
        """Cells of each column that is read; key "" for the label column if none was chosen, and if any."""
        self.label_name = "the label"
        """The name of the label column if none was chosen, for messages."""
        found, lines, left_out = array("q"), array("q"), len(self.findings.skipped)
        finder = ColumnFinder(self._names, chosen, beside, labels.file_column)
        rows = read_rows(self.subject, finder.weigh, content)
        self.unit = rows.unit
        for line, image, cells in self._matched_rows(rows, finder):
            found.append(image)
            lines.append(line)
            for column, cell in zip(self.columns.values(), cells, strict=True):
                column.append(sys.intern(cell.strip()))
        if not found:
            problem = "holds no rows; a row for each image is needed. Add them."
            used = self.findings.none_used(left_out, "rows can be used")
            raise SourceError(f"{self.subject}: {used or problem}")
        self.images, self.lines = np.array(found, np.int64), np.array(lines, np.int64)
        self._check_label(set(self.columns.get("", ())))

    def _check_label(self, cells: set[str]) -> None:
        """Raise SourceError if the label, of which nothing was chosen, holds splits or lists of numbers."""
        if self.labels.as_ == "classes" or self.labels.separator is not None:
            return
        splits, name = {cell.lower() for cell in cells}, self.label_name
        if len(splits) > 1 and splits <= SPLIT_NAMES.keys():
            held = f"names of splits ({', '.join(sorted(splits))})"
            way = f"split=Split(column={name!r}) for these splits"
        elif cells and all(map(_LIST.fullmatch, cells)):
            held = f"lists of numbers, as of boxes ({shorten(min(cells))})"
            way = f"labels=Labels(boxes={name!r}) for boxes"
        else:
            return
        raise SourceError(
            f"{self.subject}: {shorten(name)} holds {held}, no classes. Pass {way}, or"
            " labels=Labels(as_='classes') for classes."
        )

    def _matched_rows(self, found: LabelRows, finder: ColumnFinder) -> Iterator[tuple[int, int, list[str]]]:
        """Yield line, image and chosen cells of each row that names an image; leave out other rows."""
        head = list(islice(found.rows, HEAD))
        if not head:
            return
        where = self.subject if found.names else f"{self.subject} {self.unit} {head[0][0]}"
        rows = [row for _, row in head]
        try:
            header, headed, file, places = finder.find(where, found.names, rows)
        except SourceError as error:
            raise SourceError(f"{error} {found.note}".rstrip()) from None
        if len(places) < len(self.columns):
            del self.columns[""]
        elif "" in self.columns and (found.names or headed):
            self.label_name = header[places[0]]
        self.findings.note(found.note)
        if file and self.labels.file_column is None:
            self.findings.note(f"{self.subject}: the column {header[file]} names the images.")
        if found.names or headed:
            self.findings.note(*self._unread_splits(header, {file, *places}, rows[headed:]))
        if self.labels.boxes or self.labels.keypoints:
            self.spare = find_spare(self.labels, header, file, self.columns, rows[headed:])
            more = [*filter(None, (self.spare.label, *self.spare.sizes))]
            self.columns |= {name: [] for name in more}
            places = [*places, *map(header.index, more)]
        others: list[str] = []
        for line, row in chain(head[headed:], found.rows):
            if len(row) != len(header) and (len(row) < len(header) or any(row[len(header) :])):
                problem = units.count(len(row), "column")
                allowed = f"the first row has {len(header)}. Correct it"
            else:
                if (image := self._names.find(row[file])) == UNKNOWN:
                    image = self._names.find_in_any_case(row[file])
                    if image >= 0:
                        others.append(f"{shorten(row[file])} for {shorten(self._keys[image])}")
                if image >= 0:
                    yield line, image, [row[place] for place in places]
                    continue
                problem, allowed = self._unnamed(row[file], image, header)
            where = f"{self.unit} {line}"
            key = f"{os.path.basename(self.subject)} {where}"
            self.findings.leave_out(key, f"{problem}.", f"{self.subject} {where}: {problem}; {allowed}")
        if others:
            names = units.count(len(others), "name")
            self.findings.note(f"{self.subject}: {names} in another case than the image's, as {others[0]}.")

    def _unnamed(self, name: str, image: int, header: list[str]) -> tuple[str, str]:
        """Return what is wrong with a name that no image has, or several, and the rule and remedy."""
        near = " and ".join(map(show_differences, self._names.alike(name)[:2]))
        problem = f"no image is called {shorten(name)}"
        if image == AMBIGUOUS:
            near = " and ".join(map(show_differences, self._names.alike(name)[:2]))
            problem = f"several images are called {shorten(name)}" + (f": {shorten(near)}" if near else "")
        behind = f", or stand behind {shorten(self._folder)}/" if self._folder else ""
        return problem, (
            f"names are paths relative to the images' folder, such as {shorten(self._keys[0])}, their ends, "
            f"or unique names without extension{behind}, in one of the columns {shorten(', '.join(header))}. "
            "Correct the row, pass labels=Labels(file_column=) for another column"
        )

    def _unread_splits(
        self, header: Sequence[str], read: Collection[int], rows: Sequence[Sequence[str]]
    ) -> Iterator[str]:
        """Yield a note on a column whose first cells are all names of splits, if it is not read."""
        for place, name in enumerate(header):
            cells = {row[place].strip().lower() for row in rows if len(row) == len(header)}
            if place not in read and len(cells) > 1 and cells <= SPLIT_NAMES.keys():
                yield (
                    f"{self.subject}: the column {shorten(name)} names splits ({', '.join(sorted(cells))}), "
                    f"and is not read. Pass split=Split(column={name!r}) for these splits."
                )

    def taken(self, rows: NDArray[np.intp]) -> LabelTable:
        """Return a table of some of the rows."""
        table = copy(self)
        table.images, table.lines, table.refused = self.images[rows], self.lines[rows], set()
        table.columns = {name: [cells[row] for row in rows.tolist()] for name, cells in self.columns.items()}
        return table

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self._keys)

    def refuse_unlisted(self, what: str, rule: str) -> None:
        """Refuse images without a row. what: what they lack; rule: what is allowed, and the remedy."""
        listed = np.zeros(len(self._keys), np.bool_)
        listed[self.images] = True
        reason = f"has no row in {os.path.basename(self.subject)}."
        error = f"{self.subject}: no {what} for"
        self.findings.refuse_unlisted(np.flatnonzero(~listed).tolist(), self._keys, reason, error, rule)

    def one_an_image(
        self, columns: Sequence[Sequence[str]], what: str, *, optional: bool = False
    ) -> NDArray[np.int64]:
        """Return the first row of each image, int64 [N]; refuse images with no row or contradicting rows.

        columns: the cells that must agree. what: their name in messages. optional: -1 for images without a
        row; otherwise refused images get an arbitrary row.
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
                    f"its {what} is {then} ({called} {self.unit} {earlier}) and {now} ({self.unit} {line}).",
                    f"{path} {self.unit} {line}: {self._keys[image]} has the {what} {now}, but {then} in "
                    f"{self.unit} {earlier}; each image has one. Remove one of the rows",
                )
        if not optional:
            self.refuse_unlisted(what, "every image needs one. Add the rows")
            first[first < 0] = 0
        return first
