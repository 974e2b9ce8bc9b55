"""packer.load.placement_choice: where rows are kept, asked for or chosen, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from packer import machine
from packer.errors import UsageError
from packer.format.fields import Field
from packer.load import placement_choice
from packer.load.placement_choice import place_rows

GB = 10**9


@pytest.fixture(autouse=True)
def _of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GB free on the GPU, 40 GB of memory available."""
    monkeypatch.setattr(placement_choice, "free_device_memory", lambda device: 80 * GB)
    monkeypatch.setattr(machine, "available_memory", lambda: 40 * GB)
    monkeypatch.setattr(
        "packer.load.placement_choice.remote_file_system",
        lambda path: "nfs4" if path.startswith("/net") else None,
    )


def chosen(
    wish: str,
    nbytes: float,
    *,
    device: str = "cpu",
    path: str = "p.h5",
    decoded: bool = False,
    present: bool = False,
    pending: bool = False,
    ahead_bytes: int | None = None,
) -> tuple[str, str]:
    fields = [Field("image", "|u1", (1,), codec={"name": "jpeg"} if decoded else None)]
    store: Any = SimpleNamespace(fields=fields, fixed=fields, rows=int(nbytes))
    store.pack = SimpleNamespace(packs=[SimpleNamespace(path=path)], pending=pending, ahead_bytes=ahead_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_choice, "in_memory", lambda store: present)
        return place_rows(wish, device, store)


@pytest.mark.parametrize(
    ("nbytes", "options", "rung", "why"),
    [
        (10 * GB, {"device": "cuda:1"}, "gpu", "10 GB of rows fit an eighth of 80 GB free on cuda:1"),
        (
            10 * GB + 8,
            {"device": "cuda"},
            "disk",
            "10 GB of rows are read through the page cache, which all processes share",
        ),
        *(
            (
                1 * GB,
                {"device": "cuda", **arriving},
                "disk",
                "1 GB of rows are read through the page cache, which all processes share",
            )
            for arriving in ({"pending": True}, {"ahead_bytes": 1 << 20})
        ),
        (
            10 * GB + 8,
            {"device": "cuda", "present": True, "decoded": True},
            "ram",
            "10 GB of rows are stored encoded and are in memory already",
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


@pytest.mark.parametrize(
    ("wish", "nbytes", "options", "why"),
    [
        ("disk", 0, {}, "as asked"),
        ("ram", 40 * GB, {}, "as asked; 40 GB of rows, 40 GB of available memory"),
        ("ram", 50 * GB, {"present": True}, "as asked; 50 GB of rows are in memory already"),
        ("gpu", 80 * GB, {"device": "cuda:0"}, "as asked; 80 GB of rows, 80 GB free on cuda:0"),
    ],
)
def test_what_is_asked_for_is_taken_if_it_fits(wish: str, nbytes: int, options: dict[str, Any], why: str):
    assert chosen(wish, nbytes, **options) == (wish, why)


@pytest.mark.parametrize(
    ("wish", "nbytes", "options", "message"),
    [
        ("vram", 1, {}, "placement='vram': is not one of 'auto', 'gpu', 'ram', 'disk'. Pass one of them."),
        (
            "gpu",
            1,
            {},
            "placement='gpu': device is 'cpu'; only CUDA devices are allowed. Pass device='cuda', or placement='ram'.",
        ),
        (
            "ram",
            0,
            {},
            "placement='ram': no field has rows of one length; ragged fields stay on the disk. Pass placement='disk'.",
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
            " Pass placement='ram' or 'disk', fewer fields, or a subset.",
        ),
    ],
)
def test_what_cannot_be_had_is_a_sentence(wish: str, nbytes: int, options: dict[str, Any], message: str):
    with pytest.raises(UsageError) as error:
        chosen(wish, nbytes, **options)
    assert str(error.value) == message


@pytest.mark.gpu
def test_free_memory_of_a_gpu():
    import torch

    before = placement_choice.free_device_memory("cuda")
    held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    assert 0 < placement_choice.free_device_memory("cuda") <= before
    assert placement_choice.free_device_memory(str(held.device)) > 0
