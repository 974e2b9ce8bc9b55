"""Objects by URL: looked up, listed, read whole or in ranges, and written.

Every request goes to a helper process, started when the first one is made. A store's client in this process would hang for ever in a
forked child (its threads are gone there, its locks are not), and we fork; forked children use their parent's helper over connections
of their own. The helper ends with the last process that holds its control socket, however that ends. It is told the environment
variables of the caller with each request, so that what is set later counts, too.

Functions raise RemoteError if the store refuses, or does not answer for as long as `patience` says (seconds); NotThereError if there
is no such object; ReplacedError if it is not the version that was asked for; UsageError for a URL that nothing reads; and
MissingDependencyError. All are thread-safe; each thread that waits has a connection of its own.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from packer.errors import MissingDependencyError, RemoteError, UsageError
from packer.remote.helper import receive, send
from packer.remote.object_store import LIBRARIES, ObjectInfo
from packer.remote.urls import ObjectUrl
from packer.starting import ForkSafeLock, python_command

PATIENCE = 30.0
"""Seconds for which a request is tried again; rows that a training run waits for are worth more."""
ROWS_PATIENCE = 300.0
STALL_SECONDS = 10.0
"""Without a byte, until a request is made anew."""

_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "FSSPEC_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def stat(url: str, *, patience: float = PATIENCE) -> ObjectInfo:
    """Return an object's size and version."""
    info: ObjectInfo = _call("stat", url, patience)[0]
    return info


def read_all(
    url: str, most: int | None = None, *, patience: float = PATIENCE
) -> tuple[bytearray, ObjectInfo]:
    """Return all bytes of an object, with its size and version. most: raise RemoteError for a larger one."""
    info, data = _call("read_all", url, patience, most)
    return data, info


def read_end(url: str, count: int, *, patience: float = PATIENCE) -> tuple[bytearray, ObjectInfo]:
    """Return the last bytes of an object, fewer only if it is smaller, with its size and version: one request."""
    info, data = _call("read_end", url, patience, count)
    return data, info


def read_range(
    url: str, start: int, stop: int, info: ObjectInfo, path: str = "", *, patience: float = PATIENCE
) -> bytearray:
    """Return the bytes [start, stop) of this version of an object: exactly these, or an error.

    path: of a file of this machine in which the bytes are written at the same places, instead of returning them; SpaceError is raised
    if it cannot be written.
    """
    return _call("read_range", url, patience, start, stop, info, path)[1]


def list_objects(url: str, *, patience: float = PATIENCE) -> list[tuple[str, ObjectInfo]]:
    """Return all objects below a folder, sorted: names relative to it, sizes and versions. An empty list if there are none."""
    found: list[tuple[str, ObjectInfo]] = _call("list_objects", url, patience)[0]
    return found


def put_bytes(url: str, data: bytes, *, patience: float = PATIENCE) -> None:
    """Write an object, at once: readers see the whole of it or what was there before."""
    _call("put_bytes", url, patience, data=data)


def put_file(url: str, path: str, *, patience: float = PATIENCE) -> None:
    """Write a file's bytes as an object, in parts if it is large: readers see the whole of it or what was there before."""
    _call("put_file", url, patience, os.path.abspath(path))


def delete(url: str, *, patience: float = PATIENCE) -> None:
    """Remove an object; one that is not there is no error."""
    _call("delete", url, patience)


def helper_process() -> int:
    """Return the process id of the helper, which is started if there is none: for those who measure it."""
    number: int = _ask("", ("pid", "", None, 0.0, None, ()), b"")[0]
    return number


def _call(
    method: str, url: str, patience: float, *arguments: Any, data: bytes = b""
) -> tuple[Any, bytearray]:
    """Have the helper run a method of a store; return its value and bytes."""
    place = ObjectUrl.parse(url)
    _check(method, url, place)
    environment = {name: text for name, text in os.environ.items() if name.upper().startswith(_PREFIXES)}
    for name in ("HOME", "USERPROFILE"):
        if name in os.environ:
            environment[name] = os.environ[name]
    return _ask(url, (method, url, place, patience, (environment, STALL_SECONDS), arguments), data)


def _ask(url: str, request: tuple[Any, ...], data: bytes) -> tuple[Any, bytearray]:
    """Send a request to the helper; return the answer. A helper that died is started again, once."""
    for last in (False, True):
        connection, helper = _POOL.take()
        try:
            send(connection, request, data)
            (done, value), answer = receive(connection)
        except (EOFError, OSError) as error:
            connection.close()
            _POOL.forget(helper)
            if last:
                raise RemoteError(
                    f"{url}: the helper process that reads it ended ({type(error).__name__}). Look for what ends processes:"
                    " the system does when memory runs out."
                ) from None
            continue
        except BaseException:  # Ctrl-C: the answer would be taken for that to the next request
            connection.close()
            raise
        _POOL.give_back(connection, helper)
        if not done:
            raise value
        return value, answer
    raise AssertionError


def _check(method: str, url: str, place: ObjectUrl) -> None:
    """Raise what is known of a request before it is made."""
    library = LIBRARIES.get(place.scheme, "fsspec")
    if library == "fsspec" and method not in ("stat", "read_all", "read_end", "read_range"):
        raise UsageError(
            f"{url}: objects there are only read. Folders are listed and written at s3://, gs:// and az://."
        )
    if importlib.util.find_spec(library) is None:
        raise MissingDependencyError(library, url)


class _ConnectionPool:
    """The connections of this process to the helper that are idle, and the helper's control socket."""

    def __init__(self) -> None:
        self._lock, self._pid = ForkSafeLock(), os.getpid()
        self._control: socket.socket | None = None
        self._idle: list[socket.socket] = []

    def take(self) -> tuple[socket.socket, socket.socket]:
        """Return a connection that nobody uses, and the control socket of its helper."""
        with self._lock:
            if self._pid != os.getpid():  # the parent's connections, which it goes on to use
                inherited, self._idle, self._pid = self._idle, [], os.getpid()
                for connection in inherited:
                    connection.close()
            if self._idle and self._control is not None:
                return self._idle.pop(), self._control
            return self._connect()

    def give_back(self, connection: socket.socket, helper: socket.socket) -> None:
        """Keep a connection to a helper for the next request."""
        with self._lock:
            if helper is self._control:
                self._idle.append(connection)
            else:
                connection.close()

    def forget(self, helper: socket.socket) -> None:
        """Close all connections to a helper that has ended; a process that is killed closes its ends one after the other."""
        with self._lock:
            if helper is self._control:
                self.close()

    def close(self) -> None:
        """Close all that is idle: the helper ends, unless forked children have it still."""
        with self._lock:
            for connection in (*self._idle, *([self._control] if self._control else ())):
                connection.close()
            self._idle, self._control = [], None

    def _connect(self) -> tuple[socket.socket, socket.socket]:
        """Make a connection and hand its other end to the helper, starting one if there is none."""
        for _ in range(2):
            if self._control is None:
                self._control = _started()
            ours, theirs = socket.socketpair()
            try:
                # One byte a connection: the kernel keeps those with descriptors apart, of several processes too.
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
                return ours, self._control
            except OSError:  # it has ended
                ours.close()
                self._control.close()
                self._control = None
            finally:
                theirs.close()
        raise RemoteError(
            "the helper process for URLs ends as soon as it is started. Look at memory and limits."
        )


def _started() -> socket.socket:
    """Start the helper process; return its control socket."""
    ours, theirs = socket.socketpair()
    try:
        # It leaves at once a child of its own, which is nobody's to wait for, and closes the pipe.
        run = subprocess.run(
            python_command(
                "from packer.remote.helper import main; main(int(sys.argv[1]))", str(theirs.fileno())
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            text=True,
            check=False,
        )
    except OSError as error:
        ours.close()
        raise RemoteError(f"the helper process for URLs cannot be started ({error.strerror}).") from None
    finally:
        theirs.close()
    if run.returncode:
        ours.close()
        lines: Sequence[str] = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        raise RemoteError(f"the helper process for URLs cannot be started ({lines[-1]}).")
    return ours


_POOL = _ConnectionPool()
atexit.register(_POOL.close)
