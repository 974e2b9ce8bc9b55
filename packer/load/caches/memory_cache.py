"""Rows in memory, decoded, shared by all processes of a user on a machine; pinned for copies to a GPU, if need be.

They are a pack in memory, which a process of its own fills (filling/memory_pack.py): the rows that are asked for first. Until that
process is there, and where it fails, rows are read from the pack's own files.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.filling.memory_pack import MemoryPack, open_memory
from packer.format.header import Field
from packer.load.batch import size_of
from packer.load.prefetcher import FetchedRows, FileRows, Lend, RowSource
from packer.orders.epochs import ReadRequest
from packer.orders.runs import Subset
from packer.read.row_reader import RowReader
from packer.read.row_selection import stored
from packer.starting import Background
from packer.units import size

if TYPE_CHECKING:
    import torch

Bytes = NDArray[np.uint8]
_SMALL_BYTES = 64 << 20  # of rows: so few are soon decoded, and many a program that loads them is soon over
_SMALL_SECONDS = 0.5  # that such a source is in use before a process is started, which takes as long
_LOOK_SECONDS = 0.05  # between looks at whether all rows are there
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device

log = logging.getLogger("packer.load")


class MemoryRows(RowSource):
    """Rows of a subset in memory: copied into a slot; or, on their way to a device, views if they are one contiguous run.

    files: source of the same rows, and of ragged fields. fields: of the batches; kept: those of them to be kept in memory, as they are
    loaded. pinned: a CUDA device, with which the full memory is registered, so that copies from views of it are asynchronous. copied:
    True if batches are copied to a device. failed: why some rows are read from the files, else None.
    """

    def __init__(
        self,
        files: FileRows,
        fields: Sequence[Field],
        kept: Sequence[Field],
        subset: Subset,
        *,
        pinned: torch.device | str | None = None,
        copied: bool = False,
    ) -> None:
        self._files, self._copied = files, copied
        self._fixed = [f for f in stored(fields) if not f.ragged]
        self._kept = _KeptRows(files.reader.pack.path)
        self._background = Background(
            self, "packer-memory", partial(_keep, self._kept, files.reader, tuple(kept), subset, pinned)
        )

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """True once all rows are in memory."""
        return self._kept.ready

    @property
    def failed(self) -> str | None:
        """Why some rows are read from the files, None if none are."""
        return self._kept.failed

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows:
        """Return views of the memory, or start threads that copy its rows into a slot and read missing rows from the files."""
        self._background.check()
        ready = self._kept.ready
        if self._copied and self._kept.viewed and (views := self._views(request)) is not None:
            return FetchedRows(views, self._files.ragged(request))
        if ready:
            self._files.reader.keep(0)
        else:
            self._look_ahead(request)
        return self._files.fill(request, lend(), self._read_fixed)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are in memory, or no more come; return True if they are. timeout: seconds."""
        self._kept.settled.wait(timeout)
        self._background.check()
        return self.ready

    def close(self) -> None:
        """Leave the memory, which is gone when the last of its processes has left it."""
        self._background.end()
        self._kept.close()

    def _look_ahead(self, request: ReadRequest) -> None:
        reader = self._kept.reader
        if reader is None or self._kept.failed is not None:
            self._files.look_ahead(request)
        elif not self._kept.full:
            for f in reader.fields:
                reader.willneed(f.name, request.within())

    def _read_fixed(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> None:
        reader, full = self._kept.reader, self._kept.full
        if reader is not None:
            within = request.within(start, stop)
            try:
                for name, rows in out.items():
                    reader.read(name, within, rows)
                return
            except PackerError as error:
                if full:
                    raise
                # Rows that cannot be made are the loop's concern once the files cannot give them either.
                self._kept.fail(error)
        self._files.read_fixed(request, start, stop, out)

    def _views(self, request: ReadRequest) -> dict[str, NDArray[Any]] | None:
        within = request.within()
        if len(within.starts) != 1:
            return None
        start, count = int(within.starts[0]), int(within.lengths[0])
        return {
            f.name: self._kept.view(f.name, start, start + count)
            .view(f.dtype)
            .reshape(count, *(f.shape or ()))
            for f in self._fixed
        }


class _KeptRows:
    """Rows in memory as a MemoryRows and its thread share them.

    reader: of the pack in memory, None until there is one. ready: all rows are there; viewed: and views of them are for use. settled:
    set once they are, or once no more come.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pack: MemoryPack | None = None
        self.reader: RowReader | None = None
        self.failed: str | None = None
        self.ready = self.viewed = False
        self._lock, self.closed = threading.Lock(), False
        self.settled = threading.Event()

    def open(self, pack: MemoryPack) -> None:
        """Read from a pack in memory from now on."""
        with self._lock:
            if not self.closed:
                self._pack, self.reader = pack, RowReader(pack, pack.fields)
                return
        pack.close()

    @property
    def full(self) -> bool:
        """True once all rows are in memory."""
        return self._pack is not None and not self._pack.pending

    def view(self, name: str, start: int, stop: int) -> Bytes:
        """Return a view of rows. Notes: other processes see this memory too; never write to it."""
        assert self._pack is not None
        return self._pack.client.memory.rows(name, start, stop)

    def fail(self, error: Exception) -> None:
        """Ask for no more rows; say so once."""
        with self._lock:
            if self.failed is not None or self.full or self.closed:
                return
            self.failed = str(error) or type(error).__name__
        if self._pack is not None:
            self._pack.client.failed = self.failed
        log.warning(
            "%s: not all rows are kept in memory, the others are read from the disk (%s)",
            self._path,
            self.failed,
        )

    def register(self, device: torch.device | str) -> None:
        """Pin the full memory: its pages exist already, so none has to be cleared."""
        import torch

        assert self._pack is not None
        whole = self._pack.client.memory.bytes
        torch.cuda.set_device(device)  # of this thread: CUDA would else begin a context on the first device
        runtime: Any = torch.cuda.cudart()
        address = whole.ctypes.data
        code = int(runtime.cudaHostRegister(address, whole.nbytes, _PORTABLE))
        if code:
            log.warning(
                "%s: CUDA cannot pin %s (error %d); batches are put together in memory that is pinned",
                self._path,
                size(whole.nbytes),
                code,
            )
        else:
            weakref.finalize(whole.base, _unregister, runtime, address, os.getpid())
        self.viewed = not code

    def close(self) -> None:
        """Leave the memory."""
        with self._lock:
            self.closed = True
            pack, self._pack = self._pack, None
            reader, self.reader, self.ready, self.viewed = self.reader, None, False, False
        if reader is not None:
            reader.close()
        if pack is not None:
            pack.close()


def _unregister(runtime: Any, address: int, pid: int) -> None:
    if os.getpid() == pid:
        runtime.cudaHostUnregister(address)


def _keep(
    kept: _KeptRows,
    reader: RowReader,
    fields: Sequence[Field],
    subset: Subset,
    pinned: torch.device | str | None,
    ending: threading.Event,
) -> None:
    """Open the memory; once it is full, pin it if it is to be; leave it when the source of rows has gone, or is closed."""
    try:
        if size_of(fields, subset.rows) < _SMALL_BYTES and ending.wait(_SMALL_SECONDS):
            return  # nothing was opened
        kept.open(open_memory(reader, fields, subset))
        while not kept.full and kept.failed is None and not ending.wait(_LOOK_SECONDS):
            pass
        if kept.full and not ending.is_set():
            if pinned is not None:
                kept.register(pinned)
            kept.viewed, kept.ready = kept.viewed or pinned is None, True
    except PackerError as error:
        kept.fail(error)
    except BaseException:
        kept.close()
        raise
    finally:
        kept.settled.set()
    ending.wait()
    kept.close()
