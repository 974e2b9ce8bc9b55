"""Compare the C and the Python form of the CSV parser on random, damaged texts.

    python tools/fuzz_csv.py [--count 10000] [--seed 0]

Each text depends only on the seed and its number. Prints the first difference and exits with 1, or prints the
number of comparisons. Also run it with a parser compiled with -fsanitize=address,undefined.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

from packer import native
from packer.tables.reading.record_parser import end_of_records, parse_records
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_types import TYPES, TableColumn
from packer.tables.transform.records import ParsedRows, RecordLayout, RecordMember

ODD = (
    "",
    " ",
    "\t",
    '"',
    '""',
    "\r",
    "\r\n",
    "\r\r\n",
    "\n",
    "#",
    "\n#",
    ",",
    ";",
    "'",
    "é",
    "\x00",
    "NA",
    "nan",
    "inf",
    "-",
    "+",
    ".",
    "e",
    "1e",
    "_",
)
FITTING = {
    "integer": ("0", "-1", "+7", "0012", "123456789012345678", "9223372036854775807", "NA", "1,000"),
    "boolean": ("true", "NO", "yes", "False", "", "NA"),
    "date": ("2020-01-02", "1999/12/31", "NA", ""),
    "time": ("12:30", "00:00:01.5", ""),
    "timestamp": ("2021-02-03 04:05:06", "2021-02-03T04:05Z", "null"),
    "text": ("a", "b", "category", "x y", "x, y", "NA", "longer than eight", "\u00fc\u20ac\U0001f600", ""),
}


def number(draw: random.Random) -> str:
    """Return a number in any spelling."""
    digits = "".join(
        draw.choices("0123456789", k=draw.choice((1, 1, 2, 7, 8, 9, 16, 17, 18, 19, 20, 21, 24, 31, 40)))
    )
    point = draw.randrange(len(digits) + 1)
    text = draw.choice(("", "", "-", "+")) + digits[:point] + draw.choice("......, ").strip() + digits[point:]
    if draw.random() < 0.4:
        text += (
            draw.choice("eE")
            + draw.choice(("", "-", "+"))
            + str(draw.choice((0, 1, 2, 9, 18, 22, 99, 307, 330)))
        )
    return text


def cell(draw: random.Random, type: str) -> str:
    """Return a cell that usually fits its column, sometimes quoted."""
    kind = draw.random()
    if kind < 0.9:
        text = number(draw) if type == "number" else draw.choice(FITTING.get(type, FITTING["text"]))
    elif kind < 0.98:
        text = draw.choice(ODD)
    else:
        text = "".join(draw.choices('ab\n," ', k=draw.randrange(90)))
    if draw.random() < 0.15:
        text = '"' + text.replace('"', '""') + '"'
    return draw.choice((" ", "  ", "\t")) + text if draw.random() < 0.05 else text


def table(draw: random.Random, types: Sequence[str]) -> bytes:
    """Return lines of cells, some with another number of cells, with some bytes changed."""
    lines = []
    for _ in range(draw.choice((0, 1, 2, 5, 20, 100))):
        columns = types if draw.random() < 0.99 else draw.choices(types, k=draw.randrange(1, 6))
        lines.append(";".join(cell(draw, type) for type in columns))
    lines = [draw.choice(("#", "")) + line if draw.random() < 0.05 else line for line in lines]
    end = draw.choice(("\n", "\r\n", "\r\r\n"))
    data = bytearray((end.join(lines) + (end if draw.random() < 0.7 else "")).encode())
    for _ in range(draw.choice((0, 0, 0, 1, 3))):
        if data:
            at = draw.randrange(len(data))
            data[at : at + draw.randrange(2)] = bytes(
                draw.choices(b'";\n\r# \xff\xc3\x80.e-09', k=draw.randrange(3))
            )
    return bytes(data)


def outcome(data: bytes, form: TextDialect, layout: RecordLayout, compiled: bool) -> tuple[object, ...]:
    """Return all results of a form of the parser."""
    before, native.COMPILED = native.COMPILED, compiled
    try:
        # At the end of a separate buffer, so that a sanitizer detects a read beyond it.
        parsed: ParsedRows = parse_records(data, form, layout)
        end = end_of_records(data, 0, form)
    finally:
        native.COMPILED = before
    rest = (parsed.dictionaries, parsed.texts, parsed.bad, parsed.bad_rows, parsed.lines, parsed.nbytes)
    return (parsed.records.tobytes(), parsed.lines_of.tolist(), *rest, end)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not native.COMPILED:
        print("The parser is not compiled: nothing to compare.")
        return 1
    good = bad = 0
    for case in range(options.count):
        draw = random.Random(f"{options.seed}-{case}")
        width = draw.randrange(1, 6)
        na = [text.encode() for text in NA_TEXTS] + draw.choice(([], [b"-999", b"0"], [b"x y"]))
        marks = draw.choice(
            ((b".", b""), (b".", b""), (b",", b"."), (b".", b"_"), (b".", b";"), (b";", b"."))
        )
        comment = draw.choice((b"", b"#"))
        form = TextDialect(b";", draw.choice((b'"', b'"', b"", b"'")), *marks, frozenset(na), width, comment)
        types = draw.choices(("-", "number", "number", *TYPES), k=width)
        layout = RecordLayout(
            tuple(
                RecordMember(index, TableColumn(str(index), type), type == "number" and draw.random() < 0.5)
                for index, type in enumerate(types)
                if type != "-"
            )
        )
        data = table(draw, types)
        plain, compiled = (outcome(data, form, layout, on) for on in (False, True))
        if plain != compiled:
            print(f"case {case} of seed {options.seed}: {data!r}, {form}, {types}")
            for one, other in zip(plain, compiled, strict=True):
                if one != other:
                    print(f"  plain    {one!r}\n  compiled {other!r}")
            return 1
        good += len(plain[1])  # type: ignore[arg-type]
        bad += plain[5]  # type: ignore[operator]
    print(f"{options.count} texts, {good} records, {bad} bad ones: both forms agree.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
