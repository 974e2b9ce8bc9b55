"""Where rows are kept: as asked, or chosen by size and by the free memory.

Of that a share stays free for the model, which may not exist yet, for the page cache and for other processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from packer import machine
from packer.errors import UsageError
from packer.format.file_systems import remote_file_system
from packer.format.header import Field
from packer.load.batch import size_of
from packer.load.caches.row_memory import in_memory
from packer.read.array_store import PackStore
from packer.units import size

PLACEMENTS = ("auto", "gpu", "pinned", "ram", "disk")
GPU_SHARE = 8  # of the free device memory: weights, gradients and activations want the rest
HOST_SHARE = 4  # of the available memory: the pack's own pages may lie in the page cache besides


def parse_placement(
    placement: str,
    device: str,
    store: PackStore,
    fields: Sequence[Field],
    *,
    transformed: bool,
    ragged: str = "",
) -> tuple[str, str]:
    """Return the placement and the reason for it. ragged: the argument by which images that differ in size
    become one array as they are read, "" if none does. Raises UsageError."""
    why = "images that differ in size are decoded when they are read" if ragged else ""
    if transformed and not ragged:
        why = "a Python transform's processes read the rows themselves"
    if why:
        if placement not in ("auto", "disk"):
            raise UsageError(
                f"placement={placement!r} with {ragged or 'transform'}: {why}. Pass placement='disk'."
            )
        return "disk", why
    paths = [one.path for one in store.pack.packs]
    return choose_placement(
        placement,
        device=device,
        nbytes=size_of(fields, store.rows),
        decoded=any(f.codec for f in store.fields),
        path=next(filter(remote_file_system, paths), paths[0]),
        present=placement != "disk" and in_memory(store),
    )


def choose_placement(
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
    if placement == "disk":
        return "disk", "as asked"
    on_gpu = device.startswith("cuda")
    if placement in ("gpu", "pinned") and not on_gpu:
        raise UsageError(
            f"placement={placement!r}: device is {device!r}; it serves CUDA devices. Pass device='cuda', or placement='ram'."
        )
    auto, rows, host = placement == "auto", f"{size(nbytes)} of rows", machine.available_memory()
    if not nbytes:
        why = "no field has rows of one length"
        if auto:
            return "disk", why
        raise UsageError(f"placement={placement!r}: {why}; others stay on the disk. Pass placement='disk'.")
    free = free_device_memory(device) if on_gpu and placement != "pinned" else 0
    if not auto:
        room, where = (free, f"free on {device}") if placement == "gpu" else (host, "of available memory")
        if present and placement != "gpu":
            return placement, f"as asked; {rows} are in memory already"
        if nbytes > room:
            lower = "'pinned' or 'disk'" if placement == "gpu" else "'disk'"
            raise UsageError(
                f"placement={placement!r}: the rows take {size(nbytes)}; there are {size(room)} {where}."
                f" Pass placement={lower}, fewer fields, or a subset."
            )
        return placement, f"as asked; {rows}, {size(room)} {where}"
    fits = present or nbytes <= host // HOST_SHARE
    held = "are in memory already" if present else f"fit a quarter of {size(host)} of available memory"
    if on_gpu:
        if nbytes <= free // GPU_SHARE:
            return "gpu", f"{rows} fit an eighth of {size(free)} free on {device}"
        beyond = f"{rows} exceed an eighth of {size(free)} free on {device}"
        if fits:
            return "pinned", f"{beyond}, but {held}"
        return "disk", f"{beyond}, and a quarter of {size(host)} of available memory"
    remote = "" if decoded else remote_file_system(path)
    if not (decoded or remote):
        return "disk", f"{rows} are read through the page cache, which all processes share"
    reason = "are stored encoded" if decoded else f"lie on {remote}, a network file system,"
    if fits:
        return "ram", f"{rows} {reason} and {held}"
    return "disk", f"{rows} {reason} but exceed a quarter of {size(host)} of available memory"


def free_device_memory(device: str) -> int:
    """Return the free bytes of a CUDA device."""
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])
