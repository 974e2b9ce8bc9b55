"""Install each file of `make wheels` into an empty environment without a compiler, and use it there.

    python tools/try_dist.py dist/

Each environment gets the dependencies of setup.cfg from the package index; it converts a folder, verifies the
pack and loads it without torch. The wheel must contain the C extension; the sources must work without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

MAKE_IMAGES = """
import pathlib, numpy, PIL.Image
for number in range(32):
    path = pathlib.Path("photos", "cat dog".split()[number % 2], f"{number}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(numpy.full((80, 60, 3), number * 8, numpy.uint8)).save(path)
"""
LOAD = """
import logging
logging.disable()  # the sources without their loops say so below, in fewer words
from packer import PackedBatchDataset
from packer.native import COMPILED
with PackedBatchDataset("train.h5", 8, shuffle=True, output="numpy") as batches:
    images = [batch.image.shape for batch in batches]
assert images == [(8, 64, 64, 3)] * 4, images
print("with" if COMPILED else "without", "the loops in C")
"""


def try_file(path: Path, folder: Path) -> str:
    """Install a file with its dependencies only, and load from a pack. Returns the last line printed."""
    venv.create(folder / "env", with_pip=True)
    python, tools = folder / "env/bin/python", folder / "tools"
    tools.mkdir()
    environment = {**os.environ, "PATH": f"{folder / 'env/bin'}:{tools}", "CC": "false", "PYTHONPATH": ""}

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(python), *words], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(path))
    run("-c", MAKE_IMAGES)
    run("-m", "packer", "convert", "photos", "train.h5", "--size", "64", "--quiet")
    run("-m", "packer", "verify", "train.h5", "--quiet")
    return run("-c", LOAD).splitlines()[-1]


def main(folder: Path) -> int:
    """Print the result for each file of the folder. Returns 1 if the wheel lacks the extension."""
    wrong = 0
    for path in sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")]):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            found = try_file(path.resolve(), Path(place))
        wrong |= path.suffix == ".whl" and not found.startswith("with ")
        print(f"{path}: installed, converted, verified, loaded, {found}, in {time.monotonic() - start:.0f} s")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
