"""FillingServer: has a pack's missing units produced in the order in which its clients need them."""

from __future__ import annotations

import errno
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_filling import RowFilling
from packer.errors import PackerError
from packer.format.unit_states import MISSING
from packer.service import ended, serve

TASK_SECONDS = 0.02
_MOST_UNITS = 1024  # per task
_AHEAD = 2  # tasks per worker, so that none is idle
_GRACE_SECONDS = 1.0  # without clients, before filling ends
_LOOK_SECONDS = 0.1  # interval between checks for disconnected clients
_MOST_AHEAD = 64  # prefetch lists per client; the oldest are dropped first

Units = NDArray[np.int64]


class FillingServer:
    """Serves the units of one pack until all are there, or until no client is left.

    states: of the units, then of the pack (see `finish`); source: produces units;
    describe: returns the answer and its bytes for the request of a client that opens the pack, or raises
    PackerError;
    task_seconds: approximate duration of a task, and so the longest delay of urgent units by others.
    """

    def __init__(
        self,
        states: NDArray[np.uint64],
        source: RowFilling,
        describe: Callable[[bytearray], tuple[Any, bytes]],
        task_seconds: float = TASK_SECONDS,
    ) -> None:
        self._states, self._source, self._describe = states, source, describe
        self._changed = threading.Condition()  # guards all attributes below
        self._clients: dict[socket.socket, str] = {}  # connection -> client's name
        # event: set when the wait is over
        self._waiting: dict[socket.socket, tuple[Units, threading.Event]] = {}
        self._ahead: dict[str, deque[Units]] = {}
        self._begun = states[:-1] != MISSING  # produced or in production
        self._left, self._cursor = int(np.count_nonzero(~self._begun)), 0
        self._running: dict[Future[Any], tuple[Units, float]] = {}
        self._task_seconds = task_seconds
        self._size = 4.0  # units per task
        self._alone = time.monotonic()
        self._made = 0  # units produced
        self._error: PackerError | None = None

    def attend(self, connection: socket.socket, name: str = "") -> None:
        """Serve a client on a thread. name: of the client that opened the pack."""
        threading.Thread(target=self._attend, args=(connection, name), daemon=True).start()

    def run(self, listener: socket.socket) -> bool:
        """Serve until all units are there. Return False if all clients left before.

        The source is closed when this returns True. Raises PackerError if a unit cannot be produced.
        """
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        try:
            with self._changed:
                while self._left or self._running or self._source.open():
                    # Once all units are there the pack is sealed, even without clients.
                    if self._left and not self._clients and time.monotonic() - self._alone > _GRACE_SECONDS:
                        return False
                    self._hand_out()
                    if not self._collect():
                        self._changed.wait(_LOOK_SECONDS)
            return True
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends the accepting thread

    def finish(self, error: PackerError | None = None) -> None:
        """Answer all waiting clients: the pack is sealed, or cannot be produced."""
        with self._changed:
            if error is None:
                self._states[-1] = 1 + self._made
            else:
                self._error = error
            self._release()
            self._changed.wait_for(lambda: not self._clients, _GRACE_SECONDS)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                self.attend(listener.accept()[0])
            except (OSError, RuntimeError) as error:
                if getattr(error, "errno", 0) in (errno.EINVAL, errno.EBADF):  # the listener is shut down
                    return
                time.sleep(_LOOK_SECONDS)  # the client has gone, or a limit applies: serve others and retry

    def _attend(self, connection: socket.socket, name: str) -> None:
        with self._changed:
            self._clients[connection] = name
        serve(connection, partial(self._answer, connection))
        with self._changed:
            if (whose := self._clients.pop(connection, None)) is not None:
                self._alone = time.monotonic()
                self._changed.notify_all()
                if whose not in self._clients.values():
                    self._ahead.pop(whose, None)

    def _answer(self, connection: socket.socket, request: Any, data: bytearray) -> tuple[Any, bytes]:
        kind, name = request
        with self._changed:
            self._clients[connection] = name
            if kind == "bye":
                self._leave(name)
            elif kind == "ahead":
                units = np.frombuffer(data, "<i8")
                self._ahead.setdefault(name, deque(maxlen=_MOST_AHEAD)).append(units)
        if kind == "wait":
            self._wait(connection, np.frombuffer(data, "<i8"))
        return self._describe(data) if kind == "open" else (None, b"")

    def _wait(self, connection: socket.socket, units: Units) -> None:
        """Wait until a connection's units are there. Raises PackerError, EOFError."""
        done = threading.Event()
        with self._changed:
            self._waiting[connection] = units, done
            self._release()
            self._changed.notify_all()
        try:
            while not done.wait(_LOOK_SECONDS):
                if ended(connection):
                    raise EOFError
        finally:
            with self._changed:
                del self._waiting[connection]
        if self._error is not None and not self._states[units].all():
            raise self._error

    def _release(self) -> None:
        """Wake the threads whose clients' waits are over."""
        for units, done in self._waiting.values():
            if self._error is not None or self._states[units].all():
                done.set()

    def _leave(self, name: str) -> None:
        """Forget a client.

        Return once another client needs the process; otherwise the process's end is the answer.
        """
        self._ahead.pop(name, None)
        for connection in [one for one, whose in self._clients.items() if whose == name]:
            del self._clients[connection]
        self._alone = -math.inf
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._clients)

    def _hand_out(self) -> None:
        """Give every worker its next tasks."""
        while len(self._running) < _AHEAD * self._source.workers:
            units = self._next(max(1, int(self._size)))
            if units is None:
                return
            self._begun[units] = True
            try:
                future = self._source.start(units)
            except RuntimeError as error:  # a worker has just died
                raise self._source.broken(error) from None
            self._running[future] = units, time.monotonic()
            future.add_done_callback(self._ring)

    def _next(self, count: int) -> Units | None:
        """Return up to `count` units to produce next."""
        for wanted in self._wanted(count):
            missing = wanted[~self._begun[wanted]]
            if len(missing):
                first, index = np.unique(missing[: 2 * count], return_index=True)
                chosen: Units = first[np.argsort(index)][:count]
                return chosen
        return None

    def _wanted(self, count: int) -> Iterator[Units]:
        """Yield units that clients wait for, then prefetched ones, then `count` of the others at a time."""
        for units, _ in self._waiting.values():
            yield units[units < len(self._begun)]
        for lists in self._ahead.values():
            while lists and self._begun[lists[0]].all():
                lists.popleft()
            yield from list(lists)[:1]
        while self._cursor < len(self._begun):
            first, self._cursor = self._cursor, self._cursor + count
            yield np.arange(first, min(first + count, len(self._begun)))

    def _collect(self) -> bool:
        """Collect finished tasks; return False if there are none."""
        done = [future for future in self._running if future.done()]
        for future in done:
            units, began = self._running.pop(future)
            error = future.exception()
            if error is not None:
                raise error if isinstance(error, PackerError) else self._source.broken(error)
            self._source.arrived(units, future.result())
            self._made += len(units)
            self._left -= len(units)
            # A task waits for earlier tasks of the same worker.
            seconds = max(1e-6, (time.monotonic() - began) / _AHEAD)
            self._size = min(
                _MOST_UNITS, max(1.0, 0.8 * self._size + 0.2 * len(units) * self._task_seconds / seconds)
            )
        self._release()
        return bool(done)

    def _ring(self, future: Future[Any]) -> None:
        with self._changed:
            self._changed.notify_all()
