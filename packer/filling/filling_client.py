"""FillingClient: requests units from the process that fills a pack; starts it if there is none."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BusyError, FormatError, PackerError
from packer.format.file_io import inodes, locked
from packer.format.header import PARTIAL_SUFFIX
from packer.format.unit_states import KEYS, MISSING, SOCKET, STATES, map_states
from packer.format.working_folder import is_locked
from packer.orders.runs import Runs
from packer.service import Service, connect, error_of, exchange, start

MODULE = "packer.filling.filling_process"
_TURN_SECONDS = 0.05  # interval between checks whether another process is listening by now
_PATIENCE_SECONDS = 30.0  # wait for others that start processes in the same folder; they may fill other packs
_END_SECONDS = 5.0  # wait for the end of a process that nobody needs

_LOG = logging.getLogger("packer.filling")


class _SealedError(Exception):
    """The pack is complete: no process needs to be asked."""


class FillingClient(Service):
    """A client of the process that fills one pack. Thread-safe; usable after fork and unpickling.

    out: the pack's name; folder: where it is filled;
    job: source, out and options as JSON;
    cwd: directory that relative names in the job refer to;
    ready: description of the pack, once the process has sent it; sealed: True once the pack is complete.
    """

    attempts = 4
    _owned = False  # by a dataset, which may close it
    _warned = False

    def __init__(
        self, out: str, job: bytes, cwd: str, ready: Mapping[str, Any] | None = None, sealed: bool = False
    ) -> None:
        super().__init__()
        self.out, self.folder, self._job, self._cwd = out, out + PARTIAL_SUFFIX, job, cwd
        self.ready: Mapping[str, Any] = ready or {}
        self._sealed, self._header = sealed, b""
        # State of each unit; the last entry belongs to the pack: 1 + the units that the sealing process
        # produced.
        self._states: NDArray[np.uint64] | None = None
        self._progress: Callable[[int, int], object] = lambda done, total: None
        self._key = secrets.token_hex(8)
        self._closing: Counter[int] = Counter()  # calls of `closing` in progress, by process

    def __reduce__(self) -> tuple[Any, ...]:
        return FillingClient, (self.out, self._job, self._cwd, self.ready, self.sealed)

    @property
    def sealed(self) -> bool:
        """True once the pack is complete under its final name."""
        return self._sealed or (self._states is not None and bool(self._states[-1] != MISSING))

    @property
    def ahead_bytes(self) -> int | None:
        """See Pack."""
        return None if self.sealed else 0

    def arrival(self, array: str) -> FillingClient | None:
        """Return this client for arrays whose rows are produced one by one; None if all rows are there."""
        return self if array in self.ready["made"] else None

    def path(self, file: str) -> str:
        """Return the path of a file of the pack, or of its keys while it is filled."""
        if file.startswith(KEYS):
            return os.path.join(self.folder, file)
        pack = os.path.join(self.folder, "pack")
        if not os.path.lexists(pack):  # the same file, now under its final name
            pack = self.out
        return os.path.join(pack, file) if file else pack

    def exclusive(self) -> FillingClient:
        """Return this client to the first caller and a copy to every other; each dataset closes its own."""
        if self._owned:
            return copy(self)
        self._owned = True
        return self

    def open(self, progress: Callable[[int, int], object]) -> bytes:
        """Connect, starting the process if needed; return the pack's header, b"" if the pack is complete.

        progress: called with units done and total units while the pack is converted before anything can be
        read. Raises PackerError.
        """
        self._progress = progress
        self._ask("wait")
        return self._header

    def wait(self, units: NDArray[np.int64]) -> None:
        """Wait until all units are there.

        Raises PackerError if a unit cannot be produced or the process keeps dying.
        """
        if not self.sealed:
            self._check_open()
            if len(units := self._missing(units)):
                self._ask("wait", units)

    def take(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        """Wait for rows; see Arrival."""
        if not self.sealed:
            self.wait(Runs(starts, lengths).rows())
        return False

    def ahead(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Request rows that will be needed soon; see Arrival."""
        if self._made and not self.sealed and len(units := self._missing(Runs(starts, lengths).rows())):
            self._ask("ahead", units)

    def check_same(self) -> None:
        """Raise FormatError if the pack's files are not those that the process described."""
        files = self.ready["files"]
        if inodes(self.path(""), dict(files)) != files and inodes(self.out, dict(files)) != files:
            raise self._changed()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Disconnect, and refuse waits until the end of the block, in which the waiting threads are ended."""
        process = os.getpid()
        self._seal()
        self._closing[process] += 1
        try:
            self._leave()
            yield
        finally:
            self._closing[process] -= 1

    def close(self) -> None:
        """Disconnect; if nobody else needs the process, wait until it has released or sealed the pack."""
        self._seal()
        self._leave()

    def _seal(self) -> None:
        """Wait for the pack's final name if all units are there; warn if sealing fails (rows can be read)."""
        if self._states is not None and self._states[:-1].all() and not self.sealed:
            try:
                self._ask("wait", [len(self._states) - 1])
            except PackerError as error:
                _LOG.warning("%s", error)

    def _leave(self) -> None:
        """End the waits of this process, and announce it on an idle connection."""
        with self._lock:
            idle, self._idle = self._idle, []
            own = [one for one, (process, _) in self._made.items() if process == os.getpid()]
            self._made.clear()
        last = next((one for one in idle if one in own), None) or connect(self._socket)
        for connection in own:
            if connection is not last:
                with suppress(OSError):  # it is closed
                    connection.shutdown(socket.SHUT_RDWR)
        for connection in idle:
            if connection is not last:
                connection.close()
        if last is not None:
            last.settimeout(_END_SECONDS)
            with last, suppress(EOFError, OSError):
                exchange(last, self._request("bye"))

    def _check_open(self) -> None:
        if self._closing[os.getpid()]:
            raise PackerError(f"{self.out}: was closed while its rows were being converted. Iterate again.")

    def _missing(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return units if self._states is None else units[self._states[units] == MISSING]

    @property
    def _socket(self) -> str:
        return os.path.join(self.folder, SOCKET)

    def _request(self, kind: str) -> list[str]:
        return [kind, f"{os.getpid()}-{self._key}"]

    def _ask(self, kind: str, units: NDArray[np.int64] | Sequence[int] = ()) -> None:
        """Send a request, unless the pack is complete. Raises PackerError."""
        with suppress(_SealedError):
            self.ask(self._request(kind), np.asarray(units, "<i8").tobytes())

    def _connect(self) -> socket.socket:
        """See Service; checks that the process fills the same pack. Raises _SealedError."""
        patience = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._check_open()
            if self.sealed:
                raise _SealedError
            with ExitStack() as turn, suppress(BusyError):
                mine = self._turn(turn) or time.monotonic() > patience
                connection = connect(self._socket)
                if connection is None and mine and not self._is_locked():
                    cwd = self._cwd if os.path.isdir(self._cwd) else None
                    connection = start(MODULE, self.folder, cwd=cwd)
                if connection is not None:
                    return self._greeted(connection, turn)
            time.sleep(_TURN_SECONDS)

    def _is_locked(self) -> bool:
        """Return True if another process converts the pack without serving, or without serving yet."""
        busy = is_locked(self.folder)
        if busy and not self._warned:
            self._warned = True
            _LOG.warning("%s: is being converted by another process; waiting for it", self.out)
        return busy

    def _turn(self, turn: ExitStack) -> bool:
        """Return True if it is this client's turn to start the process.

        A lock on the output's folder lets only one of several simultaneous clients read the source. If the
        pack exists, every client reads it.
        """
        with suppress(OSError):  # no such folder, or a file system without locks
            if not os.path.lexists(self.out):
                return turn.enter_context(locked(os.path.dirname(self.folder), patience=0))
        return True

    def _greeted(self, connection: socket.socket, turn: ExitStack) -> socket.socket:
        """Return the connection once its process has described the pack.

        turn: closed once the process reads the source.
        Raises _SealedError; PackerError, EOFError, OSError.
        """

        def moved(done: int, total: int) -> None:
            turn.close()
            self._progress(done, total)

        with self._lock:
            self._made[connection] = os.getpid(), self._deaths  # it can be closed meanwhile
        try:
            self._check_open()
            (done, told), header = exchange(connection, self._request("open"), self._job, moved)
            if not done:
                raise error_of(told)
            self._hear(*told)
        except BaseException:
            connection.close()
            raise
        self._header = bytes(header)
        return connection

    def _hear(self, ready: Mapping[str, Any] | None, cleared: str) -> None:
        """Take over the process's description of the pack, None if complete, and why earlier work was
        discarded.

        Raises _SealedError; FormatError if other files are filled than those in use; OSError.
        """
        if cleared and not self.ready:
            _LOG.warning(
                "%s: earlier work on it was discarded, because the source or the options changed: %s",
                self.out,
                cleared,
            )
        if ready is None:
            if self.ready:
                self.check_same()
            self._sealed = True
            raise _SealedError
        if self.ready and self.ready != ready:
            raise self._changed()
        if self._states is None:
            self._states = map_states(os.path.join(self.folder, STATES), ready["units"] + 1, "<u8")
        self.ready = ready

    def _changed(self) -> FormatError:
        return FormatError(
            f"{self.out}: was replaced or started over after it was opened; its images changed, or"
            f" {self.folder} was removed. Open it again."
        )

    def _died(self, request: Any, error: BaseException) -> PackerError:
        why = str(error) or "it died"
        return PackerError(
            f"{self.out}: the process that fills it failed {self.attempts} times ({why}). Finished rows are"
            " kept."
            " Check its message on stderr, the limits on files and processes (ulimit -n, ulimit -u), and"
            " whether"
            " memory ran out."
        )
