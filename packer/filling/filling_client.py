"""FillingClient: asks the process that fills a pack for units, and starts that process where there is none."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import select
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
from packer.filling.filling_messages import STATES, Link, UnitStates, connect, error_of, receive, send
from packer.format.working_folder import is_locked
from packer.orders.runs import Runs
from packer.starting import python_command

_TURN_SECONDS = 0.05  # between looks at whether another process has come so far as to listen
_PATIENCE_SECONDS = 30.0  # with others who start processes in the same folder: they may be for other packs
_MESSAGE_UNITS = 2000  # that a message asks for
_LOOK_SECONDS = 0.2  # between looks at whether this client is being closed meanwhile
_SOON_SECONDS, _LATEST_SECONDS = 0.002, 0.016  # between looks at whether units are there, longer and longer
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
    made: rows that the process which sealed the pack had made itself. ready: what the process told when this one connected last.
    """

    _owned = False  # by a dataset, which may close it

    def __init__(self, folder: str, job: Mapping[str, Any], module: str) -> None:
        self.folder, self.job, self._module = folder, dict(job), module
        self._sealed, self.made = False, 0
        self._cwd = os.getcwd()  # from where names in the job lead
        self.ready: dict[str, Any] = {}
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        names = ("folder", "job", "_module", "_cwd", "_sealed", "ready")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.made = 0
        self._renew()

    def _renew(self) -> None:
        _clients.add(self)
        self._lock = threading.RLock()  # of the link
        self._link: Link[Any, Any] | None = None
        self._states: UnitStates | None = None
        self._error: list[str] | None = None  # that the process told before it ended
        self._last = False  # nobody else needed it
        self._closing = 0  # calls of `closing` under way

    @property
    def sealed(self) -> bool:
        """True once the pack is whole and has its name."""
        if not self._sealed and self._link is not None:
            self._hear(self._link)
        return self._sealed

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
            with self._lock:
                if self.sealed:
                    return
                self._check_open()
                if self._link is None and self._open(lambda done, total: None) is None:
                    return
                link, states = self._link, self._states
                assert states is not None
                self._ask("wait", states.missing(units))
            pause = _SOON_SECONDS
            while len(units := states.missing(units)) and self._hear(link):
                self._check_open()
                time.sleep(pause)
                pause = min(2 * pause, _LATEST_SECONDS)
            if not len(units):
                return
            if self._error is not None:
                raise error_of(self._error)  # one for each thread
        raise PackerError(
            f"{self.job['out']}: the process that fills it died {_ATTEMPTS} times. What has been done is kept; look at the system's log"
            " for the reason, such as a lack of memory."
        )

    def take(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        """Wait for rows; see Arrival."""
        if not self.sealed:
            self.wait(Runs(starts, lengths).rows())
        return False

    def ahead(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Ask for rows that will be needed soon; see Arrival."""
        with self._lock:
            if self._link is not None and self._states is not None:
                self._ask("ahead", self._states.missing(Runs(starts, lengths).rows()))

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
                full = self._states is not None and bool(self._states.values.all())
                if full and not self.sealed and self._link is None:
                    self._open(
                        lambda done, total: None, closing=True
                    )  # it died before it had sealed the pack
                if not full:
                    self._send({"bye": True})
                link = self._link
            while self._hear(link, _LOOK_SECONDS):  # full: it seals the pack, and then ends
                pass
            if not full or self.sealed:
                break
        if self._last or self.sealed:
            for helper in self._started():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    helper.wait(1.0)

    def _check_open(self, closing: bool = False) -> None:
        if self._closing and not closing:
            raise PackerError(
                f"{self.job['out']}: was closed while rows of it were being made. Iterate again."
            )

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
                    self._states = UnitStates.open(
                        os.path.join(self.folder, STATES), answer["ready"]["units"]
                    )
                except FileNotFoundError:  # sealed meanwhile, and gone
                    link.close()
                    continue
                except (OSError, ValueError) as error:  # a limit of files or memory; cut short
                    link.close()
                    raise PackerError(
                        f"{self.folder}: cannot be read ({getattr(error, 'strerror', None) or error}). Check the permissions, and ulimit"
                        " -n."
                    ) from None
                self._link, self._error, self.ready = link, None, answer["ready"]
                self._tell_cleared(self.ready)
                return self.ready
            link.close()
            if "error" in answer:
                raise error_of(answer["error"])
            if "sealed" in answer:
                self._check_same(link, self._sealed_place())
                self._tell_cleared(answer)
                self._sealed = True
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
            send(link, {"hello": self.job})
            while True:
                while not link.poll(_LOOK_SECONDS):
                    self._check_open(closing)
                answer = receive(link)
                if "progress" not in answer:
                    return answer
                progress(*answer["progress"])
        except (EOFError, OSError):
            return None

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

    def _ask(self, how: str, units: NDArray[np.int64]) -> None:
        """Ask for units, in messages that go into a socket at once: the server would wait for the rest of a longer one."""
        for first in range(0, len(units), _MESSAGE_UNITS):
            self._send({how: units[first : first + _MESSAGE_UNITS].tolist()})

    def _send(self, content: dict[str, Any]) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):  # it has died, which who hears it sees
                send(self._link, content)

    def _hear(self, link: Link[Any, Any] | None, seconds: float = 0.0) -> bool:
        """Take in what the process has said, waiting that long for it; return False once the connection has ended."""
        with self._lock:
            if link is None or self._link is not link:
                return False
            try:
                while _said(link, seconds):
                    answer = receive(link)
                    if "error" in answer:
                        self._error = answer["error"]
                    elif "sealed" in answer:
                        self._sealed, self.made = True, answer["sealed"]
                    elif "last" in answer:
                        self._last = answer["last"]
                return True
            except (EOFError, OSError):
                link.close()
                self._link = None
                return False


def _said(link: Link[Any, Any], seconds: float) -> bool:
    """Return True once there is something to receive; ``link.poll`` takes ten times as long, and rows are waited for often."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def inodes(pack: str, files: Iterable[str]) -> list[list[Any]]:
    """Return the name and the inode of each of a pack's files, "" being the pack; -1 for those that are not there."""
    found = []
    for file in sorted(files):
        with contextlib.suppress(OSError):
            found.append([file, os.stat(os.path.join(pack, file) if file else pack).st_ino])
            continue
        found.append([file, -1])
    return found


def _after_fork() -> None:
    """Have clients ask by connections of their own in a forked child, where a lock may be held for ever, before any thread of it runs."""
    for client in list(_clients):
        client._renew()


os.register_at_fork(after_in_child=_after_fork)
