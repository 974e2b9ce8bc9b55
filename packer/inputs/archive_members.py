"""What archives of images have in common: which members are listed, under which keys, and reading them by place."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable

from packer.errors import ImageError, SourceError, UsageError
from packer.format.file_io import pread_all
from packer.inputs.file_names import as_text, changed, is_hidden, is_image, shorten, suffix_of
from packer.source_kinds import ARCHIVES

_LONGEST_NAME = 4096
"""Bytes of a path that a system takes (PATH_MAX): a listing of longer ones was made to exhaust the memory."""
_LEVELS = 3
"""Of folders that are noted: splits and classes, perhaps in a folder of the archive's name."""


def archive_stem(path: str) -> str:
    """Strip folders and the archive's ending: "data/pets.tar.gz" -> "pets"."""
    name = os.path.basename(path)
    return name[: -max(len(end) for end in ARCHIVES if name.lower().endswith(end))]


class Archive(ABC):
    """The images of one archive, or of one folder in it. Made by `open_archive`."""

    def __init__(self, path: str, inside: str, also: Callable[[str], bool] = lambda name: False) -> None:
        """Open ``path``, and start an empty list of what it holds below ``inside``; also: as `open_archive` has it."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._status = os.fstat(self._fd)
        self.time = self._status.st_mtime_ns
        """When the archive was changed last, in nanoseconds since 1970."""
        self.keys: list[str] = []
        """The images, as paths below ``inside``, in the archive's order."""
        self.sizes = array("q")
        """Bytes of each image file."""
        self.folders: set[str] = set()
        """Every folder below ``inside`` that is not hidden, as a path, down to the third level."""
        self.loose: set[str] = set()
        """The folders that hold files of any kind, directly or below the third level; "" stands for ``inside`` itself."""
        self.others: dict[str, tuple[int, int]] = {}
        """Files that are no images and were asked for: path -> place and bytes, in the archive's order."""
        self.left_out: Counter[str] = Counter()
        """Files that are not hidden and no images, by `suffix_of` their names."""
        self._inside, self._also = inside, also
        self._tops: set[str] = set()
        self._seen: set[str] = set()

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Read image ``index`` of ``keys``; thread-safe. Raises: ImageError without the image's name."""

    def read_other(self, path: str) -> bytes:
        """Read a file of ``others``; thread-safe. Raises: ImageError without its name."""
        offset, size = self.others[path]
        return self._pread(size, offset)

    def close(self) -> None:
        """Close the archive; closing again does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def holds_only(self, folder: str) -> bool:
        """Say whether everything that is listed lies in one folder at the top, and that folder is called so."""
        return "" not in self.loose and {path.partition("/")[0] for path in self.folders} == {folder}

    @property
    def base(self) -> str:
        """The folder of the archive's own name that it was made of, a slash behind it; "" if it was made of something else."""
        stem = as_text(archive_stem(self.path))
        return f"{stem}/" if not self._inside and self.holds_only(stem) else ""

    def check_inside(self) -> None:
        """Raise UsageError when a folder was asked for and the archive has none of that name."""
        if self._inside and not self.folders and not self.loose:
            tops = ", ".join(sorted(self._tops)) or "no folders"
            raise UsageError(
                f"{self.path}/{self._inside}: no such folder in the archive; its top holds {tops}. "
                "Pass a folder that it holds."
            )
        self._seen.clear()

    def _key(self, name: str, is_folder: bool, refused: str | None) -> str | None:
        """Note one member and say under which key it is listed, None if it is not listed.

        name: as the archive has it; refused: why it could not be read if it were wanted, else None.
        """
        if len(name) > _LONGEST_NAME:
            if is_folder or not is_image(name[-_LONGEST_NAME:].rpartition("/")[2]):
                return None
            raise SourceError(
                f"{self.path}: {shorten(name)} is longer than {_LONGEST_NAME:,} bytes; no system has such paths. "
                "Make the archive without it."
            )
        parts = path_parts(name)
        if not parts or any(is_hidden(part) for part in parts if part != ".."):
            return None
        wanted = not is_folder and (is_image(parts[-1]) or self._also(parts[-1]))
        if name.startswith("/") or ".." in parts:
            refused = "leads out of the archive"
        if refused:
            if wanted:
                raise SourceError(
                    f"{self.path}: {shorten(name)} {refused}; images must be ordinary members. "
                    "Make the archive without it."
                )
            return None
        if is_folder or len(parts) > 1:
            self._tops.add(parts[0])
        prefix = path_parts(self._inside)
        if parts[: len(prefix)] != prefix:
            return None
        parts = parts[len(prefix) :]
        within = parts if is_folder else parts[:-1]
        folder = "/".join(within[:_LEVELS])
        if not is_folder and parts:
            self.loose.add(folder)
        while folder and folder not in self.folders:
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]
        if not is_folder and not wanted and parts:
            self.left_out[suffix_of(parts[-1])] += 1
        if not wanted or not parts:
            return None
        key = "/".join(parts)
        if key in self._seen:
            raise SourceError(
                f"{self.path}: {shorten(name)} occurs twice; each image needs a name of its own. "
                "Make the archive anew."
            )
        self._seen.add(key)
        return key

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            data = pread_all(self._fd, size, offset)
        except OSError as error:
            raise ImageError(f"cannot be read from the archive ({error.strerror}).") from None
        self._check_unchanged()
        if len(data) < size:
            raise ImageError("cannot be read whole; the archive is shorter.")
        return data

    def _check_unchanged(self) -> None:
        """Raise SourceError if the archive is another one than was listed: its bytes would get labels of others."""
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise changed(self.path)


def path_parts(name: str) -> list[str]:
    """Split a member's name into its folders and its last part, without empty ones and dots."""
    return [part for part in name.split("/") if part not in ("", ".")]
