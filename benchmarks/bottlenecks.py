"""Checks that `packer bench` names the stage that limits, in situations where that stage is known.

    python benchmarks/bottlenecks.py photos/ --work bench/

Each situation is a training script over photos, or over a pack of them, with an artificially slow stage;
`packer bench --script` runs it. The slow disk needs root and a control group that limits the disk of --work;
without them it is skipped with a message. The store is a server on this machine. Exits with 1 if any
situation is misdiagnosed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
from lanes import photos
from lanes.lane import PHOTOS
from remote import serve

from packer import convert_images
from packer.bench.hardware_limits import load, machine, versions
from packer.errors import MissingDependencyError
from packer.machine import cores

DISK_RATE = 16_000_000  # bytes/s
STORE_WAIT, STORE_RATE = 50, 1.0  # ms a request, MB/s a connection
LARGE = (3000, 4000)
SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from packer import PackedBatchDataset, PythonTransform, open_pack
from packer.augment import GaussianBlur, Normalize
from packer.bench.hardware_limits import drop

def slowly(sample):
    time.sleep(0.01)
    return sample

class Slow(Dataset):
    def __len__(self):
        return 512
    def __getitem__(self, row):
        return torch.full((3, 8, 8), float(sum(number % 7 for number in range(100_000)))), row % 2

if __name__ == "__main__":
    {before}
    batches = {loader}
    while True:
        for batch in batches:
            {step}
"""
OURS = "PackedBatchDataset({pack!r}, 16{more})"
SITUATIONS = {
    "a disk of 16 MB/s": ("disk", OURS, "drop([{pack!r}])", "pass"),
    "rows in the page cache, no step": ("memory", OURS, "pass", "pass"),
    "a step of 50 ms": ("training", OURS, "pass", "time.sleep(0.05)"),
    "JPEG rows, no step": ("decoding", OURS, "pass", "pass"),
    "GaussianBlur of 61 pixels on the CPU": (
        "augmenting",
        OURS.replace("{more}", ", augment=[GaussianBlur(61, 10.0), Normalize()]"),
        "pass",
        "pass",
    ),
    "a transform in Python": (
        "transform",
        OURS.replace("{more}", ", transform=PythonTransform(slowly, processes=1)"),
        "pass",
        "pass",
    ),
    "a dataset in Python": ("Python", "DataLoader(Slow(), batch_size=16)", "pass", "pass"),
    "a cold store": ("store", OURS.replace("{pack!r}", "open_pack({pack!r}, {cache!r})"), "pass", "pass"),
    "large PNG": ("decoding", None, None, None),
    "one core": ("cores", None, None, None),
}
"""Name -> expected stage; the script's loader, setup and step, None without a script."""


def slow_disk(folder: str) -> list[str]:
    """Create a control group that limits reads from the folder's disk. Returns a command prefix to run in it.

    Raises OSError where that is not possible.
    """
    device = os.stat(folder).st_dev
    major, minor = os.major(device), os.minor(device)
    one = Path("/sys/fs/cgroup/blkio")
    group = (one if one.is_dir() else Path("/sys/fs/cgroup")) / "packer-bottlenecks"
    group.mkdir(exist_ok=True)
    if one.is_dir():
        (group / "blkio.throttle.read_bps_device").write_text(f"{major}:{minor} {DISK_RATE}")
    else:
        (group / "io.max").write_text(f"{major}:{minor} rbps={DISK_RATE}")
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]


@contextmanager
def store(pack: str) -> Iterator[dict[str, str]]:
    """Serve a pack as an S3 object from another process. Returns the environment to reach it."""
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", pack], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield {
                "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
            }
        finally:
            server.kill()


def bench(
    images: str, pack: str, *more: str, before: list[str], environment: dict[str, str]
) -> dict[str, Any]:
    """Run packer bench. Returns its record."""
    command = [sys.executable, "-m", "packer", "bench", images, pack, "--json", "-", "--quiet", *more]
    options = ["--rounds", "1", "--seconds", "0.5", "--batch-size", "16", "--workers", "0,2"]
    done = subprocess.run(
        [*before, *command, *options],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def run(name: str, images: str, packs: dict[str, str], work: str) -> tuple[str, str]:
    """Set up a situation. Returns the named stage and the report's paragraph."""
    _, loader, first, step = SITUATIONS[name]
    pack = packs["jpeg" if name.startswith("JPEG") else "raw"]
    before: list[str] = []
    environment: dict[str, str] = {}
    if name.startswith("a disk"):
        before = slow_disk(work)
    if name == "one core":
        before = ["taskset", "-c", "0"]
    if name == "large PNG":
        images, pack = packs["large images"], packs["large"]
    with tempfile.TemporaryDirectory(dir=work) as folder, store(packs["raw"]) as keys:
        more = []
        if loader is not None:
            read = pack
            if "store" in name:
                read, environment = "s3://bucket/pack.h5", keys
            values = {"pack": read, "cache": folder, "more": ""}
            texts = {"before": first or "", "loader": loader, "step": step or ""}
            script = Path(folder, "train.py")
            script.write_text(SCRIPT.format(**{key: text.format(**values) for key, text in texts.items()}))
            more = ["--script", str(script)]
        cold = "--cold" if name.startswith("a disk") else "--no-cold"
        found = bench(images, pack, cold, *more, before=before, environment=environment)["diagnosis"]
    text = found["text"] if isinstance(found["text"], str) else json.dumps(found["text"])
    named = found["limit"]
    if name == "one core":
        named = "cores" if f"1 of the machine's {os.cpu_count()} cores" in text else named
    if name.startswith("a disk") and found["cold"] != "disk":
        named = f"{named}, cold {found['cold']}"
    return named, text


def prepare(source: str, images: int, work: str) -> tuple[str, dict[str, str]]:
    """Write photos, large ones and packs to the work folder. Returns the photos, and the packs by name."""
    photos.gather(source, images, work, cores())
    folder = f"{work}/{PHOTOS}"
    large = Path(work, "large", "all")
    large.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(Path(folder).rglob("*.jpg"))[:16]):
        pixels = cv2.imread(str(path))
        assert pixels is not None
        pixels = cv2.resize(pixels, LARGE[::-1], interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(large / f"{number}.png"), pixels)
    packs = {name: f"{work}/{name}.h5" for name in ("raw", "jpeg", "large")}
    convert_images(folder, packs["raw"], size=256, overwrite=True)
    convert_images(folder, packs["jpeg"], size=256, store="jpeg", overwrite=True)
    convert_images(large.parent, packs["large"], size=256, overwrite=True)
    return folder, packs | {"large images": str(large.parent)}


def main(argv: list[str] | None = None) -> int:
    """Run all situations, and print the named stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", help="folder of JPEGs")
    parser.add_argument("--work", metavar="DIR", default="demo/bottlenecks", help="folder for the packs")
    parser.add_argument("--images", type=int, default=2400)
    parser.add_argument("--json", metavar="FILE", help="also write all results to this file")
    parser.add_argument("--serve", metavar="PACK", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        serve({"bucket/pack.h5": options.serve}, STORE_WAIT, STORE_RATE)
    os.makedirs(options.work, exist_ok=True)
    work = str(Path(options.work).resolve())
    images, packs = prepare(options.source, options.images, work)
    about = machine() | versions() | {"load_before": load()}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    found, wrong = [], 0
    for name, (limit, *_) in SITUATIONS.items():
        try:
            named, text = run(name, images, packs, work)
        except (OSError, MissingDependencyError) as error:
            print(f"{name}: left out ({error})")
            continue
        wrong += named != limit
        found.append({"situation": name, "limit": limit, "named": named, "text": text})
        print(f"{'right' if named == limit else 'WRONG'}  {name}: {named}\n       {text}", flush=True)
    print(f"{len(found) - wrong} of {len(found)} named")
    if options.json:
        Path(options.json).write_text(json.dumps({"conditions": about, "situations": found}, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
