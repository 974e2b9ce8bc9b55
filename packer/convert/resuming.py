"""What a user is told about work that was interrupted, or that had been done already."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from packer import units
from packer.errors import PackerError, UsageError
from packer.format.filesystem import remove
from packer.format.header import PARTIAL_SUFFIX, Header
from packer.format.journal import read_journal
from packer.format.output_path import check_space
from packer.format.pack import open_pack
from packer.format.working_folder import clear_idle, difference, locked
from packer.sentence import Option


def check_room(out: str, needed: int, name: str | None = None) -> None:
    """Raise SpaceError when the disk has less room than needed, what an interrupted run has taken of it included.

    name: of the pack in messages, where it is another than `out`.
    """
    left = _nbytes(out.rstrip("/") + PARTIAL_SUFFIX)
    check_space(name or out, max(0, needed - left))


def already(out: str, provenance: Mapping[str, Any], rows: int | None, *, overwrite: bool) -> Header | None:
    """The header of the pack under that name, if it is what is asked for; None if there is no such name, or it is to be replaced.

    rows: of the pack, inputs that were skipped included; None where that is not known beforehand.
    Raises UsageError, naming the difference, if it is another pack; FormatError if it is none.
    """
    if not os.path.lexists(out):
        return None
    header = open_pack(out).header
    differs = difference(dict(header.provenance), provenance)
    if not differs and rows is not None:
        differs = difference(header.rows + len(header.skipped), rows, "the number of rows")
    if differs and overwrite:
        return None
    if differs:
        raise UsageError(
            f"{out}: is a whole pack, but another than is asked for: {differs}. Pass ",
            Option("overwrite", True),
            ", or another name.",
        )
    left = out.rstrip("/") + PARTIAL_SUFFIX
    begun = read_journal(os.path.join(left, "journal"))[:1]
    if begun and not difference({name: begun[0].get(name) for name in provenance}, provenance):
        remove(left)  # a run of the same that was killed just after it had given the pack its name
    return header


@contextmanager
def interrupted(out: str) -> Iterator[None]:
    """Add to whatever ends the work that some of it is kept, and how to go on."""
    try:
        yield
    except (PackerError, KeyboardInterrupt) as error:
        left = out.rstrip("/") + PARTIAL_SUFFIX
        if isinstance(error, UsageError) or not _free(left, out) or clear_idle(out):
            raise
        done = units.size(_nbytes(left))
        sentence = f"What has been done is kept ({left}, {done}): run the same command again to go on."
        if isinstance(error, PackerError):
            error.extend(" ", sentence)
        else:
            error.args = (sentence,)
        raise


def _free(folder: str, out: str) -> bool:
    """Whether nobody is at work in a folder of work in progress."""
    try:
        with locked(folder, out):
            return True
    except PackerError:
        return not os.path.isdir(folder)


def _nbytes(folder: str) -> int:
    """Bytes on the disk below a folder."""
    return sum(
        os.lstat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(folder)
        for name in names
    )
