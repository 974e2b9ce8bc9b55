"""The placement of rows: as requested, or chosen by size and free memory.

A share of the memory stays free for a model not yet created, the page cache and other processes.
"""

from __future__ import annotations

from packer import machine
from packer.arguments import one_of
from packer.errors import UsageError
from packer.format.file_systems import remote_file_system
from packer.load.batch import size_of
from packer.load.caches.row_memory import in_memory
from packer.read.array_store import PackStore
from packer.remote.urls import is_url
from packer.units import size

PLACEMENTS = ("auto", "gpu", "ram", "disk")
GPU_SHARE = 8  # at most 1/8 of the free device memory: weights, gradients and activations need the rest
HOST_SHARE = 4  # at most 1/4 of the available memory: the page cache may hold the pack's pages as well


def place_rows(placement: str, device: str, store: PackStore, alone: str = "") -> tuple[str, str]:
    """Return the placement of a store's rows, "gpu", "ram" or "disk", and the reason for it.

    placement: one of PLACEMENTS. device: of the batches. alone: the argument that requires rows to be read
    each time, "" if none. Raises UsageError for a placement that this machine lacks, or has no room for.
    """
    one_of("placement", placement, PLACEMENTS)
    auto, on_gpu, why = placement == "auto", device.startswith("cuda"), "as asked"
    nbytes = size_of(store.fixed, store.rows)
    if alone:
        why = "images that differ in size are decoded when they are read"
        if alone == "transform":
            why = "a Python transform's processes read the rows themselves"
        if placement not in ("auto", "disk"):
            raise UsageError(f"placement={placement!r} with {alone}: {why}. Pass placement='disk'.")
    elif placement == "gpu" and not on_gpu:
        raise UsageError(
            f"placement={placement!r}: device is {device!r}; only CUDA devices are allowed. Pass"
            " device='cuda', or placement='ram'."
        )
    elif placement != "disk" and not nbytes:
        why = "no field has rows of one length"
        if not auto:
            raise UsageError(
                f"placement={placement!r}: {why}; ragged fields stay on the disk. Pass placement='disk'."
            )
    if alone or placement == "disk" or not nbytes:
        return "disk", why
    present = in_memory(store)  # another process of this machine has them: they cost no more memory
    rows, host = f"{size(nbytes)} of rows", machine.available_memory()
    free = free_device_memory(device) if on_gpu and placement != "ram" else 0
    arriving = store.pack.pending or store.pack.ahead_bytes is not None  # the first batch would wait for all
    if not auto:
        if present and placement != "gpu":
            return placement, f"as asked; {rows} are in memory already"
        room, where = (free, f"free on {device}") if placement == "gpu" else (host, "of available memory")
        if nbytes > room:
            raise no_room(placement, nbytes, room, where)
        return placement, f"as asked; {rows}, {size(room)} {where}"
    fits, quarter = present or nbytes <= host // HOST_SHARE, f"a quarter of {size(host)} of available memory"
    held = "are in memory already" if present else f"fit {quarter}"
    if on_gpu and nbytes <= free // GPU_SHARE and not arriving:
        return "gpu", f"{rows} fit an eighth of {size(free)} free on {device}"
    decoded = any(f.codec for f in store.fields)
    paths = [one.path for one in store.pack.packs if not is_url(one.path)]
    remote = next(filter(None, map(remote_file_system, paths)), "")
    if not (decoded or remote):
        return "disk", f"{rows} are read through the page cache, which all processes share"
    reason = "are stored encoded" if decoded else f"lie on {remote}, a network file system,"
    return (
        ("ram", f"{rows} {reason} and {held}") if fits else ("disk", f"{rows} {reason} but exceed {quarter}")
    )


def no_room(placement: str, nbytes: int, room: int, where: str) -> UsageError:
    """Return the error for rows that do not fit a placement. room: free bytes; where: "free on cuda:0"."""
    lower = "'ram' or 'disk'" if placement == "gpu" else "'disk'"
    return UsageError(
        f"placement={placement!r}: the rows take {size(nbytes)}; there are {size(room)} {where}."
        f" Pass placement={lower}, fewer fields, or a subset."
    )


def free_device_memory(device: str) -> int:
    """Return the free bytes of a CUDA device."""
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])
