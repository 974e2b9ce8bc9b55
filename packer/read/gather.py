"""Rows out of files into given memory, a whole batch a call: copied from mappings of the files, or read from them.

Both are written twice, with the same bytes: in C (``native/gather.c``), and in NumPy where that was not compiled. C adds one
call for any number of rows and files, without the GIL, and a file that is cut short during a copy from its mapping is an error
(NumPy's process would be killed).

Each function takes the same five arguments that say which rows:

    extents    int64 [n + 1, 3]: the first row of each extent, its file's number, its byte offset there; at the end all rows
    files      int64 [m, 3]: descriptor, address of the mapped file's first byte (0: not mapped), bytes it must have
    starts, lengths    int64 [k]: the runs, in any order
    row_bytes  of each row, at least 1

and raises IndexError for rows that are not there, ValueError for an ``out`` of another size than the rows take. The C form
raises ValueError too for tables that do not go together, or are of another dtype.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.orders.runs import Runs
from packer.read.page_cache import resident

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]

DONE, COLD, UNWRITABLE = -1, -2, -3
LONG_RUN_BYTES = 1 << 20  # from here on a call a run costs nothing beside the copy
_PROBES = 4  # runs whose pages are looked up before a copy
_CALL_BYTES = 1 << 30  # read at once: macOS refuses 2 GiB
_ADVICE = 128 << 10  # bytes: of more at once, Linux forgets what exceeds a device's reading ahead


def copy(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes) -> int:
    """Copy runs of rows of mapped files, if they are in the page cache.

    out: C-contiguous uint8, overwritten; nobody else reads it meanwhile.
    Returns: DONE; COLD (nothing was copied); UNWRITABLE (out lies in a file that was cut short); or the number of a file
    that is too short, or whose page could not be read.
    """
    form = native.loops.copy_rows if native.COMPILED else copy_numpy
    return form(extents, files, starts, lengths, row_bytes, out)


def read(
    extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes
) -> tuple[int, int]:
    """Read runs of rows by a system call each, having asked for all that is not in the page cache before.

    out: C-contiguous uint8, overwritten.
    Returns: DONE and 0; or the number of a file and the errno of what failed, 0 if the file ended.
    """
    form = native.loops.read_rows if native.COMPILED else read_numpy
    return form(extents, files, starts, lengths, row_bytes, out)


def willneed(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int) -> None:
    """Ask the system to read runs of rows ahead, unless they seem to be in the page cache; do not wait for them."""
    form = native.loops.willneed_rows if native.COMPILED else willneed_numpy
    form(extents, files, starts, lengths, row_bytes)


def copy_numpy(
    extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes
) -> int:
    """Do what ``copy`` does, without the compiled form."""
    target = _target(extents, starts, lengths, row_bytes, out)
    if not len(target):
        return DONE
    if not (files[:, 1].all() and _resident(extents, files, starts, lengths, row_bytes)):
        return COLD
    (starts, lengths), owners = cut(extents[:, 0], Runs(starts, lengths))
    at = np.cumsum(lengths) - lengths
    for owner, group in _groups(owners):
        first, file, offset = extents[owner].tolist()
        fd, address, nbytes = files[file].tolist()
        if os.fstat(fd).st_size < nbytes:
            return int(file)
        rows = int(extents[owner + 1, 0]) - first
        source = _view(address, nbytes)[offset : offset + rows * row_bytes].reshape(rows, row_bytes)
        runs = Runs(starts[group] - first, lengths[group])
        if runs.total * row_bytes >= LONG_RUN_BYTES * len(runs.starts):
            for row, to, length in zip(
                runs.starts.tolist(), at[group].tolist(), runs.lengths.tolist(), strict=True
            ):
                np.copyto(target[to : to + length], source[row : row + length])
        elif runs.total == len(target):
            np.take(source, runs.rows(), axis=0, out=target, mode="clip")  # "raise" would copy `out` first
        else:
            target[Runs(at[group], lengths[group]).rows()] = source[runs.rows()]
    return DONE


def read_numpy(
    extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes
) -> tuple[int, int]:
    """Do what ``read`` does, without the compiled form."""
    view = memoryview(_target(extents, starts, lengths, row_bytes, out).reshape(-1))
    if len(view) and not _resident(extents, files, starts, lengths, row_bytes):
        _advise(extents, files, starts, lengths, row_bytes)
    at = 0
    for file, offset, nbytes in _pieces(extents, starts, lengths, row_bytes):
        fd, stop = int(files[file, 0]), at + nbytes
        while at < stop:
            try:
                count = os.preadv(fd, [view[at : min(stop, at + _CALL_BYTES)]], offset)
            except OSError as error:
                return file, error.errno or errno.EIO
            if not count:
                return file, 0
            at, offset = at + count, offset + count
    return DONE, 0


def willneed_numpy(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int) -> None:
    """Do what ``willneed`` does, without the compiled form."""
    _check(extents, starts, lengths)
    if lengths.any() and not _resident(extents, files, starts, lengths, row_bytes):
        _advise(extents, files, starts, lengths, row_bytes)


def _check(extents: Table, starts: Table, lengths: Table) -> None:
    rows = int(extents[-1, 0])
    bad = np.flatnonzero((starts < 0) | (lengths < 0) | (starts > rows) | (lengths > rows - starts))
    if len(bad):
        start, length = int(starts[bad[0]]), int(lengths[bad[0]])
        raise IndexError(f"rows {start} to {start + length} of {rows}")


def _target(extents: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes) -> Bytes:
    """Return ``out`` as [rows, row_bytes]. Raise ValueError if it is not as large as the rows in the runs."""
    _check(extents, starts, lengths)
    if out.nbytes != int(lengths.sum()) * row_bytes or not out.flags.c_contiguous:
        raise ValueError("out: is not as large as the rows in the runs.")
    return out.reshape(-1, row_bytes)


def cut(firsts: Table, runs: Runs) -> tuple[Runs, Table]:
    """The same rows in runs that end where parts do, none of them empty, and the part of each.

    firsts: int64 [n + 1], the first row of each part, and at the end all rows.
    """
    starts, lengths = runs
    if not lengths.all():
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if len(firsts) == 2:
        return Runs(starts, lengths), np.zeros(len(starts), np.int64)
    first = np.searchsorted(firsts, starts, "right") - 1
    last = np.searchsorted(firsts, starts + lengths - 1, "right") - 1
    if (first == last).all():
        return Runs(starts, lengths), first
    parts = Runs(first, last - first + 1).rows()
    run = np.repeat(np.arange(len(starts)), last - first + 1)
    begins = np.maximum(starts[run], firsts[parts])
    ends = np.minimum((starts + lengths)[run], firsts[parts + 1])
    some = ends > begins  # parts may be empty
    return Runs(begins[some], (ends - begins)[some]), parts[some]


def _groups(owners: Table) -> Iterator[tuple[int, Table | slice]]:
    """Yield each owner, and where among ``owners`` it is."""
    if (owners == owners[0]).all():
        yield int(owners[0]), slice(None)
        return
    order = np.argsort(owners, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        yield int(owners[group[0]]), group


def _pieces(extents: Table, starts: Table, lengths: Table, row_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield each piece's file, byte offset and bytes; none is empty."""
    (starts, lengths), owners = cut(extents[:, 0], Runs(starts, lengths))
    offsets = extents[owners, 2] + (starts - extents[owners, 0]) * row_bytes
    yield from zip(extents[owners, 1].tolist(), offsets.tolist(), (lengths * row_bytes).tolist(), strict=True)


def _resident(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int) -> bool:
    """Return True if both ends and the middle of some of these runs are in the page cache.

    The beginning alone tells nothing: reading ahead, the kernel has brought in the first pages of what comes next.
    """
    step = -(-len(starts) // _PROBES)
    for file, offset, nbytes in _pieces(extents, starts[::step], lengths[::step], row_bytes):
        address, size = files[file, 1:].tolist()
        probes = [offset + nbytes - 1, offset + nbytes // 2, offset]
        if not address or not resident(_view(address, size), probes):
            return False
    return True


def _advise(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int) -> None:
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    for file, offset, nbytes in _pieces(extents, starts, lengths, row_bytes):
        for at in range(offset, offset + nbytes, _ADVICE):
            os.posix_fadvise(
                int(files[file, 0]), at, min(_ADVICE, offset + nbytes - at), os.POSIX_FADV_WILLNEED
            )


def _view(address: int, nbytes: int) -> Bytes:
    """Return mapped bytes, to be read only."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
