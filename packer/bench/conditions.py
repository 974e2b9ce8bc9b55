"""The machine and the versions that figures were measured with."""

from __future__ import annotations

import os
import platform
from contextlib import suppress

import numpy as np
import torch

from packer.machine import cores, memory
from packer.version import __version__


def machine() -> dict[str, object]:
    """Return processor, cores at hand, memory and system, as JSON values."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": cores(),
        "machine_cores": os.cpu_count() or 1,
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
