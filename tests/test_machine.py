"""packer.machine: cores and memory that this process gets."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from packer import machine


def group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def test_limits_of_control_groups_of_version_2(tmp_path: Path):
    (tmp_path / "cgroup").write_text("0::/jobs/7\n")
    top = tmp_path / "fs"
    group(top, {"memory.stat": "active_file 5"})  # the root has no limit
    group(top / "jobs", {"memory.max": 900, "memory.current": 500, "memory.stat": "anon 1\nactive_file 20"})
    group(
        top / "jobs/7",
        {"memory.max": "max", "memory.current": 400, "memory.stat": "active_file 10\ninactive_file 30"},
    )
    rooms = lambda: list(machine._group_room(str(tmp_path / "cgroup"), str(top)))  # noqa: E731
    assert rooms() == [900 - 500 + 20]
    (top / "jobs/7/memory.max").write_text("450\n")
    assert rooms() == [450 - 400 + 40, 900 - 500 + 20]


def test_limits_of_control_groups_of_version_1(tmp_path: Path):
    """In a container the file names a path outside of it, and its own group is at the top."""
    (tmp_path / "cgroup").write_text("5:devices:/x\n4:cpu,memory:/docker/abc\n0::/\n")
    group(
        tmp_path / "fs/memory",
        {
            "memory.limit_in_bytes": 700,
            "memory.usage_in_bytes": 650,
            "memory.stat": "inactive_file 1\ntotal_inactive_file 60\ntotal_active_file 5\ntotal_shmem 9",
        },
    )
    rooms = list(machine._group_room(str(tmp_path / "cgroup"), str(tmp_path / "fs")))
    assert rooms == [700 - 650 + 65]
    (tmp_path / "fs/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert list(machine._group_room(str(tmp_path / "cgroup"), str(tmp_path / "fs"))) == []
    assert list(machine._group_room(str(tmp_path / "none"), str(tmp_path / "fs"))) == []


def test_cores_that_a_container_gets_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cgroup").write_text("0::/jobs/7\n")
    group(tmp_path / "fs/jobs", {"cpu.max": "350000 100000"})
    group(tmp_path / "fs/jobs/7", {"cpu.max": "max 100000"})
    assert [*machine._quotas(str(tmp_path / "cgroup"), str(tmp_path / "fs"))] == [3.5]
    (tmp_path / "fs/jobs/7/cpu.max").write_text("150000 100000")
    assert [*machine._quotas(str(tmp_path / "cgroup"), str(tmp_path / "fs"))] == [1.5, 3.5]


def test_cores_that_a_container_gets_of_version_1(tmp_path: Path):
    (tmp_path / "cgroup").write_text("4:cpu,cpuacct:/docker/abc\n3:memory:/x\n0::/\n")
    group(tmp_path / "fs/cpu", {"cpu.cfs_quota_us": 50_000, "cpu.cfs_period_us": 100_000})
    assert [*machine._quotas(str(tmp_path / "cgroup"), str(tmp_path / "fs"))] == [0.5]
    (tmp_path / "fs/cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert [*machine._quotas(str(tmp_path / "cgroup"), str(tmp_path / "fs"))] == []


@pytest.mark.parametrize(("granted", "found"), [(None, 8), (1.5, 2), (0.2, 1), (64.0, 8)])
def test_cores_are_no_more_than_granted(monkeypatch: pytest.MonkeyPatch, granted: float | None, found: int):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(machine, "granted_cores", lambda: granted)
    assert machine.cores() == found


def test_available_memory_is_the_least_of_all(monkeypatch: pytest.MonkeyPatch):
    assert machine.available_memory() > 1 << 20
    monkeypatch.setattr(machine, "_group_room", lambda *_: iter([5 << 10, 3 << 10]))
    assert machine.available_memory() == 3 << 10
    monkeypatch.setattr(machine, "_group_room", lambda *_: iter([-5]))
    assert machine.available_memory() == 0


def test_a_limit_on_the_address_space_counts(monkeypatch: pytest.MonkeyPatch):
    def limits(which: int) -> tuple[int, int]:
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        return taken + (1 << 20), resource.RLIM_INFINITY

    monkeypatch.setattr(resource, "getrlimit", limits)
    assert 0 <= machine.available_memory() <= 1 << 20
