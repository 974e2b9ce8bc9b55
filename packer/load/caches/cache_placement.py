"""Choice of the placement of rows while training: on the GPU, in pinned memory, in memory, or only on the disk.

The user asks for a placement, or it is chosen by size: the bytes of the rows are compared with a share of the free memory.
The rest stays free for the model, which may not exist yet, for the page cache and for other processes.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator, Sequence

from packer.errors import UsageError
from packer.format.header import Field
from packer.units import size

PLACEMENTS = ("auto", "gpu", "pinned", "ram", "disk")
GPU_SHARE = 8  # of the free device memory: weights, gradients and activations want the rest
HOST_SHARE = 4  # of the available memory: the pack's own pages may lie in the page cache besides

# File systems whose pages the kernel may have to ask another machine, or a program, for.
_REMOTE = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse(\..*)?|gfs2|gpfs|lustre|nfs4?|ocfs2|orangefs|panfs|pvfs2|smb3|smbfs|wekafs"
)
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_UNLIMITED = 1 << 60  # version 1 of control groups says "no limit" with a number near 2**63


def choose(
    placement: str,
    *,
    path: str,
    device: str,
    nbytes: int,
    decoded: bool,
    present: bool = False,
) -> tuple[str, str]:
    """Return the placement, "gpu", "pinned", "ram" or "disk", and a phrase for the log that gives the reason.

    placement: one of PLACEMENTS. path: path of the pack. device: device of the batches. nbytes: bytes of the rows as they are
    loaded, without ragged fields. decoded: True if rows are stored as JPEG or compressed. present: True if a process of this
    machine holds them in memory already, so that they cost no more memory.

    Raises UsageError for a placement that this machine does not have, or that has no room.
    """
    if placement not in PLACEMENTS:
        raise UsageError(
            f"placement={placement!r}: is not one of {', '.join(map(repr, PLACEMENTS))}. Pass one of them."
        )
    if placement == "auto":
        return _chosen(path, device, nbytes, decoded, present)
    if placement in ("gpu", "pinned") and not device.startswith("cuda"):
        raise UsageError(
            f"placement={placement!r}: device is {device!r}; it serves CUDA devices. Pass device='cuda', or placement='ram'."
        )
    return placement, _asked(placement, device, nbytes, present)


def _chosen(path: str, device: str, nbytes: int, decoded: bool, present: bool) -> tuple[str, str]:
    rows = f"{size(nbytes)} of rows"
    if not nbytes:
        return "disk", "no field has rows of one length"
    host = available_memory()
    fits = present or nbytes <= host // HOST_SHARE
    room = "are in memory already" if present else f"fit a quarter of {size(host)} of available memory"
    if device.startswith("cuda"):
        free = free_device_memory(device)
        if nbytes <= free // GPU_SHARE:
            return "gpu", f"{rows} fit an eighth of {size(free)} free on {device}"
        beyond = f"{rows} exceed an eighth of {size(free)} free on {device}"
        if fits:
            return "pinned", f"{beyond}, but {room}"
        return "disk", f"{beyond}, and a quarter of {size(host)} of available memory"
    remote = remote_file_system(path)
    reason = (
        "are stored encoded" if decoded else f"lie on {remote}, a network file system," if remote else None
    )
    if reason is None:
        return "disk", f"{rows} are read through the page cache, which all processes share"
    if fits:
        return "ram", f"{rows} {reason} and {room}"
    return "disk", f"{rows} {reason} but exceed a quarter of {size(host)} of available memory"


def _asked(placement: str, device: str, nbytes: int, present: bool) -> str:
    """Return the log phrase for a placement that the user asked for. Raises UsageError if there is no room for the rows."""
    if placement == "disk":
        return "as asked"
    if not nbytes:
        raise UsageError(
            f"placement={placement!r}: no field has rows of one length; others stay on the disk. Pass placement='disk'."
        )
    if placement == "gpu":
        free, where, lower = free_device_memory(device), f"free on {device}", "'pinned' or 'disk'"
    elif present:
        return f"as asked; {size(nbytes)} of rows are in memory already"
    else:
        free, where, lower = available_memory(), "of available memory", "'disk'"
    if nbytes > free:
        raise UsageError(
            f"placement={placement!r}: the rows take {size(nbytes)}; there are {size(free)} {where}."
            f" Pass placement={lower}, fewer fields, or a subset."
        )
    return f"as asked; {size(nbytes)} of rows, {size(free)} {where}"


def size_of(fields: Sequence[Field], rows: int) -> int:
    """Return the bytes of `rows` rows as they are loaded, without ragged fields, which stay on the disk."""
    return rows * sum(f.row_bytes for f in fields if not f.ragged)


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
