"""This machine's cores and memory, and the share that this process may use."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from functools import cache

_UNLIMITED = 1 << 60  # control groups, version 1, encode "no limit" as a number near 2**63


def cores() -> int:
    """Return the number of cores that this process may use: its affinity mask, or a container's quota if
    lower.
    """
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = granted_cores()
    return mine if granted is None else max(1, min(mine, math.ceil(granted)))


@cache
def granted_cores() -> float | None:
    """Return the CPU time, in cores, that this process's control groups grant; None without a limit.

    1.5 with ``docker run --cpus 1.5``: the process may run on all cores, but is throttled when it has used
    its time.
    """
    return min(_quotas("/proc/self/cgroup", "/sys/fs/cgroup"), default=None)


def memory() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Return the bytes of memory that this process can still use without swapping and without being killed.

    The minimum of the system's estimate and the room in its control groups (containers, batch systems) and
    address space.
    """
    least = memory()
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            least = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    return max(0, min([least, *_group_room("/proc/self/cgroup", "/sys/fs/cgroup"), *_address_room()]))


def _address_room() -> Iterator[int]:
    """Yield the bytes left under this process's limit on its address space (ulimit -v), if there is one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        taken = [int(line.split()[0]) for line in lines_of("/proc/self/statm")]
        yield limit - os.sysconf("SC_PAGE_SIZE") * sum(taken)


def _group_room(groups: str, mounted: str) -> Iterator[int]:
    """Yield the bytes left under each memory limit of this process's control groups, versions 1 and 2.

    File pages count as used there, but the kernel frees them before it enforces the limit.
    Source: the kernel's cgroup-v1/memory and cgroup-v2.
    """
    for folder, version in _group_folders(groups, mounted, "memory"):
        limit, used, prefix = (
            ("memory.max", "memory.current", "")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        )
        limits, usages = lines_of(os.path.join(folder, limit)), lines_of(os.path.join(folder, used))
        if not limits or not usages or not limits[0].isdigit() or int(limits[0]) >= _UNLIMITED:
            continue
        kinds = dict(line.split() for line in lines_of(os.path.join(folder, "memory.stat")))
        files = sum(int(kinds.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        yield int(limits[0]) - int(usages[0]) + files


def _quotas(groups: str, mounted: str) -> Iterator[float]:
    """Yield the CPU time, in cores, that each limiting control group of this process grants.

    Source: the kernel's cgroup-v2 (cpu.max) and scheduler/sched-bwc.
    """
    for folder, version in _group_folders(groups, mounted, "cpu"):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [
            word for name in names for line in lines_of(os.path.join(folder, name)) for word in line.split()
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            yield int(words[0]) / int(words[1])


def _group_folders(groups: str, mounted: str, controller: str) -> Iterator[tuple[str, int]]:
    """Yield (folder, version) of this process's control groups that have a controller, innermost first."""
    for line in lines_of(groups):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top, version = (os.path.join(mounted, controller), 1) if controllers else (mounted, 2)
        # Inside a container the path may lie outside of it; the container's group is then at the top.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield os.path.join(top, *parts[:depth]), version


def lines_of(path: str) -> list[str]:
    """Return the lines of a file, decoded like paths (os.fsdecode); [] if it cannot be read."""
    try:
        with open(path, "rb") as file:
            # splitlines() would also split at characters that names may contain.
            return [os.fsdecode(line) for line in file.read().split(b"\n") if line]
    except OSError:
        return []
