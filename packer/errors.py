"""Every error that packer raises on purpose.

    PackerError                 the work failed; the command line exits with 1
    ├── UsageError              an argument is wrong (also a ValueError); exits with 2
    ├── FormatError             a file is not a complete, undamaged pack of this version
    ├── SourceError             the folder, archive, list or labels file cannot be packed
    │   └── ImageError          an input image cannot be packed
    ├── SpaceError              the disk cannot hold the result
    ├── BusyError               another process is writing the same pack
    ├── RemoteError             a store refused a request, or did not answer
    │   └── MissingObjectError  there is no such object
    ├── TransformError          a Python transform failed, or its process died
    └── MissingDependencyError  an optional package cannot be imported (also an ImportError)

Each message is one or two sentences: ``<subject>: <what was found>; <what is allowed>. <remedy>``. Options in
it are keywords of the library, which the command line words differently (cli/option_words.py). Given values
in it are short (given_values.py).
"""

from __future__ import annotations

from typing import Any

from packer.given_values import LONGEST, brief
from packer.path_text import visible


class PackerError(Exception):
    """Base of every error that packer raises on purpose; its text can be shown to users."""

    exit_code = 1
    args: tuple[Any, ...]

    def extend(self, text: str) -> None:
        """Append to the message."""
        self.args = (f"{self.args[0]}{text}",)

    def __str__(self) -> str:
        return visible(brief(self.args[0]))  # names in it may come from a pack


class UsageError(PackerError, ValueError):
    """An argument is wrong."""

    exit_code = 2


class FormatError(PackerError):
    """A file is not a complete, undamaged pack of this version.

    part: the damaged part, if known: "trailer", "header", "index" or "rows"; "unsealed" for a file that was
    opened for writing after it was sealed; else "".
    """

    part: str = ""  # default for errors from another process

    def __init__(self, message: str, *, part: str = "") -> None:
        super().__init__(message)
        self.part = part


def damaged(path: str, what: str, part: str = "") -> FormatError:
    """Return the error for a damaged pack, or a file of one, that should be converted again.

    what: shortened, because a hostile header could make it megabytes long.
    """
    what = what if len(what) <= LONGEST else f"{what[: LONGEST - 4]} ...)"
    return FormatError(f"{path}: {what}. Convert the images again.", part=part)


def damaged_rows(path: str, field: str, why: object, first: int, last: int | None = None) -> FormatError:
    """Return the error for rows first..last of a field (or one row) that differ from what was written."""
    rows = (
        f"row {first} of {field!r} is"
        if last in (None, first)
        else f"rows {first} to {last} of {field!r} are"
    )
    return FormatError(f"{path}: {rows} damaged ({why}). Run packer verify, or convert the images again.")


class SourceError(PackerError):
    """The folder, archive, list or labels file cannot be packed."""


class ImageError(SourceError):
    """An input image cannot be packed."""


class SpaceError(PackerError):
    """The disk cannot hold the result."""


class BusyError(PackerError):
    """Another process is writing the same pack."""


class RemoteError(PackerError):
    """A store or web server refused a request, or did not answer in time."""


class MissingObjectError(RemoteError):
    """An object is not in its store."""


class TransformError(PackerError):
    """A Python transform raised, returned another form than for the first row, or its process died."""

    def __str__(self) -> str:
        # The traceback of user code has several lines.
        return "\n".join(visible(brief(line)) for line in self.args[0].split("\n"))


class MissingDependencyError(PackerError, ImportError):
    """An optional package is not installed, or cannot be imported."""

    def __init__(self, package: str, purpose: str, error: Exception | None = None) -> None:
        """State which feature needs which package, and the pip command that installs it.

        package: its name for pip (no index has packer's extras); purpose: what needs it, the subject of the
        sentence; error: of its import.
        """
        named = f'"{package}"' if "[" in package else package
        if error is None or isinstance(error, ModuleNotFoundError):
            super().__init__(f"{purpose}: {package} is not installed. Run: pip install {named}")
        else:  # half installed
            remedy = f"Run: pip install --force-reinstall {named}"
            super().__init__(f"{purpose}: {package} cannot be imported ({error}). {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__  # without __init__


def error_record(error: PackerError) -> list[str]:
    """Return the kind and the text of an error, for another process."""
    return [type(error).__name__, str(error)]


def error_from_record(record: list[str]) -> PackerError:
    """Return the error of another process."""
    kind = globals().get(record[0])
    if not (isinstance(kind, type) and issubclass(kind, PackerError)):
        kind = PackerError
    made: PackerError = PackerError.__new__(kind, record[1])
    made.args = (record[1],)
    return made
