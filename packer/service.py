"""Service processes: starting them, sending them requests, and starting them again after they die.

packer has one, which reads objects in stores (packer/remote). Each waiting thread has its own connection, and
the service has a thread per connection, so an answer follows its request. A frame is a JSON value followed by
bytes. An answer is [True, value] or [False, error]. A service ends, in its own way, when no process can send
requests any more.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from packer.errors import PackerError, error_from_record, error_record
from packer.standard_streams import open_closed
from packer.starting import ForkSafeLock, python_command

Data = bytes | bytearray | memoryview
_LENGTHS = struct.Struct("<QQ")


class Service:
    """The client side of a service. Thread-safe; forked children open their own connections.

    attempts: per request, if the process dies. When a connection has ended, all older ones are closed: a
    killed process closes them one after the other. A forked child closes its copies of the parent's
    connections.
    """

    attempts = 2

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._idle: list[socket.socket] = []
        # Connection -> process that uses it, and number of deaths before it.
        self._made: WeakKeyDictionary[socket.socket, tuple[int, int]] = WeakKeyDictionary()
        self._deaths = 0

    def __del__(self) -> None:
        for connection in self._idle:
            connection.close()

    def ask(self, request: Any, data: Data = b"") -> tuple[Any, bytearray]:
        """Return the answer to a request.

        Raises PackerError if that is the answer, or if the process dies.
        """
        for _ in range(self.attempts):
            age, connection = (os.getpid(), self._deaths), None
            try:
                connection = self._take_connection(age)
                (done, value), found = exchange(connection, request, data)
            # after Ctrl-C, this answer would be taken for that of the next request
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if not isinstance(error, EOFError | OSError):
                    raise
                died = error
                with self._lock:
                    self._deaths = max(self._deaths, age[1] + (connection is not None))
                continue
            with self._lock:
                self._idle.append(connection)
            if not done:
                raise error_from_record(value)
            return value, found
        raise self._died(request, died)

    def _take_connection(self, age: tuple[int, int]) -> socket.socket:
        """Return an idle connection of this age, or a new one. Raises like `_connect`."""
        with self._lock:
            for connection in [one for one in self._idle if self._made.get(one) != age]:
                self._idle.remove(connection)
                connection.close()
            if self._idle:
                return self._idle.pop()
        connection = self._connect()
        with self._lock:
            self._made[connection] = age
        return connection

    def _connect(self) -> socket.socket:
        """Return a connection to the process, starting it if there is none.

        Raises PackerError; EOFError or OSError if the process has died.
        """
        raise NotImplementedError

    def _died(self, request: Any, error: BaseException) -> PackerError:
        """Return the error to raise after the process died at each attempt."""
        raise NotImplementedError


def exchange(connection: socket.socket, request: Any, data: Data = b"") -> tuple[Any, bytearray]:
    """Send a request; return the answer frame and its bytes. Raises EOFError, OSError."""
    send(connection, request, data)
    return receive(connection)


def serve(connection: socket.socket, answer: Callable[[Any, bytearray], tuple[Any, Data]]) -> None:
    """Answer the requests of a connection until it is closed.

    answer: may raise PackerError, or EOFError to end.
    """
    with connection, suppress(EOFError, OSError):
        while True:
            try:
                value, found = answer(*receive(connection))
                send(connection, [True, value], found)
                del value, found  # otherwise kept in memory until the next request
            except PackerError as error:
                send(connection, [False, error_record(error)])


def send(connection: socket.socket, value: Any, data: Data = b"") -> None:
    """Send a frame. Raises OSError."""
    body = json.dumps(value).encode()
    connection.sendall(_LENGTHS.pack(len(body), len(data)) + body)
    if len(data):
        connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Any, bytearray]:
    """Return the next frame. Raises EOFError at the end, OSError."""
    body, data = _LENGTHS.unpack(_receive_bytes(connection, _LENGTHS.size))
    return json.loads(_receive_bytes(connection, body)), _receive_bytes(connection, data)


def _receive_bytes(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        more = connection.recv_into(view[done:])
        if not more:
            raise EOFError
        done += more
    return data


def start(module: str) -> socket.socket:
    """Start a process that runs a module's ``main`` with one end of a socket pair; return the other end.

    Raises OSError. The process is not a child of this one and has its own session: Ctrl-C does not reach it.
    """
    ours, theirs = pair()
    call = f"from packer.starting import detach; detach(); from {module} import main; main(int(sys.argv[1]))"
    null, fd = subprocess.DEVNULL, theirs.fileno()
    try:
        # An inherited stderr pipe would stay open as long as the process lives.
        subprocess.run(
            python_command(call, str(fd)),
            cwd="/",
            stdin=null,
            stdout=null,
            stderr=null,
            pass_fds=[fd],
            check=False,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that wait without a limit, whatever socket.setdefaulttimeout() set."""
    open_closed()  # a child redirects these numbers, and a C library prints to them
    ours, theirs = socket.socketpair()
    ours.setblocking(True)
    theirs.setblocking(True)
    return ours, theirs


def adopt(fd: int) -> socket.socket:
    """Return the socket of a descriptor, which waits without a limit."""
    made = socket.socket(fileno=fd)
    made.setblocking(True)
    return made
