"""Duplicate rows: rows with the same key and the same bytes in all fields as a row that a pack already has.

Keys are compared first, by hash; only rows with equal keys are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_task import ConversionTask, NothingPackedError, RunOptions
from packer.convert.pack_run import write_part
from packer.convert.sample_order import SampleOrder
from packer.errors import UsageError
from packer.format.checksums import digest
from packer.format.header import Field, Header
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.orders.runs import consecutive
from packer.sentence import Option

if TYPE_CHECKING:
    from packer.read.array_store import PackStore

DUPLICATES = ("error", "skip", "keep")
_KEYS_AT_ONCE = 1 << 16
_ROWS_AT_ONCE = 1024  # rows made for one comparison
_SCRATCH_BYTES = 128 << 20  # approximate bytes of these rows; the disk may briefly hold them twice
_BYTES_AT_ONCE = 16 << 20

Hashes = NDArray[np.uint64]
Rows = NDArray[np.int64]


def duplicate_samples(
    task: ConversionTask, pack: Pack, scratch: str, running: RunOptions, row_bytes: float
) -> Iterator[int]:
    """Yield the samples of a task whose rows a pack already has.

    scratch: path of a temporary pack for the rows to compare; row_bytes: estimated bytes of a row.
    """
    samples = np.asarray(task.order.samples[:])
    new = _hashes(task.maker.key(sample).encode("utf-8", "surrogateescape") for sample in samples.tolist())
    step = max(1, min(_ROWS_AT_ONCE, int(_SCRATCH_BYTES / row_bytes)))
    for chosen, rows in _coinciding([new, key_hashes(pack)], step):
        some = replace(task, order=SampleOrder(samples[chosen], {}), inputs=None, skipped=())
        quietly = replace(running, skip=True, overwrite=True, resume=False, progress=lambda rows: None)
        try:
            write_part(some, scratch, quietly, pack.path)
        except NothingPackedError:
            continue
        new_rows = open_pack(scratch)
        known = set(row_digests(pack, rows))
        numbers = {task.maker.key(sample): sample for sample in samples[chosen].tolist()}
        for key, content in zip(
            new_rows.keys(), row_digests(new_rows, np.arange(new_rows.rows)), strict=True
        ):
            if content in known:
                yield numbers[key]


def duplicate_rows(packs: Sequence[Pack]) -> Iterator[tuple[int, int]]:
    """Yield (number of a pack, row in it) of rows that an earlier pack already has; the packs have keys."""
    for chosen in _coinciding([key_hashes(pack) for pack in packs], _ROWS_AT_ONCE):
        seen: set[bytes] = set()
        for number, (pack, rows) in enumerate(zip(packs, chosen, strict=True)):
            digests = row_digests(pack, rows) if len(rows) else []
            for row, content in zip(rows.tolist(), digests, strict=True):
                if content in seen:
                    yield number, row
            seen.update(digests)


def key_hashes(pack: Pack) -> Hashes:
    """Return the hash of each row's key."""
    return np.concatenate(
        [
            _hashes(pack.read_ragged("key", start, start + _KEYS_AT_ONCE))
            for start in range(0, pack.rows, _KEYS_AT_ONCE)
        ]
    )


def _hashes(keys: Iterable[bytes]) -> Hashes:
    return np.frombuffer(b"".join(digest([key])[:8] for key in keys), "<u8")


def _coinciding(packs: Sequence[Hashes], step: int) -> Iterator[list[Rows]]:
    """Yield, for `step` shared hashes at a time, the ascending rows of each pack that have one of them.

    packs: for each pack, the hashes of its rows. A hash is shared if several packs have it.
    """
    values, counts = np.unique(np.concatenate([np.unique(hashes) for hashes in packs]), return_counts=True)
    shared = values[counts > 1]
    orders = [np.argsort(hashes, kind="stable") for hashes in packs]
    for start in range(0, len(shared), step):
        some, rows = shared[start : start + step], list[Rows]()
        for hashes, order in zip(packs, orders, strict=True):
            first = np.searchsorted(hashes, some[0], "left", sorter=order)
            within = order[first : np.searchsorted(hashes, some[-1], "right", sorter=order)]
            rows.append(np.sort(within[np.isin(hashes[within], some)]))
        yield rows


def row_digests(pack: Pack, rows: Rows) -> list[bytes]:
    """Return a digest of each row over all fields, with classes by name. rows: ascending row numbers."""
    from packer.read.array_store import PackStore  # conversions that compare no rows need not load it

    reader = PackStore(pack, pack.fields)
    step = max(1, _BYTES_AT_ONCE * pack.rows // max(1, pack.nbytes))
    digests: list[bytes] = []
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        columns = [_values(reader, f, some) for f in pack.fields]
        digests += [
            digest(part for value in row for part in (len(value).to_bytes(8, "little"), value))
            for row in zip(*columns, strict=True)
        ]
    reader.close()
    return digests


def _values(reader: PackStore, f: Field, rows: Rows) -> list[bytes]:
    """Return the bytes of a field, row by row."""
    runs = consecutive(rows)
    named = _class_names(reader.pack) if f.name in ("label", "box_label") else None
    if f.ragged:
        values = reader.ragged(f.name, runs)
        return values if named is None else [named(np.frombuffer(value, "<i8")) for value in values]
    array = reader.array(f.name, runs)
    if named is not None and f.dtype == "<i8":
        return [named(value.reshape(-1)) for value in array]
    return [value.tobytes() for value in array]


def _class_names(pack: Pack) -> Callable[[NDArray[np.int64]], bytes] | None:
    """Return a function from class numbers to the bytes of their names; None for a pack without classes."""
    classes = pack.header.classes
    if classes is None:
        return None
    known = dict(enumerate(classes))
    return lambda numbers: "\0".join(str(known.get(n, n)) for n in numbers.tolist()).encode(
        "utf-8", "surrogateescape"
    )


def refuse(duplicates: Iterator[str]) -> None:
    """Raise UsageError for the first of some duplicates: sentences without a full stop."""
    for sentence in islice(duplicates, 1):
        raise UsageError(
            f"{sentence}; each row is stored once. Pass {Option('duplicates', 'skip')} to leave such "
            f"rows out, or {Option('duplicates', 'keep')} to store them twice."
        )


def left_out(rows: int, where: str) -> list[str]:
    """Return a note on duplicates left out; [] for 0 rows. where: the pack that has them, in words."""
    if not rows:
        return []
    many = "1 row was left out, as it is" if rows == 1 else f"{rows:,} rows were left out, as they are"
    return [f"{many} in {where} already, with the same bytes."]


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
