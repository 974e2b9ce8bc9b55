"""Folders that packer writes into: they are this user's alone, without links and pipes."""

from __future__ import annotations

import os
import shlex

from packer.errors import UsageError
from packer.format.file_io import (
    PROBE,
    foreign,
)
from packer.format.frontier import FILES as FRONTIER_FILES

_ENTRIES = frozenset(("pack", "pack.created", "pack.packing", "journal", "blocks", "staging", "old", "parts"))


def check_ours(path: str, *, inside: bool = True) -> None:
    """Raise UsageError for a working folder that is not this user's alone: a link, or with links, pipes or
    others' files. inside: look at every level; needless where all of it is removed.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        raise UsageError(
            f"{path}: is needed as the working folder, but is not a folder. Move it away, or pass another"
            " output."
        )
    if not (found := foreign(path, inside=False)):
        with os.scandir(path) as entries:
            strange = sorted(
                entry.name
                for entry in entries
                if not (
                    (
                        entry.name in _ENTRIES | FRONTIER_FILES
                        and (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
                    )
                    or entry.name.startswith(PROBE)
                )
            )
        if strange:
            raise UsageError(
                f"{path}: is needed as the working folder, but holds {strange[0]}, which is not packer's."
                " Move it away, or pass another output."
            )
        found = foreign(path, inside=inside)
    if found:
        raise UsageError(
            f"{found}; a working folder is used only if nobody else can have written there."
            f" Remove {path}, or pass another output."
        )


def check_pack_folder(path: str) -> None:
    """Raise UsageError for the folder of a pack to be written, if others could have put something there."""
    if found := foreign(path, private=False):
        raise UsageError(
            f"{found}; packer writes only into packs of its user, without links. If you trust this one, copy"
            f" it, and write to the copy: cp -rL {shlex.quote(path)} COPY."
        )
