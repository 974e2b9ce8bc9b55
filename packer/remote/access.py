"""Objects by URL: size and version, listing, complete and ranged reads, writes.

Every request goes to a helper process (service.py), started by the first request. A store's client in this
process would hang in a forked child, where its threads are gone and its locks are not, and packer forks.
Forked children use their parent's helper over connections of their own. The helper ends with the last process
that holds its control socket, however that process ends. Each request carries the caller's environment
variables, so that later changes apply too.

Functions raise RemoteError if the store refuses, or does not answer within `patience` seconds;
MissingObjectError if there is no such object; FormatError if the object has another version than requested;
UsageError for a URL that nothing reads; and MissingDependencyError. All are thread-safe; each waiting thread
has its own connection.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import socket
from typing import Any

from packer.errors import MissingDependencyError, PackerError, RemoteError, UsageError
from packer.remote.object_store import ObjectInfo
from packer.remote.urls import OBSTORE, ObjectUrl
from packer.service import Service, pair, start

PATIENCE = 30.0
"""Seconds for which a request is retried. Rows that a training run waits for get ROWS_PATIENCE."""
ROWS_PATIENCE = 300.0
STALL_SECONDS = 10.0
"""Seconds without a byte until a request is repeated."""

_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "FSSPEC_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def stat(url: str, *, patience: float = PATIENCE) -> ObjectInfo:
    """Return an object's size and version."""
    return ObjectInfo(*_call("stat", url, patience)[0])


def read_all(
    url: str, most: int | None = None, *, patience: float = PATIENCE
) -> tuple[bytearray, ObjectInfo]:
    """Return all bytes of an object, and its size and version.

    most: raise RemoteError for a larger object; default: 1 GiB.
    """
    info, data = _call("read_all", url, patience, most)
    return data, ObjectInfo(*info)


def read_end(url: str, count: int, *, patience: float = PATIENCE) -> tuple[bytearray, ObjectInfo]:
    """Return the last `count` bytes of an object (or all), its size and version, by one request."""
    info, data = _call("read_end", url, patience, count)
    return data, ObjectInfo(*info)


def read_range(
    url: str, start: int, stop: int, info: ObjectInfo, path: str = "", *, patience: float = PATIENCE
) -> bytearray:
    """Return exactly the bytes [start, stop) of this version of an object, or raise an error.

    path: a local file that receives the bytes at the same offsets; nothing is returned then. Raises
    SpaceError if it cannot be written.
    """
    return _call("read_range", url, patience, start, stop, info, path)[1]


def list_objects(url: str, *, patience: float = PATIENCE) -> list[tuple[str, ObjectInfo]]:
    """Return the objects below a folder, sorted: relative names, sizes and versions; [] if there are none."""
    return [(name, ObjectInfo(*info)) for name, info in _call("list_objects", url, patience)[0]]


def put_file(url: str, path: str, *, patience: float = PATIENCE) -> None:
    """Upload a file as an object, in parts if it is large.

    Readers see the old object or the complete new one.
    """
    _call("put", url, patience, os.path.abspath(path))


def helper_process() -> int:
    """Return the process id of the helper, starting it if needed; for measurements."""
    number: int = _HELPER.ask([None, "pid"])[0]
    return number


def _call(method: str, url: str, patience: float, *arguments: Any) -> tuple[Any, bytearray]:
    """Run a store's method in the helper; return its value and bytes."""
    place = ObjectUrl.parse(url)
    library = "obstore" if place.scheme in OBSTORE else "fsspec"
    if library == "fsspec" and not method.startswith(("stat", "read_")):
        raise UsageError(
            f"{url}: packer only reads there. It lists and writes folders at s3://, gs:// and az://."
        )
    if importlib.util.find_spec(library) is None:
        raise MissingDependencyError(library, url)
    environment = {
        name: text
        for name, text in os.environ.items()
        if name.upper().startswith(_PREFIXES) or name in ("HOME", "USERPROFILE")
    }
    return _HELPER.ask([method, url, place, patience, environment, STALL_SECONDS, arguments])


class _Helper(Service):
    """The helper process, which receives the other ends of connections over its control socket."""

    _control: tuple[socket.socket, int] | None = None  # the socket, and the number of earlier deaths

    def close(self) -> None:
        """Let the helper end, unless forked children still use it."""
        with self._lock:
            if self._control is not None:
                self._control[0].close()
            self._control = None

    def _connect(self) -> socket.socket:
        with self._lock:
            if self._control is None or self._control[1] != self._deaths:
                self.close()
                control = start("packer.remote.helper")
                self._control = control, self._deaths
            ours, theirs = pair()
            with theirs:
                try:
                    # One byte per connection: the kernel does not merge messages with descriptors.
                    socket.send_fds(self._control[0], [b"c"], [theirs.fileno()])
                except OSError:  # it has ended
                    ours.close()
                    self.close()
                    raise
            return ours

    def _died(self, request: Any, error: BaseException) -> PackerError:
        return RemoteError(
            f"{request[1]}: the helper process that reads it failed ({str(error) or 'it ended'})."
            " Check the limits (ulimit -n, ulimit -u), whether the system ended it for lack of memory, and"
            " whether the server sends more than was requested."
        )


_HELPER = _Helper()
atexit.register(_HELPER.close)
