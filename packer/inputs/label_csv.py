"""The CSV of image names with labels, boxes and keypoints; lines of text files in bounded memory.

The first column names the images, unless another column is chosen. Commas separate cells; tabs do in a .tsv.
These names match image cat/1.jpg, unless they match a second image:

    cat/1.jpg  cat\\1.jpg     its path relative to the images' folder
    1.jpg                     the end of its path, beginning at a folder or at the file name
    1                         its name without folder and extension
    /data/photos/cat/1.jpg    its path after a prefix that the names of all rows share

Any other name is an error. A prefix that ends in another folder is an error, too: names in test/ do not match
images in train/.

The file may be a pipe without a writer, an endless line or UTF-16: each is reported as an error.
"""

from __future__ import annotations

import csv
import os
import stat
import sys
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from functools import cached_property
from itertools import chain, islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import SourceError
from packer.inputs.file_names import changed, shorten, split_in
from packer.inputs.findings import Findings
from packer.inputs.label_values import CheckedRows
from packer.inputs.spare_columns import SpareColumns
from packer.sentence import Option

LONGEST = 16 << 20
"""Longest line in characters; a longer line means that the file is not text."""

_UNKNOWN, _AMBIGUOUS = -1, -2
_HEAD = 1000  # rows that show what a column holds


class LabelTable(CheckedRows):
    """The rows of a CSV: the image of each row, and the cells of the chosen columns."""

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
        spare: SpareColumns | None = None,
    ) -> None:
        """Read the CSV.

        keys: paths of the images. chosen: columns to read; empty: the CSV has two columns, and the one
        without file names is read. file_column: the column of file names; None: the first. beside: further
        columns to read. folder: the images' folder. spare: chooses more columns by the first rows. findings:
        leaves out invalid rows and rows that name no image.
        """
        super().__init__(path, array("q"), findings)
        beside = [name for name in beside if name not in chosen]
        self._keys = keys
        self._paths = {key: index for index, key in enumerate(keys)}
        self._prefix: str | None = None  # common prefix of the names in all rows; None before the first row
        self._folder, self._ends = os.path.abspath(folder), dict[int, dict[str, int]]()
        self.columns: dict[str, list[str]] = {name: [] for name in (*(chosen or ("",)), *beside)}
        """Cells of each column that is read; key "" for the label column if no columns were chosen."""
        images, lines, left_out = array("q"), array("q"), len(self.findings.skipped)
        with closing(_rows(path)) as rows:
            for line, image, cells in self._read(rows, chosen, file_column, beside, spare):
                images.append(image)
                lines.append(line)
                for column, cell in zip(self.columns.values(), cells, strict=True):
                    column.append(sys.intern(cell.strip()))
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
        rows: Iterator[tuple[int, list[str]]],
        chosen: Sequence[str],
        file_column: str | None,
        beside: Sequence[str],
        spare: SpareColumns | None,
    ) -> Iterator[tuple[int, int, list[str]]]:
        """Yield line, image and chosen cells of each row that names an image; leave out other rows."""
        start, first = next(rows, (0, [""]))
        header = [name.strip() for name in first]
        file, places = self._find(header, start, chosen, file_column, beside) if start else (0, [])
        if not (chosen or file_column or beside) and self._image(header[0]) != _UNKNOWN:  # there is no header
            rows = chain([(start, first)], rows)
        if spare is not None:
            head = list(islice(rows, _HEAD))
            more = spare.choose(header, file, (*chosen, *beside), [row for _, row in head])
            self.columns |= {name: [] for name in more}
            places, rows = [*places, *map(header.index, more)], chain(head, rows)
        for line, row in rows:
            if len(row) != len(header):
                found, allowed = (
                    units.count(len(row), "column"),
                    f"the first row has {len(header)}. Correct it",
                )
            else:
                name = row[file].strip()
                image = self._image(name, line)
                if image >= 0:
                    yield line, image, [row[place] for place in places]
                    continue
                many = "several images are" if image == _AMBIGUOUS else "no image is"
                found = f"{many} called {shorten(name)}"
                allowed = (
                    f"names are paths relative to the images' folder, such as {shorten(self._keys[0])}, "
                    "their ends, or unique names without extension, in one of the columns "
                    f"{shorten(', '.join(header))}. Correct the row, pass {Option('Labels.file_column')} "
                    "for another column"
                )
            where = f"line {line}"
            key = f"{os.path.basename(self.subject)} {where}"
            self.findings.leave_out(key, f"{found}.", f"{self.subject} {where}: {found}; {allowed}")

    def _find(
        self,
        header: list[str],
        line: int,
        chosen: Sequence[str],
        file_column: str | None,
        beside: Sequence[str],
    ) -> tuple[int, list[int]]:
        """Return the index of the file column, and those of the columns to read. Raises: SourceError."""
        where, shown = f"{self.subject} line {line}", shorten(", ".join(header))
        for name in (*chosen, *beside, *(() if file_column is None else (file_column,))):
            if header.count(name) != 1:
                many = f"{header.count(name)} columns are called" if name in header else "no column"
                raise SourceError(
                    f"{where}: {many} {name}; the first row names the columns: {shown}. Correct it, or pass "
                    "other columns."
                )
        file = 0 if file_column is None else header.index(file_column)
        more = [header.index(name) for name in beside]
        others = [place for place in range(len(header)) if place not in (file, *more)]
        if header[file] in (*chosen, *beside):
            raise SourceError(
                f"{where}: {header[file]} names the files; the columns are {shown}. Choose another column, "
                f"or pass the column of file names as {Option('Labels.file_column')}."
            )
        if not chosen and len(others) != 1:
            besides = f", besides {' and '.join(beside)}" if beside else ""
            raise SourceError(
                f"{where}: {units.count(len(header), 'column')} ({shown}); two are expected, file and "
                f"label{besides}, separated by commas, or by tabs in a .tsv. Choose the label column with "
                f"{Option('Labels.column')}."
            )
        return file, ([header.index(name) for name in chosen] or others) + more

    def _image(self, name: str, line: int = 1) -> int:
        """Return the index of the image that a name matches, _UNKNOWN for none, _AMBIGUOUS for several.

        Raises SourceError if the prefixes of two names differ, or if a prefix is that of another folder.
        """
        path = name.removeprefix("./")
        if path not in self._paths:
            path = path.replace("\\", "/").removeprefix("./")
        index, prefix = self._paths.get(path, _UNKNOWN), ""
        if index == _UNKNOWN and os.path.splitext(path)[1]:
            index = self._ending(path)
        if index == _UNKNOWN:
            index = self._stems.get(name, _UNKNOWN)
        if index == _UNKNOWN and self._prefix != "":
            index, prefix = self._behind_prefix(path)
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

    def _by(self, called: Callable[[str], str]) -> dict[str, int]:
        """Return an index, called(key) -> image or _AMBIGUOUS. On demand: ten million images take 2 GB."""
        found: dict[str, int] = {}
        for index, key in enumerate(self._keys):
            name = called(key)
            found[name] = _AMBIGUOUS if name in found else index
        return found

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
        missing = np.flatnonzero(~listed).tolist()
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        for image in missing:
            error = f"{self.subject}: no {what} for {self._keys[image]}{others}; {rule}"
            self.findings.refuse(image, f"has no row in {os.path.basename(self.subject)}.", error)

    def one_an_image(
        self, columns: Sequence[Sequence[str]], what: str, *, optional: bool = False
    ) -> NDArray[np.int64]:
        """Return the first row of each image, int64 [N]; refuse images with no row or contradicting rows.

        columns: the cells that must agree. what: their name in messages. optional: -1 for images without a row;
        otherwise refused images get an arbitrary row.
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
        if not optional:
            self.refuse_unlisted(what, "every image needs one. Add the rows")
            first[first < 0] = 0
        return first


def _rows(path: str) -> Generator[tuple[int, list[str]], None, None]:
    """Yield (line number, cells) of each row that is not blank."""
    lines = read_lines(path, "a CSV of files and labels is needed", newline="")
    rows = csv.reader(lines, strict=True, delimiter="\t" if path.lower().endswith(".tsv") else ",")
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise SourceError(f"{path} line {rows.line_num}: not CSV ({error}). Correct it.") from None


def read_lines(path: str, needed: str, *, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file with their line ends; escape invalid bytes as `os.fsdecode` does.

    needed: the expected content, for messages. newline: see `open`.
    Raises: SourceError if the file is unreadable, not regular, not text, or changes while it is read.
    """
    text = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": newline}
    with _regular_file(path, needed, "r", **text) as file:
        before = os.fstat(file.fileno())
        number = 0
        while line := file.readline(LONGEST + 1):
            number += 1
            if "\0" in line or (number == 1 and line.startswith(("\udcff\udcfe", "\udcfe\udcff"))):
                raise SourceError(
                    f"{path} line {number}: has zero bytes, which UTF-8 text has not; {needed}. "
                    "Check the file; convert UTF-16 with: iconv -f UTF-16 -t UTF-8 OLD > NEW."
                )
            if len(line) > LONGEST:
                raise SourceError(
                    f"{path} line {number}: is longer than {LONGEST:,} characters; {needed}. Check the file."
                )
            yield line
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise changed(path)


def read_bytes(path: str, needed: str) -> bytes:
    """Return all bytes of a file. Raises: SourceError if it is not a regular file or cannot be read."""
    with _regular_file(path, needed, "rb") as file:
        return bytes(file.read())


@contextmanager
def _regular_file(path: str, needed: str, mode: str, **text: Any) -> Iterator[IO[Any]]:
    """Open a file with O_NONBLOCK: a pipe without a writer does not block, regular files are unaffected."""
    try:
        with open(
            path, mode, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK), **text
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError(f"{path}: is not a regular file; {needed}. Copy it to a regular file.")
            yield file
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); {needed}. Check the path.") from None
