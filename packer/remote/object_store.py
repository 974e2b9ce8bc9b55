"""Stores, through obstore or fsspec; used only in the helper process, whose threads share them.

Each method takes the URL (for messages), the key and further arguments, makes one attempt, and returns a
value and bytes.

A request with a transient failure (no connection, a reset, an early end, a stall, 429, 5xx) is repeated after
increasing pauses until the patience is spent. obstore's time limit for a request includes its body, so it is
long, and each read has an additional limit. A store may answer a range past an object's end with fewer bytes,
and for a replaced object with other bytes;
therefore each answer's length and its object's size, tag and date are compared with the expected ones.
Reading stops at the requested bytes, whatever the server sends; MEMORY bounds what a client's library reads
before that: bodies of errors, pages of listings, and all answers to fsspec.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from packer.errors import RemoteError, SpaceError, UsageError
from packer.remote.credentials import apply, aws_options, redirect_guard
from packer.remote.store_errors import EndedEarly, explain, replaced
from packer.remote.urls import AWS, FILE, GOOGLE, OBSTORE, WEB, ObjectUrl

T = TypeVar("T")
Answer = tuple[Any, Any]

# smallest piece passed on while more arrives; in practice all received bytes, 400 kB from a fast server
_PIECE_BYTES = 1
# A line of 1 Mbit/s shared by 16 requests gives each 7.8 kB/s; a working server sends at least half of that
# in the long run.
_SLOW_SECONDS, _SLOWEST = 30.0, 4096
PART_BYTES = 16 << 20  # of an upload; S3 allows at most 10,000 parts
_MOST_PARTS = 9_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 8.0
_MOST_STORES = 64
_STORES: dict[Any, Any] = {}
_MAKING = threading.Lock()
_CLIENT = {"connect_timeout": "5s", "timeout": "30m"}
_RETRIES = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
_WRITING = threading.Lock()  # concurrent writers to one file would spin in the kernel
_MOST_BYTES = 1 << 30  # of an object that is read completely
_PAGE = 1000  # objects per request of a listing
_PAGE_SECONDS = 60.0  # until a listing without further objects is repeated
_MOST_LISTED = 1 << 24
# Memory of the helper: at rest, per core (threads of the client, with stacks and arenas), per connection.
_ROOM, _CORE_ROOM, _CONNECTION_ROOM = 512 << 20, 32 << 20, 64 << 20
_LISTED_BYTES = 4096  # of an object in a listing, whose name has up to 1,024, and in the answer


class ObjectInfo(NamedTuple):
    """Size of an object in bytes, and its version.

    etag: entity tag, None if the store has none; modified: modification time, ISO 8601, UTC.
    """

    size: int
    etag: str | None
    modified: str


class ObstoreBucket:
    """A bucket, container or web server. Thread-safe."""

    def __init__(self, store: Any) -> None:
        import obstore

        self._obstore, self._store = obstore, store

    def stat(self, url: str, key: str) -> Answer:
        """Return an ObjectInfo."""
        return _info(self._obstore.head(self._store, key)), b""

    def read_all(self, url: str, key: str, most: int | None) -> Answer:
        """Return an ObjectInfo and all bytes."""
        result = self._get(key, {})
        info = _info(result.meta)
        check_size(url, info, most)
        return info, _bytes(url, result, info.size)

    def read_end(self, url: str, key: str, count: int) -> Answer:
        """Return an ObjectInfo and the last bytes."""
        try:
            result = self._get(key, {"range": {"suffix": count}})
        except Exception:  # Azure has no range from the end; an empty object has no range
            info, _ = self.stat(url, key)
            if not info.size:
                return info, b""
            result = self._get(key, {"range": (max(0, info.size - count), info.size)})
        info = _info(result.meta)
        return info, _bytes(url, result, min(count, info.size))

    def read_range(
        self, url: str, key: str, start: int, stop: int, version: Sequence[Any], path: str
    ) -> Answer:
        """Return None and the bytes [start, stop); b"" if the file `path` receives them.

        version: the expected ObjectInfo.
        """
        info = ObjectInfo(*version)
        if not 0 <= start <= stop <= info.size:
            raise RemoteError(f"{url}: bytes {start:,} to {stop:,} were requested; it has {info.size:,}.")
        if start == stop:
            return None, b""
        options: dict[str, Any] = {"range": (start, stop)}
        if info.etag and not info.etag.startswith("W/"):  # weak tags never match
            options["if_match"] = info.etag
        result = self._get(key, options)
        check_version(url, info, _info(result.meta))
        if not path:
            return None, _bytes(url, result, stop - start)
        for at, piece in _pieces(url, result, stop - start):
            write_at(path, start + at, piece)
        return None, b""

    def list_objects(self, url: str, key: str) -> Answer:
        """Return the sorted names below a folder, each with its ObjectInfo."""
        return sorted(asyncio.run(self._list_objects(url, key))), b""

    async def _list_objects(self, url: str, key: str) -> list[tuple[str, ObjectInfo]]:
        """Return the objects below a folder, unsorted. Raises TimeoutError."""
        first = len(key) + 1 if key else 0
        listed: list[tuple[str, ObjectInfo]] = []
        seen = set[str]()
        pages = aiter(self._obstore.list(self._store, key or None, chunk_size=_PAGE))
        # Asynchronous: the library asks for the next page, without a limit, while pages are empty.
        while page := await asyncio.wait_for(anext(pages, None), _PAGE_SECONDS):
            begin = page[0]["path"]
            if begin in seen or len(listed) > _MOST_LISTED:
                what = f"{begin} again" if begin in seen else f"more than {_MOST_LISTED:,} objects"
                raise RemoteError(f"{url}: the server lists {what}, perhaps without end. Check the URL.")
            seen.add(begin)
            listed += [(meta["path"][first:], _info(meta)) for meta in page if len(meta["path"]) > first]
            MEMORY.allow(len(listed) * _LISTED_BYTES)
        return listed

    def put(self, url: str, key: str, path: str) -> Answer:
        """Upload a file as an object, in parts if it is large."""
        file = Path(path)
        part = max(PART_BYTES, file.stat().st_size // _MOST_PARTS)
        MEMORY.allow(10 * part)
        self._obstore.put(self._store, key, file, chunk_size=part, max_concurrency=8)
        return None, b""

    def _get(self, key: str, options: dict[str, Any]) -> Any:
        return self._obstore.get(self._store, key, options=options)


class FsspecStore:
    """All objects of one scheme and root. As thread-safe as the file system."""

    def __init__(self, scheme: str, root: str) -> None:
        import fsspec

        try:
            self._files = fsspec.core.url_to_fs(f"{scheme}://{root}")[0]
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"{scheme}://: cannot be read ({error})."
                " Pass a URL of s3, gs, az, https, file, or a scheme that fsspec reads."
            ) from None

    def stat(self, url: str, key: str) -> Answer:
        """Return an ObjectInfo."""
        return self._info(url), b""

    def read_all(self, url: str, key: str, most: int | None) -> Answer:
        """Return an ObjectInfo and all bytes."""
        info = self._info(url)
        check_size(url, info, most)
        return info, self.read_range(url, key, 0, info.size, info, "")[1]

    def read_end(self, url: str, key: str, count: int) -> Answer:
        """Return an ObjectInfo and the last bytes."""
        info = self._info(url)
        return info, self.read_range(url, key, max(0, info.size - count), info.size, info, "")[1]

    def read_range(
        self, url: str, key: str, start: int, stop: int, version: Sequence[Any], path: str
    ) -> Answer:
        """Return None and the bytes [start, stop); b"" if the file `path` receives them."""
        check_version(url, ObjectInfo(*version), self._info(url))
        MEMORY.allow(stop - start)
        data = self._files.cat_file(self._files._strip_protocol(url), start, stop) if stop > start else b""
        exactly(url, len(data), stop - start)
        if path:
            write_at(path, start, data)
        return None, b"" if path else data

    def _info(self, url: str) -> ObjectInfo:
        self._files.invalidate_cache()
        entry = self._files.info(self._files._strip_protocol(url))
        tags = [entry[name] for name in ("ETag", "etag", "sha256", "md5", "oid") if entry.get(name)]
        times = [
            entry[name] for name in ("LastModified", "last_modified", "mtime", "created") if entry.get(name)
        ]
        return ObjectInfo(int(entry["size"]), str(tags[0]) if tags else None, str(times[0]) if times else "")


class Memory:
    """The limit on the helper's memory: room to work, and for what its connections request.

    It ends the process, or raises MemoryError, when a library reads much more than was requested. Limits are
    of private memory, written to or not. Not enforced on macOS.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = self._largest = 0
        self._given, self._hard = resource.getrlimit(resource.RLIMIT_DATA)

    def allow(self, nbytes: int = 0, connections: int = 0) -> None:
        """Raise the limit for an answer of `nbytes` bytes and for further connections.

        Does nothing in a process without connections, which is not the helper.
        """
        with self._lock:
            self._connections += connections
            if not self._connections or (nbytes <= self._largest and not connections):
                return
            self._largest = max(self._largest, nbytes)
            room = _ROOM + _CORE_ROOM * (os.cpu_count() or 1)
            room += self._connections * (_CONNECTION_ROOM + 2 * self._largest)
            if self._given != resource.RLIM_INFINITY:
                room = min(room, self._given)
            resource.setrlimit(resource.RLIMIT_DATA, (room, self._hard))


MEMORY = Memory()


def _bytes(url: str, result: Any, count: int) -> bytearray:
    """Return the `count` bytes of an answer. Raises like `_pieces`."""
    MEMORY.allow(count)
    data = bytearray(count)
    for at, piece in _pieces(url, result, count):
        data[at : at + len(piece)] = piece
    return data


def _pieces(url: str, result: Any, count: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the `count` bytes of an answer as they arrive, each piece with its position.

    Raises EndedEarly if it is shorter or the server stays too slow, RemoteError if it is longer.
    """
    began, received = time.monotonic(), 0
    for piece in result.stream(_PIECE_BYTES):
        view = memoryview(piece)
        at, received = received, received + len(view)
        if received > count:
            break
        yield at, view
        seconds = time.monotonic() - began
        if seconds > _SLOW_SECONDS + received / _SLOWEST:
            raise EndedEarly(
                f"it sent {received:,} bytes in {seconds:,.0f} s, less than {_SLOWEST:,} a second"
            )
    exactly(url, received, count)


def write_at(path: str, at: int, data: bytes | memoryview) -> None:
    """Write bytes into an existing file. Raises SpaceError."""
    view = memoryview(data)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with _WRITING:
                while len(view):
                    done = os.pwrite(fd, view, at)
                    view, at = view[done:], at + done
        finally:
            os.close(fd)
    except OSError as error:
        raise SpaceError(f"{path}: cannot be written ({error.strerror}).") from None


def patiently(url: str, patience: float, attempt: Callable[[], T]) -> T:
    """Return the result of a request, repeating it after transient failures while patience lasts.

    Raises PackerError.
    """
    deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
    while True:
        try:
            return attempt()
        except Exception as error:
            failure, passing = explain(url, error)
            if not passing or time.monotonic() + pause > deadline:
                raise failure from None
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, _LONGEST_PAUSE)


def exactly(url: str, received: int, count: int) -> None:
    """Raise EndedEarly if an answer is shorter than requested, RemoteError if it is longer."""
    if received < count:
        raise EndedEarly(f"it sent {received:,} bytes of {count:,}")
    if received > count:
        raise RemoteError(
            f"{url}: the server sent more than the {count:,} bytes that were requested. Copy the object to a"
            " store that keeps to requests."
        )


def check_size(url: str, info: ObjectInfo, most: int | None) -> None:
    """Raise RemoteError for an object that is too large to be read completely."""
    most = _MOST_BYTES if most is None else most
    if info.size > most:
        raise RemoteError(f"{url}: is {info.size:,} bytes long; at most {most:,} are read. Check the name.")


def check_version(url: str, expected: ObjectInfo, actual: ObjectInfo) -> None:
    """Raise FormatError unless an answer has the expected version, by its tag or (without tags) its date."""
    tagged = expected.etag and actual.etag
    same = expected.etag == actual.etag if tagged else expected.modified == actual.modified
    if not same or expected.size != actual.size:
        raise replaced(url)


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    modified = meta["last_modified"]
    return ObjectInfo(int(meta["size"]), meta["e_tag"] or None, modified.isoformat() if modified else "")


def store_of(place: ObjectUrl, environment: Mapping[str, str], stall: float) -> Any:
    """Return the store of a URL under these environment variables; created once. Raises PackerError.

    stall: seconds without a byte until a request is repeated.
    """
    asked = place.scheme, place.root, tuple(sorted(environment.items())), stall
    with _MAKING:
        if asked not in _STORES:
            while len(_STORES) >= _MOST_STORES:
                del _STORES[next(iter(_STORES))]
            apply(environment)
            obstore = place.scheme in OBSTORE
            _STORES[asked] = _bucket(place, environment, stall) if obstore else FsspecStore(*place[:2])
        return _STORES[asked]


def _bucket(place: ObjectUrl, environment: Mapping[str, str], stall: float) -> ObstoreBucket:
    """Return the store of a URL; the environment variables are set in this process too.

    Raises PackerError.
    """
    scheme, root = place.scheme, place.root
    from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, S3Store

    if scheme in FILE:
        return ObstoreBucket(LocalStore())
    common: Any = {
        "client_options": {**_CLIENT, "read_timeout": f"{round(stall * 1000)}ms"},
        "retry_config": _RETRIES,
    }
    if scheme in AWS:
        config, provider = aws_options(f"{scheme}://{root}", environment)
        common["client_options"] |= redirect_guard(config, environment)
        common["client_options"]["allow_http"] = config.get("endpoint", "").startswith("http:")
        return ObstoreBucket(S3Store(root, config=config, credential_provider=provider, **common))
    if scheme in WEB:
        common["client_options"]["allow_http"] = scheme == "http"
        return ObstoreBucket(HTTPStore.from_url(f"{scheme}://{root}", **common))
    if scheme in GOOGLE:
        return ObstoreBucket(GCSStore(root, **common))
    if "@" in root:
        return ObstoreBucket(AzureStore.from_url(f"{scheme}://{root}", **common))
    return ObstoreBucket(AzureStore(root, **common))
