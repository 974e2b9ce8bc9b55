"""The CSV in which labels, boxes and keypoints stand beside the names of images; lines of text files that people write.

The first column names the images, unless another one is chosen. Commas stand between cells, tabs in a .tsv. An image cat/1.jpg is

    cat/1.jpg  cat\\1.jpg     its path below the images' folder
    1.jpg                     the end of its path, from some folder on
    1                         its name without folder and extension
    /data/photos/cat/1.jpg    its path behind a prefix that the names of all rows have

where it is the only one that is called so. Nothing else is tried: another name is an error, and so is a prefix that ends in
another folder: names in test/ are not those of images in train/.

Such a file may be anything: a pipe without a writer, an endless line, UTF-16. Each is one sentence here, in bounded memory.
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
from itertools import chain
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import SourceError
from packer.inputs.file_names import changed, shorten, split_begun, split_called
from packer.inputs.findings import Findings
from packer.inputs.label_values import CheckedRows
from packer.sentence import Option

LONGEST = 16 << 20
"""Characters of a line; longer ones are taken for a file of another kind."""

_UNKNOWN, _AMBIGUOUS = -1, -2


class LabelTable(CheckedRows):
    """The rows of a CSV: which image each is about, and the cells of the chosen columns."""

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
    ) -> None:
        """Read it; ``chosen`` names columns, none: there are two, and the one that does not name files is read.

        file_column: the column that names files; None: the first. beside: further columns, by name. folder: of the images.
        findings: rows that are about no image, or cannot be read, are left out, and images refused that cannot be used.
        """
        super().__init__(path, array("q"), findings)
        self._keys = keys
        self._paths = {key: index for index, key in enumerate(keys)}
        self._prefix: str | None = None  # of the names of all rows
        self._folder, self._ends = os.path.abspath(folder), dict[int, dict[str, int]]()
        self.columns: dict[str, list[str]] = {name: [] for name in (*(chosen or ("",)), *beside)}
        """The cells of each column that is read; "" for the one that was not chosen by name."""
        images, lines, left_out = array("q"), array("q"), len(self.findings.skipped)
        with closing(_rows(path)) as rows:
            for line, image, cells in self._read(rows, chosen, file_column, beside):
                images.append(image)
                lines.append(line)
                for column, cell in zip(self.columns.values(), cells, strict=True):
                    column.append(sys.intern(cell.strip()))
        if not images:
            found = "holds no rows; one for each image is needed. Add them."
            if skipped := self.findings.skipped[left_out:]:
                found = f"none of its {len(skipped):,} rows can be used; the first, {skipped[0]['key']}: {skipped[0]['reason']}"
            raise SourceError(f"{path}: {found}")
        self.images, self.lines = np.array(images, np.int64), np.array(lines, np.int64)

    def _read(
        self,
        rows: Iterator[tuple[int, list[str]]],
        chosen: Sequence[str],
        file_column: str | None,
        beside: Sequence[str],
    ) -> Iterator[tuple[int, int, list[str]]]:
        """Yield the line, the image and the chosen cells of each row that is about an image; leave out the others."""
        start, first = next(rows, (0, [""]))
        header = [name.strip() for name in first]
        file, places = self._find(header, start, chosen, file_column, beside) if start else (0, [])
        if not (chosen or file_column or beside) and self._image(header[0]) != _UNKNOWN:  # there is no header
            rows = chain([(start, first)], rows)
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
                    f"paths below the images' folder are read, as {shorten(self._keys[0])}, their ends, and names without "
                    f"extension that one image has, in one of the columns {shorten(', '.join(header))}. Correct the row, pass "
                    f"{Option('Labels.file_column')} for another column"
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
        """Return the column that names the file, and the others that are read."""
        where, shown = f"{self.subject} line {line}", shorten(", ".join(header))
        for name in (*chosen, *beside, *(() if file_column is None else (file_column,))):
            if header.count(name) != 1:
                many = f"{header.count(name)} columns are called" if name in header else "no column"
                raise SourceError(
                    f"{where}: {many} {name}; the first row names the columns, here {shown}. Correct it, or pass others."
                )
        file = 0 if file_column is None else header.index(file_column)
        more = [header.index(name) for name in beside]
        others = [place for place in range(len(header)) if place not in (file, *more)]
        if header[file] in (*chosen, *beside):
            raise SourceError(
                f"{where}: {header[file]} names the files; the columns are {shown}. Choose another "
                f"one, or name that of the files with {Option('Labels.file_column')}."
            )
        if not chosen and len(others) != 1:
            besides = f", besides {' and '.join(beside)}" if beside else ""
            raise SourceError(
                f"{where}: {units.count(len(header), 'column')} ({shown}); two are read, file and label{besides}, parted by commas, or "
                f"by tabs in a .tsv. Name the label's with {Option('Labels.column')}."
            )
        return file, ([header.index(name) for name in chosen] or others) + more

    def _image(self, name: str, line: int = 1) -> int:
        """Return the index of the image called so, _UNKNOWN if there is none, _AMBIGUOUS if there are several.

        Raises SourceError where the names of some rows have a prefix, and others none, or another one, or one of another folder.
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
                    f"{self.subject}: its names begin with {prefix!r}, which is passed over: {shown}."
                )
        if prefix != self._prefix:
            raise SourceError(
                f"{self.subject} line {line}: {shorten(name)} does not begin with {self._prefix}, as the names before it do; all"
                " names have one prefix before the paths below the images' folder, or none. Pass the folder that holds all images."
            )
        return index

    def _behind_prefix(self, path: str) -> tuple[int, str]:
        """Return the image whose path is the end of this one, _AMBIGUOUS if there are several, and what is before it."""
        found: list[str] = []
        rest = path
        while "/" in rest:
            rest = rest.partition("/")[2]
            found += [rest] if rest in self._paths else []
        if len(found) != 1:
            return (_AMBIGUOUS if found else _UNKNOWN), ""
        return self._paths[found[0]], path.removesuffix(found[0])

    def _check_prefix(self, prefix: str, key: str, line: int) -> None:
        """Raise SourceError if the names of the rows are those of files in another folder than the images'."""
        parent, own = os.path.split(self._folder)
        last = os.path.basename(prefix.rstrip("/"))
        if last in ("", own):
            return
        mine, other = os.path.join(self._folder, key), os.path.join(parent, last, key)
        splits = split_called(last), split_begun(own) or split_called(own)
        twin = os.path.isfile(mine) and os.path.isfile(other) and not os.path.samefile(mine, other)
        if twin or (None not in splits and splits[0] != splits[1]):
            raise SourceError(
                f"{self.subject} line {line}: {shorten(prefix + key)} is in the folder {last}, and the images are those of {own}; "
                "labels of another folder are not taken. Pass that folder, or write the names as paths below the images' folder."
            )

    def _ending(self, path: str) -> int:
        """Return the image whose path ends in this one, _UNKNOWN, or _AMBIGUOUS."""
        parts = path.count("/") + 1
        if parts not in self._ends:
            self._ends[parts] = self._by(lambda key: "/".join(key.split("/")[-parts:]))
        return self._ends[parts].get(path, _UNKNOWN)

    @cached_property
    def _stems(self) -> dict[str, int]:
        """Images by their names without extension."""
        return self._by(lambda key: os.path.splitext(key.rpartition("/")[2])[0])

    def _by(self, called: Callable[[str], str]) -> dict[str, int]:
        """Return images by what their paths say; made when it is needed first: for ten million images it takes two gigabytes."""
        found: dict[str, int] = {}
        for index, key in enumerate(self._keys):
            name = called(key)
            found[name] = _AMBIGUOUS if name in found else index
        return found

    def taken(self, rows: NDArray[np.intp]) -> LabelTable:
        """Return some of the rows."""
        made = copy(self)
        made.images, made.lines, made.refused = self.images[rows], self.lines[rows], set()
        made.columns = {name: [cells[row] for row in rows.tolist()] for name, cells in self.columns.items()}
        return made

    def one_an_image(self, columns: Sequence[Sequence[str]], what: str) -> NDArray[np.int64]:
        """Find the first row of each image, int64 [N]; images whose rows disagree, or that have none, are refused, and get any row."""
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
                    f"{path} line {line}: {self._keys[image]} has the {what} {now}, and {then} in line {earlier}; "
                    "each image has one. Remove one of the rows",
                )
        missing = np.flatnonzero(first < 0).tolist()
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        for image in missing:
            error = f"{path}: no {what} for {self._keys[image]}{others}; every image needs one. Add the rows"
            refuse(image, f"has no row in {called}.", error)
        first[missing] = 0
        return first


def _rows(path: str) -> Generator[tuple[int, list[str]], None, None]:
    """Yield (line number, cells) of the rows that are not blank."""
    lines = read_lines(path, "a CSV of files and labels is needed", newline="")
    rows = csv.reader(lines, strict=True, delimiter="\t" if path.lower().endswith(".tsv") else ",")
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise SourceError(f"{path} line {rows.line_num}: not CSV ({error}). Correct it.") from None


def read_lines(path: str, needed: str, *, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file of UTF-8, each with its end; bytes that are not UTF-8 are escaped as by `os.fsdecode`.

    needed: what the file should be, for messages; newline: as `open` has it.
    Raises: SourceError for what is no regular file, cannot be read, is no text, or changes while it is read.
    """
    text = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": newline}
    with _regular_file(path, needed, "r", **text) as file:
        before = os.fstat(file.fileno())
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


def read_whole(path: str, needed: str) -> bytes:
    """Read a file that is needed whole. Raises: SourceError for what is no regular file or cannot be read."""
    with _regular_file(path, needed, "rb") as file:
        return bytes(file.read())


@contextmanager
def _regular_file(path: str, needed: str, mode: str, **text: Any) -> Iterator[IO[Any]]:
    """Open a file without waiting for the writer of a pipe; reading files does not change by it."""
    try:
        with open(
            path, mode, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK), **text
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError(f"{path}: is no regular file; {needed}. Copy it to one.")
            yield file
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); {needed}. Check the path.") from None
