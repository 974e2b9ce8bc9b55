"""What this machine has left of its memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from packer.starting import memory

_UNLIMITED = 1 << 60  # version 1 of control groups says "no limit" with a number near 2**63


def available_memory() -> int:
    """Return the bytes of memory that this process can still use without swapping and without being killed.

    The least of the system's estimate, the room in its control groups (containers, batch systems) and in its address space.
    """
    least = memory()
    try:
        with open("/proc/meminfo") as file:
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
    for line in lines_of(groups):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, used, prefix = mounted, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            top = os.path.join(mounted, "memory")
            limit, used, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        # Inside a container the path may be one outside of it; the container's own group is then at the top.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = os.path.join(top, *parts[:depth])
            limits, usages = lines_of(os.path.join(folder, limit)), lines_of(os.path.join(folder, used))
            if not limits or not usages or not limits[0].isdigit() or int(limits[0]) >= _UNLIMITED:
                continue
            kinds = dict(line.split() for line in lines_of(os.path.join(folder, "memory.stat")))
            files = sum(int(kinds.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            yield int(limits[0]) - int(usages[0]) + files


def lines_of(path: str) -> list[str]:
    """Return the lines of a file, none if it cannot be read, decoded like paths (os.fsdecode)."""
    try:
        with open(path, "rb") as file:
            # Not splitlines(), which ends lines at characters that names may have.
            return [os.fsdecode(line) for line in file.read().split(b"\n") if line]
    except OSError:
        return []
