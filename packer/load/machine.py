"""What this machine has: memory that is left, of it and of its GPUs, and files whose data come from elsewhere."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator

# File systems whose pages the kernel may have to ask another machine, or a program, for.
_REMOTE = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse(\..*)?|gfs2|gpfs|lustre|nfs4?|ocfs2|orangefs|panfs|pvfs2|smb3|smbfs|wekafs"
)
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_UNLIMITED = 1 << 60  # version 1 of control groups says "no limit" with a number near 2**63


def free_device_memory(device: str) -> int:
    """Return the free bytes of a CUDA device."""
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def available_memory() -> int:
    """Return the bytes of memory that this process can still use without swapping and without being killed.

    The least of the system's estimate, the room in its control groups (containers, batch systems) and in its address space.
    """
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
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
        taken = [int(line.split()[0]) for line in _lines("/proc/self/statm")]
        yield limit - os.sysconf("SC_PAGE_SIZE") * sum(taken)


def _group_room(groups: str, mounted: str) -> Iterator[int]:
    """Yield the bytes left under each memory limit of this process's control groups, versions 1 and 2.

    File pages count as used there, but the kernel frees them before it enforces the limit.
    Source: the kernel's cgroup-v1/memory and cgroup-v2.
    """
    for line in _lines(groups):
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
            limits, usages = _lines(os.path.join(folder, limit)), _lines(os.path.join(folder, used))
            if not limits or not usages or not limits[0].isdigit() or int(limits[0]) >= _UNLIMITED:
                continue
            kinds = dict(line.split() for line in _lines(os.path.join(folder, "memory.stat")))
            files = sum(int(kinds.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            yield int(limits[0]) - int(usages[0]) + files


def remote_file_system(path: str) -> str | None:
    """Return the type of a path's file system if its data come from another machine or a program, else None."""
    if not sys.platform.startswith("linux"):
        return None
    path, best = os.path.realpath(path), ("", "")
    for line in _lines("/proc/self/mounts"):
        _, folder, kind = line.split(" ")[:3]
        # Blanks are \040; all other bytes are the name's own.
        folder = os.fsdecode(_ESCAPED.sub(lambda m: bytes([int(m[1], 8)]), os.fsencode(folder)))
        inside = path == folder or path.startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best[0]):  # of two at one place the later one covers the other
            best = folder, kind
    return best[1] if _REMOTE.fullmatch(best[1]) else None


def _lines(path: str) -> list[str]:
    """Return the lines of a file, none if it cannot be read, decoded like paths (os.fsdecode)."""
    try:
        with open(path, "rb") as file:
            # Not splitlines(), which ends lines at characters that names may have.
            return [os.fsdecode(line) for line in file.read().split(b"\n") if line]
    except OSError:
        return []
