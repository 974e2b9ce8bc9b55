"""Format 1: its specification, and the constants and classes that implement it.

A **pack** holds N **rows**; row i is entry i of every **field**. A pack is one HDF5 file, or one directory of
``.npy`` files, or a directory of such packs (its shards, see ``shards.py``). The first two hold the same
arrays, the same header and the same trailer. MUST and MAY have the meaning of RFC 2119.

Fields and arrays
    A field is fixed (every row has the same shape and dtype) or ragged (a row is any number of bytes). A name
    matches ``[A-Za-z][A-Za-z0-9_]*`` and is not a Python keyword. A fixed field is stored as one array
    ``<name>`` of shape ``[N, *shape]``. A ragged field is stored as two arrays: ``<name>`` (uint8), the
    concatenated bytes of all rows, and ``<name>.offsets`` (int64 ``[N + 1]``), non-decreasing, from 0 to the
    length of ``<name>``: row i is ``blob[offsets[i]:offsets[i + 1]]``. Dtypes are those of ``DTYPES``,
    little-endian, C order. Python objects, pickles and variable-length HDF5 types are not allowed.

    Convert writes ``image`` (uint8 or uint16 ``[H, W, C]``, channels last; RGB order, or any meaning if
    ``about.color`` is "bands"), ``label`` (int64, a scalar per row; absent when the source has no labels) and
    ``key`` (ragged: the input's relative path, ``/``-separated, in the bytes of the file system).
    A field ``[H, W]`` or ``[H, W, C]`` beside the images has ``about.sampling``: "nearest" for a mask,
    "linear" for soft values; and ``about.bits`` 1 if its files had 1 bit a pixel: it holds 0 and 1.
    ``keypoints`` (``[K, 2]``) MAY have ``about.points``, the names of its points, and ``about.flip_pairs``, a
    list of pairs of these names: points that a reader that mirrors an image exchanges. Other fields MAY be
    present; a reader MUST accept fields it does not know.

Pictures that keep their size
    A ragged field with ``about.layout`` and without a codec that fixes the shape. ``image`` ("HWC",
    ``about.color``) is ``jpeg``; a reader MAY accept it without a codec: a row then holds the pixels, row by
    row, channels last, uint8 or ``about.dtype`` ("<u2"); with ``about.color`` "bands" a pixel has
    ``about.channels`` numbers. Masks and soft maps have: ``about.of`` "image", the field of the image that
    has their height and width; ``about.sampling``; layout "HW", or "HWC" with ``about.channels``;
    ``about.dtype`` unless it is uint8 ("<u2", "<f4"). They are ``png``, or without a codec hold the values,
    little-endian, in the order of pixels. If any such field has no codec, the fields ``height`` and ``width``
    (int32, ``about.of`` "image") MUST be present: the size of the upright picture. A row's bytes MUST match
    that size. Otherwise they MAY be present: JPEG and PNG files contain their size.
    Images that convert shrank by a rule have ``about.size`` ("max=512", "min=256").

Codecs
    A field MAY have a codec, a JSON object with a ``name``. ``jpeg``: a ragged field whose rows are JPEG
    files; ``shape`` is the shape that all of them decode to, null if they differ; the files MAY have restart
    markers. ``png``: a ragged field whose rows are PNG files as ``packer/codecs/png.py`` writes them;
    ``shape`` is null. Any other name: a fixed field of an HDF5 pack whose chunks went through a registered
    HDF5 filter, one chunk per block, the last one zero-filled to the length of the others;
    ``packer/codecs/block_codecs.py`` lists them. A reader that does not know a field's codec MUST refuse that
    field, not the pack.

HDF5
    Each array is a dataset at the root, under its array name, dense, unfiltered unless its field has a codec.
    Those of fixed fields are chunked along rows only, ``block_rows`` rows per chunk (more where that is less
    than 4 KiB, fewer only if the pack has fewer), and unfiltered chunks lie back to back in row order; those
    of ragged fields are contiguous. The header is the uint8 dataset ``/packer/header``, the checksum table
    the uint64 dataset ``/packer/checksums``. No times are recorded. The trailer follows the end of the HDF5
    container; HDF5 ignores it. A program that opens the file for writing drops the trailer: the file is then
    no longer sealed, and a reader MUST NOT treat it as a complete pack.

npy
    Each array is ``<array>.npy`` (npy version 1.0, header of 128 bytes), the header is ``header.json``, the
    checksum table ``checksums.npy``, the trailer ``trailer``.

Extents
    The header records the place of each array's rows as a list of (file, offset, rows, row_bytes). ``file``
    is relative to the pack's directory, and empty for the HDF5 file itself. A compressed array has one extent
    per block, with a fifth number: the bytes stored there. A reader needs no HDF5 library: it reads rows with
    ``pread``.

Header
    One JSON object, ASCII (other characters escaped; an undecodable byte of a file name is a lone surrogate,
    as in Python's ``surrogateescape``), keys sorted, no spaces, no NaN. Its members are those of
    :class:`Header`. It holds nothing that differs between two runs on equal input: no time, host, duration,
    worker count or absolute path. Equal inputs and options, with equal versions of the libraries that compute
    the pixels, give byte-identical packs.

    ``statistics`` maps a field of pixels to ``{"mean": [C], "std": [C]}`` over all rows.
    ``train_statistics``, MAY be absent, does so over the rows of the split ``train``; it is written if that
    split has some of the rows, not all. They are rounded from exact sums, which each block keeps apart for
    the rows of ``train`` and for the others; those of shards are pooled in proportion to their rows.

    ``provenance.options`` MAY have ``normalize``, ``{"mean": [C], "std": [C]}`` on the scale of the
    statistics, in a pack that was converted with ``like``: the numbers that normalise both packs. A reader
    that normalises images takes these, else ``train_statistics``, else ``statistics``.

Tables
    The header of a pack from a table has the member ``table``, an object; other packs do not have it. It
    describes how each column became fields, so that other rows can be mapped in the same way. ``columns`` is
    a list of objects, one per input column, in order: ``name``; ``type`` and ``role`` (feature, label, keep,
    drop); ``missing``, ``fill``, ``log1p``, ``standardize``, ``categories`` and ``one_hot``, the treatment of
    its cells; ``indicator``; ``field``, that of a kept column; ``statistics``. A member that is absent has
    its usual value: type "number", role "feature", missing "nan", otherwise false or null.
    ``features`` and ``categories`` name the columns of the fields ``features`` (``[F]``, of ``dtype``) and
    ``categories`` (int64 ``[C]``; 0: missing or unknown, k: the k-th of the column's categories), if the pack
    has these fields. Names of features are unique (a repeated name gets the suffix ``.1``). ``label`` holds
    the columns, the kind and the dtype of the field ``label``, or is null; ``fit`` names the rows that
    statistics were computed from; ``reading`` holds how text files were read.
    The field ``source_row`` (int32, ``about.row_of`` "files"), MAY be absent, has each row's number among the
    rows of the files that ``provenance.source.rows_of_files`` lists, ``[[digest, rows], ...]``: from 0,
    without headers, with the rows that were left out. ``packer/format/table_record.py`` lists the required
    members, ``packer/tables/transform/table_transform.py`` computes the fields.

Sequences
    The field ``sequence_row`` (int64, ``about.row_of`` "sequences"), MAY be absent, has each row's place in
    its sequence, such as a clip: row i + 1 follows row i there if its number is greater by 1. Convert writes
    2**32 times a number of 31 bits from the sequence's name, plus the place in it, from 0, with the rows that
    were left out.

Blocks and checksums
    Block b is the rows ``[b * block_rows, min(N, (b + 1) * block_rows))``. The checksum table is uint64
    ``[blocks, len(columns)]``; an entry is the XXH3-64 of that block's stored bytes in that array (for
    offsets: the entries of the block's rows, and in the last block the final entry too). ``columns`` are the
    arrays in the order of the fields.

Trailer
    128 bytes, described in ``checksums.py``: lengths and XXH3-128 digests of the header, of the checksum
    table and of every byte outside the row extents. It is written last. A file without a trailer is not a
    complete pack.

Opening a pack does not check the bytes of rows (that reads the entire pack) or HDF5's metadata (loading does
not use it). A change that a reader of format 1 would misread MUST raise ``VERSION``, which is independent of
the package's version.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from packer.codecs import MOST_JPEG_PIXELS, MOST_RATIO
from packer.errors import FormatError, damaged
from packer.format.checksums import Trailer, digest
from packer.format.fields import OFFSETS, Extent, Field, find_field, is_field_name
from packer.format.header_forms import (
    ABOUT,
    CODEC,
    DTYPES,
    MAX_RANK,
    NORMALIZE,
    SKIPPED,
    check_members,
    check_points,
    check_provenance,
    count,
    shape,
    statistics,
)
from packer.format.table_record import check_table, fits, texts, without_usual
from packer.garbage import paused

VERSION = 1
FORMAT = "packer"
MAX_HEADER_BYTES = 1 << 30
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
HEADER_DATASET = "packer/header"
CHECKSUMS_DATASET = "packer/checksums"
HEADER_FILE = "header.json"
CHECKSUMS_FILE = "checksums.npy"
TRAILER_FILE = "trailer"
INDEX_FILE = "index.json"  # of a pack of shards
MAX_INDEX_BYTES = 1 << 28
PARTIAL_SUFFIX = ".packing"  # suffix of an unfinished output
PACK_OPTIONS = frozenset(("repack", "merge", "part"))  # provenance options of packs made from packs
TRAIN = "train"  # name of the split whose rows are measured for training

# To read a row of a chunk that fits its cache, h5py reads the complete chunk: 1,400 random 256 px images/s
# with 4 MiB chunks, 8,100 just above the cache of HDF5 2.0 (8 MiB; 1 MiB before). packer's reader is
# indifferent.
BLOCK_BYTES = (8 << 20) + 1
# Blocks of encoded or compressed rows are written at once: small, so that reading one row decodes little.
CODED_BLOCK_BYTES = 1 << 20
MAX_BLOCKS = 16_000  # HDF5 lists chunks at 7 us each
MAX_BLOCK_BYTES = 1 << 28
"""Most unpacked bytes of a compressed block of several rows, unless the pack has thousands of blocks."""

MAX_EXTENTS = 1 << 19
"""Most lists in a header. Enough for 32 compressed fields of MAX_BLOCKS; parsing takes 4 s and 200 MB."""

# A file in the pack's directory, with a name that any system can open.
_FILE = re.compile(r"(?!\.)[A-Za-z0-9_.]*\Z")


def block_rows(rows: int, row_bytes: int, least_bytes: int = BLOCK_BYTES) -> int:
    """Return the rows per block: the fewest with `least_bytes` bytes, in at most MAX_BLOCKS blocks."""
    return max(1, min(rows, max(-(-least_bytes // max(row_bytes, 1)), -(-rows // MAX_BLOCKS))))


@dataclass(frozen=True)
class Header:
    """The description of a pack; see the module's text for blocks, columns and extents.

    classes: names by label, or None;
    splits: name -> ([first row, last row + 1), ...), ascending;
    seed: of the shuffle at conversion, None if rows keep the source's order;
    statistics: field -> {"mean": [C], "std": [C]} over all rows and pixels (each image has equal weight if
    sizes differ);
    1.0 is 255, or 65,535 for uint16;
    train_statistics: the same over the rows of the split train, {} if it has none or all of the rows;
    provenance: {"options": ..., "source": ..., "versions": ...};
    skipped: ({"key": ..., "reason": ...}, ...), inputs without a row;
    table: record of how a table's columns became fields, None for other packs.
    """

    rows: int
    block_rows: int
    fields: tuple[Field, ...]
    extents: Mapping[str, tuple[Extent, ...]]
    classes: tuple[str, ...] | None = None
    splits: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    seed: int | None = None
    statistics: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[Mapping[str, str], ...] = ()
    complete: bool = True
    table: Mapping[str, Any] | Any = None  # checkers let users index it without a test for None
    train_statistics: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the arrays in field order: the columns of the checksum table."""
        return tuple(name for f in self.fields for name in f.arrays)

    @property
    def normalization(self) -> Mapping[str, Sequence[float]]:
        """Mean and std for ``Normalize()`` without numbers: those of the pack given as `like`, else those of
        the split train, else those of all rows.

        {"mean": [C], "std": [C]}; 1.0 is 255, or 65,535 for uint16; empty if unknown.
        """
        recorded: Mapping[str, Sequence[float]] | None = self.provenance.get("options", {}).get(NORMALIZE)
        measured = self.train_statistics.get("image") or self.statistics.get("image", {})
        return measured if recorded is None else recorded

    @property
    def train_rows(self) -> int:
        """Number of rows in the split train."""
        return sum(b - a for a, b in self.splits.get(TRAIN, ()))

    @property
    def format(self) -> str:
        """ "h5" or "npy"."""
        files = (e.file for extents in self.extents.values() for e in extents[:1])
        return "npy" if any(file.endswith(".npy") for file in files) else "h5"

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as stored."""
        return sum(e.nbytes for extents in self.extents.values() for e in extents)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.rows // self.block_rows)

    def field(self, name: str) -> Field:
        """Return the field with this name. Raises KeyError."""
        if (found := self.find(name)) is None:
            raise KeyError(name)
        return found

    def find(self, name: str) -> Field | None:
        """Return the field with this name; None if there is none."""
        return find_field(self.fields, name)

    def form(self, array: str) -> tuple[str, tuple[int, ...]]:
        """Return an array's dtype and the shape of its rows. Raises KeyError."""
        f = self.field(array.removesuffix(OFFSETS))
        return (f.dtype, f.shape or ()) if array == f.name else ("<i8", ())

    def to_bytes(self) -> bytes:
        """Return the canonical JSON text: equal headers give equal bytes."""
        record = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        record |= {"format": FORMAT, "version": VERSION, "checksum": "xxh3-64"}
        for name in _OPTIONAL:
            if not record[name]:
                del record[name]
        if self.table:
            record["table"] = without_usual(self.table)
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
        return text.encode("ascii")

    @classmethod
    def sealed_by(cls, trailer: Trailer, name: str, size: int, read: Callable[[int, int], bytes]) -> Header:
        """Read the header that a trailer covers. size: of its file; read(offset, count): returns bytes.

        Raises FormatError.
        """
        offset, nbytes = trailer.header_offset, trailer.header_length
        if nbytes > MAX_HEADER_BYTES:
            raise FormatError(f"{name}: header is {nbytes} bytes; at most {MAX_HEADER_BYTES} are read.")
        inside = offset + nbytes <= size
        data = read(offset, nbytes) if inside else b""
        if not inside or digest([data]) != trailer.header_digest:
            raise damaged(name, "header is damaged (its checksum differs)", "header")
        return cls.from_bytes(data, name)

    @classmethod
    @paused()
    def from_bytes(cls, data: bytes, name: str) -> Header:
        """Parse the output of to_bytes. name: of the pack, for messages. Raises FormatError."""
        try:
            if (lists := data.count(b"[")) > MAX_EXTENTS:
                raise ValueError(f"it lists {lists:,} extents; at most {MAX_EXTENTS:,} are read")
            record = read_json(data)
        except ValueError as error:
            raise damaged(name, f"header is not JSON ({error})", "header") from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise damaged(name, "header is not one of packer's", "header")
        if record.get("version") != VERSION:
            raise FormatError(
                f"{name}: format version is {reprlib.repr(record.get('version'))}; this packer reads "
                f"{VERSION}."
                " Upgrade packer, or convert the images again."
            )
        try:
            check_characters(data, record)
            header = cls.from_record(record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise damaged(name, f"header is malformed ({error!r})", "header") from None
        return header

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Header:
        """Parse and check the JSON object.

        Raises KeyError, TypeError, ValueError, AttributeError, OverflowError.
        """
        header = cls.parse(record)
        header.check()
        return header

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Header:
        """Parse the JSON object of this user's unfinished pack, whose extents are not all known."""
        members = {name: record.get(name) if name in _OPTIONAL else record[name] for name in _MEMBERS}
        return cls(**read_members(members))

    def check(self) -> None:
        """Check that the members are consistent. Raises ValueError."""
        names = [f.name for f in self.fields]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"fields are {names}")
        for f in self.fields:
            if not is_field_name(f.name) or f.dtype not in DTYPES or (f.ragged and f.dtype != "|u1"):
                raise ValueError(f"field {f.name!r} has dtype {f.dtype!r}")
            if len(f.shape or ()) > MAX_RANK or any(n < 1 for n in f.shape or ()) or f.row_bytes >= 1 << 40:
                raise ValueError(f"field {f.name!r} has shape {f.shape}")
            if f.about.get("layout") == "HWC" and len(f.loaded.shape or (0, 0, 0)) != 3:
                raise ValueError(f"field {f.name!r} of shape {f.shape} has layout HWC")
            if not f.ragged and (f.name == "key" or "encoding" in f.about):
                raise ValueError(f"field {f.name!r} has texts of one length")
            check_points(f.name, f.shape, f.about)
            own, listed = f.own_size, "row_shape" in f.about
            if listed and (not f.ragged or f.codec is not None or "dtype" not in f.about or own is not None):
                raise ValueError(f"field {f.name!r} has a row_shape, but its rows are not such arrays")
            if f.ragged and "sampling" in f.about and own is None:
                raise ValueError(f"field {f.name!r} has sampling, but its rows are not pictures")
        self.check_rows()
        sizes = {f.name: f.codec for f in self.fields if f.measures and (f.dtype, f.shape) == ("<i4", ())}
        measures = [f for f in self.fields if f.measures]
        if measures and (
            sizes.keys() != {"height", "width"} or any(f.about["of"] != "image" for f in measures)
        ):
            raise ValueError(f"heights and widths of pictures are in {sorted(sizes)}")
        for f in self.fields:
            raw = f.own_size is not None and f.own_size.codec is None
            if raw and list(sizes.values()) != [None, None]:
                raise ValueError(
                    f"field {f.name!r} holds pictures that keep their size, without height and width"
                )
            named = self.table.get(f.name) if self.table is not None else None
            if f.name in ("features", "categories") and named is not None and f.shape != (len(named),):
                raise ValueError(f"field {f.name!r} of shape {f.shape} has {len(named)} columns")

    def check_rows(self) -> None:
        """Check that blocks, splits and extents match the number of rows. Raises ValueError."""
        if not 1 <= self.block_rows <= self.rows:
            raise ValueError(f"block_rows is {self.block_rows} of {self.rows} rows")
        for name, spans in self.splits.items():
            bounds = [0, *(end for span in spans for end in span), self.rows]
            if any(a > b for a, b in itertools.pairwise(bounds)):
                raise ValueError(f"split {name!r} is {spans} of {self.rows} rows")
        if set(self.extents) != set(self.columns):
            raise ValueError(f"extents are given for {sorted(self.extents)}")
        for f in self.fields:
            for array, row_bytes in zip(f.arrays, (f.row_bytes, 8), strict=False):
                extents = self.extents[array]
                if any(e.row_bytes != row_bytes or (e.stored is None) is f.compressed for e in extents):
                    raise ValueError(f"extents of {array!r} do not fit its dtype and shape")
                if f.compressed:
                    self._check_unpacked(f)
                if f.compressed and any(
                    e.rows != min(self.block_rows, self.rows - b * self.block_rows)
                    for b, e in enumerate(extents)
                ):
                    raise ValueError(f"extents of {array!r} are not one per block")
                if not all(_FILE.match(e.file) for e in extents):
                    raise ValueError(f"extents of {array!r} lie outside the pack")
                expected = self.rows + (f.ragged and array != f.name)
                if not (f.ragged and array == f.name) and sum(e.rows for e in extents) != expected:
                    raise ValueError(f"extents of {array!r} do not hold {expected} rows")
            if f.ragged and not f.loaded.ragged:
                nbytes = sum(e.rows for e in self.extents[f.name])
                if self.rows * prod((f.loaded.shape or ())[:2]) > MOST_JPEG_PIXELS * nbytes:
                    raise ValueError(f"{nbytes} bytes cannot hold {self.rows} rows of {f.name!r}")

    def _check_unpacked(self, f: Field) -> None:
        """Check the size of a compressed field's blocks, before memory for it is allocated.

        Raises ValueError.
        """
        nbytes = self.block_rows * f.row_bytes
        several = self.block_rows > 1 and self.blocks < MAX_BLOCKS // 2
        if nbytes >= 1 << 32 or (several and nbytes > MAX_BLOCK_BYTES):
            raise ValueError(f"blocks of {f.name!r} take {nbytes} bytes")
        least = nbytes / MOST_RATIO.get(str((f.codec or {})["name"]), math.inf)
        if any((e.stored or 0) < least for e in self.extents[f.name]):
            raise ValueError(f"blocks of {f.name!r} cannot hold {nbytes} bytes each")


def read_count(value: Any) -> int:
    """Return a JSON integer that is a size or a position. Raises ValueError."""
    if not count(value):
        raise ValueError(f"{reprlib.repr(value)} is not a size")
    return int(value)


def _field(value: Any) -> Field:
    check_members(value, {"name": str, "dtype": str, "shape": (None, shape)}, "a field")
    check_members(value["about"], ABOUT, f"field {value['name'][:80]!r}")
    codec = value.get("codec")
    if codec is not None:
        check_members(codec, CODEC, f"the codec of field {value['name'][:80]!r}")
    return Field(
        value["name"],
        value["dtype"],
        None if value["shape"] is None else tuple(value["shape"]),
        dict(value["about"]),
        None if codec is None else dict(codec),
    )


_OPTIONAL = ("table", "train_statistics")


def _formed(form: Any, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a parser of values of one form; it raises ValueError for others."""

    def parse(value: Any) -> Any:
        made = make(value)
        if not fits(value, form):
            raise ValueError(f"{reprlib.repr(value)} does not have the form of its member")
        return made

    return parse


def _statistics(value: Any) -> bool:
    return fits(value, Mapping) and all(map(statistics, value.values()))


def _numbers(value: Any) -> dict[str, dict[str, list[float]]]:
    return {f: {k: [float(x) for x in v] for k, v in values.items()} for f, values in value.items()}


_MEMBERS: Mapping[str, Callable[[Any], Any]] = {
    "rows": read_count,
    "block_rows": read_count,
    "extents": lambda value: {
        name: tuple(Extent(file, *map(read_count, place)) for file, *place in extents)
        for name, extents in value.items()
    },
    "fields": _formed(list, lambda value: tuple(map(_field, value))),
    "classes": _formed((None, texts), lambda value: None if value is None else tuple(map(str, value))),
    "splits": lambda value: {
        k: tuple((read_count(a), read_count(b)) for a, b in spans) for k, spans in value.items()
    },
    "seed": _formed((None, int), lambda value: None if value is None else int(value)),
    "statistics": _formed(_statistics, _numbers),
    "train_statistics": _formed((None, _statistics), lambda value: _numbers(value or {})),
    "provenance": check_provenance,
    "skipped": _formed(
        SKIPPED, lambda value: tuple({"key": str(s["key"]), "reason": str(s["reason"])} for s in value)
    ),
    "complete": _formed(bool, lambda value: value),
    "table": lambda value: None if value is None else check_table(value),
}
"""Member of a header -> parser of its JSON value. A parser raises on an invalid value."""


def read_members(record: Mapping[str, Any]) -> dict[str, Any]:
    """Parse a header's members; unknown names are ignored. Raises like Header.from_record."""
    return {name: _MEMBERS[name](value) for name, value in record.items() if name in _MEMBERS}


def _plain(value: Any) -> Any:
    """Return the JSON form of a part of a header."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Extent):
        place = [value.file, value.offset, value.rows, value.row_bytes]
        return place if value.stored is None else [*place, value.stored]
    if isinstance(value, Field):
        known = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return known if value.codec is not None else {k: v for k, v in known.items() if k != "codec"}
    raise TypeError(f"{type(value).__name__} has no place in a header")


MAX_DEPTH = 64
MAX_VALUES = 1 << 24  # each may become an object: 16 million take 1 to 2 GB
_MOST_DIGITS = 100
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG, _LARGE = b"0" * _MOST_DIGITS, re.compile(rb"0e000+(?![\w\"])")
"""Marks of a number with very many digits or a large exponent, once all digits are zeros, without plus."""
_NO_MARKS, _SQUARE = bytes({*range(256)}.difference(b'[]{}"')), bytes.maketrans(b"{}", b"[]")
_TEXT = re.compile(rb'"[^"]*"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@paused()
def read_json(data: bytes) -> Any:
    """Parse ASCII JSON within limits of size, depth and number range. Raises ValueError with the reason."""
    values = data.count(b",") + 1
    if values > MAX_VALUES:
        raise ValueError(f"it lists {values:,} values; at most {MAX_VALUES:,} are read")
    digits = data.translate(_ALIKE, b"+")
    unusual = _LONG in digits or _LARGE.search(digits)  # else no number can be out of range
    checks: dict[str, Any] = {"parse_float": _float, "parse_int": _integer} if unusual else {}
    try:
        value = json.loads(data.decode("ascii"), parse_constant=_constant, **checks)
        too_deep = _is_too_deep(data)
    except RecursionError:
        too_deep = True
    if too_deep:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return value


def _is_too_deep(data: bytes) -> bool:
    """Return True if valid JSON is nested more than MAX_DEPTH deep in its outermost object."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = data.translate(_SQUARE, _NO_MARKS).replace(b'""', b"")  # most texts contain no bracket
    marks = _TEXT.sub(b"", marks)
    for _ in range(MAX_DEPTH + 1):
        marks = marks.replace(b"[]", b"")
    return bool(marks)


def check_characters(data: bytes, value: Any) -> None:
    """Raise ValueError if a parsed text has lone surrogates other than those of undecodable bytes."""
    if _SURROGATE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"{error.object[error.start]!a} is not a character") from None


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:80]} is out of the range of a float")
    return number


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"it contains a number of {len(text):,} digits")
    return int(text)
