"""Objects by URL: looked up, listed, read whole or in ranges, and written.

Every request goes to a helper process (service.py), started when the first one is made. A store's client in this
process would hang for ever in a forked child (its threads are gone there, its locks are not), and we fork; forked
children use their parent's helper over connections of their own. The helper ends with the last process that holds its
control socket, however that ends. It is told the environment variables of the caller with each request, so that what is
set later counts, too.

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
from typing import Any

from packer.errors import MissingDependencyError, PackerError, RemoteError, UsageError
from packer.remote.object_store import ObjectInfo
from packer.remote.urls import OBSTORE, ObjectUrl
from packer.service import Service, start

PATIENCE = 30.0
"""Seconds for which a request is tried again; rows that a training run waits for are worth more."""
ROWS_PATIENCE = 300.0
STALL_SECONDS = 10.0
"""Without a byte, until a request is made anew."""

_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "FSSPEC_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def stat(url: str, *, patience: float = PATIENCE) -> ObjectInfo:
    """Return an object's size and version."""
    return ObjectInfo(*_call("stat", url, patience)[0])


def read_all(
    url: str, most: int | None = None, *, patience: float = PATIENCE
) -> tuple[bytearray, ObjectInfo]:
    """Return all bytes of an object, with its size and version. most: raise RemoteError for a larger one."""
    info, data = _call("read_all", url, patience, most)
    return data, ObjectInfo(*info)


def read_end(url: str, count: int, *, patience: float = PATIENCE) -> tuple[bytearray, ObjectInfo]:
    """Return the last bytes of an object, fewer only if it is smaller, with its size and version: one request."""
    info, data = _call("read_end", url, patience, count)
    return data, ObjectInfo(*info)


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
    return [(name, ObjectInfo(*info)) for name, info in _call("list_objects", url, patience)[0]]


def put_file(url: str, path: str, *, patience: float = PATIENCE) -> None:
    """Write a file's bytes as an object, in parts if it is large: readers see the whole of it or what was there before."""
    _call("put", url, patience, os.path.abspath(path))


def helper_process() -> int:
    """Return the process id of the helper, which is started if there is none: for those who measure it."""
    number: int = _HELPER.ask([None, "pid"])[0]
    return number


def _call(method: str, url: str, patience: float, *arguments: Any) -> tuple[Any, bytearray]:
    """Have the helper run a method of a store; return its value and bytes."""
    place = ObjectUrl.parse(url)
    library = "obstore" if place.scheme in OBSTORE else "fsspec"
    if library == "fsspec" and not method.startswith(("stat", "read_")):
        raise UsageError(
            f"{url}: objects there are only read. Folders are listed and written at s3://, gs:// and az://."
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
    """The helper process, which gets the other ends of connections over its control socket."""

    _control: tuple[socket.socket, int] | None = None  # and how many helpers had died

    def close(self) -> None:
        """Let the helper end, unless forked children have it still."""
        with self._lock:
            if self._control is not None:
                self._control[0].close()
            self._control = None

    def _connect(self) -> socket.socket:
        with self._lock:
            if self._control is None or self._control[1] != self._deaths:
                self.close()
                # A pipe of the caller's stderr would stay open for as long as the helper lives.
                control = start("packer.remote.helper", cwd="/", stderr=subprocess.DEVNULL)
                self._control = control, self._deaths
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    # One byte a connection: the kernel keeps those with descriptors apart.
                    socket.send_fds(self._control[0], [b"c"], [theirs.fileno()])
                except OSError:  # it has ended
                    ours.close()
                    self.close()
                    raise
            return ours

    def _died(self, request: Any, error: BaseException) -> PackerError:
        return RemoteError(
            f"{request[1]}: the helper process that reads it could not be asked ({str(error) or 'it ended'})."
            " Look at limits (ulimit -n, ulimit -u), and for what ends processes: the system does when memory runs out."
        )


_HELPER = _Helper()
atexit.register(_HELPER.close)
