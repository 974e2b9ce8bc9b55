"""A file that lost its trailer: cut short, foreign, or opened for writing by another program since it was made.

Then HDF5 has to say where the rows lie. libhdf5 is asked in a process of its own: over damaged structures it raises errors of
many kinds and asks for tens of GiB (7 of 12,000 damaged files; with other builds, flipped bits killed the process), and none of
that may happen to a training run. That process has a limit on its memory and its time.
"""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, damaged
from packer.format.header import Extent, Header
from packer.starting import python_command

_SECONDS = 120
_MEMORY_BYTES = 8 << 30  # of address space; a header of MAX_HEADER_BYTES takes less
_ASK = f"""
import resource
limit = min((n for n in ({_MEMORY_BYTES}, *resource.getrlimit(resource.RLIMIT_AS)) if n >= 0))
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from packer.format import hdf5_inspection
getattr(hdf5_inspection, sys.argv[1])(sys.argv[2])
"""


def read_unsealed(name: str) -> Header:
    """Read the header of an HDF5 file, its extents as HDF5 has them now. Raises FormatError."""
    said = _ask("describe", name)
    if said.get("error"):
        raise FormatError(said["error"])
    if said.get("header") is None:
        raise FormatError(f"{name}: {_other(name, said)}")
    header = Header.from_bytes(said["header"].encode("ascii"), name)
    extents = {
        array: tuple(Extent("", *numbers) for numbers in places) for array, places in said["extents"].items()
    }
    header = replace(header, extents=extents)
    try:
        header.check()
    except (ValueError, KeyError) as error:
        raise damaged(
            name, f"was changed since it was made, and its arrays no longer fit its header ({error})"
        ) from None
    return header


def _other(name: str, said: dict[str, Any]) -> str:
    """Say what an HDF5 file without a header is. said: what hdf5_inspection.describe printed, {} if HDF5 cannot read the file."""
    if "holds" not in said:
        return "HDF5 cannot read it: it was cut short, or is damaged. Convert the images again."
    if not said["holds"]:
        return "is an HDF5 file, but no pack; it holds nothing. Pass what packer convert wrote."
    held = ", ".join(said["holds"])
    return f"is an HDF5 file, but no pack; it holds {held}. Make a pack of its datasets: packer convert {name} train.h5."


def read_table(name: str) -> NDArray[np.uint64] | None:
    """Read the checksum table that HDF5 finds in a file; None if it finds none."""
    said = _ask("describe_table", name)
    if not said.get("shape"):
        return None
    return np.frombuffer(base64.b64decode(said["table"]), "<u8").reshape(said["shape"])


def _ask(function: str, name: str) -> dict[str, Any]:
    """Return what a function of hdf5_inspection.py prints; {} where that could not read the file, or did not come back."""
    try:
        run = subprocess.run(
            python_command(_ASK, function, name), capture_output=True, timeout=_SECONDS, check=False
        )
        said: dict[str, Any] = json.loads(run.stdout)
        return said
    except (subprocess.TimeoutExpired, ValueError):
        return {}
