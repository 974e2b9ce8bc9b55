"""Baseline: parse the table with pandas every time the program starts."""

from __future__ import annotations

import csv
import importlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from packer import units
from packer.tables.reading.dialect import delimiter_of
from packer.tables.reading.table_source import ARROW, ReadOptions
from packer.tables.reading.text_stream import TextStream

MOST_BYTES = 200_000_000  # of files that are parsed: a larger table's parsing takes as many times longer
_BEGINNING = 1 << 16  # bytes in which the delimiter is looked for


def parser(names: Sequence[str], reading: ReadOptions) -> tuple[Callable[[], float] | None, str]:
    """Return a function that parses files with pandas and returns the seconds, and its name; or None, and why it is left out.

    names: of the files of a table. Each is parsed whole, to a data frame; no tensors are made of it. It is tried once.
    """
    nbytes = sum(map(os.path.getsize, names))
    if nbytes > MOST_BYTES:
        return (
            None,
            f"parsing with pandas: left out, the table is {units.size(nbytes)}, more than {units.size(MOST_BYTES)}.",
        )
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        return None, "parsing with pandas: left out, pandas is not installed."

    def parse() -> float:
        began = time.perf_counter()
        for name, read, options in asked:
            read(name, **options)
        return time.perf_counter() - began

    try:
        asked = [_asked(pandas, name, reading) for name in names]
        parse()
    except Exception as error:  # whatever pandas makes of a file that packer reads
        first = (str(error).splitlines() or [""])[0][:100]
        return None, f"parsing with pandas: left out, it fails ({type(error).__name__}: {first})."
    called = sorted({read.__name__ for _, read, _ in asked})
    return parse, f"pandas.{called[0]}"


def _asked(pandas: Any, name: str, reading: ReadOptions) -> tuple[str, Any, dict[str, Any]]:
    """Return a file, the function of pandas that reads it, and its options."""
    lowered = name.lower()
    if lowered.endswith(ARROW):
        parquet = lowered.endswith((".parquet", ".pq"))
        return name, pandas.read_parquet if parquet else pandas.read_feather, {}
    with closing(TextStream(name, reading.encoding)) as stream:
        buffer = bytearray(_BEGINNING)
        have = stream.fill(memoryview(buffer))
    text = bytes(memoryview(buffer)[:have])
    options = {
        "sep": delimiter_of(name, text, have < _BEGINNING, reading).decode("ascii"),
        "header": 0 if reading.header else None,
        "decimal": reading.decimal,
        "thousands": reading.thousands or None,
        "na_values": list(reading.na),
        "encoding": reading.encoding,
        "low_memory": False,  # or it warns of columns that change their type
    }
    if reading.quote:
        options["quotechar"] = reading.quote
    else:
        options["quoting"] = csv.QUOTE_NONE
    return name, pandas.read_csv, options
