"""A folder of images in an object store: listed once, then prefetched over several connections."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from concurrent.futures import Future
from datetime import datetime
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, ImageError, MissingObjectError, UsageError
from packer.inputs.file_names import image_order, is_hidden, is_image, suffix_of
from packer.inputs.opened_source import ImageSource, SourceOptions
from packer.remote import access
from packer.remote.object_store import ObjectInfo
from packer.remote.urls import join_url
from packer.source_kinds import is_archive
from packer.starting import ForkSafeThreads

_CONNECTIONS = 16  # per worker process
_AHEAD_BYTES = 64 << 20  # prefetched but unread bytes per thread
_TOPS = 2  # folder levels that may be splits and classes


def open_remote_folder(url: str, options: SourceOptions) -> ImageSource:
    """List the images of a folder in an object store. Raises UsageError, RemoteError, SourceError."""
    if is_archive(url):
        raise UsageError(
            f"{url}: is an archive; only folders of images are read from stores. Copy it to a local disk "
            "first."
        )
    listed = {key: info for key, info in access.list_objects(url) if not any(map(is_hidden, key.split("/")))}
    if not listed:
        raise UsageError(f"{url}: no object has this prefix; folders of images are read. Check the URL.")
    found = [key for key in listed if is_image(key)]
    keys = [found[k] for k in image_order(found).tolist()]
    infos = [listed[key] for key in keys]
    folders = {top for key in listed for top in list(accumulate(key.split("/")[:-1], "{}/{}".format))[:_TOPS]}
    left_out = Counter(suffix_of(key) for key in listed if not is_image(key))
    return RemoteImages(url, keys, infos).arrange(url, folders, left_out, options)


def _nanoseconds(modified: str) -> int:
    try:
        return round(datetime.fromisoformat(modified).timestamp() * 1e6) * 1000
    except ValueError:
        return 0


class _Prefetched(threading.local):
    """Images that the current thread will read, in this order: requested ones, and those after them."""

    def __init__(self) -> None:
        self.coming: dict[int, Future[bytes]] = {}
        self.later: deque[int] = deque()
        self.nbytes = 0  # of the requested ones


class RemoteImages(ImageSource):
    """Images in an object store; thread-safe. A forked child starts without pending requests."""

    def __init__(self, url: str, keys: list[str], infos: list[ObjectInfo]) -> None:
        sizes = np.array([info.size for info in infos], np.int64)
        super().__init__(keys, sizes, np.array([_nanoseconds(info.modified) for info in infos], np.int64))
        self._url, self._infos = url, infos
        self._threads = ForkSafeThreads(_CONNECTIONS)
        self._pid, self._own = os.getpid(), _Prefetched()

    def ahead(self, indices: NDArray[np.int64]) -> None:
        """Prefetch images that this thread reads next, in that order, up to _AHEAD_BYTES at a time.

        Earlier ones that it has not read are released.
        """
        own = self._mine()
        self._release(own, len(own.coming))
        own.later = deque(indices.tolist())
        self._go_on(own)

    def read(self, index: int) -> bytes:
        """Return an image file. Raises ImageError if it was removed or changed, RemoteError."""
        own, future = self._mine(), None
        if index in own.coming:
            self._release(own, list(own.coming).index(index))  # the reader has passed over these
            future = own.coming.pop(index)
            own.nbytes -= self._infos[index].size
        elif index in own.later:
            self._release(own, len(own.coming))
            while own.later.popleft() != index:
                pass
        self._go_on(own)
        return self._fetch(index) if future is None else future.result()

    def _mine(self) -> _Prefetched:
        if self._pid != os.getpid():
            self._pid, self._own = os.getpid(), _Prefetched()
        return self._own

    def _release(self, own: _Prefetched, count: int) -> None:
        """Forget the first requested images."""
        for index in list(own.coming)[:count]:
            own.coming.pop(index).cancel()
            own.nbytes -= self._infos[index].size

    def _go_on(self, own: _Prefetched) -> None:
        """Request images as long as unread ones leave room."""
        while own.later and own.nbytes <= _AHEAD_BYTES:
            index = own.later.popleft()
            if index not in own.coming:
                own.coming[index] = self._threads.submit(self._fetch, index)
                own.nbytes += self._infos[index].size

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    def _fetch(self, index: int) -> bytes:
        info, url = self._infos[index], join_url(self._url, self.keys[index])
        try:
            return bytes(access.read_range(url, 0, info.size, info, patience=access.ROWS_PATIENCE))
        except MissingObjectError:
            raise ImageError("no longer exists.") from None
        except FormatError:
            raise ImageError("changed since the conversion began.") from None
