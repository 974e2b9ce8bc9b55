"""packer.load.caches.picture_places: raw images that differ in size on a device. On "cpu" here, and on CUDA where there is one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset, open_pack  # noqa: E402
from packer.augment import (  # noqa: E402
    MixUp,
    Normalize,
    Pipeline,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from packer.augment.ragged_images import RaggedImages  # noqa: E402
from packer.errors import UsageError  # noqa: E402
from packer.format.header import Field  # noqa: E402
from packer.format.pack_writer import PackWriter  # noqa: E402
from packer.load import placement_choice  # noqa: E402
from packer.load.caches import gpu_cache  # noqa: E402
from packer.load.caches.picture_places import PicturePlaces  # noqa: E402
from packer.load.placement_choice import parse_placement  # noqa: E402
from packer.orders.runs import Subset  # noqa: E402
from packer.read.row_reader import RowReader  # noqa: E402

ROWS = 41
CROP: list[Any] = [RandomResizedCrop(20), RandomHorizontalFlip(), Normalize(0.5, 0.5)]


def written(path: Path, dtype: str, color: str, *, mask: bool = False) -> str:
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 60, (ROWS, 2))
    channels = {"gray": 1, "rgb": 3, "rgba": 4}[color]
    images = [rng.integers(0, np.iinfo(dtype).max, (h, w, channels), dtype, True) for h, w in sizes]
    about: dict[str, Any] = {"layout": "HWC", "color": color} | ({} if dtype == "|u1" else {"dtype": dtype})
    fields = [Field("image", "|u1", None, about)]
    fields += [Field(name, "<i4", (), {"of": "image"}) for name in ("height", "width")] + [
        Field("label", "<i8", ())
    ]
    fields.append(Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}))
    ragged = {"image": [i.tobytes() for i in images], "boxes": [np.float32([[0, 0, 9, 12]]).tobytes()] * ROWS}
    if mask:
        fields.append(Field("mask", "|u1", None, {"layout": "HW", "of": "image", "sampling": "nearest"}))
        ragged["mask"] = [bytes(int(h * w)) for h, w in sizes]
    with PackWriter(str(path), fields=tuple(fields), rows=ROWS, block_rows=ROWS, format="h5") as writer:
        height, width = np.ascontiguousarray(sizes.astype("<i4").T)
        writer.write_block(0, {"height": height, "width": width, "label": np.arange(ROWS) % 3})
        writer.finish(rows=ROWS, ragged=ragged, classes=["a", "b", "c"])
    return str(path)


@pytest.fixture(scope="module", params=[("|u1", "rgb"), ("|u1", "gray"), ("|u1", "rgba"), ("<u2", "rgb")])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("places") / "p.h5", *request.param)


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cache, "STEP_BYTES", 20_000)


def resident(path: str, batch_size: int, **options: Any) -> PackedBatchDataset:
    """A dataset whose images lie on the "GPU", all of them."""
    dataset = PackedBatchDataset(path, batch_size, **options)
    vars(dataset)["placement"] = "gpu"  # as no argument says of a CPU
    rows = dataset._made()._sources[0]
    assert isinstance(rows, gpu_cache.GpuRows)
    assert rows._cache.wait(60), rows._cache.failed
    assert dataset.resident
    return dataset


def same(found: Any, wanted: Any) -> None:
    assert found._fields == wanted._fields
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, list):
            assert len(one) == len(other)
            assert all(map(torch.equal, one, other))
        else:
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


OPTIONS: list[dict[str, Any]] = [
    {"order": "rows"}, {"order": "slices"}, {"order": "blocks"}, {"order": "sequential"},
    {"shuffle": True, "subset": range(30, 3, -2)}, {"shuffle": True, "subset": [7, 3, 40, 0]},
    {"shuffle": True, "classes": ["a", "c"]}, {"fields": ["image"], "shuffle": True},
    {"shuffle": True, "fields": ["image", "boxes", "row"]},
    {"shuffle": True, "fields": ["image", "boxes"], "augment": [Resize((20, 20))]},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_those_of_the_disk(pack: str, options: dict[str, Any]) -> None:
    options = {"augment": CROP, "seed": 3, "ends": "uneven", **options}
    with PackedBatchDataset(pack, 6, **options) as usual, resident(pack, 6, **options) as held:
        for _ in range(2):
            for wanted, found in itertools.zip_longest(usual, held):
                same(found, wanted)
        same(held[0], usual[0])


VIEWS = {"a": [RandomResizedCrop(16), Normalize(0.5, 0.5)], "b": [RandomResizedCrop(8)]}


@pytest.mark.parametrize(
    "augment", [VIEWS, [RandomResizedCrop(16), Normalize(0.5, 0.5), MixUp(num_classes=3)]]
)
def test_views_and_mixing(pack: str, augment: Any) -> None:
    options: dict[str, Any] = {"augment": augment, "shuffle": True, "fields": ["image", "label"]}
    with PackedBatchDataset(pack, 6, **options) as usual, resident(pack, 6, **options) as held:
        for wanted, found in itertools.zip_longest(usual, held):
            same(found, wanted)


def test_ranks_and_resuming(pack: str) -> None:
    options: dict[str, Any] = {"augment": CROP, "shuffle": True, "seed": 2, "world_size": 2, "ends": "even"}
    for rank in range(2):
        with PackedBatchDataset(pack, 4, rank=rank, **options) as usual:
            wanted = [*usual]
        with resident(pack, 4, rank=rank, **options) as held:
            begun = [*itertools.islice(held, 2)]
            state = held.state_dict()
        with resident(pack, 4, rank=rank, **options) as held:
            held.load_state_dict(state)
            for found, one in zip([*begun, *held], wanted, strict=True):
                same(found, one)


def test_a_batch_before_the_rows_are_there(pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cache, "_fill", lambda *_: None)
    with (
        PackedBatchDataset(pack, 6, augment=CROP) as usual,
        PackedBatchDataset(pack, 6, augment=CROP) as held,
    ):
        vars(held)["placement"] = "gpu"
        for wanted, found in itertools.zip_longest(usual, held):
            same(found, wanted)
        assert not held.resident


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("first", [2**24 - 7, 2**24 + 1, 2**31 // 3 + 5, 2**31 + 3])
def test_places_far_into_the_memory(device: str, first: int) -> None:
    """Beyond 2**24 pixels, 2**31 bytes, and 2**31 pixels; of memory that is never touched elsewhere."""
    sizes = np.array([[40, 30], [25, 50]])
    memory = torch.empty((first + 3000, 1 if first > 2**31 else 3), dtype=torch.uint8, device=device)
    some = torch.randint(0, 256, (2450, memory.shape[1]), dtype=torch.uint8, generator=torch.manual_seed(0))
    memory[first : first + 2450] = some.to(device)
    pipeline = Pipeline([RandomResizedCrop(20)], (memory.shape[1], None, None))
    drawn = pipeline.prepare(pipeline.sample(np.arange(2), sizes=sizes), sizes=sizes)
    places, ones = np.array([0, 1200]), np.ones(2, np.int64)
    wanted = pipeline.begin(RaggedImages(some.to(device), places, sizes, ones), drawn)
    assert torch.equal(pipeline.begin(RaggedImages(memory, first + places, sizes, ones), drawn), wanted)


def test_steps_are_runs_of_rows_of_so_many_bytes(pack: str) -> None:
    placed = PicturePlaces(open_pack(pack), open_pack(pack).header.field("image"), Subset(((0, ROWS),)))
    for most in (1, 9_000, 40_000, 1 << 40):
        bounds = placed.steps(8, most)
        assert (bounds[0], bounds[-1]) == (0, ROWS)
        for a, b in itertools.pairwise(bounds):
            taken = int(placed.firsts[b] - placed.firsts[a]) * placed.pixel_bytes + 8 * (b - a)
            assert b == a + 1 or (b > a and taken <= most)


def test_where_it_is_chosen_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str) -> None:
    monkeypatch.setattr(placement_choice, "free_device_memory", lambda _: free)

    def parse(path: str, placement: str, names: tuple[str, ...] = ("image", "label")) -> tuple[str, str]:
        opened = open_pack(path)
        fields = [opened.header.field(name) for name in names]
        options: dict[str, Any] = {"transformed": False, "ragged": "augment"}
        return parse_placement(
            placement, "cuda", RowReader(opened, fields), fields, Subset(((0, ROWS),)), **options
        )

    free = 1 << 30
    assert [parse(pack, one)[0] for one in ("auto", "gpu", "disk")] == ["gpu", "gpu", "disk"]
    free = 1000
    assert parse(pack, "auto")[0] == "disk"
    with pytest.raises(UsageError, match=r"placement='gpu': the rows take .* Pass placement='disk', fewer"):
        parse(pack, "gpu")
    masked = written(tmp_path / "m.h5", "|u1", "rgb", mask=True)
    free = 1 << 30
    assert parse(masked, "gpu")[0] == "gpu"
    assert parse(masked, "auto", ("image", "mask"))[0] == "disk"
    with pytest.raises(UsageError, match="keeps raw ones without masks"):
        parse(masked, "gpu", ("image", "mask"))
    with pytest.raises(UsageError, match="placement='ram' with augment"):
        parse(pack, "ram")


@pytest.mark.gpu
def test_on_a_gpu(pack: str) -> None:
    """Equal to what threads cut but for rounding; batches before and after the rows are there."""
    options: dict[str, Any] = {"augment": [RandomResizedCrop(20)], "shuffle": True, "device": "cuda"}
    with (
        PackedBatchDataset(pack, 6, placement="disk", **options) as usual,
        PackedBatchDataset(pack, 6, placement="gpu", **options) as held,
    ):
        for _ in range(3):
            for wanted, found in itertools.zip_longest(usual, held):
                assert found.image.is_cuda
                assert torch.equal(found.label, wanted.label)
                assert ((found.image.float() - wanted.image.float()).abs() <= 1).all()
            assert held._made()._sources[0]._cache.wait(60)
        assert held.resident
