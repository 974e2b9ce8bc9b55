"""packer.doctor.traps: each trap, on a machine that is set up so."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packer.doctor import traps
from packer.doctor.traps import find_traps

GB = 1 << 30
Set = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without problems: 8 cores, 32 GB."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(traps, "cores", lambda: 8)
    monkeypatch.setattr(traps, "granted_cores", lambda: None)
    monkeypatch.setattr(traps, "available_memory", lambda: 20 * GB)
    monkeypatch.setattr(traps, "remote_file_system", lambda _: None)
    monkeypatch.setattr(traps.native, "COMPILED", True)
    _disks(monkeypatch, {})
    _limits(monkeypatch, {})


def _disks(monkeypatch: pytest.MonkeyPatch, small: dict[str, int]) -> None:
    """Have folders be on disks of 100 GB that are half full, but those of `small`."""

    def usage(path: str) -> SimpleNamespace:
        return SimpleNamespace(total=small.get(path, 100 * GB), free=small.get(path, 100 * GB) // 2)

    monkeypatch.setattr(shutil, "disk_usage", usage)


def _limits(monkeypatch: pytest.MonkeyPatch, given: dict[int, int]) -> None:
    limits = {resource.RLIMIT_NOFILE: 1024, resource.RLIMIT_AS: resource.RLIM_INFINITY} | given
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))


def test_a_sound_machine_has_none(tmp_path: Path) -> None:
    assert find_traps(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "value", "found", "remedy"),
    [
        (
            "remote_file_system",
            lambda _: "nfs4",
            "/data is on nfs4, a network file system",
            "placement='ram'",
        ),
        ("granted_cores", lambda: 1.5, "gets the time of 1.5 of 8 cores", "OMP_NUM_THREADS=8"),
        ("available_memory", lambda: GB, "1.07 GB of memory are available", "--mem of SLURM"),
    ],
)
def test_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, found: str, remedy: str
) -> None:
    monkeypatch.setattr(traps, name, value)
    (trap,) = find_traps("/data")
    assert found in trap.found
    assert remedy in trap.remedy


@pytest.mark.parametrize(
    ("change", "found", "remedy"),
    [
        (lambda patch: _disks(patch, {"/data": GB}), "/data has 537 MB free; packs", "Free some space"),
        (
            lambda patch: (
                patch.setattr(traps.tempfile, "gettempdir", lambda: "/t"),
                _disks(patch, {"/t": GB}),
            ),
            "TMPDIR, /t has 537 MB free",
            "Set TMPDIR",
        ),
        (lambda patch: _disks(patch, {"/dev/shm": 64 << 20}), "/dev/shm holds 67.1 MB", "--shm-size=8g"),
        (lambda patch: _limits(patch, {resource.RLIMIT_NOFILE: 64}), "At most 64 files", "ulimit -n 4096"),
        (lambda patch: patch.setattr(os, "cpu_count", lambda: 64), "8 of the machine's 64 cores", "SLURM"),
        (lambda patch: patch.setenv("OMP_NUM_THREADS", "64"), "is 64 on 8 cores", "OMP_NUM_THREADS=8"),
        (
            lambda patch: patch.setattr(traps.native, "COMPILED", False),
            "without its C extension",
            "C compiler",
        ),
        (
            lambda patch: patch.setattr(traps.metadata, "version", lambda name: name[-6:]),
            "opencv-python-headless adless and opencv-python python and",
            "; pip install opencv-python-headless",
        ),
        (lambda patch: patch.setattr(os, "getloadavg", lambda: (6.0, 5, 5)), "load 6.0 on 8", "quiet"),
    ],
)
def test_of_limits_and_settings(
    monkeypatch: pytest.MonkeyPatch, change: Set, found: str, remedy: str
) -> None:
    if "/dev/shm" in found and not os.path.isdir("/dev/shm"):
        pytest.skip("there is no /dev/shm")
    change(monkeypatch)
    (trap,) = find_traps("/data")
    assert found in trap.found
    assert remedy in trap.remedy


def test_of_many_threads_that_are_not_told_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert find_traps("/data") == []
