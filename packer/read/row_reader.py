"""Rows of a pack's fields into given memory, however they are stored."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from packer.format.header import Field
from packer.format.pack import Pack
from packer.orders.runs import Runs
from packer.read.gather import Bytes
from packer.read.stored_fields import CompressedRows, FieldRows, FixedRows, RaggedRows, VerifiedRows


class RowReader:
    """Reads rows of some fields of a pack. Thread-safe; works again after fork and after unpickling.

    Raises FormatError when a file is shorter than it was when the pack was opened, cannot be read, or holds rows that
    cannot be decoded.
    """

    def __init__(self, pack: Pack, fields: Sequence[Field], *, verify: bool = False) -> None:
        """fields: as the pack stores them, or as they are loaded.

        verify: compare each block with its checksum when it is first touched.
        """
        self.pack, self.verify = pack, verify
        self.fields = tuple(pack.header.field(f.name) for f in fields)
        self._lock = threading.Lock()
        self._pid = -1
        self._open: dict[str, FieldRows] = {}
        self._keep = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"pack": self.pack, "fields": self.fields, "verify": self.verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["pack"], state["fields"], verify=state["verify"])  # type: ignore[misc]

    def read(self, name: str, runs: Runs, out: Bytes) -> None:
        """Read runs of rows of a field that is loaded as an array.

        out: C-contiguous uint8 [sum of lengths, row bytes], overwritten.
        """
        self._rows(name).read(runs, out)

    def read_ragged(self, name: str, runs: Runs) -> list[bytes]:
        """Read the bytes of each row of a ragged field."""
        return self._rows(name).encoded(runs)

    def willneed(self, name: str, runs: Runs) -> None:
        """Tell the system that these rows will be read soon, if they seem to be on the disk still; does not wait for them."""
        self._rows(name).willneed(runs)

    def keep(self, blocks: int) -> None:
        """Keep up to so many decoded blocks of each field that is compressed in blocks, those used last."""
        self._keep = blocks
        for rows in list(self._open.values()):
            rows.keep(blocks)

    def close(self) -> None:
        """Close the files, each when the calls that read it now have ended; reading opens them again."""
        self._open = {}

    def _rows(self, name: str) -> FieldRows:
        if self._pid != os.getpid():  # in a forked child the parent's lock may be held for ever
            self._lock, self._open, self._pid = threading.Lock(), {}, os.getpid()
        rows = self._open.get(name)
        if rows is None:
            with self._lock:
                rows = self._open.get(name)
                if rows is None:
                    rows = self._made(name)
                    self.pack.check_same()  # after opening: what is open now stays the same file
                    self._open[name] = rows
        return rows

    def _made(self, name: str) -> FieldRows:
        f = next(f for f in self.fields if f.name == name)
        kind = RaggedRows if f.ragged else CompressedRows if f.compressed else FixedRows
        rows = kind(self.pack, f)
        rows.keep(self._keep)
        return VerifiedRows(rows, self.pack, f) if self.verify else rows
