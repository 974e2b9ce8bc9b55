"""The files that this process has open, so that a test can tell which it left open itself."""

from __future__ import annotations

import gc
import os
from contextlib import suppress


def open_files() -> set[tuple[int, str]]:
    """Return (descriptor, what it stands for) of each open file, once the garbage of other tests is gone.

    ``open_files() <= before`` holds where nothing was left open, whatever else was closed meanwhile.
    """
    gc.collect()
    return listed_files()


def listed_files() -> set[tuple[int, str]]:
    """Return (descriptor, what it stands for) of each open file, those of garbage too."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found
