"""Baselines for tables: shuffled epochs of tensors in memory, in two usual ways, and parsing with pandas at each start."""

from __future__ import annotations

import csv
import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from packer import units
from packer.source_kinds import ARROW_TABLES
from packer.tables.reading.dialect import delimiter_of, first_line_at
from packer.tables.reading.table_source import ReadOptions
from packer.tables.reading.text_stream import TextStream

MOST_BYTES = 200_000_000  # of files that are parsed: a larger table's parsing takes as many times longer
_BEGINNING = 1 << 16  # bytes in which the delimiter is looked for


class ContiguousSlices:
    """Batches as slices of tensors, which are copied by a permutation before each epoch.

    As public snippets and posts have it ("FastTensorDataLoader", J. Mu).
    """

    def __init__(self, *tensors: torch.Tensor, batch_size: int) -> None:
        self._tensors, self._batch_size = tensors, batch_size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        permutation = torch.randperm(len(self._tensors[0]))
        self._tensors = tuple(tensor[permutation] for tensor in self._tensors)
        for first in range(0, len(permutation), self._batch_size):
            yield tuple(tensor[first : first + self._batch_size] for tensor in self._tensors)


def batch_sampled(items: TensorDataset, batch_size: int) -> DataLoader[Any]:
    """DataLoader asked for whole batches, which it then gathers at once and does not collate; no workers."""
    sampler: Any = BatchSampler(RandomSampler(items), batch_size, drop_last=False)
    return DataLoader(items, batch_size=None, sampler=sampler)


def epochs_rate(batches: Iterable[Any], rows: int, seconds: float) -> float:
    """Rows a second over whole epochs, for at least so long: what is done once an epoch counts as often as batches do."""
    began, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began < seconds:
        for _ in batches:
            pass
        epochs += 1
    return epochs * rows / (time.perf_counter() - began)


def first_batch(make: Callable[[], Any]) -> float:
    """Seconds until a loader that is made now has given a batch; it is closed afterwards."""
    began = time.perf_counter()
    with make() as batches:
        next(iter(batches))
        return time.perf_counter() - began


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
    if lowered.endswith(ARROW_TABLES):
        parquet = lowered.endswith((".parquet", ".pq"))
        return name, pandas.read_parquet if parquet else pandas.read_feather, {}
    with closing(TextStream(name, reading.encoding)) as stream:
        buffer = bytearray(_BEGINNING)
        have = stream.fill(memoryview(buffer))
    text, ended = bytes(memoryview(buffer)[:have]), have < _BEGINNING
    text = text[first_line_at(name, text, ended, reading.skip_rows) :]
    options = {
        "sep": delimiter_of(name, text, ended, reading).decode("ascii"),
        "header": 0 if reading.header else None,
        "decimal": reading.decimal,
        "thousands": reading.thousands or None,
        "na_values": list(reading.na),
        "encoding": reading.encoding,
        "skiprows": reading.skip_rows,
        "comment": reading.comment,
        "low_memory": False,  # or it warns of columns that change their type
    }
    if reading.quote:
        options["quotechar"] = reading.quote
    else:
        options["quoting"] = csv.QUOTE_NONE
    return name, pandas.read_csv, options
