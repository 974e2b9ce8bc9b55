"""Duplicates: rows whose keys a pack already has; without keys, rows of files or parts it already has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_task import ConversionTask
from packer.errors import UsageError
from packer.format.header import Header
from packer.orders.runs import pieces
from packer.packs.pack import Pack
from packer.packs.row_keys import RowKeys

DUPLICATES = ("error", "skip", "keep")
_KEYS_AT_ONCE = 1 << 16
Known = tuple[Sequence[int] | NDArray[np.int64], str]
"""Rows that a pack already has, and a sentence about the first of them, without a full stop."""


def leave_out(duplicates: str, find: Callable[[], Iterator[Known]]) -> NDArray[np.int64]:
    """Return the rows to leave out. find: yields the rows that are known; not called for "keep".

    Raises UsageError for "error", with the first sentence.
    """
    rows = [np.empty(0, np.int64)]
    for some, sentence in () if duplicates == "keep" else find():
        if duplicates == "error":
            raise UsageError(
                f"{sentence}; each row is stored once. Pass duplicates='skip' to leave such "
                "rows out, or duplicates='keep' to store them twice."
            )
        rows.append(np.asarray(some))
    return np.concatenate(rows)


def note_left_out(rows: int, where: str) -> list[str]:
    """Return a note on duplicates left out; [] for 0 rows. where: the pack that has them, in words."""
    if not rows:
        return []
    many = "1 row was left out: its key is" if rows == 1 else f"{rows:,} rows were left out: their keys are"
    return [f"{many} in {where} already."]


def known_samples(task: ConversionTask, pack: Pack) -> Iterator[Known]:
    """Yield the samples of a task whose keys a pack already has, in the task's order."""
    index, samples = _index(pack), task.order.samples
    for start, stop in pieces(len(samples), _KEYS_AT_ONCE):
        some = samples[start:stop]
        keys = [task.maker.key(sample).encode("utf-8", "surrogateescape") for sample in some.tolist()]
        known = some[index.find(keys, several=True) >= 0]
        if len(known):
            yield known, f"{task.maker.name(int(known[0]))}: its key is in {pack.path} already"


def known_rows(packs: Sequence[Pack], together: Pack) -> Iterator[Known]:
    """Yield the rows, numbered over all packs, that an earlier pack has. together: the packs as one.

    Raises UsageError for a part that shares only some of its files with an earlier part: its rows do not tell
    which file they came from.
    """
    if not _are_named(packs):
        yield from _known_parts(packs)
        return
    index, firsts = _index(together), np.cumsum([0, *(pack.rows for pack in packs)])
    for start, stop in pieces(together.rows, _KEYS_AT_ONCE):
        keys, rows = together.read_ragged("key", start, stop), np.arange(start, stop)
        origins = index.find(keys, several=True)
        earlier, own = (np.searchsorted(firsts, numbers, "right") - 1 for numbers in (origins, rows))
        known = np.flatnonzero(earlier < own)
        if len(known):
            at = int(known[0])
            pack, row = packs[own[at]], int(rows[at] - firsts[own[at]])
            key = pack.keys(row, row + 1)[0]
            yield rows[known], f"{pack.path}: its row {row:,} has the key {key}, which is in an earlier pack"


def _are_named(packs: Sequence[Pack]) -> bool:
    """Return True if the packs have keys that name inputs, not the numbers of samples."""
    declared = [pack.parts[0].header.provenance.get("options", {}).get("fields") for pack in packs]
    return "key" in packs[0].header.columns and all(fields is None or "key" in fields for fields in declared)


def _index(pack: Pack) -> RowKeys:
    return RowKeys(pack.path, pack.rows, partial(pack.read_ragged, "key"))


def _known_parts(packs: Sequence[Pack]) -> Iterator[Known]:
    """Yield the rows of parts with equal content, or made from the same table files, as an earlier pack's."""
    earlier: dict[str, tuple[str, str]] = {}  # digest -> name of the file, and the part that has its rows
    first = 0
    for pack in packs:
        contents = [
            (part, table_files(part.header) or [TableFile("", part.seal.hex())]) for part in pack.parts
        ]
        for part, files in contents:
            known = [file for file in files if file.digest in earlier]
            rows, first = range(first, first + part.rows), first + part.rows
            if not known:
                continue
            name, path = earlier[known[0].digest]
            also = "and so was" if name == known[0].name else f"which has the same bytes as {name} of"
            if len(known) < len(files):
                raise UsageError(
                    f"{part.path}: was made from other files and from {known[0].name}, {also} {path};"
                    " it does not record which of its rows are the same. Convert the other files"
                    " separately, or pass duplicates='keep' to store these rows twice."
                )
            made = f"was made from {known[0].name}, {also}" if name else "holds the same rows as"
            yield rows, f"{part.path}: {made} {path}"
        for part, files in contents:
            for file in files:
                earlier.setdefault(file.digest, (file.name, part.path))


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
