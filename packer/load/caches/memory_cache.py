"""Cache of decoded rows in host memory, shared by all processes of a machine.

Rows are filled in the order of the subset by a thread in the background, in one process at a time; if that one dies or is
closed, the next goes on where it stopped. Training meanwhile reads from the disk what is not there yet.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, PackerError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.format.remote_pack import RemotePack
from packer.load.batch import size_of
from packer.load.caches.shared_memory import Memory, held, open_memory
from packer.load.prefetcher import FetchedRows, FileRows, Lend, RowSource
from packer.orders.epochs import ReadRequest
from packer.orders.runs import Runs, Subset, one_run
from packer.read import gather
from packer.read.row_reader import RowReader
from packer.read.row_selection import stored
from packer.starting import Background
from packer.units import size

if TYPE_CHECKING:
    import torch

Bytes = NDArray[np.uint8]
STEP_BYTES = 16 << 20  # filled at a time: what closing has to wait for
_PAGE = 4096
_TURN_SECONDS = 0.05  # between looks at whether the process that fills has ended
_LONG_RUN_BYTES = 64 << 10  # from here on a copy a run costs no more than a gather
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device

log = logging.getLogger("packer.load")


class MemoryCache:
    """A cache of a subset's fixed fields in host memory, filled in the background. Thread-safe.

    fields: fields as they are loaded, at least one of fixed length; ragged ones are not cached.
    pinned: a CUDA device; the full memory is registered with CUDA, so that copies from views of it are asynchronous.

    A forked child can read cached rows but fills nothing. An unpickled copy, in this or another process, uses the same memory.
    names: names of the cached fields. nbytes: bytes of their rows. why_private: why other processes do not share the memory, else
    None. failed: why filling ended early, else None; rows cached before that stay usable.
    """

    def __init__(
        self,
        reader: RowReader,
        fields: Sequence[Field],
        subset: Subset,
        *,
        pinned: torch.device | str | None = None,
    ) -> None:
        self._made_of = reader, tuple(fields), subset, pinned
        fields = [f for f in fields if not f.ragged]
        self.names = frozenset(f.name for f in fields)
        self.nbytes = size_of(fields, subset.rows)
        layout, total = _layout(fields, subset.rows)
        try:
            memory = open_memory(_key(reader, fields, subset), total)
        except (OSError, MemoryError, OverflowError) as error:
            raise PackerError(
                f"{reader.pack.path}: {size(total)} of memory for the rows cannot be had ({getattr(error, 'strerror', None) or error})."
                " Pass placement='disk'."
            ) from None
        self.why_private = memory.why_private
        if memory.why_private is not None:
            log.info(
                "%s: each process keeps its own rows in memory (%s)", reader.pack.path, memory.why_private
            )
        self._content = _MemoryContent(memory, layout, subset.rows)
        self._background = Background(
            self, "packer-fill", partial(_fill, self._content, reader, subset, pinned)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"made_of": self._made_of}

    def __setstate__(self, state: dict[str, Any]) -> None:
        reader, fields, subset, pinned = state["made_of"]
        self.__init__(reader, fields, subset, pinned=pinned)  # type: ignore[misc]

    @property
    def filled(self) -> int:
        """Rows 0..filled-1 of the subset are in memory."""
        return self._content.filled

    @property
    def ready(self) -> bool:
        """True once all rows are in memory, and pinned if they are to be."""
        content = self._content
        return content.filled == content.rows and (self._made_of[3] is None or content.pinned)

    @property
    def failed(self) -> str | None:
        """Why filling ended early, None if it did not."""
        return self._content.failed

    def read(self, name: str, runs: Runs, out: Bytes) -> bool:
        """Copy rows of a field. runs: row numbers within the subset. out: C-contiguous uint8 [sum of lengths, row bytes].

        Returns False, and does not write `out`, if not all rows are cached. Raises IndexError for rows that do not exist.
        """
        self._background.check()
        content = self._content
        if content.memory is None:
            return False
        if not len(out):
            return True
        starts, lengths = runs
        stop = int((starts + lengths).max())
        if stop > content.filled:
            if stop > content.rows:
                raise IndexError(f"row {stop - 1} of {content.rows}")
            return False
        rows = content.arrays[name]
        if len(starts) == 1 or out.nbytes >= _LONG_RUN_BYTES * len(starts):
            at = 0
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                np.copyto(out[at : at + length], rows[start : start + length])
                at += length
        elif not content.gather(name, runs, out):
            # mode="raise" would copy `out` first; the range is checked above.
            np.take(rows, runs.rows(), axis=0, out=out, mode="clip")
        return True

    def view(self, name: str, start: int, stop: int) -> Bytes | None:
        """Return a view of rows start..stop-1 of the subset, uint8 [rows, row bytes]; None if not all are cached.

        With `pinned`, None until the memory is registered. Notes: other processes see this memory too; never write to it. It stays
        valid after close(), but copies from it have to be done before.
        """
        self._background.check()
        content = self._content
        if (
            content.memory is None
            or stop > content.filled
            or (self._made_of[3] is not None and not content.pinned)
        ):
            return None
        return content.arrays[name][start:stop]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until this process has ended filling and pinning; return True if all rows are ready. timeout: seconds."""
        self._background.join(timeout)
        self._background.check()
        return self.ready

    def close(self) -> None:
        """Stop filling and free the memory; the cache is empty from now on."""
        self._background.end()
        self._content = _MemoryContent(None, {}, 0)


class MemoryRows(RowSource):
    """Rows of a MemoryCache: copied into a slot; or, on their way to a device, views if they are one contiguous run."""

    def __init__(self, cache: MemoryCache, files: FileRows, fields: Sequence[Field], *, copied: bool) -> None:
        """copied: True if batches are copied to a device."""
        self._cache, self._files, self._copied = cache, files, copied
        self._fixed = [f for f in stored(fields) if not f.ragged]

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """True once all rows are in memory."""
        return self._cache.ready

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows:
        """Return views of the cache, or start threads that copy its rows into a slot and read missing rows from the files."""
        if self._copied and (views := self._views(request)) is not None:
            return FetchedRows(views, self._files.ragged(request))
        if self._cache.ready:
            self._files.reader.keep(0)
        else:
            self._files.look_ahead(request)
        return self._files.fill(request, lend(), self._read_fixed)

    def close(self) -> None:
        """Free the cache."""
        self._cache.close()

    def _read_fixed(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> None:
        within = request.within(start, stop)
        absent = {name: array for name, array in out.items() if not self._cache.read(name, within, array)}
        if absent:
            self._files.read_fixed(request, start, stop, absent)

    def _views(self, request: ReadRequest) -> dict[str, NDArray[Any]] | None:
        within = request.within()
        if len(within.starts) != 1:
            return None
        start = int(within.starts[0])
        views = {}
        for f in self._fixed:
            rows = self._cache.view(f.name, start, start + int(within.lengths[0]))
            if rows is None:
                return None
            views[f.name] = rows.view(f.dtype).reshape(len(rows), *(f.shape or ()))
        return views


class _MemoryContent:
    """The content of the memory: how far it is filled, then each field's rows."""

    def __init__(self, memory: Memory | None, layout: dict[str, tuple[int, int]], rows: int) -> None:
        self.memory, self.rows, self.failed = memory, rows, None if memory else "it was closed"
        whole = np.zeros(8, np.uint8) if memory is None else memory.bytes
        self.address = whole.ctypes.data
        self._filled = whole[:8].view(np.int64)
        self.offsets = layout
        self.arrays: dict[str, Bytes] = {
            name: whole[at : at + rows * row_bytes].reshape(rows, row_bytes)
            for name, (at, row_bytes) in layout.items()
        }

    def gather(self, name: str, runs: Runs, out: Bytes) -> bool:
        """Copy scattered rows with the gather loop for mapped files, which prefetches; return False if it does not apply.

        Measured beside np.take: 1.1 for photos, 1.0 to 1.4 for thumbnails, 3 for labels.
        """
        if self.memory is None or self.memory.fd is None:
            return False
        offset, row_bytes = self.offsets[name]
        extents = np.array([[0, 0, offset], [self.rows, 0, 0]])
        files = np.array([[self.memory.fd, self.address, self.memory.bytes.nbytes]])
        return gather.copy_rows(extents, files, runs.starts, runs.lengths, row_bytes, out) == gather.DONE

    @property
    def filled(self) -> int:
        """Number of rows that are filled, by this or another process."""
        return int(self._filled[0])

    @filled.setter
    def filled(self, rows: int) -> None:
        # The copies before this released and took the GIL, or were system calls: no processor sees the count before the rows.
        self._filled[0] = rows

    @property
    def pinned(self) -> bool:
        """True if this process has registered the memory with CUDA."""
        return self.memory is not None and self.memory.registered


def present(reader: RowReader, fields: Sequence[Field], subset: Subset) -> bool:
    """Return True if a process of this user already caches these rows, so that another one needs no more memory."""
    fields = [f for f in fields if not f.ragged]
    return held(_key(reader, fields, subset), _layout(fields, subset.rows)[1])


def _layout(fields: Sequence[Field], rows: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Return field name -> (offset of its rows, row bytes), and the total bytes."""
    places, at = {}, _PAGE
    for f in fields:
        places[f.name] = at, f.row_bytes
        at += -(-rows * f.row_bytes // _PAGE) * _PAGE
    return places, at


def _key(reader: RowReader, fields: Sequence[Field], subset: Subset) -> str:
    """Return a digest that identifies these rows: the pack's files as they are now, fields, subset, and `verify`."""
    digest = hashlib.blake2b(digest_size=16)
    for part in reader.pack.parts:
        digest.update(part.seal or part.header.to_bytes())
        digest.update(repr(_files(part)).encode("utf-8", "surrogateescape"))
    digest.update(repr([(f.name, f.dtype, f.shape) for f in fields]).encode())
    digest.update(f"{subset.rows} {subset.fingerprint} {reader.verify}".encode())
    return digest.hexdigest()


def _files(pack: Pack) -> list[tuple[int, int, int, int]]:
    """Return device, inode, size and modification time of the files that hold a pack's rows; none of one in a store."""
    if isinstance(pack, RemotePack):  # its seal is that of the version that was opened, wherever its rows are
        return []
    one_each = {e.file: e for es in pack.header.extents.values() for e in es}
    found = []
    for _, extent in sorted(one_each.items()):
        try:
            status = os.stat(pack.place(extent))
        except OSError:  # the reader will say so
            continue
        found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def _fill(
    content: _MemoryContent,
    reader: RowReader,
    subset: Subset,
    pinned: torch.device | str | None,
    ending: threading.Event,
) -> None:
    """Fill the memory while this process holds its lock, then pin it."""
    memory = content.memory
    assert memory is not None
    try:
        while content.filled < content.rows and not ending.is_set():
            if memory.lock():
                try:
                    _fill_on(content, reader, subset, ending)
                finally:
                    memory.unlock()
            else:
                ending.wait(_TURN_SECONDS)
        if pinned is not None and not ending.is_set():
            _register(memory, pinned)
    except (MemoryError, FormatError) as error:
        # Rows that cannot be read are the loop's concern once it asks the disk for them, and perhaps it never does.
        content.failed = str(error) or "there is no more memory"
        log.warning(
            "%s: %s of %s rows are kept in memory, the others are read from the disk (%s)",
            reader.pack.path,
            f"{content.filled:,}",
            f"{content.rows:,}",
            content.failed,
        )


def _fill_on(content: _MemoryContent, reader: RowReader, subset: Subset, ending: threading.Event) -> None:
    memory = content.memory
    assert memory is not None
    count = max(1, STEP_BYTES // sum(row_bytes for _, row_bytes in content.offsets.values()))
    while (start := content.filled) < content.rows and not ending.is_set():
        stop = min(start + count, content.rows)
        runs = subset.place(one_run(start, stop))
        for name, (offset, row_bytes) in content.offsets.items():
            memory.reserve(offset + start * row_bytes, offset + stop * row_bytes)
            reader.read(name, runs, content.arrays[name][start:stop])
        content.filled = stop


def _register(memory: Memory, device: torch.device | str) -> None:
    """Pin the filled memory: its pages exist already, so none has to be cleared."""
    import torch

    with memory.registering:
        if memory.registered:
            return
        torch.cuda.set_device(device)  # of this thread: CUDA would else begin a context on the first device
        runtime: Any = torch.cuda.cudart()
        address = memory.bytes.ctypes.data
        code = int(runtime.cudaHostRegister(address, memory.bytes.nbytes, _PORTABLE))
        if code:
            raise MemoryError(f"CUDA cannot pin {size(memory.bytes.nbytes)}, error {code}")
        memory.at_end.append(lambda: runtime.cudaHostUnregister(address))
        memory.registered = True
