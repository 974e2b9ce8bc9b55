"""A directory of shards: ``index.json`` lists them, and each is itself a complete pack (00000.h5, ...).

The index is one JSON object, ASCII, keys sorted, no spaces, with these members:

    format, version
    shards     a list of [file, rows, seal] in row order; seal is the XXH3-128 of the shard's trailer, which
               detects a shard of another pack, or of another version of this pack
    headers    the shards' headers, from which the pack opens
    skipped    optional, as in the header: skipped inputs that no shard lists, since all inputs of their shard
               were skipped, or since they are rows of an appended table
    checksum   the hexadecimal XXH3-128 of the same object without this member

A reader ignores members that it does not know. All shards have equal fields and classes. Files that the index
does not list are not part of the pack: appending writes the new index as ``index.json.new``, moves the new
shards into the folder, then renames the index.

An entry of ``headers`` is a shard's header, an object, with the additional member ``trailer``: the shard's
trailer, 128 bytes in base64. Entries after the first omit members that equal the first entry's. The header,
written as JSON, MUST have the length and the digest in the trailer; a reader MUST compare the trailer with
that of the shard before it reads a row there.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import fsum, sqrt
from typing import Any, NamedTuple

import xxhash

from packer.errors import FormatError, PackerError, UsageError, damaged
from packer.format.checksums import SIZE, Trailer, digest
from packer.format.fields import Extent
from packer.format.file_io import ASIDE, check_inside, fsync_path, write_aside
from packer.format.header import (
    FORMAT,
    INDEX_FILE,
    MAX_INDEX_BYTES,
    VERSION,
    Header,
    check_characters,
    read_json,
    read_members,
)
from packer.packs.pack import Pack

# The next index. Files that only this one lists belong to packer too.
NEXT_INDEX_FILE = INDEX_FILE + ASIDE
MAX_LISTED_BLOCKS = 3_000_000
"""Most compressed blocks of a pack; the index lists the place of each with five numbers."""
# members that check_rows() checks
_OF_ROWS = {"rows", "extents", "splits", "statistics", "train_statistics", "skipped"}
_MAX_NAME = 255  # bytes; of file systems
MakeShard = Callable[[str, Header, bytes], Pack]
"""Creates a shard from its path or URL, its header and its trailer."""


class Index(NamedTuple):
    """Content of the index.

    shards: in order, as the index describes them; digest: of the entire index, 16 bytes; skipped: inputs that
    no shard lists.
    """

    shards: tuple[Pack, ...]
    digest: bytes
    skipped: tuple[dict[str, str], ...]


def seal_of(trailer: bytes) -> str:
    """Return the digest of a shard's trailer, as the index stores it."""
    return xxhash.xxh3_128_hexdigest(trailer)


def is_header_sealed(shard: Pack) -> bool:
    """Return True if the trailer covers this header."""
    trailer, text = Trailer.from_bytes(shard.seal), shard.header.to_bytes()
    found = trailer and (trailer.header_length, trailer.header_digest)
    return found == (len(text), digest([text]))


def shard_name(number: int, format: str) -> str:
    """Return the name of a shard: 00007.h5, or 00007 for a directory of .npy."""
    return f"{number:05d}" + (".h5" if format == "h5" else "")


def check_listable(name: str, blocks: int) -> None:
    """Raise UsageError, before any work, if an index could not list this number of compressed blocks."""
    if blocks > MAX_LISTED_BLOCKS:
        raise UsageError(
            f"{name}: would have {blocks:,} compressed blocks; an index lists at most {MAX_LISTED_BLOCKS:,}."
            " Pass larger shards, whose blocks are larger, or store='jpeg'."
        )


def write_index(folder: str, shards: Sequence[Pack], skipped: Sequence[Mapping[str, str]] = ()) -> None:
    """Write the index under a temporary name, flush it, and rename it. See prepare_index."""
    prepare_index(folder, shards, skipped)
    name_index(folder)


def prepare_index(folder: str, shards: Sequence[Pack], skipped: Sequence[Mapping[str, str]]) -> None:
    """Write the index under a temporary name and flush it; ``name_index`` renames it.

    shards: the shards, with their final names.
    Raises OSError; FormatError if the shards have different fields or classes; PackerError if an index cannot
    hold so many.
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
        read_json(text)  # refuses text that is too deep or too long
    except ValueError as error:
        raise PackerError(
            f"{folder}: the index of {len(shards):,} shards would be unreadable ({error})."
            " Pass fewer, larger shards."
        ) from None
    write_aside(os.path.join(folder, INDEX_FILE), (text,))


def name_index(folder: str) -> None:
    """Rename a prepared index to its final name. Raises OSError."""
    os.replace(os.path.join(folder, NEXT_INDEX_FILE), os.path.join(folder, INDEX_FILE))
    fsync_path(folder)


def read_index(folder: str, name: str = INDEX_FILE, make: MakeShard = Pack) -> Index:
    """Read the index of a pack of shards, or its next index. make: see index_of.

    Raises FormatError; OSError if there is none.
    """
    path = check_inside(folder, name)
    with open(path, "rb") as file:
        data = file.read(MAX_INDEX_BYTES + 1)
    return index_of(data, path, make)


def index_of(data: bytes, path: str, make: MakeShard = Pack) -> Index:
    """Parse an index. path: its path or URL; make: creates a shard. Raises FormatError."""
    try:
        record = read_json(data)
        check_characters(data, record)
        bare = {name: value for name, value in record.items() if name != "checksum"}
        sums = {xxhash.xxh3_128_hexdigest(_text(bare)), record["checksum"]}
        if len(sums) > 1 or _text(record) != data or len(data) > MAX_INDEX_BYTES:
            raise ValueError("its checksum differs")
        if record["format"] != FORMAT or record["version"] != VERSION:
            raise FormatError(
                f"{path}: format version is {reprlib.repr(record['version'])}; this packer reads {VERSION}."
                " Upgrade packer, or convert the images again.",
                part="index",
            )
        shards = tuple(_shards_from_record(record, os.path.dirname(path), make))
        if not shards or len({shard.path for shard in shards}) != len(shards):
            raise ValueError("it lists no shards, or one twice")
        skipped = read_members({"skipped": record.get("skipped", [])})["skipped"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, IndexError) as error:
        raise damaged(path, f"is damaged ({error})", "index") from None
    return Index(shards, xxhash.xxh3_128_digest(data), skipped)


def _headers_to_record(shards: Sequence[Pack]) -> Iterator[dict[str, Any]]:
    first: dict[str, Any] = {}
    for shard in shards:  # one by one: thousands of shards may have thousands of class names each
        trailer = base64.b64encode(shard.seal).decode("ascii")
        own = {**json.loads(shard.header.to_bytes()), "trailer": trailer}
        yield {
            name: own.get(name) for name in {*first, *own} if not first or own.get(name) != first.get(name)
        }
        first = first or own


def _shards_from_record(record: Any, folder: str, make: MakeShard) -> Iterator[Pack]:
    """Yield the shards of an index.

    Raises ValueError, KeyError, TypeError, AttributeError or OverflowError if it is malformed.
    """
    first: Header | None = None
    for (file, rows, seal), own in zip(record["shards"], record["headers"], strict=True):
        if not file or file.startswith(".") or "/" in file or "\\" in file or "\0" in file:
            raise ValueError(f"{file!r} is not the name of a shard")
        if len(os.fsencode(file)) > _MAX_NAME:  # raises ValueError for a name that no file system accepts
            raise ValueError(f"{file[:80]!r}... is not the name of a shard")
        trailer = base64.b64decode(own.get("trailer", record["headers"][0]["trailer"]), validate=True)
        if len(trailer) != SIZE or seal_of(trailer) != seal:
            raise ValueError("a trailer does not match its shard's seal")
        if first is None:
            header = first = Header.from_record(own)
        else:
            header = replace(first, **read_members(own))
            if (header.fields, header.classes) != (first.fields, first.classes):
                raise ValueError("its shards have different fields or classes")
            header.check_rows() if {"trailer", *_OF_ROWS} >= own.keys() else header.check()
        if header.rows != rows:
            raise ValueError("a header has another number of rows than its shard")
        yield make(os.path.join(folder, file), header, trailer)


def merge_headers(headers: Sequence[Header], skipped: Sequence[Mapping[str, str]] = ()) -> Header:
    """Return the combined header of shards with equal fields and classes.

    In its extents "3/image.npy" is a file of shard 3, and "3" a shard that is a single file. skipped: inputs
    that no shard lists.
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
        **pooled_statistics(headers),
        skipped=tuple(s for header in headers for s in header.skipped) + tuple(skipped),
        table=headers[0].table if all(h.table == headers[0].table for h in headers) else None,
    )


def extents_of(part: str, extents: Sequence[Extent]) -> list[Extent]:
    """Return the extents of part number `part` with file names relative to the pack that contains it."""
    return [
        Extent(f"{part}/{e.file}" if e.file else part, e.offset, e.rows, e.row_bytes, e.stored)
        for e in extents
    ]


def merge_shards(name: str, index: Index, shards: Sequence[Pack]) -> Pack:
    """Return the pack of an index and its shards."""
    return Pack(name, merge_headers([s.header for s in shards], index.skipped), index.digest, tuple(shards))


def check_alike(shards: Sequence[Pack]) -> None:
    """Check that shards have equal fields and classes. Raises FormatError."""
    first = shards[0]
    for shard in shards:
        if shard.header.fields != first.header.fields or shard.header.classes != first.header.classes:
            raise FormatError(
                f"{shard.path}: has other fields or classes than {first.name}; all shards of a pack have the"
                " same. Restore the original."
            )


def not_listed(path: str) -> FormatError:
    """Return the error for a file that is not the listed shard."""
    return FormatError(
        f"{path}: is not the shard that {INDEX_FILE} lists; it was replaced or changed."
        " Restore the original, or convert the images again.",
        part="index",
    )


def _text(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def pooled_statistics(headers: Sequence[Header], shares: Sequence[float] | None = None) -> dict[str, Any]:
    """Return pooled `statistics` and `train_statistics`, of the fields for which every header has them.

    shares: weight of each header's rows; any sum; None: their number.
    """
    train = [header.train_rows for header in headers]
    some = sum(train) < sum(header.rows for header in headers)
    return {
        "statistics": _pooled([h.statistics for h in headers], shares or [h.rows for h in headers]),
        "train_statistics": _pooled(
            [
                h.statistics if rows == h.rows else h.train_statistics
                for h, rows in zip(headers, train, strict=True)
                if rows and some
            ],
            [share for share, rows in zip(shares or train, train, strict=True) if rows and some],
        ),
    }


def _pooled(
    statistics: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], shares: Sequence[float]
) -> dict[str, dict[str, list[float]]]:
    """Return pooled means and deviations of the fields that all have."""
    rows = fsum(shares)
    found: dict[str, dict[str, list[float]]] = {}
    for name in statistics[0] if statistics else ():
        own = [(share, each.get(name, {})) for share, each in zip(shares, statistics, strict=True)]
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
