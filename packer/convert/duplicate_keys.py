"""Duplicates: rows whose keys a pack already has; of tables, files that it already has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_task import ConversionTask
from packer.errors import UsageError
from packer.format.header import Header
from packer.format.pack import Pack
from packer.format.row_keys import RowKeys
from packer.sentence import Option

DUPLICATES = ("error", "skip", "keep")
_KEYS_AT_ONCE = 1 << 16


def duplicate_samples(task: ConversionTask, pack: Pack) -> NDArray[np.int64]:
    """Return the samples of a task whose keys a pack already has, in the task's order."""
    index, samples = _index(pack), np.asarray(task.order.samples[:])
    known = np.zeros(len(samples), np.bool_)
    for start in range(0, len(samples), _KEYS_AT_ONCE):
        some = samples[start : start + _KEYS_AT_ONCE].tolist()
        keys = [task.maker.key(sample).encode("utf-8", "surrogateescape") for sample in some]
        known[start : start + len(keys)] = index.find(keys, several=True) >= 0
    return samples[known]


def duplicate_rows(packs: Sequence[Pack], together: Pack) -> NDArray[np.int64]:
    """Return the rows, numbered over all packs, whose keys an earlier pack has.

    together: the packs as one.
    """
    index, firsts = _index(together), np.cumsum([pack.rows for pack in packs])
    found = [np.empty(0, np.int64)]
    for start in range(0, together.rows, _KEYS_AT_ONCE):
        keys = together.read_ragged("key", start, start + _KEYS_AT_ONCE)
        rows = np.arange(start, start + len(keys))
        origins = index.find(keys, several=True)
        earlier, own = (np.searchsorted(firsts, numbers, "right") for numbers in (origins, rows))
        found.append(rows[earlier < own])
    return np.concatenate(found)


def are_named(packs: Sequence[Pack]) -> bool:
    """Return True if the packs have keys that name inputs, not the numbers of samples."""
    declared = [pack.parts[0].header.provenance.get("options", {}).get("fields") for pack in packs]
    return "key" in packs[0].header.columns and all(fields is None or "key" in fields for fields in declared)


def _index(pack: Pack) -> RowKeys:
    return RowKeys(pack.path, pack.rows, partial(pack.read_ragged, "key"))


def refuse(duplicates: Iterator[str]) -> None:
    """Raise UsageError with the first sentence, if there is one. duplicates: without a full stop."""
    for sentence in islice(duplicates, 1):
        raise UsageError(
            f"{sentence}; each row is stored once. Pass {Option('duplicates', 'skip')} to leave such "
            f"rows out, or {Option('duplicates', 'keep')} to store them twice."
        )


def left_out(rows: int, where: str) -> list[str]:
    """Return a note on duplicates left out; [] for 0 rows. where: the pack that has them, in words."""
    if not rows:
        return []
    many = "1 row was left out: its key is" if rows == 1 else f"{rows:,} rows were left out: their keys are"
    return [f"{many} in {where} already."]


def duplicate_parts(packs: Sequence[Pack]) -> Iterator[tuple[int, tuple[int, int], str]]:
    """Yield duplicates in packs without keys: parts of equal content, or made from the same table files.

    Yields: the number of the pack, its rows [first, last + 1), and a sentence without a full stop.
    Raises UsageError for a part that shares only some of its files with an earlier part: its rows do not tell
    which file they came from.
    """
    seals: dict[bytes, str] = {}
    files: dict[str, tuple[str, str]] = {}  # digest -> name of the file, and the part that was made from it
    for number, pack in enumerate(packs):
        first = 0
        for part in pack.parts:
            sources = table_files(part.header)
            known = [file for file in sources if file.digest in files]
            rows, first = (first, first + part.rows), first + part.rows
            if part.seal and part.seal in seals:
                yield number, rows, f"{part.path}: holds the same rows as {seals[part.seal]}"
            elif known:
                name, path = files[known[0].digest]
                also = "and so was" if name == known[0].name else f"which has the same bytes as {name} of"
                if len(known) < len(sources):
                    raise UsageError(
                        f"{part.path}: was made from other files and from {known[0].name}, {also} {path};"
                        " it does not record which of its rows are the same. Convert the other files"
                        f" separately, or pass {Option('duplicates', 'keep')} to store these rows twice."
                    )
                yield number, rows, f"{part.path}: was made from {known[0].name}, {also} {path}"
        for part in pack.parts:
            seals.setdefault(part.seal, part.path)
            for file in table_files(part.header):
                files.setdefault(file.digest, (file.name, part.path))


class TableFile(NamedTuple):
    """A source file of a table: its name, without folders, and the digest of its content."""

    name: str
    digest: str


def table_files(header: Header) -> list[TableFile]:
    """Return the recorded table files of a pack; [] for a pack that has only part of their rows."""
    source = header.provenance.get("source", {})
    if "files" in source:
        return [TableFile(*file) for file in source["files"]]
    pairs = zip(source.get("names", ()), source.get("digests", ()), strict=False)
    return [TableFile(os.path.basename(name), digest) for name, digest in pairs]
