"""One field of a pack that is being filled: waits for its rows, and reads each part in its present form."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

import numpy as np

from packer.errors import FormatError
from packer.format.block_files import BlockFiles
from packer.format.filling_pack import FillingPack
from packer.format.frontier import Frontier
from packer.format.header import Field
from packer.format.pack import Pack
from packer.orders.runs import Runs
from packer.read.field_rows import FieldRows, RaggedRows
from packer.read.gather import Bytes, by_part, check_range, read_part

_PARTS = 32  # most parts that stay open
_MOVING_SECONDS = 0.005
T = TypeVar("T")


class BlockRows(RaggedRows):
    """A ragged or compressed field of a part that is being written: each block is a file, read as a whole.

    Each thread keeps its last block.
    """

    def __init__(self, part: Pack, field: Field) -> None:
        self._pack, self._field, self._shape = part, field, field.loaded.shape
        self._rows, self._block_rows = part.rows, part.header.block_rows
        folder = os.path.join(os.path.dirname(part.path), "blocks")
        self._files = BlockFiles(folder, field, self._rows, self._block_rows)
        self._local = threading.local()

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        if self._field.ragged:
            super().read(runs, out)
            return
        check_range(runs, self._rows)
        blocks, inside = np.divmod(runs.rows(), self._block_rows)
        for block in dict.fromkeys(blocks.tolist()):
            rows = self._block(block).view(np.uint8).reshape(self._block_rows, -1)
            out[blocks == block] = rows[inside[blocks == block]]

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        check_range(runs, self._rows)
        return [
            memoryview(self._block(row // self._block_rows)[row % self._block_rows])
            for row in runs.rows().tolist()
        ]

    def willneed(self, runs: Runs) -> None:
        """Do nothing: the blocks have just been written."""

    def _block(self, number: int) -> Any:
        local = self._local
        if getattr(local, "number", None) != number:
            local.number, local.block = None, self._files.load(number)
            local.number = number
        return local.block


class GrowingRows(FieldRows):
    """A field of a pack that is being filled. open_rows: opens a field of a part."""

    def __init__(self, pack: FillingPack, name: str, open_rows: Callable[[Pack, str], FieldRows]) -> None:
        self._pack, self._name, self._open_rows = pack, name, open_rows
        self._known = set(pack.header.field(name).arrays) <= pack.known
        self._firsts = np.array([0, pack.rows]) if self._known else pack.firsts
        self._parts: OrderedDict[int, FieldRows] = OrderedDict()
        self._frontier: Frontier | None = None  # under which the parts were opened
        self._settled: FieldRows | None = None  # the rows of the single part of a complete pack
        self._lock = threading.Lock()
        self._keep = 0

    def read(self, runs: Runs, out: Bytes) -> None:
        """See FieldRows."""
        if self._settled is not None:
            self._settled.read(runs, out)
        elif len(self._firsts) == 2:
            self._through(0, runs, lambda rows: rows.read(runs, out))
        else:
            for number, own, places in by_part(self._firsts, runs):
                read_part(partial(self._read, number), own, places, out)

    def _read(self, number: int, runs: Runs, out: Bytes) -> None:
        self._through(number, runs, lambda rows: rows.read(runs, out))

    def encoded(self, runs: Runs) -> list[memoryview]:
        """See FieldRows."""
        if self._settled is not None:
            return self._settled.encoded(runs)
        found = [memoryview(b"")] * runs.total
        for number, own, places in by_part(self._firsts, runs):
            some = self._through(number, own, methodcaller("encoded", own))
            for place, row in zip(Runs(places, own.lengths).rows().tolist(), some, strict=True):
                found[place] = row
        return found

    def willneed(self, runs: Runs) -> None:
        """See FieldRows; rows that have just been made are in the page cache."""
        if self._settled is not None:
            self._settled.willneed(runs)

    def keep(self, rows: int) -> None:
        """See FieldRows."""
        with self._lock:
            self._keep = rows
            for part in self._parts.values():
                part.keep(rows)

    def _through(self, number: int, runs: Runs, call: Callable[[FieldRows], T]) -> T:
        """Call with a part's rows once they can be read; again if they have meanwhile moved."""
        check_range(runs, int(self._firsts[number + 1] - self._firsts[number]))
        stop = 0
        if not self._known and len(runs.starts):
            stop = int(self._firsts[number] + (runs.starts + runs.lengths).max())
        while True:
            frontier = self._pack.units.wait(stop)
            try:
                found = call(self._part(number, frontier))
            except (FileNotFoundError, FormatError):
                # A part's block files, and known arrays, are removed once it has its name.
                if frontier is None:
                    raise
                with self._lock:
                    self._parts.pop(number, None)
                if self._known:
                    self._pack.units.wait_sealed()
                elif not self._pack.moved(number):
                    raise
                time.sleep(_MOVING_SECONDS)
                continue
            if self._pack.units.unchanged(frontier):
                return found

    def _part(self, number: int, frontier: Frontier | None) -> FieldRows:
        """Return the rows of a part, opened if necessary. frontier: None once the pack is complete."""
        with self._lock:
            if frontier is not self._frontier and frontier is not None:
                self._frontier = frontier
                self._parts.clear()  # the working folder may be another
            rows = self._parts.get(number)
            if rows is None or (frontier is None and isinstance(rows, BlockRows)):
                rows = self._parts[number] = self._opened(number, frontier)
                rows.keep(self._keep)
                while len(self._parts) > _PARTS:
                    self._parts.popitem(last=False)
            if frontier is None and len(self._firsts) == 2:
                self._settled = rows
            return rows

    def _opened(self, number: int, frontier: Frontier | None) -> FieldRows:
        if frontier is None:
            pack = self._pack.settled()
            return self._open_rows(pack if self._known else pack.parts[number], self._name)
        part = self._pack.known_pack if self._known else self._pack.part(number)
        field = part.header.field(self._name)
        if self._known or part.seal or not (field.ragged or field.compressed):
            return self._open_rows(part, self._name)
        return BlockRows(part, field)
