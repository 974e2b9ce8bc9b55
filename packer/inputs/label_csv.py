"""The CSV in which labels, boxes and keypoints stand beside the names of images; lines of text files that people write.

Such a file may be anything: a pipe without a writer, an endless line, UTF-16. Each is one sentence here, in bounded memory.
"""

from __future__ import annotations

import csv
import os
import stat
import sys
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.inputs.file_names import changed, is_array, is_image, same_for_people, shorten
from packer.inputs.label_values import CheckedRows
from packer.sentence import Option, Sentence

LONGEST = 16 << 20
"""Characters of a line; longer ones are taken for a file of another kind."""

_AMBIGUOUS = -1
_SNIFFED_ROWS = 20


class _NotCsvError(SourceError):
    """A file breaks the rules of CSV."""


class _UnusableRowError(Exception):
    """A row that cannot be used: what was found, and what is allowed."""

    def __init__(self, found: str, allowed: str) -> None:
        self.found, self._allowed = found, allowed

    def told(self, path: str, line: int) -> SourceError:
        """Return the error for the row's file."""
        return SourceError(f"{path} line {line}: {self.found}; ", self._allowed)


class LabelTable:
    """The rows of a CSV: which image each is about, and the cells of the chosen columns."""

    def __init__(
        self,
        path: str,
        keys: list[str],
        chosen: tuple[str, ...],
        *,
        file_column: str | None = None,
        skip: bool = False,
    ) -> None:
        """Read it; ``chosen`` names columns, none: there are two, and the one that does not name files is read.

        file_column: the column that names files; None: the first that has a name. skip: leave out rows that are about no image, or
        cannot be read, and note images that cannot be used; else the first of them is an error.
        """
        self.path = path
        self._keys, self._skip = keys, skip
        self.skipped: list[dict[str, str]] = []
        """Rows left out: {"key", "reason"}."""
        self.refused: dict[int, str] = {}
        """Image -> why it cannot be used, in words that follow its name."""
        self.notes: list[str] = []
        """Notes on the values of columns, a sentence each."""
        self.columns: dict[str, list[str]] = {name: [] for name in chosen or ("",)}
        """The cells of each chosen column; "" for the one that was not chosen by name."""
        names = _Names(self._keys)
        with closing(_rows(path, _delimiter(path, names))) as rows:
            images, lines = self._read(rows, chosen, file_column, names)
        self.images, self.lines = np.asarray(images, np.int64), np.asarray(lines, np.int64)
        """int64 [rows]: index of the image, line in the file."""
        if self.skipped and not len(self.images):
            first = self.skipped[0]
            raise SourceError(
                f"{path}: none of its {len(self.skipped):,} rows can be used; the first, {first['key']}: {first['reason']}"
            )

    def _read(
        self,
        rows: Iterator[tuple[int, list[str]]],
        chosen: tuple[str, ...],
        file_column: str | None,
        names: _Names,
    ) -> tuple[array[int], array[int]]:
        """Fill the columns. Returns: the rows' images and lines."""
        images, lines = array("q"), array("q")
        file, places, width = 0, [1], 2
        named = bool(chosen) or file_column is not None
        if named:
            line, header = next(rows, (1, [""]))
            header = [name.strip() for name in header]
            file, places = self._find(header, line, chosen, file_column)
            width = len(header)
        for number, (line, row) in enumerate(rows):
            if len(row) != width:
                remedy = (
                    Sentence(f"the header has {width}. Correct it.")
                    if named
                    else "two are read, file and label. Remove the others, or name the label's with "
                    + Option("label")
                    + "."
                )
                shown = "" if named or number else f" ({shorten(', '.join(row))})"
                wrong = _UnusableRowError(
                    f"{len(row)} {'column' if len(row) == 1 else 'columns'}{shown}", remedy
                )
                if not named and number == 0:
                    raise wrong.told(self.path, line)
                self._leave_out(line, wrong)
                continue
            name = row[file].strip()
            if not named and number == 0 and not names.known(name):
                continue
            try:
                image = names.get(name)
            except _UnusableRowError as error:
                self._leave_out(line, error)
                continue
            images.append(image)
            lines.append(line)
            for column, place in zip(self.columns.values(), places, strict=True):
                column.append(sys.intern(row[place].strip()))
        return images, lines

    def _leave_out(self, line: int, wrong: _UnusableRowError) -> None:
        """Note a row that cannot be used, or raise SourceError."""
        if not self._skip:
            raise wrong.told(self.path, line) from None
        key = f"{os.path.basename(self.path)} line {line}"
        self.skipped.append({"key": key, "reason": f"{wrong.found}."})

    def _find(
        self, header: list[str], line: int, chosen: tuple[str, ...], file_column: str | None
    ) -> tuple[int, list[int]]:
        """Return the column that names the file, and the chosen ones."""
        where = f"{self.path} line {line}"
        for name in (*chosen, *(() if file_column is None else (file_column,))):
            if header.count(name) != 1:
                found = (
                    f"{header.count(name)} columns are called {name}"
                    if name in header
                    else f"no column {name}"
                )
                raise SourceError(
                    f"{where}: {found}; the first row names the columns, here {shorten(', '.join(header))}. Correct it, or pass others."
                )
        file = (
            next(place for place, name in enumerate(header) if name)
            if file_column is None
            else header.index(file_column)
        )
        if header[file] in chosen:
            is_first = (
                "is the first column; that one names the files" if file_column is None else "names the files"
            )
            remedy = (
                "Name the one that does with " + Option("label_file_column")
                if file_column is None
                else "Choose another one"
            )
            raise SourceError(f"{where}: {header[file]} {is_first}. ", remedy, ".")
        if chosen:
            return file, [header.index(name) for name in chosen]
        others = [place for place, name in enumerate(header) if name and place != file]
        if len(others) != 1:
            raise SourceError(
                f"{where}: {len(others)} columns beside {file_column}; one is taken for the label. Name it with ",
                Option("label"),
                ".",
            )
        return file, others

    def checked(self, rows: slice | NDArray[np.intp] = slice(None)) -> CheckedRows:
        """Return rows to be checked; the images that refused ones are about are refused."""
        images = self.images[rows]
        return CheckedRows(
            self.path,
            self.lines[rows],
            skip=self._skip,
            then=lambda row, reason: self.refused.setdefault(int(images[row]), reason),
            notes=self.notes,
        )

    def one_an_image(self, columns: Sequence[Sequence[str]], what: str) -> NDArray[np.int64]:
        """Find the first row of each image, int64 [N]; images whose rows disagree, or that have none, are refused, and get any row."""
        first = np.full(len(self._keys), -1, np.int64)
        owners, rows = np.unique(self.images, return_index=True)
        first[owners] = rows
        for row in np.flatnonzero(first[self.images] != np.arange(len(self.images))).tolist():
            image = int(self.images[row])
            earlier = int(first[image])
            now, then = (",".join(column[r] for column in columns) for r in (row, earlier))
            if now == then:
                continue
            if not self._skip:
                raise SourceError(
                    f"{self.path} line {self.lines[row]}: {self._keys[image]} has the {what} {now}, and {then} in line "
                    f"{self.lines[earlier]}; each image has one. Remove one of the rows."
                )
            called, line = os.path.basename(self.path), self.lines[row]
            reason = f"its {what} is {then} ({called} line {self.lines[earlier]}) and {now} (line {line})."
            self.refused.setdefault(image, reason)
        missing = np.flatnonzero(first < 0)
        if len(missing) and not self._skip:
            others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise SourceError(
                f"{self.path}: no {what} for {self._keys[missing[0]]}{others}; every image needs one. "
                "Add the rows, or pass ",
                Option("on_error", "skip"),
                ".",
            )
        if len(missing) and not len(self.images):
            raise SourceError(f"{self.path}: holds no rows; one for each image is needed. Add them.")
        for image in missing.tolist():
            self.refused.setdefault(image, f"has no row in {os.path.basename(self.path)}.")
        first[missing] = 0
        return first


def _rows(path: str, delimiter: str = ",") -> Generator[tuple[int, list[str]], None, None]:
    """Yield (line number, cells) of the rows that are not blank."""
    lines = read_lines(path, "a CSV of files and labels is needed", newline="")
    rows = csv.reader(lines, strict=True, delimiter=delimiter)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise _NotCsvError(f"{path} line {rows.line_num}: not CSV ({error}). Correct it.") from None


def _delimiter(path: str, names: _Names) -> str:
    """Find out what stands between cells: a comma, a semicolon or a tab.

    The one that the first row holds; of several, one that parts the first cells so that they name images, or else the comma.
    """
    found: dict[str, list[list[str]]] = {}
    for delimiter in ",;\t":
        try:
            with closing(_rows(path, delimiter)) as rows:
                first = [row for _, row in islice(rows, _SNIFFED_ROWS)]
        except _NotCsvError:
            continue  # quotes that do not go with this delimiter
        if first and len(first[0]) > 1:
            found[delimiter] = first
    if len(found) > 1:
        for delimiter, first in found.items():
            if any(names.known(cell.strip()) for row in first[:2] for cell in row):
                return delimiter
    return next(iter(found), ",")


class _Names:
    """An index of images by what a CSV calls them: path, path without extension, or, if unique, name with or without extension."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = keys
        self._paths = {key: index for index, key in enumerate(keys)}
        self._others: dict[str, dict[str, int]] = {}

    def known(self, name: str) -> bool:
        """Say whether any image is called so."""
        if self._by_path(name) is not None:
            return True
        ways = _ways(name)
        return any(_SHORT[way](key) == name for key in self._keys for way in ways)

    def get(self, name: str) -> int:
        """Return the index of the image. Raise _UnusableRowError unless there is exactly one."""
        index = self._by_path(name)
        for way in _ways(name) if index is None else ():
            index = self._known_by(way).get(name)
            if index == _AMBIGUOUS:
                first, second = [key for key in self._keys if _SHORT[way](key) == name][:2]
                raise _UnusableRowError(
                    f"{name} could be {first} or {second}",
                    f"a name without {_LEFT_OUT[way]} must be unique. Write the whole path.",
                )
            if index is not None:
                break
        if index is None:
            near = self._alike.get(same_for_people(name))
            raise _UnusableRowError(
                f"no image is called {shorten(name)}"
                + (
                    "" if near is None else f" ({shorten(near)} differs in case, or in how Unicode writes it)"
                ),
                "paths below the images' folder are read, and unique names without folder or extension. Correct or remove the row, or pass "
                + Option("on_error", "skip")
                + ".",
            )
        return index

    @cached_property
    def _alike(self) -> dict[str, str]:
        """Images by their paths without case and forms of Unicode."""
        return {same_for_people(key): key for key in self._keys}

    def _by_path(self, name: str) -> int | None:
        index = self._paths.get(name)
        return self._paths.get(os.path.normpath(name)) if index is None else index

    def _known_by(self, way: str) -> dict[str, int]:
        """Return images by a shorter name; made when it is needed first: for ten million images it takes two gigabytes."""
        if way not in self._others:
            found = self._others[way] = {}
            for index, key in enumerate(self._keys):
                name = _SHORT[way](key)
                found[name] = _AMBIGUOUS if name in found else index
        return self._others[way]


def _without_extension(key: str) -> str:
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}"


_SHORT: dict[str, Callable[[str], str]] = {
    "path": _without_extension,
    "name": lambda key: key.rpartition("/")[2],
    "stem": lambda key: _without_extension(key).rpartition("/")[2],
}
_LEFT_OUT = {"path": "extension", "name": "folder", "stem": "extension"}


def _ways(name: str) -> tuple[str, ...]:
    """Return the shorter names by which an image may be called so."""
    if "/" in name:
        return ("path",)
    return ("name", "stem") if is_image(name) or is_array(name) else ("stem",)


def read_lines(path: str, needed: str, *, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file of UTF-8, each with its end; bytes that are not UTF-8 are escaped as by `os.fsdecode`.

    needed: what the file should be, for messages; newline: as `open` has it.
    Raises: SourceError for what is no regular file, cannot be read, is no text, or changes while it is read.
    """
    try:
        with open(
            path, encoding="utf-8-sig", errors="surrogateescape", newline=newline, opener=_open
        ) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise SourceError(f"{path}: is no regular file; {needed}. Copy it to one.")
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                if "\0" in line or (number == 1 and line.startswith(("\udcff\udcfe", "\udcfe\udcff"))):
                    raise SourceError(
                        f"{path} line {number}: has zero bytes, as no text of UTF-8 has; {needed}. "
                        "Check what it is; of UTF-16, convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW."
                    )
                if len(line) > LONGEST:
                    raise SourceError(
                        f"{path} line {number}: is longer than {LONGEST:,} characters; {needed}. Check what it is."
                    )
                yield line
            after = os.fstat(file.fileno())
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise changed(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); {needed}. Check the path.") from None


def read_whole(path: str) -> bytes:
    """Read a file that is needed whole. Raises: SourceError for what is no regular file or cannot be read."""
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError(f"{path}: is no regular file; one is needed. Copy it to one.")
            return file.read()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None


def _open(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe; reading files does not change by it."""
    return os.open(path, flags | os.O_NONBLOCK)
