"""Errors of failed writes, in words."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from packer.errors import PackerError, SpaceError
from packer.format.file_io import (
    FULL,
)


@contextmanager
def writing(out: str) -> Iterator[None]:
    """Convert errors of writing with `failure`. out: output, for messages. Raises SpaceError, PackerError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeErrors when it closes a file
        if isinstance(error, RuntimeError) and "errno = " not in str(error):
            raise
        raise failure(out, error) from error


def failure(out: str, error: OSError | RuntimeError) -> PackerError:
    """Return the error for a failed write: SpaceError if the disk is full, else PackerError."""
    inner = re.search(r"errno = ([0-9]+)", str(error))  # h5py's errors contain it in their text
    number = int(inner[1]) if inner else getattr(error, "errno", None)
    reason = os.strerror(number) if number else "the HDF5 library could not write to the disk"
    if number == errno.ENOENT:
        return PackerError(f"{out}: writing failed, because its folder was removed meanwhile. Run it again.")
    kind = SpaceError if number in FULL else PackerError
    remedies = {
        errno.EMFILE: "Raise ulimit -n",
        errno.ENFILE: "Raise ulimit -n",
        errno.ENAMETOOLONG: "Take shorter names of files and folders",
    }
    remedy = remedies.get(number or 0, "Free some space, or pass another disk")
    return kind(f"{out}: writing failed ({reason}). {remedy}.")
