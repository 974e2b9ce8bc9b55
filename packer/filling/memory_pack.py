"""Rows of a pack as a pack in memory, which one process fills for all of a user's on a machine."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.filling.filling_client import FillingClient
from packer.filling.filling_messages import Link, connect
from packer.filling.row_memory import MemoryLayout, RowMemory, create_memory, memory_layout
from packer.filling.unit_states import UnitStates
from packer.format.file_io import own_folder, pwrite_all
from packer.format.header import Extent, Field, Header
from packer.format.pack import Arrival, Pack
from packer.format.remote_pack import RemotePack
from packer.orders.runs import Runs, Subset
from packer.read.row_reader import RowReader

MODULE = "packer.filling.memory_process"
_COPIED_BYTES = 256 << 10  # of a unit: a batch of rows from anywhere asks for as many units as it has rows
_DECODED_BYTES = 16 << 10  # of one whose rows are JPEG files


@dataclass(frozen=True)
class MemoryPack(Pack):
    """Rows 0..n-1 of a subset of another pack, as they are loaded, in memory; some may be still to come.

    client: asks for rows. A read of rows that cannot be made raises PackerError; all others stay readable.
    """

    client: MemoryClient = field(kw_only=True)

    @property
    def pending(self) -> bool:
        """See Pack."""
        return not self.client.sealed

    @property
    def in_memory(self) -> bool:
        """See Pack."""
        return True

    def arrival(self, extents: Sequence[Extent]) -> Arrival | None:
        """See Pack."""
        return _UnitArrival(self.client)

    def close(self) -> None:
        """See Pack."""
        self.client.close()

    def check_same(self) -> None:
        """See Pack."""

    def _path(self, file: str) -> str:
        return f"/dev/fd/{self.client.memory.fd}"


class MemoryClient(FillingClient):
    """A client of the process that keeps rows in memory. memory: the memory, from when it has connected on.

    failed: why no more rows are asked for, None while they are.
    """

    def __init__(self, reader: RowReader, subset: Subset, layout: MemoryLayout, folder: str) -> None:
        self._layout = layout
        what = pickle.dumps((reader, subset, layout))
        made_of = create_memory(len(what))
        weakref.finalize(self, os.close, made_of).atexit = False
        pwrite_all(made_of, what, 0)
        self.memory: RowMemory
        self.failed: str | None = None
        job = {
            "out": f"{reader.pack.path} (in memory)",
            "folder": folder,
            "passed": [made_of, None],
            "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        }
        super().__init__(folder, job, MODULE, seals=False)
        self._passed = [made_of]

    def wait(self, units: NDArray[np.int64]) -> None:
        """See FillingClient; after a failure it raises PackerError at once if they are not there."""
        if self.sealed:
            return
        if self.failed is not None:
            if len(self.memory.states.missing(units)):
                raise PackerError(self.failed)
            return
        super().wait(units)

    def close(self) -> None:
        """Leave for good: threads that still read are refused what is not there."""
        self._closing += 1
        super().close()

    def _mapped(self, link: Link[Any, Any], ready: Mapping[str, Any]) -> UnitStates:
        try:
            fd = recv_handle(link)
        except RuntimeError:  # the system has left it out
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from None
        os.set_inheritable(fd, False)
        if hasattr(self, "memory"):  # it is the same
            os.close(fd)
        else:
            self.memory = RowMemory(self._layout, fd)
            self._passed = [*self._passed, fd]
            self.job["passed"][1] = fd
        return self.memory.states


class _UnitArrival:
    """The arrival of the rows of an array. See Arrival."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client

    def take(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        """See Arrival."""
        if not self._client.sealed:
            self._client.wait(self._units(starts, lengths))
        return False

    def ahead(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """See Arrival."""
        if not self._client.sealed and self._client.failed is None:
            self._client.ahead(self._units(starts, lengths))

    def _units(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        rows, unit = Runs(starts, lengths).rows(), self._client.memory.layout.unit_rows
        return rows if unit == 1 else np.unique(rows // unit)


def open_memory(reader: RowReader, fields: Sequence[Field], subset: Subset) -> MemoryPack:
    """Return rows of a subset as a pack in memory; the same for all processes of this user that open the same.

    reader: of the pack. fields: as they are loaded, at least one of fixed length; ragged ones are left out.
    Raises PackerError if the process cannot be started, or memory is not to be had.
    """
    fields = [f for f in fields if not f.ragged]
    layout, folder = _layout(reader, fields, subset), folder_of(reader, fields, subset)
    client = MemoryClient(reader, subset, layout, folder)
    client.open()
    extents = {name: (extent,) for name, extent in layout.extents.items()}
    rows = tuple(replace(f, codec=None) for f in fields)
    return MemoryPack(
        reader.pack.path, Header(subset.rows, layout.unit_rows, rows, extents), b"", client=client
    )


def _layout(reader: RowReader, fields: Sequence[Field], subset: Subset) -> MemoryLayout:
    stored = [reader.pack.header.field(f.name) for f in fields]
    unit_bytes = _DECODED_BYTES if any(f.ragged for f in stored) else _COPIED_BYTES
    unit_rows = max(1, unit_bytes // max(1, sum(f.row_bytes for f in fields)))
    if any(f.compressed for f in stored):
        unit_rows = reader.pack.header.block_rows
    return memory_layout(fields, subset.rows, max(1, min(unit_rows, subset.rows)))


def in_memory(reader: RowReader, fields: Sequence[Field], subset: Subset) -> bool:
    """Return True if a process of this user keeps these rows in memory already, so that another one needs no more of it."""
    try:
        link = connect(folder_of(reader, [f for f in fields if not f.ragged], subset))
    except PackerError:
        return False
    if link is not None:
        link.close()
    return link is not None


def folder_of(reader: RowReader, fields: Sequence[Field], subset: Subset) -> str:
    """Return where processes that load the same rows meet: by the pack's files as they are now, fields, subset, and `verify`.

    Raises PackerError where there is no folder for temporary files, or this user's is not safe.
    """
    content = hashlib.blake2b(digest_size=16)
    for part in reader.pack.parts:
        content.update(part.seal or part.header.to_bytes())
        content.update(repr(_files(part)).encode("utf-8", "surrogateescape"))
    content.update(repr([(f.name, f.dtype, f.shape) for f in fields]).encode())
    content.update(repr(_layout(reader, fields, subset)).encode())  # which other versions may have otherwise
    content.update(f"{subset.rows} {subset.fingerprint} {reader.verify}".encode())
    return os.path.join(own_folder(), content.hexdigest())


def _files(pack: Pack) -> list[tuple[int, ...]]:
    """Return device, inode, size and modification time of the files that hold a pack's rows; none of one in a store.

    Of files that are still being filled device and inode.
    """
    if isinstance(pack, RemotePack):  # its seal is that of the version that was opened, wherever its rows are
        return []
    one_each = {e.file: e for es in pack.header.extents.values() for e in es}
    found = []
    for _, extent in sorted(one_each.items()):
        try:
            status = os.stat(pack.place(extent))
        except OSError:  # the reader will say so
            continue
        changed = () if pack.pending else (status.st_size, status.st_mtime_ns)
        found.append((status.st_dev, status.st_ino, *changed))
    return found
