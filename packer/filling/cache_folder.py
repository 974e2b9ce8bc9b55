"""The folder of a pack in a cache of remote packs, and how much the cache may hold.

A cache is a folder of the user's. Each pack has a folder of its own there, named after its content (its seal), never by the URL alone:

    NAME-DIGEST.cached/     about.json  what it is, so that nothing is removed that we did not make; a number drawn when it was made
                            files/      the files of the pack, sparse, as long as they are in the store, each made when it is first needed
                            state       of each stretch (unit_states.py); suspects: stretches to be compared when they are needed
                            reserved    bytes that this pack may take
                            boot        the system's run in which the states were written
                            lock        held by the process that fills; socket: where it is asked

All that is reserved together is at most the cache's size. Where that does not suffice, packs that nobody has open are removed, whole,
those first that were opened the longest ago; of an open pack nothing is.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from packer.errors import BusyError, SpaceError, UsageError
from packer.filling.filling_messages import STATES
from packer.format.checksums import digest
from packer.format.file_io import remove
from packer.format.remote_pack import RemotePack
from packer.format.remote_rows import ONE_FILE
from packer.remote.urls import name_of
from packer.units import size

SUFFIX = ".cached"
ABOUT = "about.json"
FILES = "files"
LOCK = "lock"
_GROWTH = 64 << 20  # reserved at once
_PAGE = 4096
_KIND = "packer cache 1"


def folder_of(cache: str, pack: RemotePack) -> str:
    """Return the folder of a pack in a cache: by what the pack holds."""
    sizes = repr([(file, one.info.size) for file, one in pack.files.items()])
    content = digest([pack.seal, sizes.encode()]).hex()
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name_of(pack.path))[:60]
    return os.path.join(os.path.abspath(cache), f"{name}-{content}{SUFFIX}")


def path_of(folder: str, file: str) -> str:
    """Return the path of a file of the pack. file: as in extents."""
    return os.path.join(folder, FILES, file or ONE_FILE)


def boot_id() -> str:
    """Return what tells this run of the system from those before; "" where it does not say."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


class CacheFolder:
    """The folder of one pack, locked: for the process that fills it.

    nonce: of this folder, another one once it was made anew. files: those of the pack that are there; fresh: nothing of it is in them.
    """

    def __init__(self, folder: str, pack: RemotePack) -> None:
        """Make the folder or take it up. Raises BusyError if another process has it, UsageError, SpaceError."""
        self.path = folder
        try:
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            self._lock = locked(folder)
            if self._lock is None:
                raise BusyError(f"{folder}: is being filled by another process.")
            self.nonce = self._about(pack.path)
            self._sizes = {file: one.info.size for file, one in pack.files.items()}
            self.files = self._files()
            self.fresh = not os.path.exists(os.path.join(folder, STATES)) or any(
                stat.st_size != self._sizes[file] for file, stat in self.files.items()
            )
            os.utime(os.path.join(folder, ABOUT))  # opened now
        except OSError as error:
            raise SpaceError(
                f"{folder}: cannot be made or written ({error.strerror}). Pass another cache=, with room in it."
            ) from error

    def boot_changed(self) -> bool:
        """Return True if the system was started anew since note_boot."""
        return _text(os.path.join(self.path, "boot")) != boot_id()

    def note_boot(self) -> None:
        """Note in which run of the system the states are written from now on."""
        _write(os.path.join(self.path, "boot"), boot_id())

    def _about(self, url: str) -> str:
        path = os.path.join(self.path, ABOUT)
        with suppress(OSError, ValueError, KeyError, TypeError):
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            if record["kind"] == _KIND:
                return str(record["nonce"])
        if os.listdir(self.path) != ["lock"]:
            raise UsageError(f"{self.path}: holds files that packer did not make. Pass another cache=.")
        nonce = secrets.token_hex(8)
        _write(path, json.dumps({"kind": _KIND, "url": url, "nonce": nonce}))
        return nonce

    def _files(self) -> dict[str, os.stat_result]:
        """Return the files of the pack that are there, by the names that extents have."""
        os.makedirs(os.path.join(self.path, FILES), exist_ok=True)
        with os.scandir(os.path.join(self.path, FILES)) as entries:
            found = {("" if e.name == ONE_FILE else e.name): e.stat(follow_symlinks=False) for e in entries}
        return {file: stat for file, stat in found.items() if file in self._sizes}


class CacheBudget:
    """The bytes that a pack may take in its cache. Thread-safe."""

    def __init__(self, folder: str, most: int, taken: int, least: int) -> None:
        """most: of the whole cache. taken: by what is kept of this pack. least: that it needs besides. Raises UsageError."""
        self._folder, self._cache, self._most = folder, os.path.dirname(folder), most
        self._lock = threading.Lock()
        self._reserved, self._taken = 0, 0
        if not self.take(taken + least):
            raise UsageError(
                f"{self._cache}: {size(taken + least)} are needed for the tables of this pack, and what is kept of it; cache_size is"
                f" {size(most)}, and other packs are open. Pass a larger cache_size=."
            )

    def take(self, nbytes: int) -> bool:
        """Return True, having counted these bytes, if there is room for them."""
        with self._lock:
            if self._taken + nbytes > self._reserved and not self._reserve(nbytes):
                return False
            self._taken += nbytes
            return True

    def end(self) -> None:
        """Take no more: the disk is full."""
        with self._lock:
            self._most = self._reserved = 0

    def _reserve(self, nbytes: int) -> bool:
        with _locking(os.path.join(self._cache, "lock")):
            while True:
                others = sum(_reserved(other) for other in _folders(self._cache) if other != self._folder)
                for growth in (_GROWTH, nbytes):
                    wanted = self._taken + max(nbytes, growth)
                    if others + wanted <= self._most:
                        _write(os.path.join(self._folder, "reserved"), str(wanted))
                        self._reserved = wanted
                        return True
                if not self._most or not _remove_oldest(self._cache, self._folder):
                    return False


def cost(begin: int, end: int) -> int:
    """Return the bytes that a stretch takes on a disk: whole pages.

    >>> cost(4096, 8192), cost(4095, 8193)
    (4096, 12288)
    """
    return (-(-end // _PAGE) - begin // _PAGE) * _PAGE


def _folders(cache: str) -> Iterator[str]:
    """Yield the folders of packs in a cache that are ours."""
    with os.scandir(cache) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_dir(follow_symlinks=False):
                yield entry.path


def _reserved(folder: str) -> int:
    text = _text(os.path.join(folder, "reserved"))
    return int(text) if text and text.isdigit() else 0


def _remove_oldest(cache: str, own: str) -> bool:
    """Remove the pack that was opened the longest ago of those that nobody has open; return False if there is none."""
    found = []
    for folder in _folders(cache):
        with (
            suppress(OSError, ValueError, TypeError),
            open(os.path.join(folder, ABOUT), encoding="utf-8") as file,
        ):
            if folder != own and json.load(file)["kind"] == _KIND:
                found.append((os.stat(file.fileno()).st_mtime, folder))
    for _, folder in sorted(found):
        lock = locked(folder, make=False)
        if lock is None:
            continue
        try:
            remove(os.path.join(folder, STATES))  # first: what is left says that nothing is there
            shutil.rmtree(folder, ignore_errors=True)
            return not os.path.exists(folder)
        finally:
            os.close(lock)
    return False


def locked(folder: str, *, make: bool = True) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, None if another process does, or it is not there."""
    path = os.path.join(folder, LOCK)
    while True:
        if make:
            os.makedirs(folder, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o666)
        except FileNotFoundError:
            if make:
                continue  # removed in this moment
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:
            pass
        os.close(fd)


@contextmanager
def _locking(path: str) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _write(path: str, text: str) -> None:
    """Write a small file at once. Raises OSError."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def check_cache(cache: object) -> str:
    """Return the folder of a cache. Raises UsageError."""
    if not isinstance(cache, (str, os.PathLike)):
        raise UsageError(f"cache={cache!r}: is no path. Pass a folder on a disk of this machine.")
    path = os.path.abspath(os.fspath(cache))
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"{path}: is no folder; the cache of a remote pack is one. Pass another cache=.")
    return path
