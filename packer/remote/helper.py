"""The helper process: it answers requests for objects, each connection on a thread of its own, until nobody can ask any more.

A request, or an answer, on a stream socket is a pickled value, then bytes that are not pickled. Both ends are processes of one user, who
started the helper; nobody else has the socket.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import threading
from typing import Any

from packer.errors import PackerError, RemoteError

_LENGTHS = struct.Struct("<QQ")


def main(control: int) -> None:
    """Serve the connections that arrive over a socket until all its other ends are closed. Does not return.

    The process leaves a child of its own to do so, in a session of its own: Ctrl-C is for those who ask.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)
    os.chdir("/")
    asked = socket.socket(fileno=control)
    while True:
        byte, descriptors, _, _ = socket.recv_fds(asked, 1, 1)
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()
        if not byte:
            os._exit(0)


def _serve(connection: socket.socket) -> None:
    """Answer the requests of one connection until it is closed."""
    from packer.remote.object_store import store_of

    with connection:
        while True:
            try:
                (method, url, place, patience, described, arguments), data = receive(connection)
            except (EOFError, OSError):
                return
            answer: Any = None
            found: bytes | memoryview = b""
            try:
                if method == "pid":
                    answer = os.getpid()
                else:
                    store = store_of(place, *described)
                    given = (*arguments, bytes(data)) if method == "put_bytes" else arguments
                    answer, found = getattr(store, method)(url, place.key, patience, *given)
                done = True
            except PackerError as error:
                done, answer = False, error
            except Exception as error:  # a bug, or a library's: said where it was asked for
                done, answer = False, RemoteError(f"{url}: {type(error).__name__}: {error}.")
            try:
                send(connection, (done, answer), found)
            except OSError:
                return
            del data, found, answer  # or this thread keeps them until the next request


def send(connection: socket.socket, value: Any, data: bytes | bytearray | memoryview = b"") -> None:
    """Send a value, and bytes behind it. Raises OSError."""
    body = pickle.dumps(value)
    connection.sendall(_LENGTHS.pack(len(body), len(data)) + body)
    if len(data):
        connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Any, bytearray]:
    """Return the next value, and the bytes behind it. Raises EOFError at the end of the stream, OSError."""
    body, data = _LENGTHS.unpack(_read(connection, _LENGTHS.size))
    value = pickle.loads(_read(connection, body))
    return value, _read(connection, data)


def _read(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        more = connection.recv_into(view[done:])
        if not more:
            raise EOFError
        done += more
    return data
