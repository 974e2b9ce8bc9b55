"""Proof that all sides of a comparison hand out the same rows of a table: each row as a number made of its bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import PackerError, UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.tables.reading.table_source import ReadOptions, TableSource
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_transform import TableTransform

CHECKED_ROWS = 1024  # of the source, read and mapped again
_AT_ONCE = 1 << 15  # rows
_PIECES = 64  # of the source in which rows are looked for
_WRAP = 1 << 64
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def row_keys(columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Return a number for each row, of all its bits: columns, [n, ...] each -> uint64 [n]. Other rows give other ones, nearly always."""
    keys: NDArray[np.uint64] = np.zeros(len(columns[0]), np.uint64)
    for number, column in enumerate(columns):
        data = np.ascontiguousarray(column).reshape(len(keys), -1).view(np.uint8)
        if data.shape[1] % 4:
            data = np.pad(data, ((0, 0), (0, -data.shape[1] % 4)))
        words = data.view(np.uint32).astype(np.uint64)
        weights = np.random.default_rng(number).integers(0, 1 << 63, words.shape[1], np.uint64)
        own = np.matmul(words, 2 * weights + np.uint64(1), dtype=np.uint64)
        keys = (keys ^ (keys >> np.uint64(29))) * _FACTOR + own
    keys = (keys ^ (keys >> np.uint64(32))) * _FACTOR
    return keys ^ (keys >> np.uint64(29))


def epoch_sum(batches: Iterable[Sequence[Any]]) -> int:
    """Return the sum of the keys of an epoch's rows, whatever their order. batches: of tensors."""
    return sum(_sum(row_keys([tensor.numpy() for tensor in batch])) for batch in batches) % _WRAP


def _sum(keys: NDArray[np.uint64]) -> int:
    return int(keys.sum(dtype=np.uint64))


def reading_of(pack: Pack) -> ReadOptions:
    """Return how the source of a pack was read. Raises UsageError if a table is not what it was made from."""
    source = pack.header.provenance.get("source")
    if not isinstance(source, dict) or not {"names", "sizes", "reading"} <= set(source):
        raise UsageError(
            f"{pack.path}: was made from another pack; bench compares one with the table it was converted from."
            " Pass one that packer convert wrote."
        )
    given = dict(source["reading"])
    return ReadOptions(**{**given, "na": tuple(given["na"])})


def check_source(table: TableSource, source: str, pack: Pack) -> None:
    """Compare names and sizes of files with those the pack was made from. Raises UsageError. source: how a user calls them."""
    made, found = pack.header.provenance["source"], table.fingerprint()
    end = "bench compares a pack with the table it was made from. Pass that, or convert this one."
    if made["names"] != found["names"]:
        here, there = (", ".join(f["names"][:3]) for f in (found, made))
        raise UsageError(f"{source}: is {here}, {pack.path} was made from {there}; {end}")
    if made["sizes"] != found["sizes"]:
        here, there = (f"{sum(f['sizes']):,}" for f in (found, made))
        raise UsageError(f"{source}: has {here} bytes, {pack.path} was made from one of {there}; {end}")


@dataclass(frozen=True)
class SoughtRows:
    """Rows of the source that must be in the pack. keys: uint64 [n]; places: a text each, for messages."""

    keys: NDArray[np.uint64]
    places: tuple[str, ...] = ()


def sought_rows(table: TableSource, pack: Pack, fields: Sequence[Field]) -> SoughtRows:
    """Return the source's first rows, at most CHECKED_ROWS, read and mapped again as the pack says, without those it left out."""
    transform = TableTransform.from_json(pack.header.table or {})
    plan = transform.plan_for(table.columns)
    name, line = "", 0
    for chunk in islice(table.chunks(plan.layout), _PIECES):
        if chunk.name != name:
            name, line = chunk.name, table.first_line(chunk.name)
        parsed = chunk.read()
        bad, _ = plan.bad_rows(parsed.records)
        good = np.flatnonzero(np.ones(len(parsed.records), np.bool_) if bad is None else ~bad)[:CHECKED_ROWS]
        if len(good):
            mapper = RowMapper(transform, plan.layout, parsed.dictionaries)
            mapped = mapper.map(parsed.records[good], parsed.texts)
            keys = row_keys([np.asarray(mapped.fields[f.name], f.dtype) for f in fields])
            lines = (line + parsed.lines_of[good]).tolist()
            return SoughtRows(keys, tuple(f"{name}: {table.unit} {number:,}" for number in lines))
        line += parsed.lines
    return SoughtRows(np.empty(0, np.uint64))


class HeldRows:
    """The first rows of a pack as tensors in memory, and the keys of all rows.

    tensors: of each field, [rows, ...]; total: the sum of the keys of all the pack's rows; own: of the held ones.
    """

    def __init__(
        self, pack: Pack, fields: Sequence[Field], rows: int, *, threads: int, sought: SoughtRows
    ) -> None:
        """Read the pack once. sought: rows that must be among its. Raises PackerError if one is not."""
        names = [f.name for f in fields]
        found = np.zeros(len(sought.keys), np.bool_)
        total = own = 0
        parts: list[torch.Tensor] = []
        at = 0
        with PackedBatchDataset(
            pack, _AT_ONCE, fields=names, subset=slice(None), threads=threads, placement="disk"
        ) as batches:
            for batch in batches:
                parts = parts or [torch.empty(rows, *t.shape[1:], dtype=t.dtype) for t in batch]
                keys = row_keys([tensor.numpy() for tensor in batch])
                found |= np.isin(sought.keys, keys)
                n = max(0, min(len(keys), rows - at))
                for part, tensor in zip(parts, batch, strict=True):
                    part[at : at + n] = tensor[:n]
                total += _sum(keys)
                own += _sum(keys[:n])
                at += n
        if not found.all():
            raise PackerError(
                f"{sought.places[int(np.argmin(found))]}: {pack.path} holds no such row;"
                " a comparison needs the same on both sides. Convert the table again."
            )
        self.tensors, self.total, self.own = tuple(parts), total % _WRAP, own % _WRAP
        self.rows = rows


def check_epoch(pack: Pack, name: str, batches: Iterable[Sequence[Any]], expected: int) -> None:
    """Compare the rows of an epoch with those of the pack, as sums of their keys. Raises PackerError."""
    if epoch_sum(batches) != expected:
        raise PackerError(
            f"{pack.path}: an epoch of '{name}' is not the pack's rows, each once; a comparison needs the same on all sides."
            " Run packer verify."
        )
