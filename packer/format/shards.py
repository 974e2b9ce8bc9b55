"""A pack as a directory of shards: ``index.json`` lists them, each is a whole pack of its own (00000.h5, 00001.h5, ...).

The index is one JSON object, ASCII, keys sorted, no spaces: ``format``, ``version``, ``shards`` (a list of [file, rows, seal],
in the order of the rows), perhaps ``skipped`` (inputs left out that no shard lists, as in the header: they would have been the
only ones of a shard, or are rows of a table that was added), perhaps ``headers`` (of the shards, a list: with them the pack opens by
its index alone), and ``checksum``, the XXH3-128, in hexadecimal, of the same object without it. A reader ignores
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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, sqrt
from typing import Any, NamedTuple

import xxhash

from packer.errors import FormatError, damaged
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

NEXT_INDEX_FILE = (
    "index.json.new"  # the index to be: files that it lists, and the index does not, are ours too
)
_OF_ROWS = {"rows", "extents", "splits", "statistics", "skipped"}  # members that check_rows() looks at


class Shard(NamedTuple):
    """A line of the index: file or folder name, rows, seal."""

    file: str
    rows: int
    seal: str


class ListedHeader(NamedTuple):
    """The header of a shard, and its trailer: 128 bytes."""

    header: Header
    seal: bytes

    @property
    def sealed(self) -> bool:
        """True if the trailer is that of a file with this header."""
        trailer, text = Trailer.from_bytes(self.seal), self.header.to_bytes()
        found = trailer and (trailer.header_length, trailer.header_digest)
        return found == (len(text), digest([text]))


def seal_of(trailer: bytes) -> str:
    """Return the digest of a shard's trailer that the index holds."""
    return xxhash.xxh3_128_hexdigest(trailer)


def headers_to_record(listed: Sequence[ListedHeader]) -> list[dict[str, Any]]:
    """Return the index's member ``headers``; [] where shards are not alike, or a trailer is not that of its header."""
    record: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for one in listed:  # one by one: thousands of shards have thousands of class names each
        alike = (
            one.header.fields == listed[0].header.fields and one.header.classes == listed[0].header.classes
        )
        if not (alike and one.sealed):
            return []
        trailer = base64.b64encode(one.seal).decode("ascii")
        own = {**json.loads(one.header.to_bytes()), "trailer": trailer}
        first = first or own
        changed = {name: own.get(name) for name in {*first, *own} if own.get(name) != first.get(name)}
        record.append(changed if record else own)
    return record


def headers_from_record(record: Any, lines: Sequence[Shard]) -> tuple[ListedHeader, ...]:
    """Return what headers_to_record was given. lines: of the index.

    Raises ValueError, KeyError, TypeError, AttributeError or OverflowError for an impossible one.
    """
    found: list[ListedHeader] = []
    for own, line in zip(record, lines, strict=True):
        seal = base64.b64decode(own.get("trailer", record[0]["trailer"]), validate=True)
        if len(seal) != SIZE or seal_of(seal) != line.seal:
            raise ValueError("a trailer in it is not that of its shard")
        if not found:
            header = Header.from_record(own)
        else:
            first = found[0].header
            header = replace(first, **read_members(own))
            if (header.fields, header.classes) != (first.fields, first.classes):
                raise ValueError("its shards have different fields or classes")
            header.check_rows() if {"trailer", *_OF_ROWS} >= own.keys() else header.check()
        if header.rows != line.rows:
            raise ValueError("a header in it has other rows than its shard")
        found.append(ListedHeader(header, seal))
    return tuple(found)


class Index(NamedTuple):
    """The content of the index.

    shards: in order; digest: of the whole index, 16 bytes; skipped: inputs that no shard lists; headers: of the shards, () if the
    index does not have them.
    """

    shards: tuple[Shard, ...]
    digest: bytes
    skipped: tuple[dict[str, str], ...]
    headers: tuple[ListedHeader, ...] = ()


def shard_name(number: int, format: str) -> str:
    """Return the name of a shard: 00007.h5, or 00007 for a directory of .npy."""
    return f"{number:05d}" + (".h5" if format == "h5" else "")


def write_index(
    folder: str,
    shards: Sequence[Shard],
    skipped: Sequence[Mapping[str, str]] = (),
    headers: Sequence[ListedHeader] = (),
) -> None:
    """Write the index aside, flush it, and give it its name. skipped, headers: see Index. Raises OSError."""
    prepare_index(folder, shards, skipped, headers)
    name_index(folder)


def prepare_index(
    folder: str,
    shards: Sequence[Shard],
    skipped: Sequence[Mapping[str, str]],
    headers: Sequence[ListedHeader],
) -> None:
    """Write the index aside, and flush it; see write_index. ``name_index`` gives it its name. Raises OSError."""
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION, "shards": [list(s) for s in shards]}
    if skipped:
        record["skipped"] = [dict(s) for s in skipped]
    if listed := headers_to_record(headers):
        try:
            text = _text({**record, "headers": listed, "checksum": "0" * 32})
            if len(text) > MAX_INDEX_BYTES:
                raise ValueError("it is too long")
            read_json(text)  # which refuses what is too deep, or too much
            record["headers"] = listed
        except ValueError:
            pass
    record["checksum"] = xxhash.xxh3_128_hexdigest(_text(record))
    with open(os.path.join(folder, NEXT_INDEX_FILE), "wb") as file:
        file.write(_text(record))
        file.flush()
        os.fsync(file.fileno())


def name_index(folder: str) -> None:
    """Give an index that was written aside its name. Raises OSError."""
    os.replace(os.path.join(folder, NEXT_INDEX_FILE), os.path.join(folder, INDEX_FILE))
    fsync_path(folder)


def read_index(folder: str, name: str = INDEX_FILE) -> Index:
    """Read the index of a pack of shards, or the one to be. Raises FormatError; OSError if there is none."""
    path = check_inside(folder, name)
    with open(path, "rb") as file:
        data = file.read(MAX_INDEX_BYTES + 1)
    return index_of(data, path)


def index_of(data: bytes, path: str) -> Index:
    """Return the content of an index's bytes. path: for messages. Raises FormatError."""
    try:
        record = read_json(data)
        bare = {name: value for name, value in record.items() if name != "checksum"}
        sums = {xxhash.xxh3_128_hexdigest(_text(bare)), record["checksum"]}
        if len(sums) > 1 or _text(record) != data or len(data) > MAX_INDEX_BYTES:
            raise ValueError("its checksum differs")
        if record["format"] != FORMAT or record["version"] != VERSION:
            raise FormatError(
                f"{path}: format version is {record['version']}; this packer reads {VERSION}."
                " Upgrade packer, or convert the images again."
            )
        shards = tuple(map(_shard, record["shards"]))
        if not shards or len({s.file for s in shards}) != len(shards):
            raise ValueError("it lists no shards, or one twice")
        skipped = tuple({"key": str(s["key"]), "reason": str(s["reason"])} for s in record.get("skipped", ()))
        listed = record.get("headers")
        headers = () if listed is None else headers_from_record(listed, shards)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, IndexError) as error:
        raise damaged(path, f"is damaged ({error})") from None
    return Index(shards, xxhash.xxh3_128_digest(data), skipped, headers)


def merge_headers(headers: Sequence[Header], skipped: Sequence[Mapping[str, str]] = ()) -> Header:
    """Return one header for shards with equal fields and classes.

    Its extents name a file of shard 3 "3/image.npy", and "3" the shard that is one file. skipped: inputs that none of the shards lists.
    """
    extents: dict[str, list[Extent]] = {name: [] for name in headers[0].columns}
    splits: dict[str, list[tuple[int, int]]] = {}
    first = 0
    for file, header in zip(map(str, itertools.count()), headers, strict=False):
        for name, own in header.extents.items():
            extents[name] += [
                Extent(f"{file}/{e.file}" if e.file else file, e.offset, e.rows, e.row_bytes, e.stored)
                for e in own
            ]
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


def together(name: str, index: Index, shards: Sequence[Pack]) -> Pack:
    """Return the pack of an index, of these shards."""
    return Pack(name, merge_headers([s.header for s in shards], index.skipped), index.digest, tuple(shards))


def check_listed(index: Index, shards: Sequence[Pack]) -> None:
    """See that opened shards are those of the index, and are alike. Raises FormatError."""
    for line, shard in zip(index.shards, shards, strict=True):
        if seal_of(shard.seal) != line.seal or shard.rows != line.rows:
            raise not_listed(shard.path)
    check_alike(index, shards)


def check_alike(index: Index, shards: Sequence[Pack]) -> None:
    """See that the shards of an index have equal fields and classes. Raises FormatError."""
    first = shards[0].header
    for shard in shards:
        if shard.header.fields != first.fields or shard.header.classes != first.classes:
            raise FormatError(
                f"{shard.path}: has other fields or classes than {index.shards[0].file}; all shards of a pack have the same."
                " Bring back the right one."
            )


def listing(shards: Sequence[Pack]) -> tuple[list[Shard], list[ListedHeader]]:
    """Return the lines of the index of these shards, and their headers, as write_index takes them."""
    lines = [Shard(os.path.basename(one.path), one.rows, seal_of(one.seal)) for one in shards]
    return lines, [ListedHeader(one.header, one.seal) for one in shards]


def not_listed(path: str) -> FormatError:
    """Return the error for a file that is not the shard it should be."""
    return FormatError(
        f"{path}: is not the shard that {INDEX_FILE} lists; it was replaced or changed."
        " Bring back the right one, or convert the images again."
    )


def _shard(line: Any) -> Shard:
    if type(line) is not list or list(map(type, line)) != [str, int, str] or not 0 < line[1] < 1 << 62:
        raise ValueError("a shard is not a file, rows and a seal")
    file, rows, seal = line
    if not file or file.startswith(".") or "/" in file or "\\" in file or "\0" in file:
        raise ValueError(f"{file!r} is no name of a shard")
    os.fsencode(file)  # raises ValueError for what no file system can be asked for
    return Shard(file, rows, seal)


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
