"""Stores of a dataset's rows: the pack's files, or a memory that caches them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, damaged_rows
from packer.format.fields import Field
from packer.orders.runs import Runs, Subset, one_run
from packer.packs.pack import Pack
from packer.read.encoded_images import EncodedImages
from packer.read.field_rows import FieldRows, open_rows, unchecked
from packer.read.gather import Bytes, empty

_MOST_AHEAD = 1 << 18  # most rows to prefetch
_PIECE_BYTES = 32 << 20  # read at once by `pieces`


class ArrayStore:
    """Rows 0..rows-1 of a dataset. Thread-safe. Its life: open, prefetch and copy, close.

    pack, fields: the stored rows. fixed: fields that are loaded as arrays, in their loaded form. ready: True
    once all rows are cached in memory or on the device. gathers: True if `tensors` gives rows, not `copy`.
    """

    pack: Pack
    fields: tuple[Field, ...]
    rows: int

    ready = gathers = False

    def __init__(self, pack: Pack, fields: Sequence[Field], rows: int) -> None:
        self.pack, self.fields, self.rows = pack, tuple(fields), rows
        self.fixed: list[Field] = [f.loaded for f in fields if not f.loaded.ragged]

    @property
    def ahead_rows(self) -> int | None:
        """Rows to prefetch before they are read, if rows still have to arrive; None if all are there."""
        if self.pack.ahead_bytes is None:
            return None
        return min(self.pack.ahead_bytes * self.pack.rows // max(1, self.pack.nbytes), _MOST_AHEAD)

    def open(self, owner: object) -> None:
        """Start background work, until `close` or until the owner is gone."""

    def prefetch(self, rows: Runs) -> None:
        """Prefetch rows of all fields; do not wait for them (a busy disk may block)."""
        raise NotImplementedError

    def copy(self, rows: Runs, out: Mapping[str, Bytes]) -> None:
        """Copy rows of fields that are loaded as arrays; wait until they have arrived.

        out: C-contiguous uint8 [sum of lengths, row bytes] by field, overwritten.
        """
        raise NotImplementedError

    def tensors(self, rows: Runs) -> dict[str, Any]:
        """Return rows of all fixed fields as new tensors for the current stream, if the store gathers."""
        raise NotImplementedError

    def close(self, wait: bool = True) -> None:
        """End background work, and free cached rows, or close files. wait: False only begins to."""
        raise NotImplementedError


class PackStore(ArrayStore):
    """Rows of some fields of a pack, read from its files (filled or downloaded first, if necessary).

    Works again after fork and after unpickling. Raises FormatError when a file is shorter than it was when
    the pack was opened, cannot be read, or holds rows that cannot be decoded.
    """

    def __init__(
        self, pack: Pack, fields: Sequence[Field], subset: Subset | None = None, *, verify: bool = False
    ) -> None:
        """fields: as stored or as loaded; other fields are opened when they are first read.

        subset: the dataset's rows; None for all of the pack. verify: compare each block with its checksum at
        first use.
        """
        self.subset: Subset = Subset([(0, pack.rows)]) if subset is None else subset
        super().__init__(pack, [pack.header.field(f.name) for f in fields], self.subset.rows)
        self.verify = verify
        # Created here, so that forked processes compare each block once.
        self._checked = {f.name: unchecked(pack.rows) for f in self.fields if verify}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._open: dict[str, FieldRows] = {}
        self._cached_rows = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"pack": self.pack, "fields": self.fields, "subset": self.subset, "verify": self.verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def opened(self) -> bool:
        """True once the files of all fields are open in this process."""
        return self._pid == os.getpid() and all(f.name in self._open for f in self.fields)

    def place(self, rows: Runs) -> Runs:
        """Return the pack's rows for rows of the dataset."""
        return self.subset.place(rows)

    def copy(self, rows: Runs, out: Mapping[str, Bytes]) -> None:
        """See ArrayStore."""
        placed = self.place(rows)
        for name, array in out.items():
            self._field(name).read(placed, array)

    def array(self, name: str, rows: Runs) -> NDArray[Any]:
        """Return rows of a fixed field, [rows, *shape] of its dtype, in new memory."""
        field = self.pack.header.field(name).loaded
        out = empty(self.pack.path, name, (rows.total, field.row_bytes))
        if len(out):
            self.copy(rows, {name: out})
        return out.view(field.dtype).reshape(-1, *(field.shape or ()))

    def pieces(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield all rows of a fixed field, some at a time, in new memory."""
        step = max(1, _PIECE_BYTES // self.pack.header.field(name).loaded.row_bytes)
        for start in range(0, max(self.rows, 1), step):
            yield self.array(name, one_run(start, min(start + step, self.rows)))

    def column(self, name: str) -> NDArray[Any]:
        """Return all rows of a fixed field, [rows, *shape] of its dtype, in new memory."""
        pieces = list(self.pieces(name))
        return np.concatenate(pieces) if len(pieces) != 1 else pieces[0]

    def ragged(self, name: str, rows: Runs) -> list[bytes]:
        """Read the bytes of each row of a ragged field."""
        return list(map(bytes, self._field(name).encoded(self.place(rows))))

    def decoded(self, name: str, rows: Runs) -> Iterator[Any]:
        """Yield rows of a ragged field, one by one, in the form that the field's header describes.

        Text: str, undecodable bytes as surrogate escapes. ``dtype`` and ``row_shape``: arrays [n,
        *row_shape]. Images that differ in size: arrays [h, w, C] or [h, w]. Else bytes.
        """
        field = self.pack.header.field(name)
        own = field.own_size
        if field.codec is not None and (own is None or own.codec not in ("jpeg", "png")):
            raise FormatError(
                f"{self.pack.path}: {name!r} is stored with codec {field.codec.get('name')!r}, which this"
                " packer does not know. Upgrade packer."
            )
        if own is not None:
            yield from map(self.pictures(name, rows).decode, range(rows.total))
            return
        placed = self.place(rows)
        yield from plain_rows(
            self.pack.path, field, self._field(name).encoded(placed), placed.rows().tolist()
        )

    def pictures(self, name: str, rows: Runs, *, shared: bool = False) -> EncodedImages:
        """Return rows of images that differ in size, still encoded.

        shared: True returns views of one shared buffer, for images that are cut before decoding; decoding
            full files would copy them a second time.
        """
        field, placed = self.pack.header.field(name), self.place(rows)
        # PNG files contain their size: compare it if blocks are verified.
        checked = self.verify and field.own_size is not None and field.own_size.codec == "png"
        known = field.codec is None or (checked and any(f.measures for f in self.pack.fields))
        sizes = self.sizes(rows) if known else None
        encoded: Sequence[bytes | memoryview] = self._field(name).encoded(placed)
        encoded = encoded if shared or field.codec is None else list(map(bytes, encoded))
        return EncodedImages(self.pack, field, encoded, placed.rows().tolist(), sizes)

    def sizes(self, rows: Runs) -> NDArray[Any]:
        """Return the fields height and width of rows, [N, 2]."""
        return np.stack([self.array(name, rows) for name in ("height", "width")], axis=1)

    def prefetch(self, rows: Runs) -> None:
        """See ArrayStore."""
        placed = self.place(rows)
        for f in sorted(self.fields, key=lambda f: f.row_bytes):  # labels do not wait for images
            self._field(f.name).willneed(placed)

    def cache_blocks(self, rows: int) -> None:
        """Cache decoded blocks of compressed fields: twice as many as a window of `rows` mixed rows has."""
        self._cached_rows = rows
        # In a forked child the locks of the parent's fields may be held for ever.
        if self._pid == os.getpid():
            for field in list(self._open.values()):
                field.cache_blocks(rows)

    def close(self, wait: bool = True) -> None:
        """Close each file once pending reads have ended; reading opens it again."""
        self._open = {}

    def _field(self, name: str) -> FieldRows:
        """Return a field; open it if necessary."""
        if self._pid != os.getpid():  # in a forked child the parent's lock may be held for ever
            self._lock, self._open, self._pid = threading.Lock(), {}, os.getpid()
        rows = self._open.get(name)
        if rows is None:
            with self._lock:
                rows = self._open.get(name)
                if rows is None:
                    if self.verify and name not in self._checked:
                        self._checked[name] = unchecked(self.pack.rows)
                    rows = open_rows(self.pack.settled(), name, self._checked.get(name))
                    rows.cache_blocks(self._cached_rows)
                    self.pack.check_same()  # after opening: an open file cannot be replaced
                    self._open[name] = rows
        return rows


def key_in_brackets(pack: Pack, row: int) -> str:
    """Return a row's key for a message, as " ('a/1.png')"; "" if there is none, or it cannot be read."""
    for f in pack.fields:
        if f.name == "key" and "encoding" in f.about:
            with suppress(Exception):  # it is only a detail in another error's message
                return f" ({next(PackStore(pack, (f,)).decoded('key', one_run(row, row + 1)))!r})"
    return ""


def plain_rows(
    path: str, field: Field, rows: Sequence[bytes | memoryview], numbers: Sequence[int]
) -> Iterator[Any]:
    """Yield rows of a ragged field without images, as `PackStore.decoded` does.

    path, numbers: for messages. Raises FormatError.
    """
    about = field.about
    for row, number in zip(rows, numbers, strict=True):
        try:
            if "encoding" in about:
                yield str(row, about["encoding"], "surrogateescape")
            elif "row_shape" in about:
                yield np.frombuffer(row, about["dtype"]).reshape(-1, *about["row_shape"]).copy()
            else:
                yield bytes(row)
        except (ValueError, TypeError, LookupError) as error:
            raise damaged_rows(path, field.name, error, number) from None
