"""The helper process: it answers requests for objects until nobody can ask any more."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from packer.errors import PackerError, RemoteError
from packer.remote.credentials import apply
from packer.remote.fsspec_store import FsspecStore
from packer.remote.object_store import open_bucket, patiently
from packer.remote.urls import OBSTORE, ObjectUrl
from packer.service import Data, serve

_MOST_STORES = 64
_STORES: dict[Any, Any] = {}
_MAKING = threading.Lock()


def main(control: int) -> None:
    """Serve the connections that arrive over a socket until all its other ends are closed. Does not return."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)
    asked = socket.socket(fileno=control)
    while True:
        byte, descriptors, _, _ = socket.recv_fds(asked, 1, 1)
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            threading.Thread(target=serve, args=(connection, _answer), daemon=True).start()
        if not byte:
            os._exit(0)


def _answer(request: Any, data: bytearray) -> tuple[Any, Data]:
    """Run a method of a store; None: return the number of this process."""
    if request[0] is None:
        return os.getpid(), b""
    method, url, place, patience, environment, stall, arguments = request
    try:
        run = getattr(store_of(ObjectUrl(*place), environment, stall), method)
        given = [url, place[2], *(arguments or ([bytes(data)] if method == "put" else []))]
        answer: tuple[Any, Data] = patiently(url, patience, lambda: run(*given))
        return answer
    except PackerError:
        raise
    except Exception as error:  # a bug, or a library's: said where it was asked for
        raise RemoteError(f"{url}: {type(error).__name__}: {error}.") from None


def store_of(place: ObjectUrl, environment: Mapping[str, str], stall: float) -> Any:
    """Return the store of a URL, as these environment variables describe it; made once. Raises PackerError.

    stall: seconds without a byte until a request is made anew.
    """
    asked = place.scheme, place.root, tuple(sorted(environment.items())), stall
    with _MAKING:
        if asked not in _STORES:
            while len(_STORES) >= _MOST_STORES:
                del _STORES[next(iter(_STORES))]
            apply(environment)
            obstore = place.scheme in OBSTORE
            _STORES[asked] = open_bucket(place, environment, stall) if obstore else FsspecStore(*place[:2])
        return _STORES[asked]
