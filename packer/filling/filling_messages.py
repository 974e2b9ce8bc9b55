"""Messages between the process that fills a pack and those that load from it, and where they meet.

A message is one letter and its content. Clients say HELLO (JSON: the job), WAIT (int64: a number of their own, then units), AHEAD
(int64: units) and BYE; the server says ANSWER (JSON, an object with one member: "ready", "done", "error", "busy", "progress",
"sealed" or "last").
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import errors
from packer.errors import BusyError, PackerError

Link = Connection  # of multiprocessing: whole messages over a socket
HELLO, WAIT, AHEAD, BYE, ANSWER = b"H", b"W", b"A", b"B", b"R"
SOCKET = "socket"
STATES = "state"
HEADER = "header.json"
_PATH_BYTES = 100  # of a socket's name, on every system


def send_json(link: Link[Any, Any], kind: bytes, content: Any) -> None:
    """Send a message of plain JSON values. Raises OSError if the other end is gone."""
    link.send_bytes(kind + json.dumps(content).encode())


def send_units(link: Link[Any, Any], kind: bytes, units: NDArray[np.int64]) -> None:
    """Send a message of numbers. Raises OSError if the other end is gone."""
    link.send_bytes(kind + units.astype("<i8").tobytes())


def receive(link: Link[Any, Any]) -> tuple[bytes, Any]:
    """Wait for a message; return its kind, and its JSON values or numbers. Raises EOFError, OSError if the other end is gone."""
    data = link.recv_bytes()
    kind, content = data[:1], data[1:]
    if kind in (WAIT, AHEAD):
        return kind, np.frombuffer(content, "<i8")
    return kind, json.loads(content) if content else None


def error_content(error: PackerError) -> list[str]:
    """Return an error as JSON values."""
    return [type(error).__name__, str(error)]


def error_of(content: list[str]) -> PackerError:
    """Return the error that error_content described."""
    kind = getattr(errors, content[0], PackerError)
    made: PackerError = PackerError.__new__(kind, content[1])
    made.args = (content[1],)
    return made


def first_client(fd: int) -> tuple[Link[Any, Any], dict[str, Any]] | None:
    """Return the client that has started this process, at a socket's descriptor, and its job; None if it has gone.

    From then on the process leaves Ctrl-C to its clients.
    """
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    link: Link[Any, Any] = Link(fd)
    try:
        kind, job = receive(link)
    except (EOFError, OSError):
        return None
    assert kind == HELLO
    return link, dict(job)


def let_go_of_output() -> None:
    """Close standard output and error: whoever reads what the first client says would wait for all others."""
    fd = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(fd, number)
    os.close(fd)


@contextmanager
def answering(answer: Callable[..., None], place: str) -> Iterator[None]:
    """Answer the clients with what a process cannot do: "busy", or "error". place: of the files, for errors that name none."""
    try:
        yield
    except BusyError:
        answer(busy=True)
    except PackerError as error:
        answer(error=error_content(error))
    except OSError as error:  # a limit; a file system without sockets
        limit = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
        remedy = (
            "Raise the limits (ulimit -n, -u, -v)" if limit else "Pass a shorter name, or one on another disk"
        )
        said = f"{error.filename or place}: cannot be used ({error.strerror or error}). {remedy}."
        answer(error=error_content(PackerError(said)))


def serve(fd: int, fill: Callable[[Link[Any, Any], dict[str, Any]], None]) -> None:
    """Fill, for the client at a socket's descriptor, what its job names in a folder; tell it what goes wrong."""
    first = first_client(fd)
    if first is None:
        return
    link, job = first

    def answer(**content: Any) -> None:
        with suppress(OSError):  # it has left
            send_json(link, ANSWER, content)

    with answering(answer, job["folder"]):
        fill(link, job)


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
