"""Systems that lack what Linux has: macOS, acted out in a process of its own; Windows, which is told to use WSL2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from packer import convert_images
from tests.conftest import Beside

# What Python offers on Linux alone, and files that only Linux has. The imports come first: they look at the platform, too.
MACOS = """
import asyncio, builtins, concurrent.futures, io, mmap, multiprocessing.connection, os, socket, struct, sys, tempfile, urllib.request
import cv2, h5py, torch
sys.platform = "darwin"
for name in ("memfd_create", "posix_fadvise", "posix_fallocate", "sched_getaffinity", "fdatasync", "pipe2", "eventfd",
             "copy_file_range", "splice", "pidfd_open", "O_DIRECT", "O_PATH", "O_NOATIME", "RWF_NOWAIT"):
    if hasattr(os, name):
        delattr(os, name)
for name in dir(mmap):
    if name.startswith(("MADV_", "MAP_POPULATE", "MAP_NORESERVE")) and name[5:] not in (
        "NORMAL", "RANDOM", "SEQUENTIAL", "WILLNEED", "DONTNEED", "FREE"
    ):
        delattr(mmap, name)
for name in ("SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "MSG_CMSG_CLOEXEC", "SO_PASSCRED"):
    if hasattr(socket, name):
        delattr(socket, name)


def getsockopt(self, level, option, *size, real=socket.socket.getsockopt):
    if (level, option) == (0, 1):  # LOCAL_PEERCRED
        return struct.pack("2I", 0, os.geteuid()).ljust(128, b"\\0")
    return real(self, level, option, *size)


socket.socket.getsockopt = getsockopt


def opened(file, *args, real=builtins.open, **options):
    if isinstance(file, (str, bytes)) and os.fsdecode(file).startswith(("/proc/", "/sys/", "/dev/shm")):
        raise FileNotFoundError(2, "No such file or directory", file)
    return real(file, *args, **options)


builtins.open = io.open = opened
"""
WORK = """
import macos, sys
from packer import (
    PackedBatchDataset, PythonTransform, convert_images, convert_table, fill_pack, repack, verify_pack
)
from packer.augment import RandomCrop, RandomHorizontalFlip


def brighter(batch):
    return {**batch, "image": batch["image"] // 2 + 128}


def rows(*args, **options):
    with PackedBatchDataset(*args, batch_size=3, **options) as batches:
        return [sum(len(batch.label) for batch in batches) for _ in range(2)]


def main():
    made = {
        "raw.h5": {}, "npy": {}, "shards": {"shards": 4}, "own.h5": {"size": "max=24", "store": "jpeg"}
    }
    for name, options in made.items():
        report = convert_images("photos", name, **{"size": 16, "workers": 2, **options})
        assert not verify_pack(name).problems
        cut = [RandomCrop(8, pad_if_needed=True), RandomHorizontalFlip()]
        for placement in ("disk", "ram") if name != "own.h5" else ("disk",):
            assert rows(name, order="blocks", placement=placement, augment=cut) == [report.rows] * 2
    assert rows("raw.h5", transform=PythonTransform(brighter, processes=1)) == [report.rows] * 2
    assert rows(fill_pack("photos", "filled.h5", size=16)) == [report.rows] * 2
    repack("raw.h5", "small.h5", size=8)
    with open("t.csv", "w") as file:
        file.write("a,y\\n" + "".join(f"{n},{n % 3}\\n" for n in range(99)))
    assert convert_table("t.csv", "t.h5", label="y", workers=2).rows == 99
    assert rows("t.h5", order="rows") == [99] * 2


if __name__ == "__main__":
    main()
"""


def test_macos_has_all_that_the_system_offers(photo_folder: Path, tmp_path: Path) -> None:
    """Without fork, fadvise, memfd, /proc: packs of each kind are made, checked, loaded, filled, repacked."""
    (tmp_path / "macos.py").write_text(MACOS)
    (tmp_path / "work.py").write_text(WORK)
    assert photo_folder == tmp_path / "photos"
    done = subprocess.run(
        [sys.executable, "work.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_windows_is_told_where_it_works() -> None:
    sentence = "packer: runs on Linux and macOS. On Windows install it inside WSL2 (wsl --install), where it works as on Linux."
    code = """
import sys
sys.platform = "win32"
import packer
try:
    packer.open_pack
except ImportError as error:
    print(error)
from packer.__main__ import run
run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, sentence + "\n", sentence + "\n")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            'ModuleNotFoundError("No module named cv2", name="cv2")',
            "working on images: opencv-python-headless is not installed. Run: pip install opencv-python-headless",
        ),
        (
            'ImportError("libGL.so.1: cannot open shared object file")',
            "OpenCV cannot be imported (libGL.so.1: cannot open shared object file). Run: pip uninstall -y opencv-python"
            " opencv-python-headless; pip install opencv-python-headless",
        ),
    ],
)
def test_without_opencv_packs_are_loaded_and_converting_is_a_sentence(
    photo_folder: Path, tmp_path: Path, raised: str, said: str
) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=32, store="jpeg")
    (tmp_path / "cv2.py").write_text(f"raise {raised}")
    code = """
import sys
from packer import PackedBatchDataset
with PackedBatchDataset("p.h5", 8, shuffle=True, output="numpy") as batches:
    assert sum(len(batch.label) for batch in batches) == 24
sys.argv = ["packer", "convert", "photos", "q.h5", "--size", "32"]
from packer.__main__ import run
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"Error: {said}"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            'ModuleNotFoundError("No module named torch", name="torch")',
            "augment: torch is not installed. Run: pip install torch",
        ),
        (
            'OSError("libtorch_cpu.so: cannot open shared object file")',
            "augment: torch cannot be imported (libtorch_cpu.so: cannot open shared object file)."
            " Run: pip install --force-reinstall torch",
        ),
    ],
)
def test_augmenting_without_torch_or_with_half_of_it_is_a_sentence(
    tmp_path: Path, raised: str, said: str
) -> None:
    (tmp_path / "torch.py").write_text(f"raise {raised}")
    done = subprocess.run(
        [sys.executable, "-c", "import packer.augment"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == f"packer.errors.MissingDependencyError: {said}"


def test_raw_packs_are_trained_with_few_packages(photo_folder: Path, tmp_path: Path, beside: Beside) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=32)
    code = """
import sys
for name in ("cv2", "PIL", "simplejpeg", "click", "tqdm", "pyarrow", "zstandard"):
    sys.modules[name] = None
from packer import PackedBatchDataset
from packer.augment import Normalize, RandomCrop, RandomHorizontalFlip
augment = [RandomCrop(24), RandomHorizontalFlip(), Normalize()]
with PackedBatchDataset(*ARGUMENTS, 8, shuffle=True, augment=augment, transform=lambda batch: batch) as batches:
    assert sum(len(labels) for images, labels in batches) == 24
"""
    beside(code, str(tmp_path / "p.h5"))
