"""Rows of label files: text, JSON, Excel and Parquet, told by their contents.

    text      cells separated by commas, tabs, semicolons, bars or blanks: by what makes a column name images
    JSON      {"a.jpg": "cat"}, {"cat": ["a.jpg"]}, [{"file": "a.jpg", "label": "cat"}], [["a.jpg", "cat"]],
              an object with such a list, {"a.jpg": {"label": "cat"}}; JSON lines
    .xlsx     the first sheet with values
    Parquet   all columns but nested ones, by pyarrow

A list in a cell becomes JSON text. Other forms are refused by their names.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from packer.errors import SourceError
from packer.inputs.file_names import shorten
from packer.inputs.text_files import first_bytes, read_bytes, read_lines
from packer.parquet import open_parquet, reading_arrow
from packer.workbooks import ERRORS, filled_sheets

HEAD = 1000
"""Rows that tell the separator, the header and the column of file names."""

_NEEDED = "labels as CSV, JSON, .xlsx or Parquet are needed"
_FOREIGN = {
    b"\xd0\xcf\x11\xe0": "an old Excel file (.xls)",
    b"\x89HDF": "an HDF5 file",
    b"MATLAB 5.0": "a MATLAB file (.mat)",
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"SQLite format 3": "an SQLite database",
    b"ARROW1": "an Arrow file",
    b"\x80": "a pickle",
    b"%PDF": "a PDF file",
    b"<": "XML or HTML",
}
"""First bytes -> what a file is, in the words of messages."""
_BLANK = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"
_JSON = (b"{", b"[")

Row = tuple[int, list[str]]
Weigh = Callable[[Sequence[list[str]], bool], int]
"""Rows, and True to accept all that may name an image -> how much their best column names images, or 0."""
Way = Callable[[str, Iterable[str]], Iterator[Row]]
"""Path for messages, and lines -> rows."""


class LabelRows(NamedTuple):
    """The rows of a label file.

    names: of the columns; None if the first row may hold them. rows: (number, cells), blank rows left out.
    unit: what the numbers count. note: about parts that are not read, or "".
    """

    names: list[str] | None
    rows: Iterator[Row]
    unit: str = "line"
    note: str = ""


def read_rows(path: str, weigh: Weigh, content: Any = None) -> LabelRows:
    """Open a label file. content: its parsed JSON, see `read_json`. Raises: SourceError."""
    if content is not None:
        return _json_rows(path, content, weigh)
    head = first_bytes(path, _NEEDED, len(_BLANK) + 64)
    if head.startswith(b"PK\x03\x04"):
        return _excel_rows(path)
    if head.startswith(b"PAR1"):
        return _parquet_rows(path)
    for begin, called in _FOREIGN.items():
        if head.lstrip(_BLANK).startswith(begin):
            raise SourceError(f"{path}: is {called}; {_NEEDED}. Export it as CSV.")
    if counted := _counted_rows(path):
        return counted
    way, certain = _way(path, weigh)
    if head.lstrip(_BLANK)[:1] in _JSON and not certain:
        return _json_lines(path)
    return LabelRows(None, way(path, _lines(path)))


def read_json(path: str) -> Any:
    """Return the value of a file that is one JSON object or list; None for any other file."""
    if first_bytes(path, _NEEDED, 1 << 12).lstrip(_BLANK)[:1] not in _JSON:
        return None
    try:
        return json.loads(read_bytes(path, _NEEDED))
    except (ValueError, RecursionError):
        return None


# Text


def _lines(path: str) -> Iterator[str]:
    return read_lines(path, _NEEDED, newline="")


def _cells(path: str, lines: Iterable[str], delimiter: str) -> Iterator[Row]:
    reader = csv.reader(lines, strict=True, delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise SourceError(f"{path} line {reader.line_num}: not CSV ({error}). Correct it.") from None


def _words(path: str, lines: Iterable[str], split: Callable[[str], list[str]]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, split(line.strip())


_FEWEST_COUNTED = 3
_ALL_WORDS = partial(_words, split=str.split)
_WAYS: dict[str, Way] = {
    **{delimiter: partial(_cells, delimiter=delimiter) for delimiter in ",\t;|"},
    " ": _ALL_WORDS,
    "first": partial(_words, split=partial(str.split, maxsplit=1)),
    "last": partial(_words, split=partial(str.rsplit, maxsplit=1)),
}
"""Ways to split lines into cells: at a delimiter, at all blanks, at the first or the last."""


def _counted_rows(path: str) -> LabelRows | None:
    """Return the rows of a file that begins with their number and a line of names, as CelebA's lists do.

    The column of file names may have no name.
    """
    head = [line.split() for line in islice(_lines(path), HEAD)]
    if len(head) < _FEWEST_COUNTED or len(head[0]) != 1 or not head[0][0].isdecimal():
        return None
    unnamed = {len(cells) - len(head[1]) for cells in head[2:] if cells}
    if unnamed not in ({0}, {1}) or sum(bool(line.strip()) for line in _lines(path)) - 2 != int(head[0][0]):
        return None
    names = ["(name)"] * (1 in unnamed) + head[1]
    return LabelRows(names, islice(_ALL_WORDS(path, _lines(path)), 2, None))


def _head(path: str, way: Way, lines: Iterable[str]) -> list[list[str]]:
    """Return the first rows, up to one that cannot be parsed."""
    rows: list[list[str]] = []
    with suppress(SourceError):
        rows.extend(cells for _, cells in islice(way(path, lines), HEAD))
    return rows


def _way(path: str, weigh: Weigh) -> tuple[Way, bool]:
    """Return how lines are split into cells, so that a column names most images; True for file names."""
    lines, first = list(islice(_lines(path), HEAD)), "\t" if path.lower().endswith(".tsv") else ","
    heads = {name: _head(path, _WAYS[name], lines) for name in (first, *_WAYS)}
    even = {name: len(head[0]) > 1 for name, head in heads.items() if len(set(map(len, head))) == 1}
    if " " not in even:  # a name and several labels, or a name with blanks
        heads[" "] = []
    for loose in (False, True):
        weights = {name: weigh(head, loose) for name, head in heads.items()}
        best = max(weights, key=weights.__getitem__)
        if weights[best]:
            return _WAYS[best], weights[best] > len(heads[best])
    return _WAYS[next((name for name, several in even.items() if several), first)], False


# JSON


def _json_lines(path: str) -> LabelRows:
    """Return the rows of a file with one JSON value a line. Raises: SourceError."""
    entries, numbers = [], []
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                entries.append(json.loads(line))
            except (ValueError, RecursionError):
                where = f"{path} line {number}" if entries else path
                raise SourceError(f"{where}: damaged or truncated JSON; {_NEEDED}. Get it again.") from None
            numbers.append(number)
    return _entries(path, entries, "line", numbers)


def _json_rows(path: str, content: Any, weigh: Weigh) -> LabelRows:
    """Return the rows of a JSON object or list. Raises: SourceError."""
    if isinstance(content, list):
        return _entries(path, content, "entry")
    lists = [value for value in content.values() if _is_table(value)]
    if len(lists) == 1:
        return _json_rows(path, lists[0], weigh)
    if lists or not content:
        raise SourceError(
            f"{path}: holds the lists or objects {shorten(', '.join(content)) or '(none)'}; {_NEEDED}, as "
            '{"a.jpg": "cat"} or [{"file": "a.jpg", "label": "cat"}]. Keep one list.'
        )
    if all(isinstance(value, dict) for value in content.values()):
        content = [{"(name)": name, **value} for name, value in content.items()]
        return _json_rows(path, content, weigh)
    # Names that come again stay, so that their labels are compared.
    pairs: list[Any] = json.loads(read_bytes(path, _NEEDED), object_pairs_hook=list)
    weight = weigh([[name, ""] for name in content][:HEAD], True)
    if all(isinstance(value, list) for value in content.values()):
        turned = [(str(item), name) for name, items in pairs for item in items]
        if weigh(list(map(list, turned[:HEAD])), True) > weight:
            pairs = turned  # the images of each class
    elif not weight and weigh([list(map(_text, content.values()))], True):
        return _entries(path, [content], "line")  # JSON lines of one line
    return _entries(path, [{"file": name, "label": value} for name, value in pairs], "entry")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, list | dict) for entry in value)


def _entries(path: str, entries: list[Any], unit: str, numbers: Sequence[int] = ()) -> LabelRows:
    """Return rows of JSON objects, or of lists of equal length. Raises: SourceError."""
    numbers = numbers or range(1, len(entries) + 1)
    if entries and all(isinstance(entry, dict) for entry in entries):
        names = list(dict.fromkeys(name for entry in entries for name in entry))
        rows = [[entry.get(name) for name in names] for entry in entries]
    elif all(isinstance(entry, list) for entry in entries):
        names, rows = [], entries
    else:
        raise SourceError(
            f"{path}: holds {type(entries[0]).__name__} instead of objects or lists; {_NEEDED}, as "
            '{"a.jpg": "cat"} or [{"file": "a.jpg", "label": "cat"}]. Correct it.'
        )
    return _without_nested(names, rows, numbers, unit)


def _without_nested(names: list[str], rows: list[list[Any]], numbers: Iterable[int], unit: str) -> LabelRows:
    """Return rows as texts, without the columns that hold objects."""
    nested = {
        k
        for row in rows
        for k, value in enumerate(row)
        if isinstance(value, dict | bytes) or _is_table(value)
    }
    kept = [k for k in range(max(map(len, rows), default=0)) if k not in nested]
    left_out = ", ".join(names[k] if names else str(k) for k in sorted(nested))
    texts = ([_text(row[k]) for k in kept if k < len(row)] for row in rows)
    return LabelRows(
        [names[k] for k in kept] if names else None,
        zip(numbers, texts, strict=True),
        unit,
        f"Left out: {shorten(left_out)}; they hold objects." if nested else "",
    )


def _text(value: Any) -> str:
    """Return a value as the text of a cell; a list as JSON."""
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value).strip()


# Excel and Parquet


def _excel_rows(path: str) -> LabelRows:
    """Return the rows of the first sheet of an .xlsx. Raises: SourceError, MissingDependencyError."""
    data = io.BytesIO(read_bytes(path, _NEEDED))
    try:
        with zipfile.ZipFile(data) as file:
            members = file.namelist()
    except zipfile.BadZipFile:
        raise SourceError(f"{path}: damaged or truncated .xlsx or zip; {_NEEDED}. Get it again.") from None
    if "xl/workbook.xml" not in members:
        called = "an OpenDocument file" if "mimetype" in members else "a zip archive"
        raise SourceError(f"{path}: is {called}; {_NEEDED}. Export it as CSV, or unpack it.")
    sheets = filled_sheets(path, data)
    first = next(iter(sheets), "")
    more = f"{path}: the sheet {shorten(first)} is read; others are left out." if len(sheets) > 1 else ""
    values = sheets[first].iter_rows(values_only=True) if sheets else ()
    texts = (["" if value in ERRORS else _text(value) for value in row] for row in values)
    return LabelRows(None, ((number, row) for number, row in enumerate(texts, 1) if any(row)), "row", more)


def _parquet_rows(path: str) -> LabelRows:
    """Return the rows of a Parquet file. Raises: SourceError, MissingDependencyError."""
    with reading_arrow(path):
        table = open_parquet(path).read()
    columns = [column.to_pylist() for column in table.columns]
    rows = list(map(list, zip(*columns, strict=True)))
    return _without_nested(table.column_names, rows, range(1, len(rows) + 1), "row")
