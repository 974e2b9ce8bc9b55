"""Peak memory of converting and of one epoch, for few images and for many: it should not grow with them.

    python benchmarks/memory.py FOLDER [--counts 1000,30000] [--size 256]

FOLDER holds class folders of photos; larger counts repeat them through links. Each measurement is a process of its own. For converting
the figure is the memory that the process and its workers own together (anonymous and shared; a page that a fork shares counts once),
looked at every 50 ms. For epochs, which may be shorter, it is the process's anonymous memory, looked at in every batch. In brackets is
the kernel's ru_maxrss of the largest process, which also counts the page cache's pages while a file is mapped. Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ORDERS = ("sequential", "slices", "rows")
INTERVAL = 0.05  # seconds between two looks
OWN = ("Pss_Anon:", "Pss_Shmem:")  # kB, each page divided by the processes that share it (Linux 5.4)
CONVERT = "from packer import convert_images; convert_images({source!r}, {pack!r}, size={size})"
EPOCH = """
from packer import PackedBatchDataset
most = 0
with open("/proc/self/status") as status:
    for images, labels in PackedBatchDataset({pack!r}, 256, order={order!r}):
        status.seek(0)
        most = max(most, *(int(line.split()[1]) for line in status if line.startswith("RssAnon")))
print(most)
"""


def tree_memory(pid: int) -> int:
    """Kilobytes that a process and its descendants own; those that end meanwhile count nothing."""
    process = Path("/proc", str(pid))
    try:
        rollup = (process / "smaps_rollup").read_text().splitlines()
        children = [child for task in process.glob("task/*/children") for child in task.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in rollup if line.startswith(OWN)) + sum(
        tree_memory(int(child)) for child in children
    )


def peak(code: str) -> tuple[float, float, str]:
    """Run Python code in a process. Returns: peak MB of its tree's own memory, ru_maxrss in MB, what it printed."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    most, ended = 0, 0
    while not ended:
        most = max(most, tree_memory(process.pid))
        time.sleep(INTERVAL)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the measured process failed with {process.returncode}")
    return most / 1000, usage.ru_maxrss / 1000, process.stdout.read()


def linked(source: Path, target: Path, count: int) -> None:
    """A folder of `count` images in class folders, links to those of the source over and over."""
    images = sorted(path for path in source.glob("*/*") if path.is_file())
    for number in range(count):
        image = images[number % len(images)]
        folder = target / image.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:08d}{image.suffix}").symlink_to(image.absolute())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--counts", default="1000,30000")
    parser.add_argument("--size", type=int, default=256)
    options = parser.parse_args()
    own, total, _ = peak("import torch, packer; packer.PackedBatchDataset")
    print(
        f"peak memory, MB, {options.size} px, {os.cpu_count()} cores; after importing torch and packer:"
        f" {own:,.0f} ({total:,.0f})"
    )
    columns = ("convert", *ORDERS)
    print(f"{'images':>8}  {'pack':>8}" + "".join(f"  {column:>16}" for column in columns))
    for count in map(int, options.counts.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            source, pack = Path(folder, "images"), str(Path(folder, "pack.h5"))
            linked(options.folder, source, count)
            own, total, _ = peak(CONVERT.format(source=str(source), pack=pack, size=options.size))
            figures = [f"{own:,.0f} ({total:,.0f})"]
            for order in ORDERS:
                _, total, printed = peak(EPOCH.format(pack=pack, order=order))
                figures.append(f"{int(printed) / 1000:,.0f} ({total:,.0f})")
            cells = "".join(f"  {figure:>16}" for figure in figures)
            print(f"{count:>8,}  {os.path.getsize(pack) / 1e6:>8,.0f}{cells}", flush=True)


if __name__ == "__main__":
    main()
