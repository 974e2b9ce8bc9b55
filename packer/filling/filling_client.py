"""FillingClient: asks the process that fills a pack for units, and starts that process where there is none."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.filling.filling_messages import (
    AHEAD,
    BYE,
    HELLO,
    STATES,
    WAIT,
    Link,
    connect,
    error_content,
    error_of,
    receive,
    send_json,
    send_units,
)
from packer.filling.unit_states import MISSING, UnitStates
from packer.starting import start

_TURN_SECONDS = 0.05  # between looks at whether another process has come so far as to listen
_MESSAGE_UNITS = 2000  # that a message asks for
_ATTEMPTS = 3  # processes that die one after the other, before this one gives up
_BEGIN = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main(int(sys.argv[2]))"

_LOG = logging.getLogger("packer.filling")
_helpers: list[subprocess.Popen[bytes]] = []


class FillingClient:
    """A client of the process that fills one pack. Thread-safe; works again after fork and unpickling.

    folder: where the pack is being filled. job: what it is made of, plain JSON values; module: whose ``main`` the process runs.
    seals: whether the process seals the pack, and ends, once all units are there. sealed: True once the pack is whole and has its
    name; made: rows that the process which sealed it had made itself. ready: what the process told when this one connected last.
    """

    def __init__(self, folder: str, job: Mapping[str, Any], module: str, *, seals: bool = True) -> None:
        self.folder, self.job, self._module, self._seals = folder, dict(job), module, seals
        self.sealed, self.made = False, 0
        self.ready: dict[str, Any] = {}
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        names = ("folder", "job", "_module", "_seals", "sealed", "ready")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.made = 0
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()  # of sending, and of what is waited for
        self._link: Link[Any, Any] | None = None
        self._states: UnitStates | None = None
        self._waiting: dict[int, _Wait] = {}
        self._number = 0
        self._ended = threading.Event()  # the connection has
        self._last = False
        self._closed = False

    def open(self, progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any] | None:
        """Connect, starting the process if need be; return what it tells of the pack, None if the pack is whole already.

        progress: called with units done and units in all while the pack is made before anything can be read from it.
        Raises PackerError.
        """
        with self._lock:
            return self._open(progress)

    def wait(self, units: NDArray[np.int64]) -> None:
        """Return once all of the units are there. Raises PackerError if one cannot be made, or the process dies again and again."""
        if self._pid != os.getpid():
            self._renew()
        for _ in range(_ATTEMPTS):
            if self.sealed:
                return
            with self._lock:
                if self._link is None and self._open(lambda done, total: None) is None:
                    return
                assert self._states is not None
                waits = [self._ask(some) for some in _pieces(self._states.missing(units))]
            for waiting in waits:
                waiting.event.wait()
            if error := next((waiting.error for waiting in waits if waiting.error is not None), None):
                raise error_of(error_content(error))  # one for each thread
            if all(waiting.done for waiting in waits):
                return
            if any(waiting.closed for waiting in waits):
                raise PackerError(
                    f"{self.job['out']}: was closed while rows of it were being made. Iterate again."
                )
        raise PackerError(
            f"{self.job['out']}: the process that fills it died {_ATTEMPTS} times. What has been done is kept; look at the system's log"
            " for the reason, such as a lack of memory."
        )

    def states(self, units: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the states of units; all are missing before the first wait."""
        states = None if self._pid != os.getpid() else self._states
        return np.full(len(units), MISSING, np.uint64) if states is None else states.values[units]

    def ahead(self, units: NDArray[np.int64]) -> None:
        """Ask for units that will be needed soon."""
        if self.sealed or self._pid != os.getpid():
            return
        with self._lock:
            if self._link is not None and self._states is not None:
                for some in _pieces(self._states.missing(units)):
                    self._send(AHEAD, some)

    def close(self) -> None:
        """Leave; wait for the end of the process if nobody else needs it, so that it has let go of the pack or sealed it."""
        if self._pid != os.getpid():
            return
        for _ in range(_ATTEMPTS):
            with self._lock:
                full = self._seals and self._states is not None and bool(self._states.values.all())
                if full and not self.sealed and self._link is None:
                    self._open(lambda done, total: None)  # it died before it had sealed the pack
                if self._link is None:
                    break
                self._closed = not full
                if not full:
                    with contextlib.suppress(OSError):
                        self._link.send_bytes(BYE)
            self._ended.wait()  # full: it seals the pack, and then ends
            self._closed = False
            if not full or self.sealed:
                break
        self._hear_end()

    def _open(self, progress: Callable[[int, int], None]) -> dict[str, Any] | None:
        deaths = 0
        while True:
            with self._turn() as mine:
                link = connect(self.folder) or (self._start() if mine else None)
                answer = None if link is None else self._greet(link, progress)
            if link is None:
                time.sleep(_TURN_SECONDS)
                continue
            if answer is None:  # it was just about to end, or died
                link.close()
                deaths += self._died()
                if deaths >= _ATTEMPTS:
                    raise PackerError(
                        f"{self.job['out']}: the process that fills it ends at once. See its message on stderr."
                    )
                time.sleep(_TURN_SECONDS)
                continue
            if "ready" in answer:
                try:
                    self._states = UnitStates(os.path.join(self.folder, STATES), answer["ready"]["units"])
                except OSError:  # sealed meanwhile, and gone
                    link.close()
                    continue
                self._join(link, answer["ready"])
                return self.ready
            link.close()
            if "error" in answer:
                raise error_of(answer["error"])
            if "sealed" in answer:
                self.sealed = True
                return None
            time.sleep(_TURN_SECONDS)  # busy: another process makes it, but does not listen yet

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Give True if it is this client's turn to start the process: of several that begin at once only one looks at the source.

        The lock is the folder's in which the pack will be, and ends with its holder. A pack that is there is looked at by each.
        """
        fd = -1
        mine = True
        if not os.path.lexists(self.job["out"]):
            try:
                fd = os.open(os.path.dirname(self.folder), os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                mine = False
            except OSError:  # no such folder, or a file system without locks
                pass
        try:
            yield mine
        finally:
            if fd >= 0:
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)  # a child that was forked meanwhile has it, too
                os.close(fd)

    def _greet(self, link: Link[Any, Any], progress: Callable[[int, int], None]) -> dict[str, Any] | None:
        """Say what this client wants; return the answer, None if the process has ended."""
        try:
            send_json(link, HELLO, self.job)
            while True:
                _, answer = receive(link)
                if "progress" not in answer:
                    found: dict[str, Any] = answer
                    return found
                progress(*answer["progress"])
        except (EOFError, OSError):
            return None

    def _join(self, link: Link[Any, Any], ready: dict[str, Any]) -> None:
        self._link, self._ended, self.ready = link, threading.Event(), ready
        start(
            threading.Thread(
                target=self._listen, args=(link, self._ended), name="packer-filling", daemon=True
            )
        )
        if ready.get("cleared"):
            _LOG.warning(
                "%s: what had been done of it was cleared, since it is made of others now: %s",
                self.job["out"],
                ready["cleared"],
            )

    def _start(self) -> Link[Any, Any]:
        """Start the process that fills; the socket that it gets makes this process its first client."""
        _helpers[:] = [helper for helper in _helpers if helper.poll() is None]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            _helpers.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        _BEGIN.format(module=self._module),
                        json.dumps([path for path in sys.path if isinstance(path, str)]),
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what it may say is no output of this program
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is this process's; the other ends when its clients have gone
                )
            )
            return Link(ours.detach())

    def _died(self) -> bool:
        """Return True if a process that this one started has failed."""
        return any(helper.poll() not in (None, 0) for helper in _helpers)

    def _ask(self, units: NDArray[np.int64]) -> _Wait:
        self._number += 1
        waiting = self._waiting[self._number] = _Wait()
        self._send(WAIT, np.concatenate([[self._number], units]))
        return waiting

    def _send(self, kind: bytes, units: NDArray[np.int64]) -> None:
        assert self._link is not None
        with contextlib.suppress(OSError):  # it has died, which the listening thread sees
            send_units(self._link, kind, units)

    def _listen(self, link: Link[Any, Any], ended: threading.Event) -> None:
        """Hear the server until the connection ends."""
        error: PackerError | None = None
        try:
            while True:
                _, answer = receive(link)
                if "done" in answer:
                    with self._lock:
                        waiting = self._waiting.pop(answer["done"], None)
                    if waiting is not None:
                        waiting.end(done=True, error=None)
                elif "error" in answer:
                    error = error_of(answer["error"])
                elif "sealed" in answer:
                    self.sealed, self.made = True, answer["sealed"]
                elif "last" in answer:
                    self._last = answer["last"]
                    if not self._last:
                        break
        except (EOFError, OSError):
            pass
        with self._lock:
            if self._link is link:
                self._link = None
            waiting_ones, self._waiting = list(self._waiting.values()), {}
            closed = self._closed
        link.close()
        ended.set()
        for waiting in waiting_ones:
            waiting.end(done=False, error=error, closed=closed)

    def _hear_end(self) -> None:
        """Collect the processes that have ended."""
        if self._last or self.sealed:
            for helper in _helpers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    helper.wait(1.0)


def _pieces(units: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the units in pieces that go into a socket at once: the server would wait for the rest of a longer message."""
    return [units[first : first + _MESSAGE_UNITS] for first in range(0, len(units), _MESSAGE_UNITS)]


class _Wait:
    """A wait for units. done: they are there; error: why they are not; closed: this client was."""

    def __init__(self) -> None:
        self.event, self.done = threading.Event(), False
        self.error: PackerError | None = None
        self.closed = False

    def end(self, *, done: bool, error: PackerError | None, closed: bool = False) -> None:
        self.done, self.error, self.closed = done, error, closed
        self.event.set()
