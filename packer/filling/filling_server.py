"""FillingServer: has the missing units of a pack made, in the order in which its clients need them."""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.filling.filling_messages import MISSING, Link, UnitStates, error_content, receive, send

TASK_SECONDS = 0.02
_MOST_UNITS = 1024  # of a task
_AHEAD = 2  # tasks handed out a worker, so that none waits for the next
_GRACE_SECONDS = 1.0  # without any client, before filling ends
_TURN_SECONDS = 0.02  # between attempts to take in a client
_MOST_AHEAD = 64  # lists of units asked for ahead, each client's oldest dropped first

Units = NDArray[np.int64]


class UnitSource(Protocol):
    """A maker of units: rows from images, stretches of a remote file. Called by one thread."""

    workers: int

    def start(self, units: Units) -> Future[Any]:
        """Begin to make units. Its result is given to `arrived`; a PackerError in it ends the filling."""

    def arrived(self, units: Units, result: Any) -> None:
        """Note that units have been made, in the states too."""

    def open(self) -> bool:
        """Return True while there is work of its own under way, after all units are there."""

    def broken(self, error: BaseException) -> PackerError:
        """Return the error to be told when a worker has died."""


class _Client:
    """One process that loads from the pack."""

    def __init__(self, link: Link[Any, Any]) -> None:
        self.link, self.ahead = link, deque[Units]()
        self.ready = False
        """True once its job has been heard, and is this one."""

    def answer(self, **content: Any) -> None:
        with suppress(OSError):  # it is gone, which its next message will tell
            send(self.link, content)


class FillingServer:
    """Serves the units of one pack until all are there, or nobody wants them any more.

    states: of the units. source: makes them. hello: what a client's job is answered with, {"ready": ...} or {"error": ...}.
    task_seconds: that a task takes, about: so long may units that are waited for have to wait for others.
    """

    def __init__(
        self,
        states: UnitStates,
        source: UnitSource,
        hello: Callable[[Any], dict[str, Any]],
        *,
        task_seconds: float = TASK_SECONDS,
    ) -> None:
        self._source, self._hello = source, hello
        self._clients: set[_Client] = set()
        self._waiting: list[tuple[_Client, Units]] = []
        self._begun = states.values != MISSING  # made, or being made
        self._left, self._cursor = int(np.count_nonzero(~self._begun)), 0
        self._running: dict[Future[Any], tuple[Units, float]] = {}
        self._task_seconds = task_seconds
        self._size = 4.0  # units of a task
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._alone = time.monotonic()
        self.made = 0
        """Units made so far."""

    def adopt(self, link: Link[Any, Any], job: Any) -> None:
        """Take in a client whose job is known already."""
        self._welcome(self._add(link), job)

    def run(self, listener: socket.socket) -> bool:
        """Serve. Returns True once all units are there and the source has closed; False if all clients left before.

        Raises PackerError, having told the clients, when a unit cannot be made.
        """
        self._selector.register(listener, selectors.EVENT_READ, listener)
        try:
            while self._left or self._running or self._source.open():
                # Once all units are there the pack is sealed, whoever is there.
                if self._left and not self._clients and time.monotonic() - self._alone > _GRACE_SECONDS:
                    return False
                self._hand_out()
                for key, _ in self._selector.select(0.1):
                    if key.data is listener:
                        self._accept(listener)
                    elif key.data is not None:
                        self._hear(key.data)
                    else:
                        with suppress(BlockingIOError):
                            self._bell.recv(4096)
                self._collect()
            return True
        except PackerError as error:
            self.tell(error=error_content(error))
            raise
        finally:
            self._selector.close()
            self._bell.close()
            self._ringer.close()

    def tell(self, **content: Any) -> None:
        """Send something to all clients whose job is this one: others would take what is made here for theirs."""
        for client in list(self._clients):
            if client.ready:
                client.answer(**content)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (
            OSError
        ):  # it has gone, or this process may open no more files: then others are served, and it waits
            time.sleep(_TURN_SECONDS)
            return
        self._add(Link(connection.detach()))

    def _add(self, link: Link[Any, Any]) -> _Client:
        client = _Client(link)
        self._clients.add(client)
        self._selector.register(link, selectors.EVENT_READ, client)
        return client

    def _welcome(self, client: _Client, job: Any) -> None:
        answer = self._hello(job)
        client.ready = "ready" in answer
        client.answer(**answer)

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.link)
        client.link.close()
        self._clients.discard(client)
        self._waiting = [waiting for waiting in self._waiting if waiting[0] is not client]
        self._alone = time.monotonic()

    def _hear(self, client: _Client) -> None:
        try:
            message = receive(client.link)
        except (EOFError, OSError):
            self._drop(client)
            return
        for kind, content in message.items():
            if kind == "hello":
                self._welcome(client, content)
            elif kind == "bye":
                client.answer(last=len(self._clients) == 1)
                self._drop(client)
                self._alone = time.monotonic() - (_GRACE_SECONDS if not self._clients else 0)
            elif kind == "wait":
                self._waiting.append((client, np.array(content, np.int64)))
            else:
                client.ahead.append(np.array(content, np.int64))
                if len(client.ahead) > _MOST_AHEAD:
                    client.ahead.popleft()

    def _hand_out(self) -> None:
        """Give every worker its next tasks."""
        while len(self._running) < _AHEAD * self._source.workers:
            units = self._next(max(1, int(self._size)))
            if units is None:
                return
            self._begun[units] = True
            try:
                future = self._source.start(units)
            except RuntimeError as error:  # a worker has died in this moment
                raise self._source.broken(error) from None
            self._running[future] = units, time.monotonic()
            future.add_done_callback(self._ring)

    def _next(self, count: int) -> Units | None:
        """Return up to so many units that are to be made next: waited for, asked for ahead, any."""
        for wanted in self._wanted():
            missing = wanted[~self._begun[wanted]]
            if len(missing):
                first, index = np.unique(missing[: 2 * count], return_index=True)
                chosen: Units = first[np.argsort(index)][:count]
                return chosen
        while self._cursor < len(self._begun):
            stop = min(self._cursor + count, len(self._begun))
            units = np.arange(self._cursor, stop)
            self._cursor = stop
            rest: Units = units[~self._begun[units]]
            if len(rest):
                return rest
        return None

    def _wanted(self) -> Iterator[Units]:
        while self._waiting:
            units = self._waiting[0][1]
            if not self._begun[units].all():
                yield units
                break
            del self._waiting[0]
        for client in self._clients:
            while client.ahead:
                units = client.ahead[0]
                if not self._begun[units].all():
                    yield units
                    break
                client.ahead.popleft()

    def _collect(self) -> None:
        """Take in what workers have done."""
        for future in [future for future in self._running if future.done()]:
            units, began = self._running.pop(future)
            error = future.exception()
            if error is not None:
                raise error if isinstance(error, PackerError) else self._source.broken(error)
            self._source.arrived(units, future.result())
            self.made += len(units)
            self._left -= len(units)
            # A task waits for those handed out before it to the same worker.
            seconds = max(1e-6, (time.monotonic() - began) / _AHEAD)
            self._size = min(
                _MOST_UNITS, max(1.0, 0.8 * self._size + 0.2 * len(units) * self._task_seconds / seconds)
            )

    def _ring(self, future: Future[Any]) -> None:
        with suppress(OSError):
            self._ringer.send(b"!")
