"""Remote packs, opened by URL. Their rows are read from the files of a cache, or pass through memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import pread_path
from packer.format.header import HEADER_FILE, INDEX_FILE, MAX_INDEX_BYTES
from packer.orders.runs import Runs, one_run
from packer.packs.pack import Pack, PackFiles
from packer.packs.remote_file import RemoteFile, read_object
from packer.packs.shards import index_of, merge_headers
from packer.packs.stretch_cache import KEPT, StretchCache
from packer.packs.stretch_window import CONNECTIONS, STRETCH_BYTES, StretchWindow
from packer.packs.stretches import Numbers, StretchMap
from packer.remote import access
from packer.remote.urls import join_url
from packer.source_kinds import is_hdf5_name
from packer.starting import ForkSafeLock

_TOGETHER = 32  # stretches that a read holds at once
# A sequential step goes forward by at most _NEAR stretches; after _STEPS such steps the next stretches are
# prefetched.
_NEAR, _STEPS = 2, 2
_LOOK = 64  # reads between checks whether an array has arrived completely


class RemoteRows:
    """The rows of a remote pack; see Units. Thread-safe; usable after fork and unpickling.

    files: the pack's files; cache: stores stretches; None: rows only pass through memory.
    """

    pack: Pack
    files: Mapping[str, RemoteFile]
    cache: StretchCache | None

    ahead_bytes = 32 * STRETCH_BYTES  # two stretches per connection

    def __init__(
        self, pack: Pack, files: Mapping[str, RemoteFile], cache: StretchCache | None = None
    ) -> None:
        self.pack, self.files, self.cache = pack, files, cache
        self.window: StretchWindow[int] = StretchWindow(self._bring)
        self._lock = ForkSafeLock()
        self._map: StretchMap | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteRows, (self.pack, self.files, self.cache)

    @property
    def map(self) -> StretchMap:
        """Places of the stretches."""
        if self._map is None:
            with self._lock:
                self._map = self._map or StretchMap(self.pack, self.files)
        return self._map

    def check(self) -> None:
        """Check that the cache can be used, and release it. Raises PackerError."""
        self.kept(np.arange(0))
        self.close()

    def arrival(self, array: str) -> RemoteArrival:
        """Return the access to an array's arriving rows."""
        return RemoteArrival(self, array)

    def path(self, file: str) -> str:
        """Return the local file that holds the rows of a pack's file once they have arrived."""
        return os.devnull if self.cache is None else self.cache.path(self.map, file)

    def exclusive(self) -> RemoteRows:
        """Return the rows for the exclusive use of one dataset; see Pack."""
        return RemoteRows(self.pack, self.files, copy(self.cache))

    def close(self) -> None:
        """Drop the stretches in memory, and release the cache."""
        self.window.close()
        if self.cache is not None:
            self.cache.close()

    def closing(self) -> AbstractContextManager[None]:
        """See Pack."""
        self.close()
        return nullcontext()

    def holds(self, stretches: Runs) -> bool:
        """Return True if all of these stretches are in the cache."""
        assert self.cache is not None
        states = self.cache.states(self.map)
        spans = zip(stretches.starts.tolist(), stretches.lengths.tolist(), strict=True)
        return all(states[first : first + count].min(initial=KEPT) == KEPT for first, count in spans)

    def kept(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return for each stretch whether it is in the cache, bool [len(numbers)]."""
        if self.cache is None:
            return np.zeros(len(numbers), bool)
        found: NDArray[np.bool_] = self.cache.states(self.map)[numbers] == KEPT
        return found

    def wait(self, numbers: Numbers) -> Numbers:
        """Wait until the cache holds these stretches, as far as it has room; return the others.

        Raises PackerError.
        """
        missing = numbers[~self.kept(numbers)]
        if self.cache is None or self.cache.full or not len(missing):
            return missing
        for first in range(0, len(missing), _TOGETHER):
            self.window.get(missing[first : first + _TOGETHER].tolist())
        passing: Numbers = missing[~self.kept(missing)]
        return passing

    def load(self, numbers: Numbers) -> Iterator[memoryview]:
        """Yield the bytes of stretches from the cache or the store. Raises PackerError."""
        passing = set(self.wait(numbers).tolist())
        for first in range(0, len(numbers), _TOGETHER):
            few = numbers[first : first + _TOGETHER].tolist()
            found = self.window.get(number for number in few if number in passing)
            for number in few:
                yield found.get(number) or self._read_cached(number)

    def _read_cached(self, number: int) -> memoryview:
        """Return the bytes of a cached stretch; b"" without a cache, where a stretch may be empty."""
        if self.cache is None:
            return memoryview(b"")
        begin, end = self.map.place(number)
        return memoryview(pread_path(self.path(self.map.file(number)), end - begin, begin))

    def _bring(self, number: int) -> memoryview:
        """Fetch a stretch: into the cache, returning b"", or into memory, returning its bytes."""
        return self.map.fetch(number) if self.cache is None else self.cache.bring(self.map, number)


class RemoteArrival:
    """Access to an array's rows. See Arrival."""

    def __init__(self, rows: RemoteRows, array: str) -> None:
        self._rows, self._array = rows, array
        self._whole, self._reads = False, 0
        self._latest, self._steps = -1, 0

    def take(self, starts: Numbers, lengths: Numbers, out: NDArray[np.uint8]) -> bool:
        """See Arrival."""
        runs = Runs(starts, lengths)
        numbers = self._numbers(runs)
        if not len(numbers):
            return False
        self._go_on(int(numbers[0]), int(numbers[-1]))
        if len(self._rows.wait(numbers)):
            self._gather(runs, out)
            return True
        self._reads += 1
        if self._reads % _LOOK == 0:
            self._whole = self._rows.holds(self._rows.map.numbers(self._array))
        return False

    def ahead(self, starts: Numbers, lengths: Numbers) -> None:
        """See Arrival."""
        self._ask(self._numbers(Runs(starts, lengths)))

    def _ask(self, numbers: Numbers) -> None:
        if len(numbers):
            self._rows.window.ahead(numbers[~self._rows.kept(numbers)].tolist())

    def _go_on(self, first: int, last: int) -> None:
        """Prefetch the following stretches while reads go from stretch to stretch, but not row by row."""
        before, self._latest = self._latest, last
        if first == before == last:
            return
        # Threads read parts of a batch in any order; several small steps forward are not a coincidence.
        self._steps = self._steps + 1 if last > before and abs(first - before) <= _NEAR else 0
        if self._steps >= _STEPS:
            self._ask(self._rows.map.following(self._array, last, CONNECTIONS))

    def _numbers(self, runs: Runs) -> Numbers:
        """Return the stretches that hold these elements; none once the cache holds all."""
        if self._whole or not len(runs.starts):
            return np.empty(0, np.int64)
        stretches = self._rows.map
        stretches.find(self._array, runs, self._rows.load)
        return stretches.holding(self._array, runs)

    def _gather(self, runs: Runs, out: NDArray[np.uint8]) -> None:
        """Copy rows from cached and from fetched stretches into `out`."""
        pieces, at = sorted(self._pieces(runs)), 0
        order = np.array(list(dict.fromkeys(number for number, *_ in pieces)))
        rows = out.reshape(-1, self._rows.map.element_bytes(self._array))
        for number, loaded in zip(order.tolist(), self._rows.load(order), strict=True):
            data = np.frombuffer(loaded, np.uint8).reshape(-1, rows.shape[1])
            while at < len(pieces) and pieces[at][0] == number:
                _, to, begin, end = pieces[at]
                rows[to : to + end - begin] = data[begin:end]
                at += 1

    def _pieces(self, runs: Runs) -> Iterator[tuple[int, int, int, int]]:
        """Yield (stretch, position in the output, first and last + 1 of the stretch's elements)."""
        stretches, to = self._rows.map, 0
        for start, length in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            for number in stretches.holding(self._array, one_run(start, start + length)).tolist():
                first, last = stretches.span(number)
                low, high = max(start, first), min(start + length, last)
                yield number, to + low - start, low - first, high - first
            to += length


@dataclass(frozen=True)
class RemotePack(Pack):
    """A remote pack. path: its URL; files: by the names in extents."""

    files: Mapping[str, RemoteFile] = field(kw_only=True)

    def exclusive(self) -> RemotePack:
        """See Pack; works for a shard too."""
        return replace(self, units=(self.units or RemoteRows(self, self.files)).exclusive())

    def check_same(self) -> None:
        """Do nothing: each read requests the version that was opened."""

    def confirm(self) -> None:
        """See Pack."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(RemoteFile.confirm, self.files.values()):
                pass

    def read_bytes(self, file: str, offset: int, nbytes: int) -> bytes:
        """See Pack."""
        return bytes(self.files[file].read(offset, nbytes))

    def open_files(self) -> PackFiles:
        """See Pack."""
        return _StoredFiles(self)

    def kept_in(self, cache: str, most: int, shared: bool = False) -> RemotePack:
        """Return the pack with its rows in a cache of at most `most` bytes. shared: see StretchCache.

        Raises PackerError.
        """
        rows = RemoteRows(self, self.files, StretchCache(self, self.files, cache, most, shared))
        rows.exclusive().check()  # an unusable folder must not wait for the first batch
        return replace(self, units=rows)


class _StoredFiles(PackFiles):
    """The files of a remote pack, each piece read once."""

    def __init__(self, pack: RemotePack) -> None:
        self._files = pack.files
        self._window = StretchWindow(self._fetch)

    def __exit__(self, *exc: object) -> None:
        self._window.close()

    def read_into(self, file: str, out: memoryview, offset: int) -> int:
        """See PackFiles. Raises RemoteError."""
        done = 0
        while done < len(out):
            number, at = divmod(offset + done, STRETCH_BYTES)
            piece = self._window.get([(file, number)])[file, number][at : at + len(out) - done]
            if not piece:
                break
            out[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def willneed(self, file: str, offset: int, nbytes: int) -> None:
        """See PackFiles."""
        last = (offset + nbytes - 1) // STRETCH_BYTES
        self._window.ahead((file, number) for number in range(offset // STRETCH_BYTES, last + 1))

    def _fetch(self, place: tuple[str, int]) -> memoryview:
        file, begin = self._files[place[0]], place[1] * STRETCH_BYTES
        return memoryview(file.read(begin, max(0, min(STRETCH_BYTES, file.info.size - begin))))


def open_remote(url: str) -> RemotePack:
    """Open a pack by its URL, a file or a folder of shards. Raises FormatError, RemoteError."""
    openers = [open_object, open_shards]
    if url.endswith("/") or not is_hdf5_name(url):
        openers.reverse()
    for opener in openers:
        try:
            pack = opener(url.rstrip("/"))
            return replace(pack, units=RemoteRows(pack, pack.files))
        except MissingObjectError:
            continue
    try:
        access.stat(join_url(url, HEADER_FILE))
    except MissingObjectError:
        raise MissingObjectError(f"{url}: there is no pack. Check the name.") from None
    raise _of_arrays(url)


def put_pack(url: str, path: str) -> None:
    """Upload a pack's file; it may replace a pack.

    Raises UsageError if something else has this name, and RemoteError.
    """
    try:
        with suppress(MissingObjectError):
            open_object(url)
    except FormatError:
        raise UsageError(
            f"{url}: exists and is not a pack; only packs are replaced. Pass another name, or remove it."
        ) from None
    access.put_file(url, path, patience=access.ROWS_PATIENCE)


def open_object(url: str) -> RemotePack:
    """Open a pack of one file. Raises FormatError, RemoteError."""
    pack, file = read_object(url)
    return RemotePack(url, pack.header, pack.seal, files={"": file})


def open_shards(url: str) -> RemotePack:
    """Open a pack of shards. Raises FormatError, RemoteError."""
    data, _ = access.read_all(join_url(url, INDEX_FILE), MAX_INDEX_BYTES)
    index = index_of(bytes(data), join_url(url, INDEX_FILE))
    for shard in index.shards:
        if shard.format == "npy":
            raise _of_arrays(shard.path)
    shards = tuple(
        RemotePack(shard.path, shard.header, shard.seal, files={"": RemoteFile.from_shard(shard)})
        for shard in index.shards
    )
    files = {str(number): shard.files[""] for number, shard in enumerate(shards)}
    header = merge_headers([shard.header for shard in shards], index.skipped)
    return RemotePack(url, header, index.digest, shards, files=files)


def _of_arrays(url: str) -> FormatError:
    return FormatError(
        f"{url}: is a folder of .npy files; remote packs are HDF5 files. Repack it: packer repack."
    )
