"""FillingClient: asks the process that fills a pack for units, and starts that process where there is none."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
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
from packer.format.working_folder import is_locked
from packer.starting import python_command, start

_TURN_SECONDS = 0.05  # between looks at whether another process has come so far as to listen
_PATIENCE_SECONDS = 30.0  # with others who start processes in the same folder: they may be for other packs
_MESSAGE_UNITS = 2000  # that a message asks for
_LOOK_SECONDS = 0.2  # between looks at whether this client is being closed meanwhile
_ATTEMPTS = 3  # processes that die one after the other, before this one gives up

_LOG = logging.getLogger("packer.filling")
_helpers: list[subprocess.Popen[bytes]] = []


@atexit.register
def _leave_helpers() -> None:
    """Keep Popen from warning of processes that end by themselves, once this one has."""
    for helper in _helpers:
        if helper.poll() is None:
            helper.returncode = 0


_clients: weakref.WeakSet[FillingClient] = weakref.WeakSet()


class FillingClient:
    """A client of the process that fills one pack. Thread-safe; works again after fork and unpickling.

    folder: where the pack is being filled. job: what it is made of, plain JSON values; module: whose ``main`` the process runs.
    seals: whether the process seals the pack, and ends, once all units are there. sealed: True once the pack is whole and has its
    name; made: rows that the process which sealed it had made itself. ready: what the process told when this one connected last.
    """

    _owned = False  # by a dataset, which may close it

    def __init__(self, folder: str, job: Mapping[str, Any], module: str, *, seals: bool = True) -> None:
        self.folder, self.job, self._module, self._seals = folder, dict(job), module, seals
        self.sealed, self.made = False, 0
        self._cwd = os.getcwd()  # from where names in the job lead
        self.ready: dict[str, Any] = {}
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        names = ("folder", "job", "_module", "_seals", "_cwd", "sealed", "ready")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.made = 0
        self._renew()

    def _renew(self) -> None:
        _clients.add(self)
        self._sending = threading.Lock()  # of the link's other end; taken before the next, not after it
        self._lock = threading.Lock()  # of the link, and of what is waited for
        self._link: Link[Any, Any] | None = None
        self._states: UnitStates | None = None
        self._waiting: dict[int, _Wait] = {}
        self._number = 0
        self._ended = threading.Event()  # the connection has
        self._last = False
        self._closing = 0  # calls of `closing` under way

    def own(self) -> FillingClient:
        """Return this client to the first caller, and a copy of it to every other: each dataset closes its own."""
        if self._owned:
            return copy(self)
        self._owned = True
        return self

    def open(self, progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any] | None:
        """Connect, starting the process if need be; return what it tells of the pack, None if the pack is whole already.

        progress: called with units done and units in all while the pack is made before anything can be read from it.
        Raises PackerError.
        """
        with self._lock:
            return self._open(progress)

    def wait(self, units: NDArray[np.int64]) -> None:
        """Return once all of the units are there. Raises PackerError if one cannot be made, or the process dies again and again."""
        for _ in range(_ATTEMPTS):
            if self.sealed:
                return
            with self._sending:
                with self._lock:
                    self._check_open()
                    if self._link is None and self._open(lambda done, total: None) is None:
                        return
                    assert self._states is not None
                    link, asked = (
                        self._link,
                        [self._ask(some) for some in _pieces(self._states.missing(units))],
                    )
                for _, message in asked:
                    self._send(link, WAIT, message)
            waits = [waiting for waiting, _ in asked]
            for waiting in waits:
                waiting.event.wait()
            if error := next((waiting.error for waiting in waits if waiting.error is not None), None):
                raise error_of(error_content(error))  # one for each thread
            if all(waiting.done for waiting in waits):
                return
            if any(waiting.closed for waiting in waits):
                raise self._was_closed()
        raise PackerError(
            f"{self.job['out']}: the process that fills it died {_ATTEMPTS} times. What has been done is kept; look at the system's log"
            " for the reason, such as a lack of memory."
        )

    def states(self, units: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the states of units; all are missing before the first wait."""
        states = self._states
        return np.full(len(units), MISSING, np.uint64) if states is None else states.values[units]

    def ahead(self, units: NDArray[np.int64]) -> None:
        """Ask for units that will be needed soon."""
        if self.sealed:
            return
        with self._sending:
            link, states = self._link, self._states
            if link is not None and states is not None:
                for some in _pieces(states.missing(units)):
                    self._send(link, AHEAD, some)

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Leave, and refuse waits until the end of the block, in which the threads that wait are ended."""
        self._closing += 1
        try:
            self.close()
            yield
        finally:
            self._closing -= 1

    def close(self) -> None:
        """Leave; wait for the end of the process if nobody else needs it, so that it has let go of the pack or sealed it."""
        for _ in range(_ATTEMPTS):
            with self._lock:
                full = self._seals and self._states is not None and bool(self._states.values.all())
                if full and not self.sealed and self._link is None:
                    self._open(
                        lambda done, total: None, closing=True
                    )  # it died before it had sealed the pack
                if self._link is None:
                    break
                link, ended = self._link, self._ended
                if not full:
                    for waiting in self._waiting.values():
                        waiting.closed = True
            if not full:
                with self._sending, contextlib.suppress(OSError):
                    link.send_bytes(BYE)
            ended.wait()  # full: it seals the pack, and then ends
            if not full or self.sealed:
                break
        self._hear_end()

    def _check_open(self, closing: bool = False) -> None:
        if self._closing and not closing:
            raise self._was_closed()

    def _was_closed(self) -> PackerError:
        return PackerError(f"{self.job['out']}: was closed while rows of it were being made. Iterate again.")

    def _open(self, progress: Callable[[int, int], None], *, closing: bool = False) -> dict[str, Any] | None:
        deaths, waited, patience = 0, False, time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._check_open(closing)
            with contextlib.ExitStack() as turn:
                mine = turn.enter_context(self._turn()) or time.monotonic() > patience
                link = connect(self.folder) or (self._start() if mine else None)

                def moved(done: int, total: int, turn: contextlib.ExitStack = turn) -> None:
                    turn.close()  # the source has been looked at
                    progress(done, total)

                answer = None if link is None else self._greet(link, moved, closing=closing)
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
                self._check_same(link, answer["ready"].get("place"))
                try:
                    states = os.path.join(self.folder, STATES)
                    self._states = UnitStates.open(states, answer["ready"]["units"])
                except FileNotFoundError:  # sealed meanwhile, and gone
                    link.close()
                    continue
                except (OSError, ValueError) as error:  # a limit of files or memory; cut short
                    link.close()
                    raise PackerError(
                        f"{self.folder}: cannot be read ({getattr(error, 'strerror', None) or error}). Check the permissions, and ulimit"
                        " -n."
                    ) from None
                self._join(link, answer["ready"])
                return self.ready
            link.close()
            if "error" in answer:
                raise error_of(answer["error"])
            if "sealed" in answer:
                self._check_same(link, self._sealed_place())
                self._tell_cleared(answer)
                self.sealed = True
                return None
            if not waited:
                waited = True
                _LOG.warning("%s: is being made by another process; waiting for it", self.job["out"])
            time.sleep(_TURN_SECONDS)
            while is_locked(self.folder):  # it makes the pack, but does not listen, or not yet
                if (other := connect(self.folder)) is not None:
                    other.close()
                    break
                self._check_open(closing)
                time.sleep(_LOOK_SECONDS)

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

    def _greet(
        self, link: Link[Any, Any], progress: Callable[[int, int], None], *, closing: bool
    ) -> dict[str, Any] | None:
        """Say what this client wants; return the answer, None if the process has ended."""
        try:
            send_json(link, HELLO, self.job)
            while True:
                while not link.poll(_LOOK_SECONDS):
                    self._check_open(closing)
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
        self._tell_cleared(ready)

    def _tell_cleared(self, told: Mapping[str, Any]) -> None:
        if told.get("cleared"):
            _LOG.warning(
                "%s: what had been done of it was cleared, since it is made of others now: %s",
                self.job["out"],
                told["cleared"],
            )

    def _check_same(self, link: Link[Any, Any], place: Any) -> None:
        """Raise PackerError if others are filled now than the files which this process, or the one it came from, has opened."""
        if self.ready.get("place") not in (None, place):
            link.close()
            raise PackerError(
                f"{self.job['out']}: was begun anew while it was in use; its images have changed, or {self.folder} was removed. Open it"
                " again."
            )

    def _sealed_place(self) -> Any:
        before = self.ready.get("place")
        return before and {**before, "files": inodes(self.job["out"], dict(before["files"]))}

    def _start(self) -> Link[Any, Any]:
        """Start the process that fills; the socket that it gets makes this process its first client."""
        _helpers[:] = [helper for helper in _helpers if helper.poll() is None]
        try:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                _helpers.append(
                    subprocess.Popen(
                        python_command(
                            f"from {self._module} import main; main(int(sys.argv[1]))",
                            str(theirs.fileno()),
                            self.folder,  # to be seen in lists of processes
                        ),
                        cwd=self._cwd if os.path.isdir(self._cwd) else None,
                        stdin=subprocess.DEVNULL,
                        stdout=2,  # what it may say is no output of this program
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,  # Ctrl-C is this process's; the other ends when its clients have gone
                    )
                )
                return Link(ours.detach())
        except OSError as error:
            raise PackerError(
                f"{self.job['out']}: the process that fills it cannot be started ({error.strerror or error}). Raise the limits of files"
                " and processes (ulimit -n, ulimit -u)."
            ) from None

    def _died(self) -> bool:
        """Return True if a process that this one started has failed."""
        return any(helper.poll() not in (None, 0) for helper in self._started())

    def _started(self) -> list[subprocess.Popen[bytes]]:
        """Return the processes that this one has started for this pack."""
        return [
            helper for helper in _helpers if isinstance(helper.args, list) and helper.args[-1] == self.folder
        ]

    def _ask(self, units: NDArray[np.int64]) -> tuple[_Wait, NDArray[np.int64]]:
        """Return a wait for units, and the message that asks for them."""
        self._number += 1
        waiting = self._waiting[self._number] = _Wait()
        return waiting, np.concatenate([[self._number], units])

    def _send(self, link: Link[Any, Any] | None, kind: bytes, units: NDArray[np.int64]) -> None:
        """Send a message: not under the lock, which the listening thread needs to take in what the server says meanwhile."""
        assert link is not None
        with contextlib.suppress(OSError):  # it has died, which the listening thread sees
            send_units(link, kind, units)

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
        link.close()
        ended.set()
        for waiting in waiting_ones:
            waiting.end(done=False, error=error)

    def _hear_end(self) -> None:
        """Collect the processes that have ended."""
        if self._last or self.sealed:
            for helper in self._started():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    helper.wait(1.0)


def inodes(pack: str, files: Iterable[str]) -> list[list[Any]]:
    """Return the name and the inode of each of a pack's files, "" being the pack; -1 for those that are not there."""
    found = []
    for file in sorted(files):
        with contextlib.suppress(OSError):
            found.append([file, os.stat(os.path.join(pack, file) if file else pack).st_ino])
            continue
        found.append([file, -1])
    return found


def _pieces(units: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the units in pieces that go into a socket at once: the server would wait for the rest of a longer message."""
    return [units[first : first + _MESSAGE_UNITS] for first in range(0, len(units), _MESSAGE_UNITS)]


class _Wait:
    """A wait for units. done: they are there; error: why they are not; closed: this client was."""

    def __init__(self) -> None:
        self.event, self.done = threading.Event(), False
        self.error: PackerError | None = None
        self.closed = False

    def end(self, *, done: bool, error: PackerError | None) -> None:
        self.done, self.error = done, error
        self.event.set()


def _after_fork() -> None:
    """Have clients ask by connections of their own in a forked child, where a lock may be held for ever, before any thread of it runs."""
    for client in list(_clients):
        client._renew()


os.register_at_fork(after_in_child=_after_fork)
