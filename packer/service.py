"""Service processes: starting them, sending them requests, and starting them again after they die.

packer has two: the process that fills a pack (packer/filling) and the one that reads objects in stores
(packer/remote). Each waiting thread has its own connection, and the service has a thread per connection, so
an answer follows its request. A frame is a JSON value followed by bytes. An answer is [True, value] or
[False, error], preceded by any number of [None, progress]. A service ends, in its own way, when no process
can send requests any more.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from packer import errors
from packer.errors import PackerError
from packer.standard_streams import open_closed
from packer.starting import ForkSafeLock, python_command

Data = bytes | bytearray | memoryview
_LENGTHS = struct.Struct("<QQ")
_LOCAL_PEERCRED = 1  # of macOS
_PATH_BYTES = 100  # of a socket's name, allowed on every system


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
                connection = self._take(age)
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
                raise error_of(value)
            return value, found
        raise self._died(request, died)

    def _take(self, age: tuple[int, int]) -> socket.socket:
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


def exchange(
    connection: socket.socket,
    request: Any,
    data: Data = b"",
    progress: Callable[..., object] = lambda *told: None,
) -> tuple[Any, bytearray]:
    """Send a request; return the answer frame and its bytes. Raises EOFError, OSError.

    progress: called with each progress report before the answer.
    """
    send(connection, request, data)
    answer, found = receive(connection)
    while answer[0] is None:
        progress(*answer[1])
        answer, found = receive(connection)
    return answer, found


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
                send(connection, failure(error))


def send(connection: socket.socket, value: Any, data: Data = b"") -> None:
    """Send a frame. Raises OSError."""
    body = json.dumps(value).encode()
    connection.sendall(_LENGTHS.pack(len(body), len(data)) + body)
    if len(data):
        connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Any, bytearray]:
    """Return the next frame. Raises EOFError at the end, OSError."""
    body, data = _LENGTHS.unpack(_read(connection, _LENGTHS.size))
    return json.loads(_read(connection, body)), _read(connection, data)


def _read(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        more = connection.recv_into(view[done:])
        if not more:
            raise EOFError
        done += more
    return data


def failure(error: PackerError) -> list[Any]:
    """Return the answer that transports an error."""
    return [False, [type(error).__name__, str(error)]]


def error_of(content: list[str]) -> PackerError:
    """Return the error that an answer transports."""
    kind = getattr(errors, content[0], None)
    if not (isinstance(kind, type) and issubclass(kind, PackerError)):
        kind = PackerError
    made: PackerError = PackerError.__new__(kind, content[1])
    made.args = (content[1],)
    return made


def start(module: str, *arguments: str, cwd: str | None = None, stderr: int | None = None) -> socket.socket:
    """Start a process that runs a module's ``main`` with one end of a socket pair; return the other end.

    Raises OSError.
    arguments: shown in process lists; stderr: as in subprocess. The process is not a child of this one and
    has its own session: Ctrl-C reaches only the clients.
    """
    ours, theirs = pair()
    call = f"from packer.service import detach; detach(); from {module} import main; main(int(sys.argv[1]))"
    command = python_command(call, str(theirs.fileno()), *arguments)
    try:
        subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=[theirs.fileno()],
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


def detach() -> None:
    """Continue in a child of this process, which ends."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)


def connect(path: str) -> socket.socket | None:
    """Connect to the process of this user that listens at a path; return None if there is none."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.setblocking(True)
        with _address(path) as address:
            made.connect(address)
        if is_ours(made):
            return made
    except OSError:
        pass
    made.close()
    return None


class Listener(socket.socket):
    """A socket that accepts this user's connections, which wait without a limit."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address. Raises OSError."""
        while True:
            made, address = super().accept()
            made.setblocking(True)
            if is_ours(made):
                return made, address
            made.close()


def listen(path: str) -> Listener:
    """Return a socket that accepts this user's connections at a path. Raises OSError."""
    made = Listener(socket.AF_UNIX)
    try:
        made.setblocking(True)
        with suppress(OSError):  # macOS sets no mode before bind
            os.fchmod(made.fileno(), 0o600)
        with _address(path) as address:
            made.bind(address)
        os.chmod(path, 0o600)
        made.listen(64)
    except BaseException:
        made.close()
        raise
    return made


def is_ours(connection: socket.socket) -> bool:
    """Return True if a process of this user has the other end of a connection. Raises OSError."""
    if sys.platform == "linux":
        user = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    else:  # struct xucred: version, user, groups
        user = struct.unpack("2I", connection.getsockopt(0, _LOCAL_PEERCRED, 128)[:8])[1]
    return bool(user == os.geteuid())


@contextmanager
def _address(path: str) -> Iterator[str]:
    """Yield a form of a path that is short enough for a socket (about 100 bytes)."""
    if len(os.fsencode(path)) <= _PATH_BYTES or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def ended(connection: socket.socket) -> bool:
    """Return True if the other end of a connection, which waits for an answer, is closed."""
    with suppress(BlockingIOError):
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False
