"""Objects of schemes that obstore lacks and fsspec knows (hf://, sftp://, hdfs://): they are only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packer.errors import UsageError
from packer.remote.object_store import Answer, ObjectInfo, check_version, exactly, write_at


class FsspecStore:
    """All objects of one scheme and root. Thread-safe as far as the file system is."""

    def __init__(self, scheme: str, root: str) -> None:
        import fsspec

        try:
            self._files = fsspec.core.url_to_fs(f"{scheme}://{root}")[0]
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"{scheme}://: cannot be read ({error}). s3, gs, az, https, file, and what fsspec knows, are allowed."
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
        """Return None and the bytes [start, stop), or none if a file of that path gets them."""
        check_version(url, ObjectInfo(*version), self._info(url))
        data = self._files.cat_file(self._path(url), start, stop) if stop > start else b""
        exactly(data, stop - start)
        if path:
            write_at(path, start, data)
        return None, b"" if path else data

    def _path(self, url: str) -> str:
        path: str = self._files._strip_protocol(url)
        return path

    def _info(self, url: str) -> ObjectInfo:
        self._files.invalidate_cache()
        entry = self._files.info(self._path(url))
        tags = [entry[name] for name in ("ETag", "etag", "sha256", "md5", "oid") if entry.get(name)]
        times = [
            entry[name] for name in ("LastModified", "last_modified", "mtime", "created") if entry.get(name)
        ]
        return ObjectInfo(int(entry["size"]), str(tags[0]) if tags else None, str(times[0]) if times else "")
