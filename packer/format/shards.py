"""A pack as a directory of shards: ``index.json`` lists them, each is a whole pack of its own (00000.h5, 00001.h5, ...).

The index is one JSON object, ASCII, keys sorted, no spaces: ``format``, ``version``, ``shards`` (a list of [file, rows, seal],
in the order of the rows), ``headers`` (those of the shards, a list, by which the pack opens), perhaps ``skipped`` (inputs left out that
no shard lists, as in the header: they would have been the only ones of a shard, or are rows of a table that was added), and
``checksum``, the XXH3-128, in hexadecimal, of the same object without it. A reader ignores
members it does not know. ``seal`` is the XXH3-128 of the shard's trailer, so that a shard of another pack, or another version of
this one, is not taken for it. All shards have equal fields and classes. Files that the index does not list are no part of the pack:
appending writes the new index aside, as ``index.json.new``, moves the new shards into the folder, then gives the index its name.

An entry of ``headers`` is the header of a shard, an object, with one member more: ``trailer``, the shard's, 128 bytes in base64. Those
after the first leave out what is as in the first. The header, written as JSON, MUST have the length and the digest that the trailer
says; a reader MUST compare the trailer with that of the shard before it reads a row there.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import fsum, sqrt
from typing import Any, NamedTuple

import xxhash

from packer.errors import FormatError, PackerError, UsageError, damaged
from packer.format.checksums import SIZE, Trailer, digest
from packer.format.file_io import check_inside, fsync_path
from packer.format.header import (
    FORMAT,
    INDEX_FILE,
    MAX_INDEX_BYTES,
    VERSION,
    Extent,
    Header,
    read_json,
    read_members,
)
from packer.format.pack import Pack
from packer.sentence import Option

NEXT_INDEX_FILE = (
    "index.json.new"  # the index to be: files that it lists, and the index does not, are ours too
)
MAX_LISTED_BLOCKS = 3_000_000
"""Compressed blocks of a pack, whose places an index lists one by one, five numbers each."""
_OF_ROWS = {"rows", "extents", "splits", "statistics", "skipped"}  # members that check_rows() looks at
MakeShard = Callable[[str, Header, bytes], Pack]
"""Makes a shard of its path or URL, its header and its trailer."""


class Index(NamedTuple):
    """The content of the index.

    shards: in order, as the index describes them; digest: of the whole index, 16 bytes; skipped: inputs that no shard lists.
    """

    shards: tuple[Pack, ...]
    digest: bytes
    skipped: tuple[dict[str, str], ...]


def seal_of(trailer: bytes) -> str:
    """Return the digest of a shard's trailer that the index holds."""
    return xxhash.xxh3_128_hexdigest(trailer)


def is_header_sealed(shard: Pack) -> bool:
    """Return True if the trailer is that of a file with this header."""
    trailer, text = Trailer.from_bytes(shard.seal), shard.header.to_bytes()
    found = trailer and (trailer.header_length, trailer.header_digest)
    return found == (len(text), digest([text]))


def shard_name(number: int, format: str) -> str:
    """Return the name of a shard: 00007.h5, or 00007 for a directory of .npy."""
    return f"{number:05d}" + (".h5" if format == "h5" else "")


def check_listable(name: str, blocks: int) -> None:
    """Raise UsageError, before any work, for so many compressed blocks that an index could not list them."""
    if blocks > MAX_LISTED_BLOCKS:
        raise UsageError(
            f"{name}: would have {blocks:,} compressed blocks, and an index lists {MAX_LISTED_BLOCKS:,}. Pass larger shards,"
            f" whose blocks are larger, or {Option('store', 'jpeg')}."
        )


def write_index(folder: str, shards: Sequence[Pack], skipped: Sequence[Mapping[str, str]] = ()) -> None:
    """Write the index aside, flush it, and give it its name. See prepare_index."""
    prepare_index(folder, shards, skipped)
    name_index(folder)


def prepare_index(folder: str, shards: Sequence[Pack], skipped: Sequence[Mapping[str, str]]) -> None:
    """Write the index aside, and flush it. ``name_index`` gives it its name. shards: under the names that they have there.

    Raises OSError; FormatError if the shards have different fields or classes; PackerError if they are too many for an index.
    """
    check_alike(shards)
    for shard in shards:
        if not is_header_sealed(shard):
            raise not_listed(shard.path)
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    record["shards"] = [[shard.name, shard.rows, seal_of(shard.seal)] for shard in shards]
    record["headers"] = list(_headers_to_record(shards))
    if skipped:
        record["skipped"] = [dict(s) for s in skipped]
    text = _text({**record, "checksum": xxhash.xxh3_128_hexdigest(_text(record))})
    try:
        if len(text) > MAX_INDEX_BYTES:
            raise ValueError(f"it is {len(text):,} bytes long; at most {MAX_INDEX_BYTES:,} are read")
        read_json(text)  # which refuses what is too deep, or too much
    except ValueError as error:
        raise PackerError(
            f"{folder}: the index of {len(shards):,} shards would not be read ({error}). Make fewer, larger shards."
        ) from None
    with open(os.path.join(folder, NEXT_INDEX_FILE), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def name_index(folder: str) -> None:
    """Give an index that was written aside its name. Raises OSError."""
    os.replace(os.path.join(folder, NEXT_INDEX_FILE), os.path.join(folder, INDEX_FILE))
    fsync_path(folder)


def read_index(folder: str, name: str = INDEX_FILE, make: MakeShard = Pack) -> Index:
    """Read the index of a pack of shards, or the one to be. make: see index_of.

    Raises FormatError; OSError if there is none.
    """
    path = check_inside(folder, name)
    with open(path, "rb") as file:
        data = file.read(MAX_INDEX_BYTES + 1)
    return index_of(data, path, make)


def index_of(data: bytes, path: str, make: MakeShard = Pack) -> Index:
    """Return the content of an index's bytes. path: its own, or its URL; make: makes a shard. Raises FormatError."""
    try:
        record = read_json(data)
        bare = {name: value for name, value in record.items() if name != "checksum"}
        sums = {xxhash.xxh3_128_hexdigest(_text(bare)), record["checksum"]}
        if len(sums) > 1 or _text(record) != data or len(data) > MAX_INDEX_BYTES:
            raise ValueError("its checksum differs")
        if record["format"] != FORMAT or record["version"] != VERSION:
            raise FormatError(
                f"{path}: format version is {record['version']}; this packer reads {VERSION}."
                " Upgrade packer, or convert the images again.",
                part="index",
            )
        shards = tuple(_shards_from_record(record, os.path.dirname(path), make))
        if not shards or len({shard.path for shard in shards}) != len(shards):
            raise ValueError("it lists no shards, or one twice")
        skipped = tuple({"key": str(s["key"]), "reason": str(s["reason"])} for s in record.get("skipped", ()))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, IndexError) as error:
        raise damaged(path, f"is damaged ({error})", "index") from None
    return Index(shards, xxhash.xxh3_128_digest(data), skipped)


def _headers_to_record(shards: Sequence[Pack]) -> Iterator[dict[str, Any]]:
    first: dict[str, Any] = {}
    for shard in shards:  # one by one: thousands of shards have thousands of class names each
        trailer = base64.b64encode(shard.seal).decode("ascii")
        own = {**json.loads(shard.header.to_bytes()), "trailer": trailer}
        yield {
            name: own.get(name) for name in {*first, *own} if not first or own.get(name) != first.get(name)
        }
        first = first or own


def _shards_from_record(record: Any, folder: str, make: MakeShard) -> Iterator[Pack]:
    """Yield the shards of an index. Raises ValueError, KeyError, TypeError, AttributeError or OverflowError for an impossible one."""
    first: Header | None = None
    for (file, rows, seal), own in zip(record["shards"], record["headers"], strict=True):
        if not file or file.startswith(".") or "/" in file or "\\" in file or "\0" in file:
            raise ValueError(f"{file!r} is not the name of a shard")
        os.fsencode(file)  # raises ValueError for what no file system can be asked for
        trailer = base64.b64decode(own.get("trailer", record["headers"][0]["trailer"]), validate=True)
        if len(trailer) != SIZE or seal_of(trailer) != seal:
            raise ValueError("a trailer in it is not that of its shard")
        if first is None:
            header = first = Header.from_record(own)
        else:
            header = replace(first, **read_members(own))
            if (header.fields, header.classes) != (first.fields, first.classes):
                raise ValueError("its shards have different fields or classes")
            header.check_rows() if {"trailer", *_OF_ROWS} >= own.keys() else header.check()
        if header.rows != rows:
            raise ValueError("a header in it has other rows than its shard")
        yield make(os.path.join(folder, file), header, trailer)


def merge_headers(headers: Sequence[Header], skipped: Sequence[Mapping[str, str]] = ()) -> Header:
    """Return one header for shards with equal fields and classes.

    Its extents name a file of shard 3 "3/image.npy", and "3" the shard that is one file. skipped: inputs that none of the shards lists.
    """
    extents: dict[str, list[Extent]] = {name: [] for name in headers[0].columns}
    splits: dict[str, list[tuple[int, int]]] = {}
    first = 0
    for file, header in zip(map(str, itertools.count()), headers, strict=False):
        for name, own in header.extents.items():
            extents[name] += extents_of(file, own)
        for name, spans in header.splits.items():
            for start, stop in spans:
                before = splits.setdefault(name, [])
                if start == stop:
                    continue
                if before and before[-1][1] == first + start:
                    before[-1] = before[-1][0], first + stop
                else:
                    before.append((first + start, first + stop))
        first += header.rows
    return replace(
        headers[0],
        rows=first,
        extents={name: tuple(es) for name, es in extents.items()},
        splits={name: tuple(spans) for name, spans in splits.items()},
        statistics=pooled_statistics(headers, [header.rows for header in headers]),
        skipped=tuple(s for header in headers for s in header.skipped) + tuple(skipped),
        table=headers[0].table if all(h.table == headers[0].table for h in headers) else None,
    )


def extents_of(part: str, extents: Sequence[Extent]) -> list[Extent]:
    """Return the extents of part number `part` as those of the pack that it is in name their files."""
    return [
        Extent(f"{part}/{e.file}" if e.file else part, e.offset, e.rows, e.row_bytes, e.stored)
        for e in extents
    ]


def together(name: str, index: Index, shards: Sequence[Pack]) -> Pack:
    """Return the pack of an index, of these shards."""
    return Pack(name, merge_headers([s.header for s in shards], index.skipped), index.digest, tuple(shards))


def check_alike(shards: Sequence[Pack]) -> None:
    """See that shards have equal fields and classes. Raises FormatError."""
    first = shards[0]
    for shard in shards:
        if shard.header.fields != first.header.fields or shard.header.classes != first.header.classes:
            raise FormatError(
                f"{shard.path}: has other fields or classes than {first.name}; all shards of a pack have the same."
                " Bring back the right one."
            )


def not_listed(path: str) -> FormatError:
    """Return the error for a file that is not the shard it should be."""
    return FormatError(
        f"{path}: is not the shard that {INDEX_FILE} lists; it was replaced or changed."
        " Bring back the right one, or convert the images again.",
        part="index",
    )


def _text(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def pooled_statistics(
    headers: Sequence[Header], shares: Sequence[float]
) -> dict[str, dict[str, list[float]]]:
    """Return means and deviations of the fields for which every header has them. shares: of each one's rows among all, to any sum."""
    rows = fsum(shares)
    found: dict[str, dict[str, list[float]]] = {}
    for name in headers[0].statistics:
        own = [(share, h.statistics.get(name, {})) for share, h in zip(shares, headers, strict=True)]
        lengths = {len(s.get(key, ())) for _, s in own for key in ("mean", "std")}
        if len(lengths) > 1 or 0 in lengths:
            continue
        channels = range(lengths.pop())
        mean = [fsum(n * s["mean"][c] for n, s in own) / rows for c in channels]
        square = [fsum(n * (s["std"][c] ** 2 + s["mean"][c] ** 2) for n, s in own) / rows for c in channels]
        found[name] = {
            "mean": mean,
            "std": [sqrt(max(0.0, q - m * m)) for q, m in zip(square, mean, strict=True)],
        }
    return found
