"""examine(): versions, cores, memory, rates and problems of this machine, for data in a given folder.

The measurements of memory, the disk and copies to the GPU take about a second each.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from packer import native, units
from packer.bench import hardware_limits
from packer.bench.hardware_limits import READ_BYTES, CopyLimit, read_rate
from packer.doctor.traps import OPENCV, Trap, find_traps, fork_beside_gpus, version_of
from packer.errors import PackerError, UsageError
from packer.machine import available_memory, cores, memory
from packer.path_text import absolute
from packer.pytorch import import_torch
from packer.units import size
from packer.version import __version__

SECONDS = 1.0
_BATCH_BYTES = 48 << 20  # 256 images of 256 px
_FILE_BYTES = 512 << 20
_FREE_SHARE = 10  # the test file takes at most 1/10 of the free bytes of the disk
NEEDED = ("numpy", "h5py", "simplejpeg", "pillow", "xxhash")
OPTIONAL = {
    "torch": "no torch batches, no augmentation",
    "isal": ".csv.gz takes two to three times as long",
    "pyarrow": "no Parquet, no Arrow",
    "zstandard": "no packs compressed with zstd, no .zst tables",
    "obstore": "no packs at s3://, gs://, az://, https://",
    "tifffile": "no TIFF of bands",
}


@dataclass(frozen=True)
class DiskRate:
    """Rates of a folder's disk.

    read, write: bytes/s; read is None if the page cache cannot be emptied; why: reason why nothing was
    measured, "" if it was.
    """

    read: float | None = None
    write: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device.

    free, total: bytes of memory; pinned, pageable: bytes/s of copies from host memory of that kind.
    """

    name: str
    free: int
    total: int
    pinned: float
    pageable: float


@dataclass(frozen=True)
class Examination:
    """The result of `examine`.

    folder: directory whose disk was measured; system: operating system and Python;
    versions: package -> version, None if it is not installed; loops: True if the C extension is compiled;
    cores: cores available to this process; machine_cores: cores of the machine;
    available, memory: bytes of available and of total memory; copy: bytes/s of copies in memory;
    disk: rates of the folder's disk; free: its free bytes; gpus: CUDA devices, None without torch;
    traps: problems, each with its remedy.
    """

    folder: str
    system: str
    versions: dict[str, str | None]
    loops: bool
    cores: int
    machine_cores: int
    available: int
    memory: int
    copy: float
    disk: DiskRate
    free: int
    gpus: list[Gpu] | None
    traps: list[Trap]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self) | {"traps": [trap._asdict() for trap in self.traps]}

    def __str__(self) -> str:
        there = ", ".join(f"{name} {version}" for name, version in self.versions.items() if version)
        lines = [
            f"system     {self.system}, packer {__version__}"
            f" {'with' if self.loops else 'without'} its C extension",
            f"cores      {self.cores} of {self.machine_cores}",
            f"memory     {size(self.available)} available of {size(self.memory)};"
            f" copied at {size(self.copy)}/s",
            f"disk       {self.folder}: {size(self.free)} free; {_of_disk(self.disk)}",
            *_of_gpus(self.gpus),
            f"libraries  {there}",
        ]
        missing = [f"{name} ({OPTIONAL[name]})" for name in OPTIONAL if self.versions[name] is None]
        lines += [f"missing    {', '.join(missing)}"] if missing else []
        if not self.traps:
            return "\n".join([*lines, "", "No problems found."])
        lines += ["", f"{units.count(len(self.traps), 'problem')}:"]
        for trap in self.traps:
            lines += [f"- {trap.found}", f"  {trap.remedy}"]
        return "\n".join(lines)


def examine(
    folder: str | os.PathLike[str] = ".", *, progress: Callable[[str], None] | None = None
) -> Examination:
    """Examine this machine, which takes some seconds.

    folder: directory of the data; a file of at most 512 MB is written there and removed.
    progress: called with the name of each measurement before it begins.
    Raises UsageError if the folder is no directory.
    """
    folder, say = absolute(folder), progress or (lambda _: None)
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: is no directory. Pass the directory of your data.")
    traps = find_traps(folder)  # first: measuring makes the machine busy
    say("memory")
    copy = copy_rate()
    say("disk")
    disk = disk_rate(folder)
    say("GPU")
    found = gpus()
    traps += fork_beside_gpus() if found else ()
    opencv = next((name for name in OPENCV if version_of(name)), OPENCV[0])
    return Examination(
        folder=folder,
        system=f"{platform.system()} {platform.release()} ({platform.machine()}),"
        f" Python {platform.python_version()}",
        versions={name: version_of(name) for name in (*NEEDED, opencv, *OPTIONAL)},
        loops=native.COMPILED,
        cores=cores(),
        machine_cores=os.cpu_count() or 1,
        available=available_memory(),
        memory=memory(),
        copy=copy,
        disk=disk,
        free=shutil.disk_usage(folder).free,
        gpus=found,
        traps=traps,
    )


def _of_disk(disk: DiskRate) -> str:
    if disk.write is None:
        return f"not measured ({disk.why})"
    read = "the page cache cannot be emptied" if disk.read is None else f"reads {size(disk.read)}/s"
    return f"{read}, writes {size(disk.write)}/s"


def _of_gpus(found: list[Gpu] | None) -> list[str]:
    if found is None:
        return ["GPU        unknown: torch is not installed"]
    if not found:
        return ["GPU        none"]
    return [
        f"GPU        {gpu.name}: {size(gpu.free)} free of {size(gpu.total)};"
        f" copies {size(gpu.pinned)}/s from pinned memory, {size(gpu.pageable)}/s from pageable memory"
        for gpu in found
    ]


def copy_rate() -> float:
    """Return the rate at which all cores together copy batches in memory, in bytes/s."""
    return CopyLimit(_BATCH_BYTES, 4 * _BATCH_BYTES, cores()).rate(SECONDS / 2) * _BATCH_BYTES


def disk_rate(folder: str) -> DiskRate:
    """Measure the disk of a folder: write a file, read it from the disk and remove it."""
    nbytes = min(_FILE_BYTES, shutil.disk_usage(folder).free // _FREE_SHARE) // READ_BYTES * READ_BYTES
    if not nbytes:
        return DiskRate(why="too little free space")
    piece, written = os.urandom(READ_BYTES), 0
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".packer-doctor-") as file:
            began = time.perf_counter()
            while written < nbytes and time.perf_counter() - began < SECONDS:
                written += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            write = written / (time.perf_counter() - began)
            if not hardware_limits.CAN_DROP:
                return DiskRate(write=write)
            hardware_limits.drop([file.name])
            if (share := hardware_limits.resident_share(file.name)) is None or share > 0.5:
                return DiskRate(write=write)  # a file system in memory
            return DiskRate(read_rate([file.name], min(4, cores()), SECONDS), write)
    except OSError as error:
        return DiskRate(why=str(error.strerror))


def gpus() -> list[Gpu] | None:
    """Measure every CUDA device; return None if torch cannot be imported."""
    try:
        import_torch("GPU")
    except PackerError:
        return None
    import torch

    return [gpu(torch, number) for number in range(torch.cuda.device_count())]


def gpu(torch: Any, number: int) -> Gpu:
    """Measure a CUDA device. torch: the module, or a stand-in for it."""
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
