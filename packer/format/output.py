"""The name a pack is written under: checked before any work, locked while it is written, given by one rename at the end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil

from packer.errors import FormatError, PackerError, SpaceError, UsageError
from packer.format.files import fsync_path
from packer.format.header import CHECKSUMS_FILE, HEADER_FILE, TRAILER_FILE
from packer.format.pack import open_pack

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OLD_SUFFIX = ".old"  # of a directory that is being replaced, for the time of two renames


def format_of(out: str) -> str:
    """The format a name asks for: "h5" for ``.h5`` and ``.hdf5``, else "npy", a directory."""
    return "h5" if out.lower().endswith((".h5", ".hdf5")) else "npy"


def check_output(out: str, *, overwrite: bool) -> None:
    """Refuse an output that cannot be written, before any work. Raises UsageError or PackerError."""
    if not out:
        raise UsageError("OUT: is empty. Pass the name of a file or folder.")
    parent = os.path.dirname(os.path.abspath(out))
    if os.path.lexists(out):
        if not overwrite:
            raise UsageError(
                f"{out}: exists; nothing is overwritten unasked. Pass --overwrite, or another name."
            )
        if not _is_pack(out):
            raise UsageError(
                f"{out}: is no pack, or holds more than one; --overwrite replaces only packs. Pass another name."
            )
    if not os.path.isdir(parent):
        raise UsageError(f"{out}: its folder {parent} does not exist. Make it, or pass another name.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PackerError(
            f"{out}: no permission to write in {parent}. Pass another name, or change the permission."
        )


def check_space(out: str, needed: int) -> None:
    """Refuse when the disk has less than `needed` bytes free. Raises SpaceError."""
    parent = os.path.dirname(os.path.abspath(out))
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise SpaceError(
            f"{out}: needs {needed / 1e9:,.2f} GB; {parent} has {free / 1e9:,.2f} GB free."
            " Free some space, or pass a smaller size or another disk."
        )


def failure(out: str, error: OSError) -> PackerError:
    """What a failed write means to a user: SpaceError if the disk is full, else PackerError."""
    reason = error.strerror or "the HDF5 library could not write to the disk"
    kind = SpaceError if error.errno in _FULL else PackerError
    return kind(
        f"{out}: writing failed ({reason}). Nothing was left behind; free some space, or pass another disk."
    )


def claim(partial: str, out: str, *, directory: bool) -> int:
    """Make an empty work file or folder and lock it; what a dead writer left is cleared. Returns the lock's descriptor.

    Raises PackerError if it cannot be made, or another writer holds it.
    """
    try:
        if os.path.lexists(partial) and os.path.isdir(partial) != directory:
            os.close(_lock(partial, out))
            remove(partial)
        if directory:
            os.makedirs(partial, exist_ok=True)
        else:
            os.close(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666))
        fd = _lock(partial, out)
        for entry in os.listdir(partial) if directory else ():
            os.unlink(os.path.join(partial, entry))
        return fd
    except OSError as error:
        raise PackerError(f"{out}: cannot be written ({error.strerror}). Pass another name.") from error


def publish(partial: str, out: str, *, overwrite: bool) -> None:
    """Give finished work its final name. A directory in its way is moved aside, and comes back if that fails.

    Raises UsageError if the name has been taken meanwhile; OSError.
    """
    taken = os.path.lexists(out)
    if taken and not overwrite:
        raise UsageError(
            f"{out}: has appeared meanwhile; nothing is overwritten unasked. Pass --overwrite, or another name."
        )
    if taken and (os.path.isdir(out) or os.path.isdir(partial)):
        old = partial + _OLD_SUFFIX
        remove(old)
        os.rename(out, old)
        try:
            os.rename(partial, out)
        except BaseException:
            os.rename(old, out)
            raise
        remove(old)
    else:
        os.replace(partial, out)
    fsync_path(os.path.dirname(os.path.abspath(out)))


def remove(path: str) -> None:
    """Remove a file or folder of ours, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _lock(path: str, out: str) -> int:
    """Lock an existing file or folder for this process; the lock dies with it. Returns the lock's descriptor."""
    fd = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A writer that ended between open and flock has renamed the file away: it is no longer ours to take.
        taken = os.fstat(fd).st_ino != os.stat(path).st_ino
    except (BlockingIOError, FileNotFoundError):
        taken = True
    except OSError:
        taken = False  # a file system without locks
    if taken:
        os.close(fd)
        raise PackerError(
            f"{out}: another packer is writing it ({path} is locked). Wait for it, or pass another name."
        )
    return fd


def _is_pack(path: str) -> bool:
    """Whether it is a pack and, if a folder, nothing else: a slip of the keyboard must not cost anyone their photos."""
    try:
        pack = open_pack(path)
    except FormatError:
        return False
    if not os.path.isdir(path):
        return not os.path.islink(path)
    ours = {HEADER_FILE, TRAILER_FILE, CHECKSUMS_FILE, *(f"{column}.npy" for column in pack.header.columns)}
    return set(os.listdir(path)) <= ours
