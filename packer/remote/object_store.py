"""Stores, through obstore or fsspec; used only in the helper process, whose threads share them.

Each method takes the URL (for messages), the key and further arguments, makes one attempt, and returns a
value and bytes.

A request with a transient failure (no connection, a reset, an early end, a stall, 429, 5xx) is repeated after
increasing pauses until the patience is spent. obstore's time limit for a request includes its body, so it is
long, and each read has an additional limit. A store may answer a range past an object's end with fewer bytes,
and for a replaced object with other bytes;
therefore each answer's length and its object's size, tag and date are compared with the expected ones.
"""

from __future__ import annotations

import os
import random
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
        if most is not None and info.size > most:
            raise RemoteError(
                f"{url}: is {info.size:,} bytes long; at most {most:,} are read. Check the name."
            )
        return info, exactly(b"".join(_pieces(result)), info.size)

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
        return info, exactly(b"".join(_pieces(result)), min(count, info.size))

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
            return None, exactly(b"".join(_pieces(result)), stop - start)
        at = start
        for piece in _pieces(result):
            write_at(path, at, piece)
            at += len(piece)
        exactly(range(start, at), stop - start)
        return None, b""

    def list_objects(self, url: str, key: str) -> Answer:
        """Return the sorted names below a folder, each with its ObjectInfo."""
        first = len(key) + 1 if key else 0
        return sorted(
            (meta["path"][first:], _info(meta))
            for some in self._obstore.list(self._store, key or None, chunk_size=1000)
            for meta in some
            if len(meta["path"]) > first
        ), b""

    def put(self, url: str, key: str, path: str) -> Answer:
        """Upload a file as an object, in parts if it is large."""
        file = Path(path)
        part = max(PART_BYTES, file.stat().st_size // _MOST_PARTS)
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
        size = info.size if most is None else min(most, info.size)
        return info, self.read_range(url, key, 0, size, info, "")[1]

    def read_end(self, url: str, key: str, count: int) -> Answer:
        """Return an ObjectInfo and the last bytes."""
        info = self._info(url)
        return info, self.read_range(url, key, max(0, info.size - count), info.size, info, "")[1]

    def read_range(
        self, url: str, key: str, start: int, stop: int, version: Sequence[Any], path: str
    ) -> Answer:
        """Return None and the bytes [start, stop); b"" if the file `path` receives them."""
        check_version(url, ObjectInfo(*version), self._info(url))
        data = self._files.cat_file(self._files._strip_protocol(url), start, stop) if stop > start else b""
        exactly(data, stop - start)
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


def _pieces(result: Any) -> Iterator[memoryview]:
    """Yield an answer's bytes as they arrive. Raises EndedEarly if the server stays too slow."""
    began, received = time.monotonic(), 0
    for piece in result.stream(_PIECE_BYTES):
        view = memoryview(piece)
        received += len(view)
        yield view
        seconds = time.monotonic() - began
        if seconds > _SLOW_SECONDS + received / _SLOWEST:
            raise EndedEarly(
                f"it sent {received:,} bytes in {seconds:,.0f} s, less than {_SLOWEST:,} a second"
            )


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


def exactly(data: Any, count: int) -> Any:
    """Return `data`. Raises EndedEarly unless its length is `count`."""
    if len(data) != count:
        raise EndedEarly(f"it sent {len(data):,} bytes of {count:,}")
    return data


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
