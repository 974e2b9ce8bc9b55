"""FillingPack: an unfinished pack whose rows are read while a process of its own converts them."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BusyError, FormatError, PackerError, UsageError
from packer.format.checksums import block_checksum
from packer.format.file_io import inode_of, locked, pread_path
from packer.format.frontier import (
    DESCRIBED,
    FAILED,
    FRONTIER,
    JOB,
    KNOWN,
    PART,
    READERS,
    SEALED,
    Frontier,
    Readers,
)
from packer.format.header import MAX_HEADER_BYTES, PARTIAL_SUFFIX, Header
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.working_folder import difference, is_locked
from packer.progress import LINE_SECONDS
from packer.service import error_of
from packer.starting import ForkSafeLock, python_command

ATTEMPTS = 4  # runs in succession that end without a further row
_LOOK_SECONDS = 0.005  # interval between looks at the frontier
_ALIVE_SECONDS = 0.2  # interval between looks whether the process lives
_PATIENCE_SECONDS = 30.0  # wait for others that start processes in the same folder; they may fill other packs
_END_SECONDS = 5.0  # wait for the end of a process that nobody needs


class Filling:
    """The access to a pack that a process of its own converts; see Units. Thread-safe; works after fork and
    unpickling.

    out: the pack's name; folder: where it is made; job: source and options, JSON; cwd: directory that
    relative names in the job refer to; module: its ``main`` converts; plan: digest of the pack's description,
    0 until it is known.
    """

    ahead_bytes = None
    _owned = False  # by a dataset, which may close it
    _told = False  # that another packer writes it
    _heard = False  # why earlier work was discarded

    def __init__(
        self, out: str, job: str, cwd: str, module: str, plan: int = 0, sealed: bool = False
    ) -> None:
        self.out, self.folder, self.plan = out, out + PARTIAL_SUFFIX, plan
        self._job, self._cwd, self._module = job, cwd, module
        self._log = logging.getLogger(module.rpartition(".")[0])
        self._sealed = sealed
        self._lock = ForkSafeLock()
        self._frontier: Frontier | None = None
        self._readers: Readers | None = None
        self._closing: Counter[int] = Counter()  # calls of `closing` in progress, by process
        self._inode, self._pid = 0, 0  # of the unfinished pack; of the process that joined the readers
        self._starts, self._best = 0, 0  # starts since the frontier was last higher; its highest

    def __reduce__(self) -> tuple[Any, ...]:
        return Filling, (self.out, self._job, self._cwd, self._module, self.plan, self.sealed)

    @property
    def sealed(self) -> bool:
        """True once the pack is complete under its name."""
        frontier = self._frontier
        if frontier is not None and frontier.outcome == SEALED and frontier.plan == self.plan:
            self._sealed = True
        return self._sealed

    def arrival(self, array: str) -> None:
        """Return None: open_rows waits for the rows of such packs."""

    def path(self, file: str) -> str:
        """Return the path of a file of the complete pack."""
        return os.path.join(self.out, file) if file else self.out

    def exclusive(self) -> Filling:
        """Return this object to the first caller and a copy to every other; each dataset closes its own."""
        if self._owned:
            return copy(self)
        self._owned = True
        return self

    def describe(self, progress: Callable[[int, int], object] = lambda done, total: None) -> bytes:
        """Return the pack's description once it is known; b"" if the pack is complete.

        progress: called with items done and their total until then. Raises PackerError.
        """
        while (frontier := self._live()) is not None:
            if frontier.outcome == SEALED:
                self._hear(frontier)
                self._frontier = None
                continue
            if (plan := frontier.plan) != 0:
                with suppress(FileNotFoundError):
                    data = pread_path(os.path.join(self.folder, DESCRIBED), 2 * MAX_HEADER_BYTES, 0)
                    if digest_of(data) == plan:
                        self.plan = plan
                        return data
            progress(*frontier.progress)
            self._pause(frontier)
        if (ended := self._frontier) is not None:
            self._hear(ended)
        return b""

    def wait(self, rows: int) -> Frontier | None:
        """Wait until rows [0, rows) can be read; return the frontier, None if the pack is complete.

        Raises PackerError if a row cannot be made, the process keeps dying, or another pack is made here.
        """
        line = 0.0
        while (frontier := self._live()) is not None:
            if frontier.rows >= rows and frontier.plan == self.plan:
                if rows and not self._heard:
                    self._hear(frontier)
                return frontier
            self._pause(frontier)
            line = line or time.monotonic() + LINE_SECONDS
            if time.monotonic() > line:
                line += LINE_SECONDS
                made, total = frontier.rows, frontier.progress[1]
                self._log.warning(
                    "%s: waits for row %d; %d of %d rows are made", self.out, rows - 1, made, total
                )
        return None

    def unchanged(self, frontier: Frontier | None) -> bool:
        """Return True if what was read since `wait` returned this is of this pack."""
        return frontier is None or frontier.plan == self.plan

    def wait_sealed(self) -> None:
        """Wait until the pack is complete. Raises PackerError."""
        while (frontier := self._live()) is not None:
            self._pause(frontier)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Leave, and refuse waits until the end of the block, in which the waiting threads are ended."""
        process = os.getpid()
        self._seal()
        self._closing[process] += 1
        try:
            self._leave()
            yield
        finally:
            self._closing[process] -= 1

    def close(self) -> None:
        """Leave; if nobody else reads, wait until the process has released or sealed the pack."""
        self._seal()
        self._leave()

    def _hear(self, frontier: Frontier) -> None:
        self._heard = True
        if frontier.outcome != FAILED and (why := frontier.text):
            self._log.warning(
                "%s: earlier work on it was discarded, because the source or the options changed: %s",
                self.out,
                why,
            )

    def _live(self) -> Frontier | None:
        """Return the frontier; None if the pack is complete."""
        if self.sealed:
            return None
        return self._frontier or self._attach()

    def _pause(self, frontier: Frontier) -> None:
        """Wait until the frontier changes, or a moment; raise the process's error; leave one that has died."""
        until, before = time.monotonic() + _ALIVE_SECONDS, frontier.state
        while (changed := frontier.state != before) is False and time.monotonic() < until:
            self._check_open()
            time.sleep(_LOOK_SECONDS)
        alive = changed or frontier.alive
        if frontier.outcome == FAILED:
            raise error_of(frontier.text)
        if self.plan and frontier.plan not in (0, self.plan):
            raise self._changed()
        if frontier.outcome == SEALED or alive:
            return
        with self._lock:
            if self._frontier is frontier:
                self._frontier = self._readers = None
                self._inode = frontier.inode or self._inode
                if frontier.rows > self._best:
                    self._best, self._starts = frontier.rows, 0

    def _check_open(self) -> None:
        if self._closing[os.getpid()]:
            raise PackerError(f"{self.out}: was closed while its rows were being converted. Iterate again.")

    def _attach(self) -> Frontier | None:
        """Return the frontier of a living process, started if there is none; None if the pack is complete.

        Raises PackerError.
        """
        patience = time.monotonic() + _PATIENCE_SECONDS
        with self._lock, _limits(self.out):
            while self._frontier is None and not self._sealed:
                self._check_open()
                with suppress(BusyError), ExitStack() as turn:
                    self._frontier = self._find()
                    mine = self._frontier is None and not self._is_busy()
                    if mine and (self._turn(turn) or time.monotonic() > patience):
                        self._frontier = self._start()
                if self._frontier is None:
                    time.sleep(_LOOK_SECONDS)
            return self._frontier

    def _find(self) -> Frontier | None:
        """Return the frontier of a living process that makes this pack, None if there is none.

        Raises UsageError if it makes another; BusyError if it is ending.
        """
        try:
            frontier = Frontier(os.path.join(self.folder, FRONTIER))
            if not frontier.alive:
                return None
            readers = Readers(os.path.join(self.folder, READERS))
            with open(os.path.join(self.folder, JOB), encoding="ascii") as file:
                theirs = file.read()
        except FileNotFoundError:
            return None
        if theirs != self._job and (differs := difference(json.loads(theirs), json.loads(self._job))):
            raise UsageError(
                f"{self.out}: is being filled from other images, or with other options: {differs}. Pass the"
                " same, or another name."
            )
        if frontier.outcome == SEALED or not readers.join() or not frontier.alive:
            raise BusyError(f"{self.out}: the process that fills it is ending.")
        self._readers, self._pid = readers, os.getpid()
        return frontier

    def _start(self) -> Frontier | None:
        """Start the process; return its frontier, None if the pack is complete or it died.

        Raises PackerError.
        """
        if self._starts >= ATTEMPTS:
            self._starts = 0
            raise PackerError(
                f"{self.out}: the process that fills it died {ATTEMPTS} times. Finished rows are kept. Check"
                " its message on stderr, the limits on files and processes (ulimit -n, ulimit -u), and"
                " whether memory ran out."
            )
        self._starts += 1
        call = f"from packer.service import detach; detach(); from {self._module} import main; main()"
        cwd = self._cwd if os.path.isdir(self._cwd) else None
        command = python_command(call, self.folder)
        with Popen(command, cwd=cwd, stdin=PIPE, stdout=PIPE) as process:
            assert process.stdin
            assert process.stdout
            told = b""
            with suppress(BrokenPipeError):
                process.stdin.write(self._job.encode("ascii") + b"\n")
                process.stdin.flush()
                told = process.stdout.read()
            kind, *error = json.loads(told or b'["died"]')
            if kind == "error":
                raise error_of(error)
            if kind == "complete" and self._inode not in (0, inode_of(self.out)):
                raise self._changed()
            self._sealed = kind == "complete"
            # The process waits for the end of its standard input before it looks whether anybody reads.
            return self._find() if kind == "filling" else None

    def _is_busy(self) -> bool:
        """Return True if another packer converts the pack."""
        busy = is_locked(self.folder)
        if busy and not self._told:
            self._told = True
            self._log.warning("%s: is being converted by another process; waiting for it", self.out)
        return busy

    def _turn(self, turn: ExitStack) -> bool:
        """Return True if it is this process's turn to start the converting one.

        A lock on the output's folder lets one of several readers start it. If the pack exists, each has it
        compared.
        """
        with suppress(OSError):  # no such folder, or a file system without locks
            if not os.path.lexists(self.out):
                return turn.enter_context(locked(os.path.dirname(self.folder), patience=0))
        return True

    def _seal(self) -> None:
        """Wait for the pack's name if all rows are there; warn if sealing fails (rows can be read)."""
        frontier = self._frontier
        if frontier is not None and not self.sealed and 0 < frontier.progress[1] == frontier.rows:
            try:
                self.wait_sealed()
            except PackerError as error:
                self._log.warning("%s", error)

    def _leave(self) -> None:
        """Be no reader any more; wait a little for a process that nobody needs."""
        with self._lock:
            frontier, readers = self._frontier, self._readers
            self._frontier = self._readers = None
            self._starts = 0
        if readers is not None and frontier is not None:
            alone = self._pid == os.getpid() and readers.leave()  # else the lock is a parent's too
            readers.close()
            until = time.monotonic() + _END_SECONDS
            while alone and frontier.alive and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)

    def _changed(self) -> FormatError:
        return FormatError(
            f"{self.out}: was replaced or started over after it was opened, because its images changed. Open"
            " it again."
        )

    def check_same(self, header: Header, found: Header) -> None:
        """Raise FormatError if a complete pack is not the one that was described."""
        names = ("rows", "fields", "classes", "seed", "provenance", "splits")
        if any(getattr(header, name) != getattr(found, name) for name in names):
            raise FormatError(f"{self.out}: was replaced after it was opened. Open it again.")


@contextmanager
def _limits(out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PackerError(
            f"{out}: the process that fills it cannot be started or joined ({error.strerror or error}). Raise"
            " the limits (ulimit -n, -u, -v), or pass a name on another disk."
        ) from error


def digest_of(data: bytes) -> int:
    """Return the digest of a description, never 0."""
    return block_checksum(np.frombuffer(data, np.uint8)) >> 1 or 1


@dataclass(frozen=True)
class FillingPack(Pack):
    """An unfinished pack: its header, and rows as they arrive. path: its future name.

    root: what the conversion writes, the pack or a file in its working folder; parts_rows: name and rows of
    each shard, or "" and all rows; known: arrays that can be read at once.
    """

    units: Filling = field(kw_only=True)
    root: str = field(kw_only=True)
    parts_rows: tuple[tuple[str, int], ...] = field(kw_only=True)
    known: frozenset[str] = field(kw_only=True)

    @classmethod
    def of(cls, units: Filling, description: bytes) -> FillingPack:
        """Return the pack of a description."""
        header, _, more = description.rpartition(b"\n")
        about = json.loads(more)
        return cls(
            units.out,
            Header.from_bytes(header, units.out),
            b"",
            units=units,
            root=os.path.join(os.path.dirname(units.out), about["root"]),
            parts_rows=tuple((name, rows) for name, rows in about["parts"]),
            known=frozenset(about["known"]),
        )

    @property
    def pending(self) -> bool:
        """See Pack."""
        return not self.units.sealed

    @property
    def firsts(self) -> NDArray[np.int64]:
        """First row of each part, and the number of rows."""
        return np.cumsum([0, *(rows for _, rows in self.parts_rows)])

    def part(self, number: int) -> Pack:
        """Return a part as it is now: sealed, or growing in its working folder (then without a seal).

        It only moves forward, from its working folder to one name after the other. Raises FormatError.
        """
        pack, *names = self._places(number)
        with suppress(FileNotFoundError):
            data = pread_path(os.path.join(os.path.dirname(pack), PART), MAX_HEADER_BYTES, 0)
            if os.path.lexists(pack):
                return Pack(pack, Header.from_bytes(data, pack), b"")
        for name in names[:-1]:
            with suppress(FormatError):
                return open_pack(name)
        return open_pack(names[-1])

    def moved(self, number: int) -> bool:
        """Return True once a part has left its working folder."""
        return not os.path.lexists(self._places(number)[0])

    def _places(self, number: int) -> list[str]:
        """Return the paths where a part lies, one after the other; the first while it grows."""
        file, work = self.parts_rows[number][0], self.root + PARTIAL_SUFFIX
        names = [self.root, self.path]
        if file:
            names = [os.path.join(name, file) for name in (os.path.join(work, "pack"), *names)]
            work = names[0] + PARTIAL_SUFFIX
        return [os.path.join(work, "pack"), *dict.fromkeys(names)]

    @property
    def known_pack(self) -> Pack:
        """The arrays that are known before the rows are made, as a pack."""
        return Pack(os.path.join(self.units.folder, KNOWN), self.header, b"")

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """See Pack; waits for the complete pack, except for arrays that are known before."""
        if name in self.known and not self.units.sealed:
            with suppress(FileNotFoundError):
                return self.known_pack.read(name, start, stop)
        return self.complete.read(name, start, stop)

    def read_blob(self, name: str, start: int, stop: int) -> tuple[NDArray[np.int64], bytes]:
        """See Pack; waits as `read` does."""
        if name in self.known and not self.units.sealed:
            with suppress(FileNotFoundError):
                return self.known_pack.read_blob(name, start, stop)
        return self.complete.read_blob(name, start, stop)

    @cached_property
    def complete(self) -> Pack:
        """The complete pack; waits for it. Raises PackerError."""
        self.units.wait_sealed()
        return self.settled()

    def settled(self) -> Pack:
        """See Pack."""
        if not self.units.sealed:
            return self
        pack = replace(open_pack(self.path), filled=self.filled)
        self.units.check_same(self.header, pack.header)
        return pack

    def check_same(self) -> None:
        """Do nothing: each read looks whether this pack is still being made."""

    def check_part(self, file: str) -> None:
        """See check_same."""
