"""One array that lies in many files, as that of a pack of thousands of shards: each file is opened when rows of it are needed.

The arrays of a pack share the files that are open. Where the system lets the process have all of them (ulimit -n), they stay open, and
once the last one has been opened an array is read as one ExtentArray; else only those stay open that were read last. A file is closed
when no array, and no thread that reads it, has it any more.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from packer.format.header import Extent
from packer.format.pack import Pack
from packer.orders.runs import Runs
from packer.read.gather import Bytes, ExtentArray, OpenFile, allow_files, by_part, read_part
from packer.starting import ForkSafeLock

FEW_FILES = 64
"""Up to so many are opened at once: a millisecond or two, and what is wrong with one of them is told before any row is read."""
_SPARE_FILES = 256  # left to the rest of the process
_LEAST_FILES = 8  # stay open, however few there may be

Key = tuple[str, bytes]


class ShardedArray:
    """The extents of one array, file by file. Thread-safe; reads as ExtentArray does."""

    def __init__(self, pack: Pack, extents: Sequence[Extent]) -> None:
        self._pack, extents = pack, [e for e in extents if e.rows]
        self._arrival = pack.arrival(extents)
        self._files = [list(own) for _, own in groupby(extents, lambda extent: extent.file)]
        self._firsts = np.cumsum([0, *(sum(e.rows for e in own) for own in self._files)])
        self.rows, self.row_bytes = int(self._firsts[-1]), extents[0].row_bytes
        self._lock = threading.Lock()
        self._arrays: OrderedDict[int, ExtentArray] = (
            OrderedDict()
        )  # by the number of the file; those read last at the end
        self._whole: ExtentArray | None = None
        self.key: Key = pack.path, pack.seal
        self.maps: bool
        count = len(self._files)
        room = _room(self.key, 4 * count)
        self.stays = count <= room
        self.most = count if self.stays else max(_LEAST_FILES, room // 6)  # files that stay open
        # A mapping holds a descriptor of its own.
        others = sum(array.key == self.key and array.maps for array in list(_ARRAYS))
        self.maps = (2 + others) * count <= room
        _ARRAYS.add(self)

    def read(self, runs: Runs, out: Bytes) -> None:
        """See ExtentArray."""
        if self._arrival is not None and self._arrival.take(runs.starts, runs.lengths, out):
            return
        if self._whole is not None:
            self._whole.read(runs, out)
            return
        for number, own, places in by_part(self._firsts, runs):
            read_part(self._array(number).read, own, places, out.reshape(-1, self.row_bytes))
        if self.stays and len(self._arrays) == len(self._files):
            self._join()

    def willneed(self, runs: Runs) -> None:
        """See ExtentArray."""
        if self._arrival is not None:
            self._arrival.ahead(runs.starts, runs.lengths)
        elif self._whole is not None:
            self._whole.willneed(runs)
        else:
            for number, own, _ in by_part(self._firsts, runs):
                self._array(number).willneed(own)

    def _array(self, number: int) -> ExtentArray:
        """Return the array of a file, opened if it is not. Raises FormatError."""
        with self._lock:
            array = self._arrays.get(number)
            if array is not None:
                self._arrays.move_to_end(number)
                return array
        extents = self._files[number]
        array = ExtentArray(self._pack, extents, opened=[self._opened(extents[0])], maps=False)
        with self._lock:
            array = self._arrays.setdefault(number, array)
            while len(self._arrays) > self.most:
                self._arrays.popitem(last=False)
        return array

    def _opened(self, extent: Extent) -> OpenFile:
        """Return an open file of the pack, the one that another array has open, if one does. Raises FormatError."""
        if self._arrival is not None or not self._pack.seal:  # nothing tells two files of one name apart
            return self._open(extent)
        key = (*self.key, extent.file)
        with _LOCK:
            shared = _FILES.get(key)
        if shared is not None:
            return shared
        file = self._open(extent)
        with _LOCK:
            _FILES[key] = file
        return file

    def _open(self, extent: Extent) -> OpenFile:
        file = OpenFile(self._pack.file(extent))
        self._pack.check_part(extent.file)  # after opening: what is open now stays the same file
        return file

    def _join(self) -> None:
        """Read all files as one array from now on: one call for all rows of a batch."""
        with self._lock:
            arrays, extents = self._arrays, [extent for own in self._files for extent in own]
            if self._whole is None:
                opened = [arrays[number].opened[0] for number in range(len(self._files))]
                self._whole = ExtentArray(self._pack, extents, opened=opened, maps=self.maps)
                self._arrays = OrderedDict()


_LOCK = ForkSafeLock()
_FILES: weakref.WeakValueDictionary[tuple[str, bytes, str], OpenFile] = weakref.WeakValueDictionary()
_ARRAYS: weakref.WeakSet[ShardedArray] = weakref.WeakSet()


def _room(key: Key, wanted: int) -> int:
    """Return how many descriptors the arrays of a pack may hold together, having asked the system for so many.

    Some are left to whom they may come to be needed by: arrays of other packs that were not read yet, and the rest of the program.
    """
    arrays = list(_ARRAYS)
    most: dict[Key, int] = {}
    for array in arrays:
        if array.key != key:
            most[array.key] = max(most.get(array.key, 0), array.most)
    with _LOCK:
        held = [name[:2] for name in _FILES]
    coming = sum(max(0, count - held.count(name)) for name, count in most.items())
    allow_files(wanted + coming)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    used = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    return max(0, soft - used + held.count(key) - coming - _SPARE_FILES) * 3 // 4
