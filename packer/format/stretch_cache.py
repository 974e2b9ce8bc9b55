"""The folder of one pack in a cache of remote packs, and how much the cache may hold.

A cache is a folder of the user's. Each pack has a folder of its own there, named after its content (its seal), never by the URL alone:

    NAME-DIGEST.cached/     about.json  what it is, so that nothing is removed that we did not make; bytes that it may take ("reserved");
                            the system's run in which it was opened ("boot"); its date says when it was used last
                            files/      the files of the pack, sparse, as long as they are in the store, each made when it is first needed
                            state       of each stretch a byte: MISSING, SUSPECT or KEPT; all processes map it
                            lock        held by all that have it open; turn0 to turn63: by who brings a stretch of such a number

Every process brings the stretches that it needs, so none waits for another one but for the same stretch. All that is reserved together
is at most the cache's size. Where that does not suffice, packs that nobody has open are removed, whole, those first that were used
the longest ago; of an open pack nothing is.
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
from packer.format.file_io import inode_of, locked, open_sparse, pread_path, remove
from packer.format.pack import Pack
from packer.format.remote_file import RemoteFile
from packer.format.stretches import StretchMap
from packer.format.unit_states import MISSING, STATES, map_states
from packer.remote import access
from packer.remote.urls import name_of
from packer.starting import ForkSafeLock
from packer.units import size

SUFFIX = ".cached"
FILES = "files"
ABOUT = "about.json"
ONE_FILE = "pack.h5"
"""The name in a cache of a pack that is one file."""
SUSPECT, KEPT = 1, 2
"""States of a stretch that is not missing; suspect: it was there when the system went down, and is compared first."""
_LOCK = "lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_TURNS = 64
_GROWTH = 64 << 20  # reserved at once
_OVERHEAD = 64 << 10  # bytes of small files
_PAGE = 4096
_KIND = "packer cache 2"

_LOG = logging.getLogger("packer.format")


class StretchCache:
    """The files of one pack in a cache, as one process, and those that it forks, use them. Thread-safe.

    folder: of the pack. full: there was no room for the last stretch. It is opened when it is first needed, and again after
    unpickling or close.
    """

    def __init__(self, pack: Pack, files: Mapping[str, RemoteFile], cache: str, most: int) -> None:
        """cache: the folder of all packs; most: bytes that they may take together."""
        self._url, self._sizes = pack.path, {file: one.info.size for file, one in files.items()}
        content = digest([pack.seal, repr(list(self._sizes.items())).encode()]).hex()
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", name_of(pack.path))[:60]
        self._cache, self._most = os.path.abspath(cache), most
        self.folder = os.path.join(self._cache, f"{name}-{content}{SUFFIX}")
        self._inode = 0  # of the states: a folder that is made anew has others
        self._lock = ForkSafeLock()
        self._renew()

    def _renew(self) -> None:
        self._leave: Callable[[], object] | None = (
            None  # lets go of the folder, also once this object is gone
        )
        self._states: NDArray[np.uint8] | None = None
        self._room, self._pid = 0, os.getpid()  # that this process has reserved, and not used
        self.full = self._ended = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_leave": None, "_states": None, "_room": 0}

    def states(self, stretches: StretchMap) -> NDArray[np.uint8]:
        """Return the states of all stretches, as they are at any time. Raises UsageError, SpaceError."""
        if (states := self._states) is not None:
            return states
        with self._lock:
            if self._states is None:
                try:
                    os.makedirs(self._cache, exist_ok=True)
                    with locked(os.path.join(self._cache, _LOCK)):
                        self._states = self._open(stretches)
                except OSError as error:
                    raise self._unusable(error) from error
            return self._states

    def close(self) -> None:
        """Let others remove it."""
        with self._lock:
            if self._leave is not None:
                self._leave()
            self._renew()

    def path(self, stretches: StretchMap, file: str) -> str:
        """Return the path of a file of the pack; it is made if nothing of it is there, and else not: it would be read as zeros."""
        states, path = self.states(stretches), os.path.join(self.folder, FILES, file or ONE_FILE)
        self._check_there()
        if not os.path.exists(path) and not states[slice(*stretches.of_file(file))].any():
            with suppress(OSError):  # then opening it says what is wrong
                os.close(open_sparse(path, self._sizes[file]))
        return path

    def bring(self, stretches: StretchMap, number: int) -> memoryview:
        """Bring a stretch into its file, and return nothing; or its bytes, if there is no room. Raises PackerError."""
        states, path = self.states(stretches), self.path(stretches, stretches.file(number))
        turn = os.path.join(self.folder, f"turn{number % _TURNS}")
        try:
            # Another thread or process may be bringing it: it is waited for, unless it is too slow.
            with locked(turn, lambda: bool(states[number] == KEPT), access.ROWS_PATIENCE):
                self._keep(stretches, number, path)
        except OSError as error:
            raise self._unusable(error) from error
        return memoryview(b"") if states[number] == KEPT else stretches.fetch(number)

    def _keep(self, stretches: StretchMap, number: int, path: str) -> None:
        """Compare a stretch that was there when the system went down; fetch a missing one, if it has room."""
        states, (begin, end) = self.states(stretches), stretches.place(number)
        if states[number] == SUSPECT:
            with suppress(OSError):
                if not stretches.damaged(number, memoryview(pread_path(path, end - begin, begin))):
                    states[number] = KEPT
        pages = -(-end // _PAGE) - begin // _PAGE
        if states[number] != KEPT and self._take(pages * _PAGE):
            try:
                stretches.fetch(number, path)
                states[number] = KEPT
            except (OSError, SpaceError) as error:
                self.full = self._ended = True
                _LOG.warning("%s Rows that are not there pass through memory.", error)

    def _unusable(self, error: OSError) -> SpaceError:
        why = f"cannot be made or written ({error.strerror})"
        return SpaceError(f"{self.folder}: {why}. Pass another cache=, with room in it, or raise ulimit -n.")

    def _open(self, stretches: StretchMap) -> NDArray[np.uint8]:
        """Make the folder or take it up; return the states. The cache is locked. Raises OSError, UsageError."""
        os.makedirs(self.folder, exist_ok=True)
        if _about(self.folder) is None:
            # Left by who was killed as it made or removed the folder.
            ours = (_LOCK, STATES, FILES, f"{ABOUT}.new")
            if not all(name in ours or name.startswith("turn") for name in os.listdir(self.folder)):
                raise UsageError(f"{self.folder}: holds files that packer did not make. Pass another cache=.")
            self._note(0, "")
        os.makedirs(os.path.join(self.folder, FILES), exist_ok=True)
        path = os.path.join(self.folder, STATES)
        held, alone = os.open(os.path.join(self.folder, _LOCK), _FLAGS, 0o666), False
        try:
            with suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            states = map_states(path, stretches.count, "u1", writable=True)
            if alone:
                self._take_up(stretches, states)
            fcntl.flock(held, fcntl.LOCK_SH)  # at once: only who has locked the cache, too, removes packs
            self._inode = self._inode or inode_of(path)
            self._leave, held = weakref.finalize(self, os.close, held), -1
        finally:
            if held >= 0:
                os.close(held)
        self._check_there()
        return states

    def _take_up(self, stretches: StretchMap, states: NDArray[np.uint8]) -> None:
        """See what is there of the pack, which nobody else has open."""
        with os.scandir(os.path.join(self.folder, FILES)) as entries:
            found = {("" if e.name == ONE_FILE else e.name): e.stat(follow_symlinks=False) for e in entries}
        there = {file: stat for file, stat in found.items() if file in self._sizes}
        taken, least = sum(stat.st_blocks * 512 for stat in there.values()), _OVERHEAD + stretches.count
        lost = any(
            file not in there and states[slice(*stretches.of_file(file))].any() for file in self._sizes
        )
        changed = any(stat.st_size != self._sizes[file] for file, stat in there.items())
        if lost or changed or not states.any() or taken + least > self._most:
            taken = 0
            states[states != MISSING] = MISSING  # those alone: a page that is written to takes memory
            for file in there:
                for nbytes in (0, self._sizes[file]):
                    os.truncate(os.path.join(self.folder, FILES, file or ONE_FILE), nbytes)
        # The system may have gone down between a state and its bytes.
        if (_about(self.folder) or {}).get("boot") != _boot():
            states[states == KEPT] = SUSPECT
        self._note(0, _boot())
        if not self._reserve(taken + least, taken + least):
            raise UsageError(
                f"{self._cache}: {size(taken + least)} are needed for the tables of this pack, and what is kept of it;"
                f" cache_size is {size(self._most)}, and other packs are open. Pass a larger cache_size=."
            )

    def _check_there(self) -> None:
        """Raise PackerError if the folder is another one than when it was opened: its files are."""
        if inode_of(os.path.join(self.folder, STATES)) != self._inode:
            raise PackerError(f"{self.folder}: was removed while it was in use. Open the pack again.")

    def _take(self, nbytes: int) -> bool:
        """Return True, having counted these bytes, if there is room for them."""
        with self._lock, suppress(OSError):
            if self._pid != os.getpid():  # what is reserved is the parent's
                self._room, self._pid = 0, os.getpid()
            if self._room < nbytes and not self._ended:
                with locked(os.path.join(self._cache, _LOCK)):
                    self._room += self._reserve(max(nbytes, _GROWTH), nbytes)
            self.full = self._room < nbytes or self._ended
            if not self.full:
                self._room -= nbytes
                return True
        return False

    def _reserve(self, wanted: int, least: int) -> int:
        """Reserve bytes, and return how many: as wanted or, where those have no room, the least, or none. The cache is locked."""
        while True:
            reserved = {folder: about["reserved"] for folder, about in _folders(self._cache)}
            for nbytes in (wanted, least):
                if sum(reserved.values()) + nbytes <= self._most:
                    self._note(reserved.get(self.folder, 0) + nbytes, _boot())
                    return nbytes
            if not _remove_oldest(self._cache, self.folder):
                return 0

    def _note(self, reserved: int, boot: str) -> None:
        path = os.path.join(self.folder, ABOUT)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"kind": _KIND, "url": self._url, "reserved": reserved, "boot": boot}, file)
        os.replace(f"{path}.new", path)


def _boot() -> str:
    """Return what tells this run of the system from those before; "" where it does not say."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def _about(folder: str) -> dict[str, Any] | None:
    """Return what a folder says of itself; None if it is not ours."""
    with (
        suppress(OSError, ValueError, TypeError),
        open(os.path.join(folder, ABOUT), encoding="utf-8") as file,
    ):
        about: dict[str, Any] = json.load(file)
        if about["kind"] == _KIND:
            return about
    return None


def _folders(cache: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folders of packs in a cache that are ours, and what they say of themselves."""
    with os.scandir(cache) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and (about := _about(entry.path)) is not None:
                yield entry.path, about


def _remove_oldest(cache: str, own: str) -> bool:
    """Remove the pack that was used the longest ago of those that nobody has open; return False if there is none."""
    used = {folder: os.stat(os.path.join(folder, ABOUT)).st_mtime for folder, _ in _folders(cache)}
    for folder in sorted(used.keys() - {own}, key=lambda folder: used[folder]):
        with locked(os.path.join(folder, _LOCK), patience=0) as mine:
            if mine:
                remove(os.path.join(folder, STATES))  # first: what is left says that nothing is there
                shutil.rmtree(folder, ignore_errors=True)
                return not os.path.exists(folder)
    return False
