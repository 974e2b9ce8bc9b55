"""The folder of one remote pack in a cache, and the limit on the cache's size.

A cache is a folder of the user. Each pack has a subfolder, named after its content (its seal), not by the URL
alone:

    NAME-DIGEST.cached/
        about.json      identifies the folder, so that packer removes only what it wrote; reserved bytes
                        ("reserved"); modified at each use
        files/          the pack's files, sparse, as long as in the store, each created when first needed
        state           a byte per stretch, MISSING or KEPT, set once its bytes are on the disk; mapped by
                        all processes
        lock            held by every process that has the pack open
        turn0 to turn63 held while a stretch with such a number is fetched

Every process fetches the stretches that it needs and waits for another process only if both need the same
stretch. The reserved bytes of all packs stay within the cache's size. To make room, packs that nobody has
open are removed completely, the least recently used first. Nothing of an open pack is removed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError, SpaceError, UsageError
from packer.format.checksums import digest
from packer.format.file_io import (
    PRIVATE,
    SHARED,
    create_anew,
    foreign,
    fsync_path,
    inode_of,
    locked,
    make_folder,
    open_own,
    open_sparse,
    pread_path,
    remove,
)
from packer.packs.pack import Pack
from packer.packs.remote_file import RemoteFile
from packer.packs.stretches import StretchMap
from packer.packs.unit_states import MISSING, STATES, map_states
from packer.remote import access
from packer.remote.urls import name_of
from packer.starting import ForkSafeLock
from packer.units import size

SUFFIX = ".cached"
FILES = "files"
ABOUT = "about.json"
ONE_FILE = "pack.h5"
"""Name in the cache of a pack that is one file."""
KEPT = 1
"""State of a stretch that is not missing."""
_LOCK = "lock"
_TURNS = 64
_GROWTH = 64 << 20  # bytes reserved at once
_OVERHEAD = 64 << 10  # bytes of small files
_PAGE = 4096
_KIND = "packer cache 2"

_LOG = logging.getLogger("packer.format")


class StretchCache:
    """The files of one pack in a cache, for one process and its forked children. Thread-safe.

    folder: of the pack; full: there was no room for the last stretch. Opened on first use, and again after
    unpickling or close.

    A cache belongs to one user, and nobody else can write to it. Or a group shares it: then each process
    compares each stretch with its checksums before its first use.
    """

    def __init__(
        self, pack: Pack, files: Mapping[str, RemoteFile], cache: str, most: int, shared: bool = False
    ) -> None:
        """cache: folder of all packs; most: their limit in bytes; shared: others may write to it too."""
        self._shared = shared
        self._mode, self._folder_mode = (SHARED, 0o770) if shared else (PRIVATE, 0o700)
        self._url, self._sizes = pack.path, {file: one.info.size for file, one in files.items()}
        content = digest([pack.seal, repr(list(self._sizes.items())).encode()]).hex()
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", name_of(pack.path))[:60]
        self._cache, self._most = os.path.abspath(cache), most
        self.folder: str = os.path.join(self._cache, f"{name}-{content}{SUFFIX}")
        self._inode = 0  # of the state file; it detects a folder that was created again
        self._lock = ForkSafeLock()
        self._renew()

    def _renew(self) -> None:
        # Releases the folder, also when this object is deleted.
        self._leave: Callable[[], object] | None = None
        self._states: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None
        self._room, self._pid = 0, os.getpid()  # _room: bytes that this process has reserved and not used
        self.full = self._ended = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_leave": None, "_states": None, "_room": 0}

    def states(self, stretches: StretchMap) -> NDArray[np.uint8]:
        """Return the states of all stretches, which other processes update; if shared, this process's.

        Raises UsageError, SpaceError.
        """
        return self._both(stretches)[0]

    def _both(self, stretches: StretchMap) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the states, and those in the file: the same array unless the cache is shared."""
        if (states := self._states) is not None:
            return states
        with self._lock:
            if self._states is None:
                try:
                    self._prepare_folder()
                    with locked(os.path.join(self._cache, _LOCK), mode=self._mode):
                        common = self._open(stretches)
                    self._states = np.zeros_like(common) if self._shared else common, common
                except OSError as error:
                    raise self._unusable(error) from error
            return self._states

    def close(self) -> None:
        """Allow others to remove the folder."""
        with self._lock:
            if self._leave is not None:
                self._leave()
            self._renew()

    def path(self, stretches: StretchMap, file: str) -> str:
        """Return the path of a pack's file. It is created if nothing of it is cached.

        Otherwise a missing file is left missing: a new file would be read as zeros.
        """
        _, common = self._both(stretches)
        path = os.path.join(self.folder, FILES, file or ONE_FILE)
        self._check_there()
        if not os.path.exists(path) and not common[slice(*stretches.span_of_file(file))].any():
            with suppress(OSError):  # then opening it reports the error
                os.close(open_sparse(path, self._sizes[file], self._mode))
        return path

    def bring(self, stretches: StretchMap, number: int) -> memoryview:
        """Fetch a stretch into its file and return b""; return its bytes if there is no room.

        Raises PackerError.
        """
        states, path = self.states(stretches), self.path(stretches, stretches.file(number))
        turn = os.path.join(self.folder, f"turn{number % _TURNS}")
        try:
            # Wait if another thread or process is fetching it, unless that is too slow.
            done, patience = lambda: bool(states[number] == KEPT), access.ROWS_PATIENCE
            with locked(turn, done, patience, self._mode):
                self._keep(stretches, number, path)
        except OSError as error:
            raise self._unusable(error) from error
        return memoryview(b"") if states[number] == KEPT else stretches.fetch(number)

    def _keep(self, stretches: StretchMap, number: int, path: str) -> None:
        """Verify a stretch that another process fetched; fetch a missing one if there is room."""
        (states, common), (begin, end) = self._both(stretches), stretches.place(number)
        if common[number] != states[number]:
            with suppress(OSError):
                if not stretches.damaged(number, memoryview(pread_path(path, end - begin, begin))):
                    states[number] = KEPT
        pages = -(-end // _PAGE) - begin // _PAGE
        if states[number] != KEPT and self._take_room(pages * _PAGE):
            try:
                stretches.fetch(number, path)
                fsync_path(path)  # else the state could outlive the bytes when the system goes down
                states[number] = common[number] = KEPT
            except (OSError, SpaceError) as error:
                self.full = self._ended = True
                _LOG.warning("%s Rows that are not cached pass through memory.", error)

    def _unusable(self, error: OSError) -> SpaceError:
        why = f"cannot be created or written ({error.strerror})"
        return SpaceError(f"{self.folder}: {why}. Pass another cache=, with room in it, or raise ulimit -n.")

    def _prepare_folder(self) -> None:
        """Create the cache's folder if missing. Raises UsageError if it has links, or others may write to it."""
        if not os.path.isdir(self._cache):  # a link of this user may lead to one
            make_folder(self._cache, self._folder_mode)
        found = foreign(self._cache, inside=False, shared=self._shared)
        for path in (os.path.join(self._cache, _LOCK), self.folder):
            if not found and os.path.lexists(path):
                found = f"{path}: is a link" if os.path.islink(path) else foreign(path, shared=self._shared)
        if found:
            nothing = "" if self._shared else ", and nothing that others can write to"
            others = "" if self._shared else ", or cache_shared=True if it belongs to a group"
            raise UsageError(
                f"{found}; a cache must hold no links{nothing}. Pass a cache= that does not exist"
                f" yet{others}."
            )

    def _open(self, stretches: StretchMap) -> NDArray[np.uint8]:
        """Create the folder or reuse it; return the states. The cache is locked.

        Raises OSError, UsageError.
        """
        make_folder(self.folder, self._folder_mode)
        if _read_about(self.folder) is None:  # or its creator, or who removed it, was killed
            self._note(0)
        make_folder(os.path.join(self.folder, FILES), self._folder_mode)
        path = os.path.join(self.folder, STATES)
        held, alone = open_own(os.path.join(self.folder, _LOCK), mode=self._mode), False
        try:
            with suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            states = map_states(path, stretches.count, "u1", writable=True, mode=self._mode)
            if alone:
                self._take_up(stretches, states)
            fcntl.flock(held, fcntl.LOCK_SH)  # does not block: removing packs needs the cache's lock
            self._inode = self._inode or inode_of(path)
            self._leave, held = weakref.finalize(self, os.close, held), -1
        finally:
            if held >= 0:
                os.close(held)
        self._check_there()
        return states

    def _take_up(self, stretches: StretchMap, states: NDArray[np.uint8]) -> None:
        """Check the files of a pack that no other process has open, and reset states that they contradict."""
        with os.scandir(os.path.join(self.folder, FILES)) as entries:
            found = {("" if e.name == ONE_FILE else e.name): e.stat(follow_symlinks=False) for e in entries}
        there = {file: stat for file, stat in found.items() if file in self._sizes}
        taken, least = sum(stat.st_blocks * 512 for stat in there.values()), _OVERHEAD + stretches.count
        lost = any(
            file not in there and states[slice(*stretches.span_of_file(file))].any() for file in self._sizes
        )
        changed = any(stat.st_size != self._sizes[file] for file, stat in there.items())
        if lost or changed or not states.any() or taken + least > self._most:
            taken = 0
            states[states != MISSING] = MISSING  # write only where needed: a written page takes memory
            for file in there:
                remove(os.path.join(self.folder, FILES, file or ONE_FILE))
        self._note(0)
        if not self._reserve(taken + least, taken + least):
            raise UsageError(
                f"{self._cache}: the tables and cached rows of this pack need {size(taken + least)};"
                f" cache_size is {size(self._most)}, and other packs are open. Pass a larger cache_size=."
            )

    def _check_there(self) -> None:
        """Raise PackerError if the folder was replaced since it was opened."""
        if inode_of(os.path.join(self.folder, STATES)) != self._inode:
            raise PackerError(f"{self.folder}: was removed while it was in use. Open the pack again.")

    def _take_room(self, nbytes: int) -> bool:
        """Reserve these bytes; return False if there is no room."""
        with self._lock, suppress(OSError):
            if self._pid != os.getpid():  # the reservation belongs to the parent
                self._room, self._pid = 0, os.getpid()
            if self._room < nbytes and not self._ended:
                with locked(os.path.join(self._cache, _LOCK), mode=self._mode):
                    self._room += self._reserve(max(nbytes, _GROWTH), nbytes)
            self.full = self._room < nbytes or self._ended
            if not self.full:
                self._room -= nbytes
                return True
        return False

    def _reserve(self, wanted: int, least: int) -> int:
        """Reserve `wanted` bytes, else `least`, else none; return how many. The cache is locked."""
        while True:
            reserved = {folder: about["reserved"] for folder, about in _folders(self._cache)}
            for nbytes in (wanted, least):
                if sum(reserved.values()) + nbytes <= self._most:
                    self._note(reserved.get(self.folder, 0) + nbytes)
                    return nbytes
            if not _remove_oldest(self._cache, self.folder):
                return 0

    def _note(self, reserved: int) -> None:
        path = os.path.join(self.folder, ABOUT)
        with open(create_anew(f"{path}.new", self._mode), "w", encoding="utf-8") as file:
            json.dump({"kind": _KIND, "url": self._url, "reserved": reserved}, file)
        os.replace(f"{path}.new", path)


def _read_about(folder: str) -> dict[str, Any] | None:
    """Return the content of a folder's about.json; None if packer did not write the folder."""
    with (
        suppress(OSError, ValueError, TypeError),
        open(os.path.join(folder, ABOUT), encoding="utf-8") as file,
    ):
        about: dict[str, Any] = json.load(file)
        if about["kind"] == _KIND:
            return about
    return None


def _folders(cache: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (folder, content of its about.json) for each of packer's folders in a cache."""
    with os.scandir(cache) as entries:
        for entry in entries:
            ours = entry.name.endswith(SUFFIX) and not entry.is_symlink()
            if ours and (about := _read_about(entry.path)) is not None:
                yield entry.path, about


def _remove_oldest(cache: str, own: str) -> bool:
    """Remove the least recently used pack that nobody has open; return False if there is none."""
    used = {folder: os.stat(os.path.join(folder, ABOUT)).st_mtime for folder, _ in _folders(cache)}
    for folder in sorted(used.keys() - {own}, key=lambda folder: used[folder]):
        with locked(os.path.join(folder, _LOCK), patience=0) as mine:
            if mine:
                # first: without it the remaining files count as not cached
                remove(os.path.join(folder, STATES))
                shutil.rmtree(folder, ignore_errors=True)
                return not os.path.exists(folder)
    return False
