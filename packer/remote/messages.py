"""A request or an answer on a stream socket between a process and its helper: a pickled value, then bytes that are not pickled.

Both ends are processes of one user, who started the helper; nobody else has the socket.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("<QQ")


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
