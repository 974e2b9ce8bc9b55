"""Settings and limits of this machine that slow or break loading, each with its remedy."""

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
"""The PyPI packages of OpenCV; all install into the same folder."""
LEAST_SHARED = 1 << 30
LEAST_FILES = 1024
LEAST_ROOM = 1 << 30
LEAST_MEMORY = 2 << 30
_BUSY = 0.5  # load average per core


class Trap(NamedTuple):
    """A problem. found: its description; remedy: what to do."""

    found: str
    remedy: str


def find_traps(folder: str) -> list[Trap]:
    """Return the problems of loading data from a folder on this machine."""
    return [*_of_folders(folder), *_of_machine()]


def version_of(name: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fork_beside_gpus() -> Iterator[Trap]:
    """Check how Python starts processes on a machine with GPUs."""
    if multiprocessing.get_all_start_methods()[0] == "fork":
        yield Trap(
            "Python starts processes by fork here: a process forked after CUDA was initialised cannot use the"
            " GPU, and may hang. DataLoader forks its workers; packer does not.",
            "Pass DataLoader(..., multiprocessing_context='forkserver'); use only the CPU in its workers.",
        )


def _of_folders(folder: str) -> Iterator[Trap]:
    """Check the disks and the limit of open files."""
    kind = remote_file_system(folder)
    if kind is not None:
        yield Trap(
            f"{folder} is on {kind}, a network file system (or a program's): each page that is missing in the"
            " page cache costs a network round trip.",
            "Copy packs to a local disk, or load them with placement='ram'.",
        )
    for name, path, what in (
        ("", folder, "packs are written there"),
        ("TMPDIR, ", tempfile.gettempdir(), "archives, caches and packs for upload are stored there"),
    ):
        free = shutil.disk_usage(path).free
        if free < LEAST_ROOM:
            yield Trap(
                f"{name}{path} has {size(free)} free; {what}.",
                "Set TMPDIR to a folder with free space."
                if name
                else "Free some space, or pass another disk.",
            )
    if os.path.isdir("/dev/shm"):
        total = shutil.disk_usage("/dev/shm").total
        if total < LEAST_SHARED:
            yield Trap(
                f"/dev/shm holds {size(total)}: torch's DataLoader passes batches through it, and its workers"
                " die of a bus error when it is full. packer does not use it.",
                "Start the container with docker run --shm-size=8g, or --ipc=host.",
            )
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        yield Trap(
            f"At most {files} files may be open (ulimit -n): packer has to close and reopen shards while it"
            " reads.",
            "Run ulimit -n 4096 first.",
        )


def _of_machine() -> Iterator[Trap]:
    """Check cores, memory, installed packages and the load by other programs."""
    machine, granted = os.cpu_count() or 1, granted_cores()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    if granted is not None and granted < allowed:
        yield Trap(
            f"This container gets the time of {granted:g} of {allowed} cores: torch and other libraries that"
            " count the cores start too many threads.",
            f"Give it more (docker run --cpus), and set OMP_NUM_THREADS={cores()}.",
        )
    if allowed < machine:
        yield Trap(
            f"This process may run on {allowed} of the machine's {machine} cores.",
            "Request more: --cpus-per-task of SLURM, --cpuset-cpus of docker, taskset.",
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
            f"{size(available)} of memory are available: little is left for the page cache, which packs are"
            " read through.",
            "Give the job more (--mem of SLURM, docker run --memory), or end other programs.",
        )
    found = {name: version for name in OPENCV if (version := version_of(name))}
    if len(set(found.values())) > 1:
        yield Trap(
            f"{' and '.join(f'{name} {version}' for name, version in found.items())} are installed in the"
            " same folder: each overwrites the other's files.",
            f"Run pip uninstall -y {' '.join(found)}; pip install {next(iter(found))}",
        )
    if not native.COMPILED:
        yield Trap(
            "packer was installed without its C extension: conversion takes 2 to 3 times as long,"
            " augmentation on the CPU 25 to 170 times.",
            "Install a C compiler, then reinstall packer with pip --no-cache-dir --force-reinstall.",
        )
    busy = os.getloadavg()[0]
    if busy > _BUSY * cores():
        yield Trap(
            f"Other programs are running (load {busy:.1f} on {cores()} cores): they slow loading.",
            "Measure on a quiet machine.",
        )
