"""A file without its trailer: truncated, foreign, or opened for writing since it was sealed.

HDF5 then has to locate the rows. libhdf5 runs in a separate process with limits on memory and time: on
damaged structures it raises errors of many kinds and requests tens of GiB (7 of 12,000 damaged files; in
other builds, flipped bits killed the process), which must not happen to a training run.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from packer.errors import FormatError, damaged
from packer.format.file_io import pread_path
from packer.format.header import Header
from packer.starting import python_command

_END_OFFSET = 40
"""Byte offset, in a superblock of version 0, of the end of HDF5's part of the file."""
_SECONDS = 120
_MEMORY_BYTES = 8 << 30  # of address space; a header of MAX_HEADER_BYTES takes less
_ASK = f"""
import json, resource
limit = min((n for n in ({_MEMORY_BYTES}, *resource.getrlimit(resource.RLIMIT_AS)) if n >= 0))
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from packer.packs import hdf5_inspection
sys.stdout.write(json.dumps(hdf5_inspection.described(sys.argv[1])))
"""


def hdf5_end(path: str) -> int | None:
    """Return the offset where HDF5's part of a file ends; None if packer did not write this superblock."""
    start = pread_path(path, _END_OFFSET + 8, 0)
    return int.from_bytes(start[_END_OFFSET:], "little") if start[8:9] == b"\0" else None


def read_unsealed(name: str) -> tuple[Header, list[str]]:
    """Return a file's header with the extents that HDF5 reports now, and names that it does not account for.

    Raises FormatError unless it is a pack whose arrays match its header.
    """
    inspected = _ask(name)
    if inspected.get("error"):
        raise FormatError(inspected["error"])
    if inspected.get("now") is None:
        raise FormatError(f"{name}: {_content_of(name, inspected)}")
    try:
        now = Header.from_record(json.loads(inspected["now"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"was changed since it was written; its arrays no longer match its header ({error})"
        raise damaged(name, what) from None
    return now, inspected["others"]


def is_foreign(name: str) -> bool:
    """Return True for an HDF5 file that HDF5 can read, and that is no pack."""
    return "holds" in _ask(name)


def _content_of(name: str, inspected: dict[str, Any]) -> str:
    """Return the description of an HDF5 file without a header.

    inspected: from hdf5_inspection.described, {} if unreadable.
    """
    if "holds" not in inspected:
        return "HDF5 cannot read it: it was cut short or is damaged. Convert the images again."
    if not inspected["holds"]:
        return "is an HDF5 file, but not a pack; it holds nothing. Pass what packer convert wrote."
    held = ", ".join(inspected["holds"])
    return (
        f"is an HDF5 file, but not a pack; it holds {held}."
        f" Convert its datasets to a pack: packer convert {name} train.h5."
    )


def _ask(name: str) -> dict[str, Any]:
    """Return the result of hdf5_inspection.described; {} if it could not read the file, or did not return."""
    try:
        run = subprocess.run(python_command(_ASK, name), capture_output=True, timeout=_SECONDS, check=False)
        inspected: dict[str, Any] = json.loads(run.stdout)
        return inspected
    except (subprocess.TimeoutExpired, ValueError):
        return {}
