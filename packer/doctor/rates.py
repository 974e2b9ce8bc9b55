"""How fast memory, the disk of a folder and the way to the GPU are: a second each."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from packer.bench import page_cache_drop
from packer.bench.hardware_limits import CopyLimit, read_rate
from packer.machine import cores

SECONDS = 1.0
_BATCH_BYTES = 48 << 20  # 256 images of 256 px
_FILE_BYTES = 512 << 20
_FREE_SHARE = 10  # of the free bytes of the disk
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class DiskRate:
    """read, write: bytes/s, read None if the page cache cannot be emptied; why: why nothing was measured, "" if it was."""

    read: float | None = None
    write: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device. free, total: bytes of memory; pinned, pageable: bytes/s of copies to it, from memory of that kind."""

    name: str
    free: int
    total: int
    pinned: float
    pageable: float


def copy_rate() -> float:
    """Return bytes/s of copying batches out of memory, by all cores."""
    return CopyLimit(_BATCH_BYTES, 4 * _BATCH_BYTES, cores()).rate(SECONDS / 2) * _BATCH_BYTES


def disk_rate(folder: str) -> DiskRate:
    """Write a file in a folder, read it from the disk and remove it."""
    nbytes = min(_FILE_BYTES, shutil.disk_usage(folder).free // _FREE_SHARE) // _PIECE_BYTES * _PIECE_BYTES
    if not nbytes:
        return DiskRate(why="too little room")
    piece, written = os.urandom(_PIECE_BYTES), 0
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".packer-doctor-") as file:
            began = time.perf_counter()
            while written < nbytes and time.perf_counter() - began < SECONDS:
                written += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            write = written / (time.perf_counter() - began)
            if not page_cache_drop.CAN_DROP:
                return DiskRate(write=write)
            page_cache_drop.drop([file.name])
            if (share := page_cache_drop.resident_share(file.name)) is None or share > 0.5:
                return DiskRate(write=write)  # a file system in memory
            return DiskRate(read_rate([file.name], min(4, cores()), SECONDS), write)
    except OSError as error:
        return DiskRate(why=str(error.strerror))


def gpus() -> list[Gpu] | None:
    """Return the CUDA devices, None where torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return [gpu(torch, number) for number in range(torch.cuda.device_count())]


def gpu(torch: Any, number: int) -> Gpu:
    """Measure a CUDA device. torch: the module, or what stands for it."""
    device = torch.device("cuda", number)
    free, total = torch.cuda.mem_get_info(device)
    there = torch.empty(_BATCH_BYTES, dtype=torch.uint8, device=device)
    rates = []
    for pinned in (True, False):
        here = torch.ones(_BATCH_BYTES, dtype=torch.uint8)
        here = here.pin_memory() if pinned else here
        there.copy_(here, non_blocking=True)
        torch.cuda.synchronize(device)
        copies, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS / 4:
            there.copy_(here, non_blocking=True)
            torch.cuda.synchronize(device)
            copies += 1
        rates.append(copies * _BATCH_BYTES / (time.perf_counter() - began))
    return Gpu(torch.cuda.get_device_name(device), int(free), int(total), *rates)
