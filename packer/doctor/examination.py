"""examine(): versions, cores, memory and problems of this machine, for data in a given folder."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass
from typing import Any

from packer import native, units
from packer.arguments import absolute
from packer.doctor.traps import OPENCV, Trap, find_traps, fork_beside_gpus, version_of
from packer.errors import PackerError, UsageError
from packer.machine import available_memory, cores, memory
from packer.pytorch import import_torch
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
    "pyyaml": "no YOLO data.yaml",
}


@dataclass(frozen=True)
class Gpu:
    """A CUDA device. free, total: bytes of memory."""

    name: str
    free: int
    total: int


@dataclass(frozen=True)
class Examination:
    """The result of `examine`.

    folder: directory of the data; system: operating system and Python;
    versions: package -> version, None if it is not installed; loops: True if the C extension is compiled;
    cores: cores available to this process; machine_cores: cores of the machine;
    available, memory: bytes of available and of total memory; free: free bytes of the folder's disk;
    gpus: CUDA devices, None without torch;
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
            f"memory     {size(self.available)} available of {size(self.memory)}",
            f"disk       {self.folder}: {size(self.free)} free",
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


def examine(folder: str | os.PathLike[str] = ".") -> Examination:
    """Examine this machine. folder: directory of the data. Raises UsageError if it is no directory."""
    folder = absolute(folder)
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: is no directory. Pass the directory of your data.")
    found = gpus()
    traps = [*find_traps(folder), *(fork_beside_gpus() if found else ())]
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
        free=shutil.disk_usage(folder).free,
        gpus=found,
        traps=traps,
    )


def _of_gpus(found: list[Gpu] | None) -> list[str]:
    if found is None:
        return ["GPU        unknown: torch is not installed"]
    if not found:
        return ["GPU        none"]
    return [f"GPU        {gpu.name}: {size(gpu.free)} free of {size(gpu.total)}" for gpu in found]


def gpus() -> list[Gpu] | None:
    """Return every CUDA device; None if torch cannot be imported."""
    try:
        import_torch("GPU")
    except PackerError:
        return None
    from torch import cuda

    return [Gpu(cuda.get_device_name(n), *map(int, cuda.mem_get_info(n))) for n in range(cuda.device_count())]
