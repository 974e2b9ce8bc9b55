"""FillingClient: asks the process that fills a pack for units, and starts that process where there is none."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BusyError, PackerError
from packer.format.file_io import inode_of, locked
from packer.format.unit_states import MISSING, STATES, map_states
from packer.format.working_folder import is_locked
from packer.orders.runs import Runs
from packer.service import Service, connect, error_of, exchange, send, start

SOCKET = "socket"
KEYS = "keys"  # the files of the keys, beside the pack: the pack gets them when it is sealed
_TURN_SECONDS = 0.05  # between looks at whether another process has come so far as to listen
_PATIENCE_SECONDS = 30.0  # with others who start processes in the same folder: they may be for other packs
_END_SECONDS = 5.0  # for a process that nobody needs to end

_LOG = logging.getLogger("packer.filling")


class _SealedError(Exception):
    """The pack is whole: there is nobody to ask, nor a need to."""


class FillingClient(Service):
    """A client of the process that fills one pack. Thread-safe; works again after fork and unpickling.

    folder: where the pack is being filled. job: what it is made of, plain JSON values; module: whose ``main`` the process runs.
    ready: what the process told of the pack last.
    """

    attempts = 3
    _owned = False  # by a dataset, which may close it
    _warned = False

    def __init__(
        self,
        folder: str,
        job: Mapping[str, Any],
        module: str,
        cwd: str | None = None,
        ready: dict[str, Any] | None = None,
        sealed: bool = False,
    ) -> None:
        """cwd: from where names in the job lead. The others: of a client that this one is a copy of."""
        super().__init__()
        self.folder, self.job, self._module = folder, dict(job), module
        self._cwd = os.getcwd() if cwd is None else cwd
        self.ready: dict[str, Any] = ready or {}
        self._sealed = sealed
        # Of each unit, and at the end of the pack: units made by the process that sealed it, and one.
        self._states: NDArray[np.uint64] | None = None
        self._progress: Callable[[int, int], object] = lambda done, total: None
        self._key = secrets.token_hex(8)
        self._open: weakref.WeakKeyDictionary[socket.socket, int] = weakref.WeakKeyDictionary()  # by process
        self._closing = 0  # calls of `closing` under way

    def __reduce__(self) -> tuple[Any, ...]:
        of = (self.folder, self.job, self._module, self._cwd, self.ready, self.sealed)
        return FillingClient, of

    @property
    def sealed(self) -> bool:
        """True once the pack is whole and has its name."""
        return self._sealed or (self._states is not None and bool(self._states[-1] != MISSING))

    @property
    def ahead_bytes(self) -> int | None:
        """See Pack."""
        return None if self.sealed else 0

    def arrival(self, array: str) -> FillingClient | None:
        """Return itself for arrays whose rows are made one by one; the others are there."""
        return self if array in self.ready["made"] else None

    def path(self, file: str) -> str:
        """Return the path of a file of the pack, or of its keys while it is not whole."""
        if file.startswith(KEYS):
            return os.path.join(self.folder, file)
        pack = os.path.join(self.folder, "pack")
        if not os.path.lexists(pack):  # it has got its name, and is the same file
            pack = self.job["out"]
        return os.path.join(pack, file) if file else pack

    def own(self) -> FillingClient:
        """Return this client to the first caller, and a copy of it to every other: each dataset closes its own."""
        if self._owned:
            return copy(self)
        self._owned = True
        return self

    def open(self, progress: Callable[[int, int], object]) -> bytes:
        """Connect, starting the process if need be; return the pack's header, b"" if it is whole already.

        progress: called with units done and units in all while the pack is made before anything can be read from it.
        Raises PackerError.
        """
        self._progress = progress
        return self._ask("open")

    def wait(self, units: NDArray[np.int64]) -> None:
        """Return once all of the units are there. Raises PackerError if one cannot be made, or the process dies again and again."""
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
        """Ask for rows that will be needed soon; see Arrival."""
        if self._open and not self.sealed and len(units := self._missing(Runs(starts, lengths).rows())):
            self._ask("ahead", units)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Leave, and refuse waits until the end of the block, in which the threads that wait are ended."""
        self._seal()
        self._closing += 1
        try:
            self._leave()
            yield
        finally:
            self._closing -= 1

    def close(self) -> None:
        """Leave; wait for the end of the process if nobody else needs it, so that it has let go of the pack or sealed it."""
        self._seal()
        self._leave()

    def _seal(self) -> None:
        """Wait until the pack has its name, if all units are there; warn if it cannot get it: rows are read as before."""
        if self._states is not None and self._states[:-1].all() and not self.sealed:
            try:
                self._ask("wait", [len(self._states) - 1])
            except PackerError as error:
                _LOG.warning("%s", error)

    def _leave(self) -> None:
        """End the waits of this process, and say so on a connection that is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
            made, self._open = self._open, weakref.WeakKeyDictionary()
        own = [connection for connection, age in idle if age[0] == os.getpid()]  # not those of a parent
        last = own.pop() if own else connect(self._socket)
        for connection, process in list(made.items()):
            if connection is not last and process == os.getpid():
                with suppress(OSError):  # it is closed
                    connection.shutdown(socket.SHUT_RDWR)
        for connection, _ in idle:
            if connection is not last:
                connection.close()
        if last is not None:
            last.settimeout(_END_SECONDS)
            with last, suppress(EOFError, OSError):
                exchange(last, self._request("bye"))

    def _check_open(self) -> None:
        if self._closing:
            raise PackerError(
                f"{self.job['out']}: was closed while rows of it were being made. Iterate again."
            )

    def _missing(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return units if self._states is None else units[self._states[units] == MISSING]

    @property
    def _socket(self) -> str:
        return os.path.join(self.folder, SOCKET)

    def _request(self, kind: str) -> list[Any]:
        return [kind, self.job, f"{os.getpid()}-{self._key}"]

    def _ask(self, kind: str, units: NDArray[np.int64] | Sequence[int] = ()) -> bytes:
        """Have a request answered; return the bytes of the answer, none if the pack is sealed meanwhile."""
        with suppress(_SealedError):
            told, data = self.ask(self._request(kind), np.asarray(units, "<i8").tobytes())
            self._hear(told)
            return bytes(data)
        return b""

    def _hear(self, told: dict[str, Any]) -> None:
        """Take in what the process tells. Raises _SealedError; PackerError if other files are filled than those in use."""
        before, now = self.ready.get("place"), told.get("place")
        if before is not None:
            now = now or {**before, "files": inodes(self.job["out"], dict(before["files"]))}
            if before != now:
                raise PackerError(
                    f"{self.job['out']}: was begun anew while it was in use; its images have changed, or"
                    f" {self.folder} was removed. Open it again."
                )
        if "sealed" in told:
            self._sealed = True
            raise _SealedError
        try:
            if self._states is None:
                self._states = map_states(os.path.join(self.folder, STATES), told["units"] + 1, "<u8")
        except FileNotFoundError:  # sealed meanwhile, and gone
            raise
        except (OSError, ValueError) as error:  # a limit of files or memory; cut short
            raise PackerError(
                f"{self.folder}: cannot be read ({getattr(error, 'strerror', None) or error})."
                " Check the permissions, and ulimit -n."
            ) from None
        self.ready = told

    def _connect(self) -> socket.socket:
        """See Service; the process has the same pack in mind. Raises _SealedError."""
        deaths, waits, patience = 0, False, time.monotonic() + _PATIENCE_SECONDS
        while deaths < self.attempts:
            self._check_open()
            if self.sealed:
                raise _SealedError
            with ExitStack() as turn, suppress(BusyError):
                mine = self._turn(turn) or time.monotonic() > patience
                connection = connect(self._socket)
                if connection is None and mine and not (waits := is_locked(self.folder)):
                    connection = self._start()
                if connection is not None:
                    try:
                        self._greet(connection, turn)
                        return connection
                    except BaseException as error:
                        connection.close()
                        if not isinstance(error, EOFError | OSError):
                            raise
                        deaths += 1  # or it was just about to end
            if waits and not self._warned:
                self._warned = True
                _LOG.warning("%s: is being made by another process; waiting for it", self.job["out"])
            time.sleep(_TURN_SECONDS)
        raise PackerError(
            f"{self.job['out']}: the process that fills it ends at once. See its message on stderr."
        )

    def _greet(self, connection: socket.socket, turn: ExitStack) -> None:
        """Hear what a process tells of the pack. turn: closed once it has looked at the source.

        Raises PackerError, EOFError, OSError.
        """

        def moved(done: int, total: int) -> None:
            turn.close()
            self._progress(done, total)

        self._open[connection] = os.getpid()
        self._check_open()
        (done, told), _ = exchange(connection, self._request("open"), progress=moved)
        if not done:
            raise error_of(told)
        if (cleared := told.get("cleared")) and cleared != self.ready.get(
            "cleared"
        ):  # not for each connection
            _LOG.warning(
                "%s: what had been done of it was cleared, since it is made of others now: %s",
                self.job["out"],
                cleared,
            )
        self._hear(told)

    def _turn(self, turn: ExitStack) -> bool:
        """Return True if it is this client's turn to start the process.

        Of several that begin at once only one looks at the source: they lock the folder in which the pack will be.
        A pack that is there is looked at by each.
        """
        with suppress(OSError):  # no such folder, or a file system without locks
            if not os.path.lexists(self.job["out"]):
                return turn.enter_context(locked(os.path.dirname(self.folder), patience=0))
        return True

    def _start(self) -> socket.socket:
        """Start the process that fills; the socket that it gets makes this process its first client."""
        try:
            connection = start(self._module, self.folder, cwd=self._cwd if os.path.isdir(self._cwd) else None)
        except OSError as error:
            raise PackerError(
                f"{self.job['out']}: the process that fills it cannot be started ({error.strerror or error}). Raise the limits of files"
                " and processes (ulimit -n, ulimit -u)."
            ) from None
        with suppress(OSError):  # it was killed already, which who greets it sees
            send(connection, self.job)
        return connection

    def _died(self, request: Any, error: BaseException) -> PackerError:
        return PackerError(
            f"{self.job['out']}: the process that fills it died {self.attempts} times. What has been done is kept;"
            " look at the system's log for the reason, such as a lack of memory."
        )


def inodes(pack: str, files: Iterable[str]) -> list[list[Any]]:
    """Return the name and the inode of each of a pack's files, "" being the pack."""
    return [[file, inode_of(os.path.join(pack, file) if file else pack)] for file in sorted(files)]
