"""Checks of a pack that was just opened: whose files they are, and that every row is there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterator

from packer.errors import FormatError, damaged
from packer.format.file_io import check_inside, not_regular, pread_path
from packer.format.header import (
    HEADER_FILE,
    INDEX_FILE,
    TRAILER_FILE,
)
from packer.format.npy_container import PREAMBLE, array_head
from packer.packs.pack import Pack


def check_own(name: str) -> None:
    """Check that a pack's files, complete or damaged, belong to it.

    Raises FormatError; does nothing if there are none.
    For readers and writers that bypass open_pack, which checks this too.
    """
    with contextlib.suppress(OSError):
        if not os.path.isdir(name):
            if not stat.S_ISREG(os.stat(name).st_mode):
                raise not_regular(name)
            return
        for file in os.listdir(name):
            if file in (INDEX_FILE, HEADER_FILE, TRAILER_FILE) or file.endswith(".npy"):
                check_inside(name, file)


def wrong_heads(pack: Pack) -> Iterator[tuple[str, str]]:
    """Yield (array, reason) for arrays whose .npy header differs from packer's.

    Other programs may have rewritten them. Raises OSError.
    """
    for array, extents in pack.header.extents.items():
        if pack.format == "npy" and [e.offset for e in extents] == [PREAMBLE]:
            try:
                head = array_head(pack.header, array)
            except ValueError as error:
                yield array, f"is not an array that NumPy can read ({error})"
                continue
            if pread_path(pack.file(extents[0]), PREAMBLE, 0) != head:
                why = "its .npy header is not the one that packer wrote; another program has changed"
                yield array, f"{why} the file, or it is damaged"


def check_heads(pack: Pack) -> None:
    """Check that NumPy reads a directory's arrays as packer does. Raises FormatError, OSError."""
    for array, why in wrong_heads(pack):
        raise damaged(pack.file(pack.header.extents[array][0]), why)


def check_extents(pack: Pack, size: int | None = None) -> None:
    """Check that every extent lies inside its file, so that a read finds its rows.

    Raises FormatError, OSError.
    size: bytes of its single file in a store.
    """
    if not pack.header.complete:
        raise damaged(pack.path, "is marked as not complete")
    directory = os.path.isdir(pack.path)
    sizes: dict[str, int] = {}
    held: Counter[str] = Counter()
    for name, extents in pack.header.extents.items():
        for extent in extents:
            path = os.path.join(pack.path, extent.file) if extent.file else pack.path
            if extent.file != (f"{name}.npy" if directory else ""):
                raise damaged(pack.path, f"header places the rows of {name!r} in {extent.file!r}", "rows")
            if path not in sizes:
                sizes[path] = os.stat(pack.file(extent)).st_size if size is None else size
            if extent.rows and extent.end > sizes[path]:
                raise FormatError(
                    f"{path}: is {sizes[path]} bytes long; the rows of {name!r} reach to {extent.end}."
                    " It was cut short: convert the images again.",
                    part="rows",
                )
            held[path] += extent.nbytes
    for path, nbytes in held.items():
        if nbytes > sizes[path]:
            raise damaged(
                path,
                f"is {sizes[path]} bytes long; its header places {nbytes} bytes of rows there,"
                " some of them more than once",
                "rows",
            )
