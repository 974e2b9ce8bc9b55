"""examine(): versions, cores, memory, rates and traps of this machine, for data in one folder."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from packer import native, units
from packer.doctor.rates import DiskRate, Gpu, copy_rate, disk_rate, gpus
from packer.doctor.traps import OPENCV, Trap, find_traps, fork_beside_gpus, version_of
from packer.errors import UsageError
from packer.machine import available_memory, cores, memory
from packer.units import size
from packer.version import __version__

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
class Examination:
    """The machine as it was found.

    versions: package -> version, None if it is not installed; cores, machine_cores: that this process gets, that there are; available,
    memory: bytes; copy: bytes/s out of memory; disk: rates of the folder; free: its bytes; gpus: None without torch; loops: whether
    packer's loops in C are there.
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
        """Return everything as JSON values."""
        return asdict(self) | {"traps": [trap._asdict() for trap in self.traps]}

    def __str__(self) -> str:
        there = ", ".join(f"{name} {version}" for name, version in self.versions.items() if version)
        lines = [
            f"system     {self.system}, packer {__version__} {'with' if self.loops else 'without'} its loops in C",
            f"cores      {self.cores} of {self.machine_cores}",
            f"memory     {size(self.available)} available of {size(self.memory)}; copied at {size(self.copy)}/s",
            f"disk       {self.folder}: {size(self.free)} free; {_of_disk(self.disk)}",
            *_of_gpus(self.gpus),
            f"libraries  {there}",
        ]
        missing = [f"{name} ({OPTIONAL[name]})" for name in OPTIONAL if self.versions[name] is None]
        lines += [f"missing    {', '.join(missing)}"] if missing else []
        if not self.traps:
            return "\n".join([*lines, "", "Nothing found that is in the way."])
        lines += ["", f"{units.count(len(self.traps), 'thing')} in the way:"]
        for trap in self.traps:
            lines += [f"- {trap.found}", f"  {trap.remedy}"]
        return "\n".join(lines)


def examine(
    folder: str | os.PathLike[str] = ".", *, progress: Callable[[str], None] | None = None
) -> Examination:
    """Look at this machine for some seconds. folder: where data lie: a file of at most 512 MB is written there, and removed.

    progress: called with what is looked at next. Raises UsageError if the folder is none.
    """
    folder, say = os.path.abspath(folder), progress or (lambda _: None)
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: is no folder. Pass the one in which your data lie.")
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
        system=f"{platform.system()} {platform.release()} ({platform.machine()}), Python {platform.python_version()}",
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
        return ["GPU        not looked for, as torch is not installed"]
    if not found:
        return ["GPU        none"]
    return [
        f"GPU        {gpu.name}: {size(gpu.free)} free of {size(gpu.total)}; copies {size(gpu.pinned)}/s from pinned memory,"
        f" {size(gpu.pageable)}/s from other"
        for gpu in found
    ]
