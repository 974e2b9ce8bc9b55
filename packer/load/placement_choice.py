"""Where rows are kept: as asked, or chosen by size and by the free memory.

Of that a share stays free for the model, which may not exist yet, for the page cache and for other processes.
"""

from __future__ import annotations

from packer import machine
from packer.arguments import one_of
from packer.errors import UsageError
from packer.format.file_systems import remote_file_system
from packer.load.batch import size_of
from packer.load.caches.row_memory import in_memory
from packer.read.array_store import PackStore
from packer.units import size

PLACEMENTS = ("auto", "gpu", "pinned", "ram", "disk")
GPU_SHARE = 8  # of the free device memory: weights, gradients and activations want the rest
HOST_SHARE = 4  # of the available memory: the pack's own pages may lie in the page cache besides


def place_rows(placement: str, device: str, store: PackStore, alone: str = "") -> tuple[str, str]:
    """Return the placement of a store's rows and the reason for it. Raises UsageError.

    alone: the argument because of which rows are read anew each time, "" if there is none.
    """
    if alone:
        why = "images that differ in size are decoded when they are read"
        if alone == "transform":
            why = "a Python transform's processes read the rows themselves"
        if placement not in ("auto", "disk"):
            raise UsageError(f"placement={placement!r} with {alone}: {why}. Pass placement='disk'.")
        return "disk", why
    paths = [one.path for one in store.pack.packs]
    return choose_placement(
        placement,
        device=device,
        nbytes=size_of(store.fixed, store.rows),
        decoded=any(f.codec for f in store.fields),
        path=next(filter(remote_file_system, paths), paths[0]),
        present=placement != "disk" and in_memory(store),
    )


def choose_placement(
    placement: str, *, path: str, device: str, nbytes: int, decoded: bool, present: bool = False
) -> tuple[str, str]:
    """Return the placement, "gpu", "pinned", "ram" or "disk", and a phrase for the log that gives the reason.

    placement: one of PLACEMENTS. path: path of the pack. device: device of the batches. nbytes: bytes of the rows as they are
    loaded, without ragged fields. decoded: True if rows are stored as JPEG or compressed. present: True if a process of this
    machine holds them in memory already, so that they cost no more memory.

    Raises UsageError for a placement that this machine does not have, or that has no room.
    """
    one_of("placement", placement, PLACEMENTS)
    if placement == "disk":
        return "disk", "as asked"
    auto, on_gpu = placement == "auto", device.startswith("cuda")
    if placement in ("gpu", "pinned") and not on_gpu:
        raise UsageError(
            f"placement={placement!r}: device is {device!r}; it serves CUDA devices. Pass device='cuda', or placement='ram'."
        )
    if not nbytes:
        why = "no field has rows of one length"
        if auto:
            return "disk", why
        raise UsageError(f"placement={placement!r}: {why}; others stay on the disk. Pass placement='disk'.")
    rows, host = f"{size(nbytes)} of rows", machine.available_memory()
    free = free_device_memory(device) if on_gpu and placement != "pinned" else 0
    if not auto:
        if present and placement != "gpu":
            return placement, f"as asked; {rows} are in memory already"
        room, where = (free, f"free on {device}") if placement == "gpu" else (host, "of available memory")
        if nbytes > room:
            lower = "'pinned' or 'disk'" if placement == "gpu" else "'disk'"
            raise UsageError(
                f"placement={placement!r}: the rows take {size(nbytes)}; there are {size(room)} {where}."
                f" Pass placement={lower}, fewer fields, or a subset."
            )
        return placement, f"as asked; {rows}, {size(room)} {where}"
    fits, quarter = present or nbytes <= host // HOST_SHARE, f"a quarter of {size(host)} of available memory"
    held = "are in memory already" if present else f"fit {quarter}"
    if on_gpu:
        eighth = f"an eighth of {size(free)} free on {device}"
        if nbytes <= free // GPU_SHARE:
            return "gpu", f"{rows} fit {eighth}"
        if fits:
            return "pinned", f"{rows} exceed {eighth}, but {held}"
        return "disk", f"{rows} exceed {eighth}, and {quarter}"
    remote = "" if decoded else remote_file_system(path)
    if not (decoded or remote):
        return "disk", f"{rows} are read through the page cache, which all processes share"
    reason = "are stored encoded" if decoded else f"lie on {remote}, a network file system,"
    return (
        ("ram", f"{rows} {reason} and {held}") if fits else ("disk", f"{rows} {reason} but exceed {quarter}")
    )


def free_device_memory(device: str) -> int:
    """Return the free bytes of a CUDA device."""
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])
