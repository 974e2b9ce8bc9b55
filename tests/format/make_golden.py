"""Makes the golden packs: run it once for a new format version, never to make a failing test pass.

    python -m tests.format.make_golden

The names hold the version of the HDF5 library that wrote them: another one may lay a file out differently and still
write format 1, so bytes are compared only under the same version, and content under every one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py

from tests.format.packs import write_pack

GOLDEN = Path(__file__).parent / "golden"
MEMBERS = {
    "classes": ("cat", "dog"),
    "splits": {"train": ((0, 20),)},
    "seed": 7,
    "statistics": {"image": {"mean": [0.5, 0.25, 0.125], "std": [1.0, 0.5, 0.25]}},
    "provenance": {"options": {"size": [4, 6]}, "versions": {"packer": "0"}},
    "skipped": ({"key": "bad.jpg", "reason": "is empty"},),
}
ROWS, KEEP = 23, 21
H5_NAME = f"format1-hdf5-{h5py.version.hdf5_version}.h5"
NPY_NAME = "format1-npy"


def make(folder: Path) -> None:
    """Write both golden packs into a folder."""
    for name in (H5_NAME, NPY_NAME):
        write_pack(folder / name, rows=ROWS, keep=KEEP, **MEMBERS)


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir()
    make(GOLDEN)
