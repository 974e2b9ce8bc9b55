"""One array that lies in many files, as that of a pack of thousands of shards: each file is opened when rows of it are needed.

Where the system lets the process have all of them (ulimit -n), they stay open, and once the last one has been opened the array is read
as one ExtentArray; else only those stay open that were read last. A file is closed when no thread that reads it has it any more.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from packer.format.header import Extent
from packer.format.pack import Arrival, Pack
from packer.orders.runs import Runs
from packer.read.gather import Bytes, ExtentArray, OpenFile, allow_files, by_part, read_part

FEW_FILES = 64
"""Up to so many are opened at once: a millisecond or two, and what is wrong with one of them is told before any row is read."""
_SPARE_FILES = 256  # left to the rest of the process
_LEAST_FILES = 8  # stay open, however few there may be
_ARRAYS = 8  # of a pack share the descriptors that are left, each with files of its own


class ShardedArray:
    """The extents of one array, file by file. Thread-safe; reads as ExtentArray does."""

    def __init__(self, pack: Pack, extents: Sequence[Extent], *, arrival: Arrival | None = None) -> None:
        """arrival: how its rows come into the files, None if all are there."""
        self._pack, extents = pack, [e for e in extents if e.rows]
        self._arrival = arrival
        self._files = [list(own) for _, own in groupby(extents, lambda extent: extent.file)]
        self._firsts = np.cumsum([0, *(sum(e.rows for e in own) for own in self._files)])
        self.rows, self.row_bytes = int(self._firsts[-1]), extents[0].row_bytes
        self._lock = threading.Lock()
        # By the number of the file; those read last at the end.
        self._arrays: OrderedDict[int, ExtentArray] = OrderedDict()
        self._whole: ExtentArray | None = None
        count = len(self._files)
        room = _room(count)
        self.most = max(_LEAST_FILES, min(count, room))  # files that stay open
        self.maps = 2 * count <= room  # a mapping holds a descriptor of its own

    def read(self, runs: Runs, out: Bytes) -> None:
        """See ExtentArray."""
        if self._arrival is not None and self._arrival.take(runs.starts, runs.lengths, out):
            return
        if self._whole is not None:
            self._whole.read(runs, out)
            return
        for number, own, places in by_part(self._firsts, runs):
            read_part(self._array(number).read, own, places, out.reshape(-1, self.row_bytes))
        if len(self._arrays) == len(self._files):
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
        array = ExtentArray(self._pack, extents, opened=[OpenFile(self._pack.file(extents[0]))], maps=False)
        self._pack.check_part(extents[0].file)  # after opening: what is open now stays the same file
        with self._lock:
            array = self._arrays.setdefault(number, array)
            while len(self._arrays) > self.most:
                self._arrays.popitem(last=False)
        return array

    def _join(self) -> None:
        """Read all files as one array from now on: one call for all rows of a batch."""
        with self._lock:
            arrays, extents = self._arrays, [extent for own in self._files for extent in own]
            if self._whole is None and len(arrays) == len(self._files):
                opened = [arrays[number].opened[0] for number in range(len(self._files))]
                self._whole = ExtentArray(self._pack, extents, opened=opened, maps=self.maps)
                self._arrays = OrderedDict()


def _room(count: int) -> int:
    """Return how many descriptors an array of so many files may hold, having asked the system for enough for all arrays of a pack."""
    allow_files(_ARRAYS * count)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2 * count
    used = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    return (soft - used - _SPARE_FILES) // _ARRAYS


def open_array(pack: Pack, array: str, extents: Sequence[Extent] | None = None) -> ExtentArray | ShardedArray:
    """Open an array of a pack.

    extents: where its elements lie, if they are not rows but the bytes of compressed blocks (see Arrival).
    """
    extents = pack.header.extents[array] if extents is None else extents
    kind = ShardedArray if len({e.file for e in extents if e.rows}) > FEW_FILES else ExtentArray
    return kind(pack, extents, arrival=pack.arrival(array))
