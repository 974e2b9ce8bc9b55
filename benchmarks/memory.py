"""Peak resident memory of converting and of one epoch, for few images and for many: it should not grow with them.

    python benchmarks/memory.py FOLDER [--counts 1000,30000] [--size 256]

FOLDER holds class folders of photos; larger counts repeat them through links. Each measurement is a process of its own. For converting
the figure is the kernel's ru_maxrss of the largest process. For epochs it is the process's own (anonymous) memory, sampled at every batch,
and in brackets ru_maxrss, which also counts the page cache's pages while a file is mapped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ORDERS = ("sequential", "slices", "rows")
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


def peak(code: str) -> tuple[float, str]:
    """Peak resident megabytes of a Python process that runs this code, and what it printed."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the measured process failed with {process.returncode}")
    return usage.ru_maxrss / 1000, output


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
    bare, _ = peak("import torch, packer; packer.PackedBatchDataset")
    print(
        f"peak memory, MB, {options.size} px, {os.cpu_count()} cores; after importing torch and packer: {bare:,.0f}"
    )
    print(f"{'images':>8}  {'pack':>8}  {'convert':>8}" + "".join(f"  {order:>16}" for order in ORDERS))
    for count in map(int, options.counts.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            source, pack = Path(folder, "images"), str(Path(folder, "pack.h5"))
            linked(options.folder, source, count)
            converting, _ = peak(CONVERT.format(source=str(source), pack=pack, size=options.size))
            line = f"{count:>8,}  {os.path.getsize(pack) / 1e6:>8,.0f}  {converting:>8,.0f}"
            for order in ORDERS:
                total, own = peak(EPOCH.format(pack=pack, order=order))
                line += f"  {f'{int(own) / 1000:,.0f} ({total:,.0f})':>16}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
