"""The helper process: answers requests for objects until no process can send any more."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from packer.errors import PackerError, RemoteError
from packer.remote.object_store import MEMORY, patiently, store_of
from packer.remote.urls import ObjectUrl
from packer.service import Data, adopt, serve


def main(control: int) -> None:
    """Serve the connections that arrive over a socket until all its other ends are closed.

    Does not return.
    """
    asked = adopt(control)
    while True:
        byte, descriptors, _, _ = socket.recv_fds(asked, 1, 1)
        for descriptor in descriptors:
            threading.Thread(target=_attend, args=(adopt(descriptor),), daemon=True).start()
        if not byte:
            os._exit(0)


def _attend(connection: socket.socket) -> None:
    MEMORY.allow(connections=1)
    serve(connection, _answer)
    MEMORY.allow(connections=-1)


def _answer(request: Any, data: bytearray) -> tuple[Any, Data]:
    """Run a store's method; for a request of None return this process's id."""
    if request[0] is None:
        return os.getpid(), b""
    method, url, place, patience, environment, stall, arguments = request
    try:
        run = getattr(store_of(ObjectUrl(*place), environment, stall), method)
        answer: tuple[Any, Data] = patiently(url, patience, lambda: run(url, place[2], *arguments))
        return answer
    except PackerError:
        raise
    except Exception as error:  # a bug here or in a library: report it to the caller
        raise RemoteError(f"{url}: {type(error).__name__}: {error}.") from None
