"""Objects of any scheme that fsspec knows (hf://, sftp://, hdfs://, file://), with the methods of ObstoreBucket."""

from __future__ import annotations

import contextlib
from typing import Any

from packer.errors import MissingObjectError, UsageError
from packer.remote.object_store import Answer, ObjectInfo, check_version, exactly, patiently


class FsspecStore:
    """All objects of one scheme and root. Thread-safe as far as the file system is."""

    def __init__(self, scheme: str, root: str) -> None:
        import fsspec

        try:
            self._files = fsspec.core.url_to_fs(f"{scheme}://{root}")[0]
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"{scheme}://: cannot be read ({error}). s3, gs, az, https, and what fsspec knows, are allowed."
            ) from None
        self._scheme, self._root = scheme, root

    def stat(self, url: str, key: str, patience: float) -> Answer:
        """Return an ObjectInfo."""
        return patiently(url, patience, lambda: self._info(url)), b""

    def read_all(self, url: str, key: str, patience: float, most: int | None) -> Answer:
        """Return an ObjectInfo and all bytes."""
        info = self.stat(url, key, patience)[0]
        size = info.size if most is None else min(most, info.size)
        return info, self.read_range(url, key, patience, 0, size, info)[1]

    def read_end(self, url: str, key: str, patience: float, count: int) -> Answer:
        """Return an ObjectInfo and the last bytes."""
        info = self.stat(url, key, patience)[0]
        return info, self.read_range(url, key, patience, max(0, info.size - count), info.size, info)[1]

    def read_range(
        self, url: str, key: str, patience: float, start: int, stop: int, info: ObjectInfo, take: Any = None
    ) -> Answer:
        """Return None and the bytes [start, stop); they come as one piece, which `take` is not given."""

        def attempt() -> Any:
            check_version(url, info, self._info(url))
            return (
                exactly(self._files.cat_file(self._path(url), start, stop), stop - start)
                if stop > start
                else b""
            )

        return None, patiently(url, patience, attempt)

    def list_objects(self, url: str, key: str, patience: float) -> Answer:
        """Return the sorted names below a folder, each with its ObjectInfo."""

        def attempt() -> list[tuple[str, ObjectInfo]]:
            folder = self._path(url).rstrip("/")
            try:
                found = self._files.find(folder, detail=True)
            except FileNotFoundError:
                return []
            return sorted((name[len(folder) + 1 :], _info(entry)) for name, entry in found.items())

        return patiently(url, patience, attempt), b""

    def put_bytes(self, url: str, key: str, patience: float, data: bytes) -> Answer:
        """Write an object."""
        patiently(url, patience, lambda: self._files.pipe_file(self._path(url), data))
        return None, b""

    def put_file(self, url: str, key: str, patience: float, path: str) -> Answer:
        """Write a file's bytes."""
        patiently(url, patience, lambda: self._files.put_file(path, self._path(url)))
        return None, b""

    def delete(self, url: str, key: str, patience: float) -> Answer:
        """Remove an object, if it is there."""
        with contextlib.suppress(MissingObjectError):
            patiently(url, patience, lambda: self._files.rm_file(self._path(url)))
        return None, b""

    def _path(self, url: str) -> str:
        path: str = self._files._strip_protocol(url)
        return path

    def _info(self, url: str) -> ObjectInfo:
        self._files.invalidate_cache()
        return _info(self._files.info(self._path(url)))


def _info(entry: dict[str, Any]) -> ObjectInfo:
    modified = next(
        (entry[name] for name in ("LastModified", "last_modified", "mtime", "created") if entry.get(name)), ""
    )
    etag = next(
        (str(entry[name]) for name in ("ETag", "etag", "sha256", "md5", "oid") if entry.get(name)), None
    )
    return ObjectInfo(int(entry["size"]), etag, str(modified))
