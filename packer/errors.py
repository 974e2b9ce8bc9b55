"""Every error packer raises on purpose.

    PackerError                 the work failed; the command line exits with 1
    ├── UsageError              an argument is wrong (also a ValueError); exits with 2
    ├── FormatError             a file is not a whole, undamaged pack this version reads
    ├── SourceError             the folder, archive, list or labels file cannot be packed
    │   └── ImageError          one input image cannot be packed
    ├── SpaceError              the disk cannot hold the result
    ├── BusyError               another process is writing the same pack
    ├── RemoteError             a store refused a request, or did not answer
    │   └── MissingObjectError  there is no such object
    ├── TransformError          a Python transform failed, or its process died
    └── MissingDependencyError  an optional package is not installed (also an ImportError)

Each message is one sentence or two: ``<subject>: <what was found>; <what is allowed>. <remedy>``. Options that it names are values
(sentence.py), which the command line words in its own way.
"""

from __future__ import annotations

from typing import Any

from packer.sentence import Option, Part, Sentence

_LONGEST = 400
"""Characters of what a message says of a damaged pack."""


class PackerError(Exception):
    """Base of every error that packer raises on purpose; its text is fit to be shown to a user."""

    exit_code = 1

    def __init__(self, *parts: Part) -> None:
        """Join the parts to the error's sentence."""
        super().__init__(*Sentence(*parts).parts)

    @property
    def sentence(self) -> Sentence:
        """The message, with the options in it as values."""
        return Sentence(*self.args)

    def extend(self, *parts: Part) -> None:
        """Append to the message."""
        self.args += Sentence(*parts).parts

    def __str__(self) -> str:
        return str(self.sentence)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not through __init__, whose arguments may be others than the parts.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class UsageError(PackerError, ValueError):
    """An argument is wrong."""

    exit_code = 2


class FormatError(PackerError):
    """A file is not a whole, undamaged pack that this version reads.

    part: the part of the pack that is damaged, where that is known: "trailer", "header", "index" or "rows"; "unsealed"
    for a file that was opened for writing since it was sealed; else "".
    """

    part = ""  # also of one that came from another process

    def __init__(self, *parts: str | Option, part: str = "") -> None:
        """Join the parts to the error's sentence."""
        super().__init__(*parts)
        self.part = part


def damaged(path: str, what: str, part: str = "") -> FormatError:
    """Return the error for a damaged pack, or file of one, that is best made again.

    what: cut off where a hostile header would have it print megabytes.
    """
    what = what if len(what) <= _LONGEST else f"{what[: _LONGEST - 4]} ...)"
    return FormatError(f"{path}: {what}. Convert the images again.", part=part)


def damaged_rows(path: str, field: str, why: object, first: int, last: int | None = None) -> FormatError:
    """Return the error for rows first..last of a field, or one, that do not hold what was written."""
    rows = (
        f"row {first} of {field!r} is"
        if last in (None, first)
        else f"rows {first} to {last} of {field!r} are"
    )
    return FormatError(f"{path}: {rows} damaged ({why}). Run packer verify, or convert the images again.")


class SourceError(PackerError):
    """The folder, archive, list or labels file cannot be packed."""


class ImageError(SourceError):
    """One input image cannot be packed."""


class SpaceError(PackerError):
    """The disk cannot hold the result."""


class BusyError(PackerError):
    """Another process is writing the same pack."""


class RemoteError(PackerError):
    """A store, or a web server, refused a request, or did not answer for as long as it was asked."""


class MissingObjectError(RemoteError):
    """An object that is not in its store."""


class TransformError(PackerError):
    """A Python transform raised, returned something else than for the first row, or its process died."""


class MissingDependencyError(PackerError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, purpose: str | Option) -> None:
        """Say what needs which package, and the pip line that brings it.

        package: the name pip knows it by, as no index has the extras of packer; purpose: what needs it, as the sentence's subject.
        """
        named = f'"{package}"' if "[" in package else package
        super().__init__(purpose, f": {package} is not installed. Run: pip install {named}")
