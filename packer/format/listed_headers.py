"""The headers and trailers of a pack's shards in its index: with them a pack of shards opens by its index alone.

They are the index's member ``headers``, an object:

``members``
    Of each member of a header but rows and extents its values, a list: one value that all shards have, or one for each shard, in
    their order. ``fields`` and ``classes`` have one. ``table`` is null for a header without it.
``of``
    Where a member has several values, but fewer than there are shards: the number of each shard's value, a list.
``extents``
    Of each array an object of columns: ``count``, extents in each shard; ``offset``, ``rows`` and, of compressed arrays, ``stored``
    of all extents, shard by shard. A column is a list, or one number where all are equal. The file of an extent, and its bytes a row,
    follow from the field.
``container``
    "h5" or "npy", for all shards.
``trailers``
    The trailers, 128 bytes a shard, one after the other, in base64.

The header of a shard, written as JSON, MUST have the length and the digest that its trailer says; a reader MUST compare the trailer
with that of the shard before it reads a row there. An index MAY lack the member, and readers that do not know it open each shard.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import xxhash

from packer.format.checksums import SIZE, Trailer, digest
from packer.format.header import MAX_VALUES, MEMBERS, OFFSETS, Extent, Header, read_count

_FILES: dict[str, Callable[[str], str]] = {"h5": lambda array: "", "npy": lambda array: f"{array}.npy"}
_OF_ROWS = (
    "splits",
    "statistics",
    "skipped",
)  # members that differ from shard to shard, in nothing that a check would find


class ListedHeader(NamedTuple):
    """The header of a shard, and its trailer: 128 bytes."""

    header: Header
    seal: bytes

    @property
    def sealed(self) -> bool:
        """True if the trailer is that of a file with this header."""
        trailer, text = Trailer.from_bytes(self.seal), self.header.to_bytes()
        return (
            trailer is not None
            and trailer.header_length == len(text)
            and trailer.header_digest == digest([text])
        )


def seal_of(trailer: bytes) -> str:
    """Return the digest of a shard's trailer that the index holds."""
    return xxhash.xxh3_128_hexdigest(trailer)


def headers_to_record(listed: Sequence[ListedHeader]) -> dict[str, Any] | None:
    """Return the index's member of these shards; None where it cannot say all that their headers do."""
    values: dict[str, dict[str, int]] = {name: {} for name in MEMBERS}
    numbers: dict[str, list[int]] = {name: [] for name in MEMBERS}
    own: dict[str, list[list[Any]]] = {}
    for one in listed:  # one by one: thousands of shards have thousands of class names each
        record = json.loads(one.header.to_bytes())
        for name in MEMBERS:
            text = json.dumps(record.get(name), sort_keys=True)
            numbers[name].append(values[name].setdefault(text, len(values[name])))
        for array in own or record["extents"]:
            own.setdefault(array, []).append(record["extents"].get(array, []))
    members, of = {}, {}
    for name in MEMBERS:
        members[name] = [json.loads(text) for text in values[name]]
        if 1 < len(values[name]) < len(listed):
            of[name] = numbers[name]
    extents = {}
    for array, some in own.items():
        each = [extent for extents_of_one in some for extent in extents_of_one]
        columns = {"count": map(len, some), "offset": (e[1] for e in each), "rows": (e[2] for e in each)}
        if any(len(e) > 4 for e in each):
            columns["stored"] = (e[-1] for e in each)
        extents[array] = {name: _column(found) for name, found in columns.items()}
    container = "npy" if any(e[0] for some in own.values() for e in some[0]) else "h5"
    trailers = base64.b64encode(b"".join(one.seal for one in listed)).decode("ascii")
    made = {
        "members": members,
        "of": of,
        "extents": extents,
        "container": container,
        "trailers": trailers,
    }
    try:
        again = headers_from_record(made, [(one.header.rows, seal_of(one.seal)) for one in listed])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):  # parts of several kinds
        return None
    return made if all(one.sealed for one in again) else None


def headers_from_record(record: Any, shards: Sequence[tuple[int, str]]) -> tuple[ListedHeader, ...]:
    """Return what headers_to_record was given. shards: rows and seal of each.

    Raises ValueError, KeyError, TypeError, AttributeError or OverflowError for an impossible one.
    """
    count = len(shards)
    trailers = base64.b64decode(record["trailers"], validate=True)
    if len(trailers) != SIZE * count:
        raise ValueError("it does not hold one trailer a shard")
    seals = [trailers[at : at + SIZE] for at in range(0, len(trailers), SIZE)]
    if any(seal_of(seal) != shard[1] for seal, shard in zip(seals, shards, strict=True)):
        raise ValueError("a trailer in it is not that of its shard")
    members = {
        name: _values(record["members"][name], read, record["of"].get(name), count)
        for name, read in MEMBERS.items()
    }
    if len(record["members"]["fields"]) != 1 or len(record["members"]["classes"]) != 1:
        raise ValueError("its shards have different fields or classes")
    file_of, extents = _FILES[record["container"]], {}
    for field in members["fields"][0]:
        for array in field.arrays:
            row_bytes = 8 if array.endswith(OFFSETS) else field.row_bytes
            each = _extents(record["extents"][array], file_of(array), row_bytes, count)
            if array != field.name or not field.ragged:
                _check_rows(each, [rows + (array != field.name) for rows, _ in shards])
            extents[array] = each
    found, checked = [], set()
    compressed = any(field.compressed for field in members["fields"][0])
    for number, (rows, _) in enumerate(shards):
        own = {name: values[number] for name, values in members.items()}
        header = Header(rows=rows, extents={array: each[number] for array, each in extents.items()}, **own)
        kind = tuple(id(own[name]) for name in MEMBERS if name not in _OF_ROWS)
        if kind in checked and not compressed:
            header.check_rows()  # the rest is as in those before, and extents have been looked at
        else:
            header.check()
            checked.add(kind)
        found.append(ListedHeader(header, seals[number]))
    return tuple(found)


def _check_rows(extents: Sequence[tuple[Extent, ...]], rows: Sequence[int]) -> None:
    """Raise ValueError unless the extents of an array hold so many rows in each shard."""
    for own, expected in zip(extents, rows, strict=True):
        if sum(extent.rows for extent in own) != expected:
            raise ValueError(f"extents in it do not hold {expected} rows")


def _column(values: Iterable[int]) -> int | list[int]:
    each = list(values)
    return each[0] if len(set(each)) == 1 else each


def _numbers(column: Any, count: int) -> list[int]:
    """Return the numbers of a column."""
    if type(column) is int:
        return [read_count(column)] * count
    if type(column) is not list or len(column) != count:
        raise ValueError(f"a column in it has not {count} numbers")
    return list(map(read_count, column))


def _values(values: Any, read: Callable[[Any], Any], of: Any, count: int) -> list[Any]:
    """Return the value of a member in each shard."""
    found = list(map(read, values))
    if of is not None:
        return [found[number] for number in _numbers(of, count)]
    if len(found) not in (1, count):
        raise ValueError(f"it has {len(found)} values for {count} shards")
    return found if len(found) == count else found * count


def _extents(columns: Any, file: str, row_bytes: int, count: int) -> list[tuple[Extent, ...]]:
    """Return the extents of one array in each shard."""
    counts = _numbers(columns["count"], count)
    total = sum(counts)
    if total > MAX_VALUES:
        raise ValueError(f"it lists {total:,} extents; at most {MAX_VALUES:,} are read")
    offsets, rows = _numbers(columns["offset"], total), _numbers(columns["rows"], total)
    if "stored" in columns:
        stored = _numbers(columns["stored"], total)
        each = [Extent(file, o, r, row_bytes, s) for o, r, s in zip(offsets, rows, stored, strict=True)]
    else:
        each = [Extent(file, o, r, row_bytes) for o, r in zip(offsets, rows, strict=True)]
    if counts == [1] * count:
        return [(extent,) for extent in each]
    found, at = [], 0
    for own in counts:
        found.append(tuple(each[at : at + own]))
        at += own
    return found
