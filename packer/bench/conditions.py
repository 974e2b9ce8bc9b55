"""The machine and the versions that figures were measured with; the check of a bench's arguments."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch

from packer.errors import UsageError
from packer.starting import cores, memory
from packer.version import __version__


def check_numbers(batch_size: int, rounds: int, seconds: float, workers: Sequence[int] | None) -> None:
    """Raise UsageError if one is out of range."""
    if batch_size < 1 or rounds < 1 or seconds <= 0 or any(count < 0 for count in workers or ()):
        raise UsageError(
            f"bench: batch_size={batch_size}, rounds={rounds}, seconds={seconds}, workers={workers};"
            " at least 1, at least 1, more than 0 and at least 0 are allowed. Pass other numbers."
        )


def machine() -> dict[str, object]:
    """Return processor, cores at hand, memory and system, as JSON values."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": cores(),
        "memory_bytes": memory(),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of packer, Python, torch and NumPy."""
    return {
        "packer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def load() -> float:
    """Return the processes that wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)
