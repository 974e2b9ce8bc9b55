"""Messages between the process that fills a pack and those that load from it, where they meet, and the states that they share.

A message is a JSON object. Clients say "hello" (the job), "wait" and "ahead" (units) and "bye"; the server says "ready", "error",
"busy", "progress", "sealed" or "last". That a unit is there the states tell, which all of them map.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import errors
from packer.errors import PackerError
from packer.format.file_io import reserve

Link = Connection  # of multiprocessing: whole messages over a socket
SOCKET = "socket"
STATES = "state"
HEADER = "header.json"
MISSING = 0
_PATH_BYTES = 100  # of a socket's name, on every system


def send(link: Link[Any, Any], content: dict[str, Any]) -> None:
    """Send a message. Raises OSError if the other end is gone."""
    link.send_bytes(json.dumps(content).encode())


def receive(link: Link[Any, Any]) -> dict[str, Any]:
    """Wait for a message. Raises EOFError, OSError if the other end is gone."""
    content: dict[str, Any] = json.loads(link.recv_bytes())
    return content


def error_content(error: PackerError) -> list[str]:
    """Return an error as JSON values."""
    return [type(error).__name__, str(error)]


def error_of(content: list[str]) -> PackerError:
    """Return the error that error_content described."""
    kind = getattr(errors, content[0], PackerError)
    made: PackerError = PackerError.__new__(kind, content[1])
    made.args = (content[1],)
    return made


def connect(folder: str) -> Link[Any, Any] | None:
    """Connect to the process that fills the pack in a folder; None if there is none."""
    try:
        with _address(folder) as address, socket.socket(socket.AF_UNIX) as made:
            made.connect(address)
            return Connection(made.detach())
    except OSError:
        return None


def listen(folder: str) -> socket.socket:
    """Return a socket at which the clients of a folder's pack arrive; others than this user's are refused. Raises OSError."""
    with _address(folder) as address:
        made = socket.socket(socket.AF_UNIX)
        try:
            before = os.umask(0o177)
            try:
                made.bind(address)
            finally:
                os.umask(before)
            made.listen(64)
        except BaseException:
            made.close()
            raise
        return made


@contextmanager
def _address(folder: str) -> Iterator[str]:
    """Give the name of the folder's socket, in a form that is short enough: sockets allow some 100 bytes."""
    path = os.path.join(folder, SOCKET)
    if len(os.fsencode(path)) <= _PATH_BYTES or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


class UnitStates:
    """An array uint64 [units] that is mapped: MISSING, or a checksum of the unit's bytes (never 0), or what else says that it is there.

    One process, which holds the lock of the folder, writes it; the others see what it writes at once. It outlives kill -9. After a
    power cut it may say more than is there, so whoever writes next compares the checksums before others may look.
    """

    def __init__(self, values: NDArray[np.uint64]) -> None:
        self.values = values

    @classmethod
    def open(cls, path: str, units: int, *, writable: bool = False) -> UnitStates:
        """Map a file; with `writable` it is made, or made anew if its size is another. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            if writable and os.fstat(fd).st_size != 8 * units:
                os.ftruncate(fd, 0)
                os.ftruncate(fd, 8 * units)
            if writable:
                reserve(
                    fd, 0, 8 * units
                )  # on a full disk, a page that is first written to would kill the process
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(np.frombuffer(mmap.mmap(fd, 8 * units, access=access), "<u8"))
        finally:
            os.close(fd)

    def missing(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the units that are missing, in the same order."""
        found: NDArray[np.int64] = units[self.values[units] == MISSING]
        return found
