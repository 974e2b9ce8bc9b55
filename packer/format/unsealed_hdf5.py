"""A file without its trailer: cut short, foreign, or opened for writing by another program since it was sealed.

Then HDF5 has to say where the rows lie. libhdf5 is asked in a process of its own: over damaged structures it raises errors of
many kinds and asks for tens of GiB (7 of 12,000 damaged files; with other builds, flipped bits killed the process), and none of
that may happen to a training run. That process has a limit on its memory and its time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

from packer.errors import FormatError, damaged
from packer.format.file_io import pread_path
from packer.format.header import Extent, Header
from packer.starting import python_command

END_OFFSET = 40
"""Where the superblock, version 0, says at which byte HDF5's part of the file ends."""
_SECONDS = 120
_MEMORY_BYTES = 8 << 30  # of address space; a header of MAX_HEADER_BYTES takes less
_ASK = f"""
import json, resource
limit = min((n for n in ({_MEMORY_BYTES}, *resource.getrlimit(resource.RLIMIT_AS)) if n >= 0))
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from packer.format import hdf5_inspection
sys.stdout.write(json.dumps(hdf5_inspection.described(sys.argv[1])))
"""


class UnsealedFile(NamedTuple):
    """A pack's file without its trailer, as HDF5 describes it.

    text: the header's; header: it, with the extents that HDF5 tells now; planned: those that the text has; others: names that the
    header does not account for; header_place: byte offsets of the header's object and of its text, and its length; table_place: byte
    offset and length of the checksum table, zeros if it is missing or no plain array.
    """

    text: bytes
    header: Header
    planned: Mapping[str, tuple[Extent, ...]]
    others: list[str]
    header_place: tuple[int, int, int]
    table_place: tuple[int, int]


def hdf5_end(path: str) -> int | None:
    """Return the byte at which HDF5's part of a file ends; None if its superblock is of another version than packer writes."""
    start = pread_path(path, END_OFFSET + 8, 0)
    return int.from_bytes(start[END_OFFSET:], "little") if start[8:9] == b"\0" else None


def read_unsealed(name: str) -> UnsealedFile:
    """Read what HDF5 says of a file. Raises FormatError unless it is a pack whose arrays fit its header."""
    said = _ask(name)
    if said.get("error"):
        raise FormatError(said["error"])
    if said.get("header") is None:
        raise FormatError(f"{name}: {_other(name, said)}")
    text = said["header"].encode("ascii")
    header = Header.from_bytes(text, name)
    try:
        now = Header.from_record(json.loads(said["now"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"was changed since it was made, and its arrays no longer fit its header ({error})"
        raise damaged(name, what) from None
    places = tuple(said["header_place"]), tuple(said["table_place"])
    return UnsealedFile(text, now, header.extents, said["others"], *places)


def _other(name: str, said: dict[str, Any]) -> str:
    """Say what an HDF5 file without a header is. said: what hdf5_inspection.described returned, {} if HDF5 cannot read the file."""
    if "holds" not in said:
        return "HDF5 cannot read it: it was cut short, or is damaged. Convert the images again."
    if not said["holds"]:
        return "is an HDF5 file, but no pack; it holds nothing. Pass what packer convert wrote."
    held = ", ".join(said["holds"])
    return f"is an HDF5 file, but no pack; it holds {held}. Make a pack of its datasets: packer convert {name} train.h5."


def _ask(name: str) -> dict[str, Any]:
    """Return what hdf5_inspection.described returns; {} where that could not read the file, or did not come back."""
    try:
        run = subprocess.run(python_command(_ASK, name), capture_output=True, timeout=_SECONDS, check=False)
        said: dict[str, Any] = json.loads(run.stdout)
        return said
    except (subprocess.TimeoutExpired, ValueError):
        return {}
