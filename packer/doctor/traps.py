"""What slows loading down on this machine, or breaks it, each with its remedy."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from packer import native
from packer.format.file_systems import remote_file_system
from packer.machine import available_memory, cores, granted_cores
from packer.units import size

OPENCV = (
    "opencv-python-headless",
    "opencv-python",
    "opencv-contrib-python-headless",
    "opencv-contrib-python",
)
"""The packages that OpenCV comes in; all install into one folder."""
LEAST_SHARED = 1 << 30
LEAST_FILES = 1024
LEAST_ROOM = 1 << 30
LEAST_MEMORY = 2 << 30
_BUSY = 0.5  # of the cores


class Trap(NamedTuple):
    """found: what is in the way; remedy: what to do."""

    found: str
    remedy: str


def find_traps(folder: str) -> list[Trap]:
    """Return what is in the way of loading data from a folder."""
    return [*_of_folders(folder), *_of_machine()]


def version_of(name: str) -> str | None:
    """Return the version of an installed package, None if it is not."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fork_beside_gpus() -> Iterator[Trap]:
    """Look at how Python starts processes on a machine with GPUs."""
    if multiprocessing.get_all_start_methods()[0] == "fork":
        yield Trap(
            "Python forks here: a process that was forked once CUDA had begun cannot use the GPU, and may hang. DataLoader's workers are"
            " forked; packer's are not.",
            "DataLoader(..., multiprocessing_context='forkserver'); what runs in its workers stays on the CPU.",
        )


def _of_folders(folder: str) -> Iterator[Trap]:
    """Look at the disks, and at the limits of files."""
    kind = remote_file_system(folder)
    if kind is not None:
        yield Trap(
            f"{folder} is on {kind}, a network file system (or a program's): a page that is not in the page cache is a trip over it.",
            "Copy packs to a disk of this machine, or load them with placement='ram'.",
        )
    for name, path, what in (
        ("", folder, "packs are written there"),
        ("TMPDIR, ", tempfile.gettempdir(), "archives, caches and packs for stores lie there meanwhile"),
    ):
        free = shutil.disk_usage(path).free
        if free < LEAST_ROOM:
            yield Trap(
                f"{name}{path} has {size(free)} free; {what}.",
                "Set TMPDIR to a folder with room." if name else "Free some space, or pass another disk.",
            )
    if os.path.isdir("/dev/shm"):
        total = shutil.disk_usage("/dev/shm").total
        if total < LEAST_SHARED:
            yield Trap(
                f"/dev/shm holds {size(total)}: torch's DataLoader hands batches over there, and its workers die by a bus error when it"
                " is full. packer does not use it.",
                "docker run --shm-size=8g, or --ipc=host.",
            )
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        yield Trap(
            f"At most {files} files may be open (ulimit -n): shards are closed and opened again all the time.",
            "ulimit -n 4096",
        )


def _of_machine() -> Iterator[Trap]:
    """Look at cores, memory, what is installed, and other programs."""
    machine, granted = os.cpu_count() or 1, granted_cores()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    if granted is not None and granted < allowed:
        yield Trap(
            f"This container gets the time of {granted:g} of {allowed} cores: torch and others that count cores start too many threads.",
            f"Give it more (docker run --cpus), and set OMP_NUM_THREADS={cores()}.",
        )
    if allowed < machine:
        yield Trap(
            f"This process may run on {allowed} of the machine's {machine} cores.",
            "Ask for more: --cpus-per-task of SLURM, --cpuset-cpus of docker, taskset.",
        )
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > cores():
        yield Trap(
            f"OMP_NUM_THREADS is {threads} on {cores()} cores: threads wait for each other.",
            f"Set OMP_NUM_THREADS={cores()}, or unset it.",
        )
    available = available_memory()
    if available < LEAST_MEMORY:
        yield Trap(
            f"{size(available)} of memory are available: little is left for the page cache, from which packs are read.",
            "Give the job more (--mem of SLURM, docker run --memory), or end other programs.",
        )
    found = {name: version for name in OPENCV if (version := version_of(name))}
    if len(set(found.values())) > 1:
        yield Trap(
            f"{' and '.join(f'{name} {version}' for name, version in found.items())} lie in one folder: each overwrites the other's files.",
            f"pip uninstall -y {' '.join(found)}; pip install {next(iter(found))}",
        )
    if not native.COMPILED:
        yield Trap(
            "packer was installed without its loops in C: converting takes 2 to 3 times as long, augmenting 25 to 170 times.",
            "Install a C compiler, then packer again with pip --no-cache-dir --force-reinstall.",
        )
    busy = os.getloadavg()[0]
    if busy > _BUSY * cores():
        yield Trap(
            f"Other programs run (load {busy:.1f} on {cores()} cores): the rates above are lower than they could be.",
            "Measure again on a quiet machine.",
        )
