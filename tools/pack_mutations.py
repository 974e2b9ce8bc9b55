"""Mutations of packs for fuzz_packs.py: damage as by disks or programs; forgeries with matching checksums.

Each kind is a function that draws from a random.Random; ``mutation`` draws the kind too.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from packer.errors import FormatError
from packer.format.checksums import SIZE, Trailer, block_checksum, digest, outside
from packer.format.fields import OFFSETS
from packer.format.header import Header
from packer.format.npy_container import PREAMBLE
from packer.packs.pack_opening import open_pack

Files = dict[str, bytes]
"""A pack's files by name; a single file has the name ""."""


class Mutation(NamedTuple):
    """A mutated pack. what: the change; fitted: True if checksums were adapted, so no check detects it."""

    files: Files
    what: str
    fitted: bool


@dataclass(frozen=True)
class Original:
    """An undamaged pack in memory."""

    files: Files
    header: Header
    trailer: Trailer

    @classmethod
    def read(cls, path: Path) -> Original:
        """Read a pack of one part."""
        pack = open_pack(path)
        trailer = Trailer.from_bytes(pack.seal)
        if trailer is None or pack.shards:
            raise FormatError(f"{path}: is not sealed, or holds shards. Pass packs of one part.")
        files = (
            {p.name: p.read_bytes() for p in sorted(path.iterdir())}
            if path.is_dir()
            else {"": path.read_bytes()}
        )
        return cls(files, pack.header, trailer)

    @property
    def directory(self) -> bool:
        """True for a directory of .npy files."""
        return "" not in self.files

    @property
    def record(self) -> dict[str, Any]:
        """The header as JSON."""
        record: dict[str, Any] = json.loads(self.header.to_bytes())
        return record

    def sections(self) -> list[tuple[str, int, int]]:
        """List (file, start, stop) of each section; a mutation picks them with equal weight."""
        found = [(e.file, e.offset, e.end) for es in self.header.extents.values() for e in es if e.nbytes]
        if self.directory:
            found += [(name, 0, min(PREAMBLE, len(data))) for name, data in self.files.items()]
            found += [(name, 0, len(data)) for name, data in self.files.items() if not name.endswith(".npy")]
            found.append(("checksums.npy", PREAMBLE, len(self.files["checksums.npy"])))
        else:
            t, length = self.trailer, len(self.files[""])
            found += [
                ("", t.header_offset, t.header_offset + t.header_length),
                ("", t.checksums_offset, t.checksums_offset + t.checksums_length),
                ("", length - SIZE, length),
                *(("", a, b) for a, b in outside([(a, b) for _, a, b in found], t.container_length)),
            ]
        return found


# --- matching checksums -------------------------------------------------------------------------------------


def fit(original: Original, files: Files, *, header: bytes | None = None, rows: bool = False) -> Files:
    """Return files with matching digests and (rows) checksum table. header: a replacement."""
    files = dict(files)
    if rows:
        table = checksum_table(original, files)
        if original.directory:
            files["checksums.npy"] = files["checksums.npy"][:PREAMBLE] + table
        else:
            files[""] = put(files[""], original.trailer.checksums_offset, table)
    trailer = original.trailer
    if header is not None and original.directory:
        files["header.json"] = header
        trailer = replace(trailer, header_length=len(header))
    elif header is not None:
        data = files[""][: trailer.container_length]
        offset = trailer.header_offset
        if len(header) == trailer.header_length:
            data = put(data, offset, header)
        else:
            data, offset = data + header, len(data)
        files[""] = data + files[""][trailer.container_length :]
        trailer = replace(
            trailer, container_length=len(data), header_offset=offset, header_length=len(header)
        )
    return seal(original, files, trailer, header)


def seal(original: Original, files: Files, trailer: Trailer, header: bytes | None = None) -> Files:
    """Return files with a trailer whose digests match, as far as its offsets allow."""
    try:
        parsed = original.header if header is None else Header.from_bytes(header, "")
    except FormatError:
        parsed = original.header
    own = files["header.json"] if original.directory else files[""]
    table = files["checksums.npy"] if original.directory else files[""]
    if original.directory:
        rest = [files.get(f"{name}.npy", b"")[:PREAMBLE] for name in parsed.columns]
    else:
        taken = [(e.offset, e.end) for es in parsed.extents.values() for e in es]
        rest = [files[""][a:b] for a, b in outside(taken, trailer.container_length)]
    trailer = replace(
        trailer,
        header_digest=digest([own[trailer.header_offset :][: trailer.header_length]]),
        checksums_digest=digest([table[trailer.checksums_offset :][: trailer.checksums_length]]),
        rest_digest=digest(rest),
    )
    if original.directory:
        return files | {"trailer": trailer.to_bytes()}
    return {"": files[""][: trailer.container_length] + trailer.to_bytes()}


def checksum_table(original: Original, files: Files) -> bytes:
    """Return the checksum table of the rows in the files, placed as in the original."""
    header = original.header
    arrays = {name: stored(original, files, name) for name in header.columns}
    table = np.zeros((header.blocks, len(header.columns)), "<u8")
    for c, name in enumerate(header.columns):
        field = header.field(name.removesuffix(OFFSETS))
        for block in range(header.blocks):
            start, stop = block * header.block_rows, min((block + 1) * header.block_rows, header.rows)
            if field.compressed:
                e = header.extents[name][block]
                data = files[e.file][e.offset : e.end]
            elif name != field.name:
                data = arrays[name][8 * start : 8 * (stop + (stop == header.rows))]
            elif field.ragged:
                offsets = np.frombuffer(arrays[name + OFFSETS], "<i8")
                data = arrays[name][max(0, int(offsets[start])) : max(0, int(offsets[stop]))]
            else:
                data = arrays[name][field.row_bytes * start : field.row_bytes * stop]
            table[block, c] = block_checksum(np.frombuffer(data, np.uint8))
    return table.tobytes()


def stored(original: Original, files: Files, array: str) -> bytes:
    """Return all bytes of an array."""
    return b"".join(files[e.file][e.offset : e.end] for e in original.header.extents[array])


def put(data: bytes, offset: int, piece: bytes) -> bytes:
    """Return the data with a piece overwritten."""
    return data[:offset] + piece + data[offset + len(piece) :]


# --- mutations ----------------------------------------------------------------------------------------------


def flip(draw: random.Random, original: Original) -> Mutation:
    """Flip 1 to 8 bits."""
    files, said = dict(original.files), []
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        file, start, stop = draw.choice(original.sections())
        at, bit = draw.randrange(start, stop), draw.randrange(8)
        files[file] = put(files[file], at, bytes([files[file][at] ^ 1 << bit]))
        said.append(f"bit {bit} of byte {at} of {file!r}")
    return Mutation(files, f"flipped {', '.join(said)}", False)


def overwrite(draw: random.Random, original: Original) -> Mutation:
    """Overwrite a run of bytes with zeros, ones or noise."""
    file, start, stop = draw.choice(original.sections())
    data = original.files[file]
    at = draw.randrange(start, stop)
    count = min(len(data) - at, draw.choice((1, 2, 4, 8, 16, 64, 512, 4096)))
    piece = draw.choice((bytes(count), b"\xff" * count, draw.randbytes(count)))
    return Mutation(
        original.files | {file: put(data, at, piece)}, f"{count} bytes at {at} of {file!r} overwritten", False
    )


def truncate(draw: random.Random, original: Original) -> Mutation:
    """Truncate a file, often at a section's border."""
    file = draw.choice(list(original.files))
    data = original.files[file]
    borders = [x for name, *bounds in original.sections() if name == file for x in bounds]
    at = draw.choice((draw.randrange(len(data)), draw.choice(borders), len(data) - 1, len(data) - SIZE, 0))
    at = min(max(at, 0), len(data) - 1)
    return Mutation(original.files | {file: data[:at]}, f"{file!r} cut to {at} of {len(data)} bytes", False)


def extend(draw: random.Random, original: Original) -> Mutation:
    """Append bytes to a file."""
    file = draw.choice(list(original.files))
    data = original.files[file]
    count = draw.choice((1, 8, SIZE, 4096))
    tail = draw.choice((bytes(count), draw.randbytes(count), data[-count:], data))
    return Mutation(original.files | {file: data + tail}, f"{len(tail)} bytes added to {file!r}", False)


def splice(draw: random.Random, original: Original) -> Mutation:
    """Copy bytes over, or into, another place; or remove them."""
    (source, a, b), (file, c, d) = draw.choice(original.sections()), draw.choice(original.sections())
    start, at = draw.randrange(a, b), draw.randrange(c, d)
    piece = original.files[source][start : start + draw.choice((1, 8, 64, 1024))]
    data, way = original.files[file], draw.choice(("over", "in", "out"))
    if way == "over":
        changed = put(data, at, piece)
    elif way == "in":
        changed = data[:at] + piece + data[at:]
    else:
        changed = data[:at] + data[at + len(piece) :]
    what = f"{len(piece)} bytes from {start} of {source!r} put {way} at {at} of {file!r}"
    return Mutation(original.files | {file: changed}, what, False)


def swap(draw: random.Random, original: Original) -> Mutation:
    """Exchange two blocks of an array, two entries of the table, or two files."""
    header, files = original.header, dict(original.files)
    if original.directory and draw.random() < 0.3:
        one, two = draw.sample(sorted(files), 2)
        files[one], files[two] = files[two], files[one]
        return Mutation(files, f"{one!r} and {two!r} exchanged", False)
    name = draw.choice(header.columns)
    extents, f = header.extents[name], header.field(name.removesuffix(OFFSETS))
    size = 1 if f.ragged and name == f.name else header.block_rows
    spans = (
        [(e.offset, e.end) for e in extents]
        if f.compressed
        else [
            (o, o + size * extents[0].row_bytes)
            for o in range(extents[0].offset, extents[0].end, size * extents[0].row_bytes)
        ]
    )
    if len(spans) < 2:
        return flip(draw, original)
    (a, b), (c, d) = sorted(draw.sample(spans, 2))
    file = extents[0].file
    data = files[file]
    d = min(d, extents[-1].end)
    files[file] = data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]
    return Mutation(files, f"bytes {a} to {b} and {c} to {d} of {file!r} exchanged", False)


def remove(draw: random.Random, original: Original) -> Mutation:
    """Remove or empty a file."""
    file = draw.choice(list(original.files))
    files = dict(original.files)
    if original.directory and draw.random() < 0.5:
        del files[file]
        return Mutation(files, f"{file!r} removed", False)
    return Mutation(files | {file: b""}, f"{file!r} emptied", False)


VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 63, 1 << 31, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, 0.5, 1.0, 1e308,
    float("nan"), float("inf"), "", "x", "\0", "a\0b", ".", "..", "../x", "header.json", "trailer", "image.npy", "key.npy",
    "\ud800", "é", "x" * 5000, "|u1", "<i8", ">i8", "|O", "|S4", "<c8", "<f2", "|b1", "HWC", "idna", "utf-16", "zip",
    None, True, False, [], {}, [[]], [0], [1], [1, 2, 3], [1] * 40, [1] * 1000, [1 << 40, 1 << 40], {"a": 1},
    {"name": "jpeg"}, {"name": "jpeg", "shape": [4, 6, 3]}, {"name": "jpeg", "shape": [1, 1 << 30, 3]},
    {"name": "gzip", "level": 1}, {"name": "zstd", "level": 3}, {"name": "blosc2", "item": 3},
)  # fmt: skip


FILES = (".", "..", "", "trailer", "header.json", "x", "\0", "\ud800", "image.npy", "a/b")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((value, key), *places(inner))]


def header(draw: random.Random, original: Original) -> Mutation:
    """Edit the header's JSON in 1 to 3 places; digests match."""
    record, said = original.record, []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        container, key = draw.choice(places(record))
        before = container[key]
        way = draw.choice(("set", "set", "number", "delete", "copy", "other"))
        if way == "number" and type(before) is int:
            container[key] = draw.choice(
                (before + 1, before - 1, before * 2, before // 2, -before, float(before))
            )
        elif way == "delete":
            del container[key]
        elif way == "copy" and isinstance(container, list):
            container.insert(key, before)
        elif way == "other":
            other, its = draw.choice(places(record))
            container[key] = json.loads(json.dumps(other[its]))
        else:
            container[key] = copy.deepcopy(draw.choice(VALUES))
        said.append(
            f"{key!r}: {str(before)[:40]} {way} {str(container[key])[:40] if way != 'delete' else ''}"
        )
    return _with_header(original, record, "; ".join(said))


def extents(draw: random.Random, original: Original) -> Mutation:
    """Write extents that overlap, leave the file, come in odd pieces or point elsewhere; digests match."""
    record = original.record
    name = draw.choice(sorted(record["extents"]))
    own = record["extents"][name]
    file, offset, rows, row_bytes, *more = draw.choice(own)
    other = draw.choice(draw.choice(sorted(record["extents"].items()))[1])
    length, odd = len(original.files[file]), draw.choice(FILES)
    half, first = rows // 2, rows - rows // 2
    choices: dict[str, list[list[Any]]] = {
        "elsewhere": [[file, draw.randrange(length), rows, row_bytes, *more]],
        "on another": [[other[0], other[1], rows, row_bytes, *more]],
        "at the end": [[file, length - rows * row_bytes, rows, row_bytes, *more]],
        "behind the end": [[file, length + draw.choice((0, 1, 1 << 40)), rows, row_bytes, *more]],
        "far behind": [[file, (1 << 62) - 1, rows, row_bytes, *more]],
        "in two pieces": [
            [file, offset, first, row_bytes], [file, offset + first * row_bytes, half, row_bytes]
        ],
        "turned round": [
            [file, offset + first * row_bytes, half, row_bytes], [file, offset, first, row_bytes]
        ],
        "row by row": [[file, offset + i * row_bytes, 1, row_bytes] for i in range(rows)],
        "one row again and again": [[file, offset, 1, row_bytes]] * rows,
        "empty ones": [[file, (1 << 62) - 1, 0, row_bytes], *own, [file, 0, 0, row_bytes]],
        "none": [],
        "huge": [[file, offset, (1 << 62) - 1, row_bytes, *more]],
        "another file": [[odd, offset, rows, row_bytes, *more]],
        "other sizes": [[file, offset, rows, row_bytes, draw.choice((0, 1, 5, 1 << 40, (1 << 62) - 1))]],
    }  # fmt: skip
    way = draw.choice(sorted(choices))
    record["extents"][name] = choices[way]
    if way == "huge" and draw.random() < 0.5:
        record["rows"] = (1 << 62) - 1
    return _with_header(original, record, f"extents of {name!r}: {way}")


def shapes(draw: random.Random, original: Original) -> Mutation:
    """Write rows, block sizes, shapes and dtypes that match the extents' bytes, or nearly; digests match."""
    record = original.record
    field = draw.choice(record["fields"])
    way = draw.choice(("reshape", "dtype", "rows", "blocks", "ragged", "again"))
    if way == "reshape" and field["shape"] is not None:
        width = original.header.field(field["name"]).row_bytes // np.dtype(field["dtype"]).itemsize
        field["shape"] = draw.choice(([], [width, 1], *([1] * n + [width] for n in (0, 30, 31, 63, 64))))
    elif way == "dtype":
        field["dtype"] = draw.choice(("|i1", "|b1", "|u1", "<u8", "<f8", "<f4", "<f2", "<i8", "<u2"))
    elif way == "rows":
        record["rows"] = draw.choice((0, 1, record["rows"] - 1, record["rows"] + 1))
        for array in record["extents"].values():
            for e in array:
                e[2] = max(0, min(e[2], record["rows"] + draw.choice((0, 0, 0, 1))))
    elif way == "blocks":
        record["block_rows"] = draw.choice((0, 1, 2, record["rows"], record["rows"] + 1, 1 << 61))
    elif way == "ragged":
        field["shape"] = None if field["shape"] is not None else draw.choice(([], [1], [2]))
        record["extents"].pop(field["name"] + OFFSETS, None)
    else:
        name = draw.choice((field["name"], "other", "checksums", "packer", "__class__", "class", "_0"))
        record["fields"].append({**field, "name": name})
        for array in original.header.field(field["name"]).arrays:
            record["extents"][array.replace(field["name"], name, 1)] = record["extents"][array]
    what = f"{field['dtype']} {str(field['shape'])[:60]}, {record['rows']} rows"
    return _with_header(original, record, f"{way} of {field['name']!r}: {what}")


def text(draw: random.Random, original: Original) -> Mutation:
    """Write the header's text as no JSON writer does; digests match."""
    data = original.header.to_bytes()
    deep = draw.choice((100, 990, 5000, 200_000))
    choices = {
        "deep lists": data.replace(b'"about":{', b'"about":{"x":' + b"[" * deep + b"]" * deep + b",", 1),
        "deep objects": data.replace(
            b'"provenance":{', b'"provenance":{"x":' + b'{"a":' * deep + b"0" + b"}" * deep + b",", 1
        ),
        "only brackets": b"[" * deep,
        "a member twice": data.replace(b'"rows":', b'"rows":3,"rows":', 1),
        "fields twice": data.replace(b'"fields":', b'"fields":[],"fields":', 1),
        "a long number": data.replace(b'"rows":', b'"rows":' + b"9" * deep, 1),
        "a long fraction": data.replace(b'"rows":', b'"rows":0.' + b"9" * deep + b",", 1),
        "NaN": data.replace(b'"seed":', b'"seed":NaN,"x":', 1),
        "infinite": data.replace(b'"block_rows":', b'"block_rows":Infinity,"x":', 1),
        "no ASCII": data.replace(b'"packer"', '"päcker"'.encode(), 1),
        "a byte order mark": b"\xef\xbb\xbf" + data,
        "UTF-16": data.decode().encode("utf-16"),
        "spaces": b" " * deep + data + b"\n" * deep,
        "more behind": data + data,
        "cut": data[: draw.randrange(len(data))],
        "nothing": b"",
        "null": b"null",
        "noise": draw.randbytes(len(data)),
        "a byte changed": put(data, draw.randrange(len(data)), draw.randbytes(1)),
    }
    way = draw.choice(sorted(choices))
    return Mutation(
        fit(original, original.files, header=choices[way]), f"header's text: {way} ({deep})", True
    )


def trailer(draw: random.Random, original: Original) -> Mutation:
    """Write a trailer with other lengths and offsets, and matching digests where possible."""
    own = "trailer" if original.directory else ""
    data = original.files[own]
    if draw.random() < 0.1:
        body = put(data[-SIZE:-16], draw.randrange(88, 112), b"\1")
        tail = body + xxhash.xxh3_64_digest(body) + data[-8:]
        return Mutation(original.files | {own: data[:-SIZE] + tail}, "trailer: a byte that is zero", False)
    key = draw.choice(
        ("container_length", "header_offset", "header_length", "checksums_offset", "checksums_length")
    )
    before = getattr(original.trailer, key)
    near = (0, 1, before + 1, max(0, before - 1), before + 8, before * 2)
    value = draw.choice((*near, 1 << 30, (1 << 30) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
    numbers: dict[str, Any] = {key: value}
    changed = replace(original.trailer, **numbers)
    if draw.random() < 0.5 and key != "container_length":
        files = seal(original, original.files, changed)
    else:
        files = original.files | {own: data[:-SIZE] + changed.to_bytes()}
    return Mutation(files, f"trailer's {key}: {before} -> {value}", True)


def offsets(draw: random.Random, original: Original) -> Mutation:
    """Write decreasing or out-of-range offsets of a ragged field, or another end; checksums match."""
    ragged = [f.name for f in original.header.fields if f.ragged]
    if not ragged:
        return header(draw, original)
    name = draw.choice(ragged)
    extent = original.header.extents[name + OFFSETS][0]
    entries = np.frombuffer(original.files[extent.file][extent.offset : extent.end], "<i8").copy()
    at = draw.choice((0, len(entries) - 1, draw.randrange(len(entries))))
    before = int(entries[at])
    value = draw.choice(
        (-1, 0, before + 1, before - 1, -(1 << 63), (1 << 63) - 1, 1 << 40, draw.randrange(200))
    )
    entries[at] = value
    way = draw.choice(("one", "one", "one", "reversed", "all"))
    if way == "reversed":
        entries = entries[::-1].copy()
    elif way == "all":
        entries[:] = value
    files = original.files | {extent.file: put(original.files[extent.file], extent.offset, entries.tobytes())}
    what = f"entry {at} of {name}.offsets: {before} -> {value}, {way}"
    return Mutation(fit(original, files, rows=True), what, True)


def rows(draw: random.Random, original: Original) -> Mutation:
    """Change stored row bytes: labels, pixels, keys, compressed blocks, JPEG files; checksums match."""
    name = draw.choice(original.header.columns)
    extent = draw.choice(original.header.extents[name])
    data = bytearray(original.files[extent.file])
    if not extent.nbytes:
        return flip(draw, original)
    for _ in range(draw.choice((1, 1, 3, 20))):
        at = draw.randrange(extent.offset, extent.end)
        count = min(draw.choice((1, 1, 1, 8, 100)), extent.end - at)
        bit = bytes([data[at] ^ 1 << draw.randrange(8)]) * count
        data[at : at + count] = draw.choice((bytes(count), b"\xff" * count, draw.randbytes(count), bit))
    files = original.files | {extent.file: bytes(data)}
    return Mutation(fit(original, files, rows=True), f"rows of {name!r} changed", True)


def table(draw: random.Random, original: Original) -> Mutation:
    """Change entries of the checksum table; the trailer's digests match."""
    name = "checksums.npy" if original.directory else ""
    at = original.trailer.checksums_offset + draw.randrange(original.trailer.checksums_length)
    data = original.files[name]
    files = original.files | {name: put(data, at, bytes([data[at] ^ 1 << draw.randrange(8)]))}
    return Mutation(seal(original, files, original.trailer), f"byte {at} of the table", False)


def preamble(draw: random.Random, original: Original) -> Mutation:
    """Change the head of a .npy file; the trailer's digest matches."""
    if not original.directory:
        return header(draw, original)
    file = draw.choice([f"{name}.npy" for name in original.header.columns])
    head = bytearray(original.files[file][:PREAMBLE])
    way = draw.choice(("byte", "dtype", "shape", "order", "version", "length"))
    if way == "byte":
        head[draw.randrange(PREAMBLE)] = draw.randrange(256)
    elif way == "length":
        head[8:10] = struct.pack("<H", draw.choice((0, 1, 117, 119, 65535)))
    elif way == "version":
        head[6:8] = bytes(draw.choice(((2, 0), (3, 0), (9, 9), (1, 1))))
    else:
        old, new = {"dtype": (b"|u1", b"|O "), "shape": (b"(", b"(9"), "order": (b"False", b"True ")}[way]
        head = bytearray(bytes(head).replace(old, new, 1)[:PREAMBLE])
    files = original.files | {file: bytes(head) + original.files[file][PREAMBLE:]}
    return Mutation(seal(original, files, original.trailer), f"npy header of {file}: {way}", False)


def unsealed(draw: random.Random, original: Original) -> Mutation:
    """Remove the trailer, so that HDF5 is used, and damage HDF5's structures."""
    if original.directory:
        return flip(draw, original)
    data = original.files[""][: original.trailer.container_length]
    spans = [s for s in original.sections() if s[2] <= len(data)]
    metadata = outside([(e.offset, e.end) for es in original.header.extents.values() for e in es], len(data))
    said = []
    for _ in range(draw.choice((0, 1, 1, 1, 2, 8))):
        _, start, stop = ("", *draw.choice(metadata)) if draw.random() < 0.8 else draw.choice(spans)
        used = [i for i in range(start, stop) if data[i]]  # most of it is unused
        at = draw.choice(used) if used and draw.random() < 0.8 else draw.randrange(start, stop)
        piece = draw.choice(
            (bytes([data[at] ^ 1 << draw.randrange(8)]), b"\xff" * 8, bytes(8), draw.randbytes(4))
        )
        data = put(data, at, piece)
        said.append(f"{len(piece)} at {at}")
    if draw.random() < 0.05:
        data = data[: draw.randrange(len(data))]
        said.append(f"cut to {len(data)}")
    return Mutation({"": data}, f"trailer removed, bytes changed: {', '.join(said)}", False)


_DAMAGE = (flip, overwrite, truncate, extend, splice, swap, remove, unsealed)
_FORGERY = (header, extents, shapes, text, trailer, offsets, rows, table, preamble)
KINDS: dict[str, Callable[[random.Random, Original], Mutation]] = {
    kind.__name__: kind for kind in (*_DAMAGE, *_FORGERY)
}


def mutation(original: Original, kinds: Sequence[str], seed: int, case: int) -> tuple[str, Mutation]:
    """Return the kind and the mutation of a case; equal for equal arguments."""
    draw = random.Random(f"{seed}/{case}")
    kind = draw.choice(list(kinds))
    return kind, KINDS[kind](draw, original)


def _with_header(original: Original, record: Any, what: str) -> Mutation:
    data = json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")
    return Mutation(fit(original, original.files, header=data), what, True)
