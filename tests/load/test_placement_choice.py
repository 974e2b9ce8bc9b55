"""packer.load.dataset_options: where rows are kept, and what the machine has."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from packer.errors import UsageError
from packer.load import dataset_options
from packer.load.dataset_options import available_memory, choose_placement, remote_file_system

GB = 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GB free on the GPU, 40 GB of memory available."""
    monkeypatch.setattr(dataset_options, "free_device_memory", lambda device: 80 * GB)
    monkeypatch.setattr(dataset_options, "available_memory", lambda: 40 * GB)
    monkeypatch.setattr(
        dataset_options, "remote_file_system", lambda path: "nfs4" if path.startswith("/net") else None
    )


def chosen(wish: str, nbytes: float, **options: Any) -> tuple[str, str]:
    options = {"path": "p.h5", "device": "cpu", "decoded": False} | options
    return choose_placement(wish, nbytes=int(nbytes), **options)


@pytest.mark.parametrize(
    ("nbytes", "options", "rung", "why"),
    [
        (10 * GB, {"device": "cuda:1"}, "gpu", "10 GB of rows fit an eighth of 80 GB free on cuda:1"),
        (
            10 * GB + 8,
            {"device": "cuda"},
            "disk",
            "10 GB of rows exceed an eighth of 80 GB free on cuda, and a quarter of 40 GB of available memory",
        ),
        (
            10 * GB + 8,
            {"device": "cuda", "present": True},
            "pinned",
            "10 GB of rows exceed an eighth of 80 GB free on cuda, but are in memory already",
        ),
        (1 * GB, {}, "disk", "1 GB of rows are read through the page cache, which all processes share"),
        (
            10 * GB,
            {"decoded": True},
            "ram",
            "10 GB of rows are stored encoded and fit a quarter of 40 GB of available memory",
        ),
        (
            10 * GB + 4,
            {"decoded": True},
            "disk",
            "10 GB of rows are stored encoded but exceed a quarter of 40 GB of available memory",
        ),
        (
            30 * GB,
            {"decoded": True, "present": True},
            "ram",
            "30 GB of rows are stored encoded and are in memory already",
        ),
        (
            2 * GB,
            {"path": "/net/p.h5"},
            "ram",
            "2 GB of rows lie on nfs4, a network file system, and fit a quarter of 40 GB of available memory",
        ),
        (0, {"device": "cuda"}, "disk", "no field has rows of one length"),
    ],
)
def test_auto(nbytes: int, options: dict[str, Any], rung: str, why: str):
    assert chosen("auto", nbytes, **options) == (rung, why)


def test_auto_takes_pinned_memory_where_the_gpu_is_small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dataset_options, "free_device_memory", lambda device: 16 * GB)
    assert chosen("auto", 4 * GB, device="cuda") == (
        "pinned",
        "4 GB of rows exceed an eighth of 16 GB free on cuda, but fit a quarter of 40 GB of available memory",
    )


@pytest.mark.parametrize(
    ("wish", "nbytes", "options", "why"),
    [
        ("disk", 0, {}, "as asked"),
        ("ram", 40 * GB, {}, "as asked; 40 GB of rows, 40 GB of available memory"),
        ("ram", 50 * GB, {"present": True}, "as asked; 50 GB of rows are in memory already"),
        ("pinned", 12 * GB, {"device": "cuda"}, "as asked; 12 GB of rows, 40 GB of available memory"),
        ("gpu", 80 * GB, {"device": "cuda:0"}, "as asked; 80 GB of rows, 80 GB free on cuda:0"),
    ],
)
def test_what_is_asked_for_is_taken_if_it_fits(wish: str, nbytes: int, options: dict[str, Any], why: str):
    assert chosen(wish, nbytes, **options) == (wish, why)


@pytest.mark.parametrize(
    ("wish", "nbytes", "options", "message"),
    [
        (
            "vram",
            1,
            {},
            "placement='vram': is not one of 'auto', 'gpu', 'pinned', 'ram', 'disk'. Pass one of them.",
        ),
        (
            "gpu",
            1,
            {},
            "placement='gpu': device is 'cpu'; it serves CUDA devices. Pass device='cuda', or placement='ram'.",
        ),
        (
            "pinned",
            1,
            {"device": "mps"},
            "placement='pinned': device is 'mps'; it serves CUDA devices. Pass device='cuda', or placement='ram'.",
        ),
        (
            "ram",
            0,
            {},
            "placement='ram': no field has rows of one length; others stay on the disk. Pass placement='disk'.",
        ),
        (
            "ram",
            50 * GB,
            {},
            "placement='ram': the rows take 50 GB; there are 40 GB of available memory."
            " Pass placement='disk', fewer fields, or a subset.",
        ),
        (
            "gpu",
            90 * GB,
            {"device": "cuda:1", "present": True},
            "placement='gpu': the rows take 90 GB; there are 80 GB free on cuda:1."
            " Pass placement='pinned' or 'disk', fewer fields, or a subset.",
        ),
    ],
)
def test_what_cannot_be_had_is_a_sentence(wish: str, nbytes: int, options: dict[str, Any], message: str):
    with pytest.raises(UsageError) as error:
        chosen(wish, nbytes, **options)
    assert str(error.value) == message


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
    rooms = lambda: list(dataset_options._group_room(str(tmp_path / "cgroup"), str(top)))  # noqa: E731
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
    rooms = list(dataset_options._group_room(str(tmp_path / "cgroup"), str(tmp_path / "fs")))
    assert rooms == [700 - 650 + 65]
    (tmp_path / "fs/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert list(dataset_options._group_room(str(tmp_path / "cgroup"), str(tmp_path / "fs"))) == []
    assert list(dataset_options._group_room(str(tmp_path / "none"), str(tmp_path / "fs"))) == []


def test_available_memory_is_the_least_of_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert available_memory() > 1 << 20
    monkeypatch.setattr(dataset_options, "_group_room", lambda *_: iter([5 << 10, 3 << 10]))
    assert available_memory() == 3 << 10
    monkeypatch.setattr(dataset_options, "_group_room", lambda *_: iter([-5]))
    assert available_memory() == 0


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/p.h5", None),
        ("/data/net/p.h5", "nfs4"),
        ("/data/network/p.h5", None),
        ("/data/net/scratch/p.h5", None),
        ("/mnt/a b/p.h5", "fuse.sshfs"),
        ("/mnt/disk/p.h5", None),
        ("/twice/p.h5", "lustre"),
        ("/mnt/données/p.h5", "nfs"),
        ("/mnt/\udcff\\040/p.h5", "cifs"),
    ],
)
def test_network_file_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, kind: str | None):
    monkeypatch.undo()
    mounts = """\
/dev/sda / ext4 rw 0 0
server:/x /data/net nfs4 rw 0 0
/dev/sdb /data/net/scratch xfs rw 0 0
me@there: /mnt/a\\040b fuse.sshfs rw 0 0
/dev/sdc1 /mnt/disk fuseblk rw 0 0
/dev/sdd /twice ext4 rw 0 0
mgs@tcp:/l /twice lustre rw 0 0
server:/y /mnt/données nfs rw 0 0
none /mnt/in\x0btwo\u2028lines tmpfs rw 0 0
//server/z /mnt/\udcff\\134040 cifs rw 0 0
"""
    (tmp_path / "mounts").write_bytes(mounts.encode("utf-8", "surrogateescape"))
    lines = dataset_options._lines
    monkeypatch.setattr(dataset_options, "_lines", lambda _: lines(str(tmp_path / "mounts")))
    monkeypatch.setattr(dataset_options.sys, "platform", "linux")
    assert remote_file_system(path) == kind


@pytest.mark.gpu
def test_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    import torch

    before = dataset_options.free_device_memory("cuda")
    held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    assert 0 < dataset_options.free_device_memory("cuda") <= before
    assert dataset_options.free_device_memory(str(held.device)) > 0


def test_a_limit_on_the_address_space_counts(monkeypatch: pytest.MonkeyPatch):
    def limits(which: int) -> tuple[int, int]:
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        return taken + (1 << 20), resource.RLIM_INFINITY

    monkeypatch.setattr(resource, "getrlimit", limits)
    assert 0 <= available_memory() <= 1 << 20
