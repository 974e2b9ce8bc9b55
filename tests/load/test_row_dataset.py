from __future__ import annotations

import pickle
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from packer import convert_images
from packer.errors import UsageError
from packer.format.fields import Field
from packer.load.processes.transforms import PythonTransform
from packer.load.row_dataset import PackedDataset
from packer.orders.runs import consecutive
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter
from tests.read.conftest import ROWS, SHAPE, image_of, make_pack

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler  # noqa: E402

from packer.augment import RandomHorizontalFlip  # noqa: E402


def check(images, labels) -> list[int]:
    rows = (labels // 3).tolist()
    assert all(
        (image.permute(1, 2, 0).numpy() == image_of(row)).all()
        for image, row in zip(images, rows, strict=True)
    )
    return rows


def test_one_row(pack: Pack):
    dataset = PackedDataset(pack.path)
    assert len(dataset) == ROWS
    sample = dataset[17]
    assert sample._fields == ("image", "label")
    assert (sample.image.shape, sample.image.dtype) == ((3, *SHAPE[:2]), torch.uint8)
    assert (sample.label.shape, sample.label.dtype) == ((), torch.int64)
    assert check([sample.image], sample.label[None]) == [17]
    assert int(dataset[-1].label) == 3 * (ROWS - 1)


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(5, 9), [5, 6, 7, 8]),
        (slice(None, None, 40), [0, 40, 80]),
        (slice(4, 1, -1), [4, 3, 2]),
        ([7, 3, 3, -1], [7, 3, 3, ROWS - 1]),
        (np.array([2, 1]), [2, 1]),
        (torch.tensor([9, 10]), [9, 10]),
        ([], []),
    ],
)
def test_many_rows(pack: Pack, way: str, index: object, rows: list[int]):
    batch = PackedDataset(pack, fields=("label", "key", "image"))[index]
    assert check(batch.image, batch.label) == rows
    assert batch.key == [f"row/{row}" for row in rows]
    assert batch.image.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, [0, ROWS], [0.5], np.array([True]), [[0, 1], [2, 3]]])
def test_wrong_rows_are_index_errors(pack: Pack, index: object):
    with pytest.raises(IndexError):
        PackedDataset(pack)[index]


def test_unknown_field(pack: Pack):
    with pytest.raises(UsageError, match="has no field 'mask'; it has image, label, key"):
        PackedDataset(pack, fields=["mask"])


@pytest.mark.parametrize(
    "context", [None, "fork", "forkserver", pytest.param("spawn", marks=pytest.mark.soak)]
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_dataloader_row_by_row_and_by_batch_sampler(tmp_path: Path, context: str | None):
    pack = make_pack(tmp_path / "p.h5")
    dataset = PackedDataset(pack)
    check(*dataset[:3])  # files are open before workers start
    options = {"num_workers": 2, "multiprocessing_context": context} if context else {}
    sampler = BatchSampler(RandomSampler(dataset), batch_size=16, drop_last=False)
    for loader in (
        DataLoader(dataset, batch_size=16, shuffle=True, **options),
        DataLoader(dataset, sampler=sampler, batch_size=None, **options),
    ):
        seen = []
        for batch in loader:
            assert type(batch).__name__ == "Batch"
            assert batch.image.shape[1:] == (3, *SHAPE[:2])
            seen += check(batch.image, batch.label)
        assert sorted(seen) == list(range(ROWS))
        assert seen != sorted(seen)


def test_getitems_gives_samples_for_the_default_collate(pack: Pack):
    samples = PackedDataset(pack).__getitems__([4, 90, 4])
    assert isinstance(samples, list)
    assert check([s.image for s in samples], torch.stack([s.label for s in samples])) == [4, 90, 4]


def test_pickled_and_closed_datasets_read_on(pack: Pack):
    dataset = PackedDataset(pack)
    dataset[0]
    dataset.close()
    for again in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert check(*again[3:5]) == [3, 4]


@pytest.mark.parametrize("rows", [[], [5], [1, 2, 3, 7, 8, 8, 9, 2], [4, 3, 2]])
def test_consecutive_joins_neighbours(rows: list[int]):
    runs = consecutive(np.array(rows, np.int64))
    assert runs.rows().tolist() == rows
    assert len(runs.starts) == 1 + sum(b != a + 1 for a, b in pairwise(rows)) - (not rows)


def scaled(image: torch.Tensor) -> torch.Tensor:
    return image.float() / 255


def parity(label: int) -> str:
    assert type(label) is int  # as torchvision hands it over: fit for lookups
    return "odd" if label % 2 else "even"


def test_functions_of_image_and_label(pack: Pack):
    dataset = PackedDataset(pack, transform=scaled, target_transform=parity)
    image, label = dataset[17]
    assert (image.dtype, label) == (torch.float32, "odd")
    assert torch.equal((image * 255).round().to(torch.uint8), PackedDataset(pack)[17].image)
    assert dataset.targets[17] == 51  # as stored
    assert [sample.label for sample in dataset.__getitems__([2, 3])] == ["even", "odd"]
    batch = dataset[[4, 5, 4]]
    assert (batch.image.shape, batch.image.dtype, batch.label) == (
        (3, 3, *SHAPE[:2]),
        torch.float32,
        ["even", "odd", "even"],
    )
    assert len(dataset[[]].image) == 0
    numbers = PackedDataset(pack, target_transform=lambda label: label // 3)
    assert numbers[5:8].label.tolist() == [5, 6, 7]
    assert numbers[5:8].image.is_contiguous(memory_format=torch.channels_last)
    alone = PackedDataset(pack, fields=["label"], target_transform=parity)[3]
    assert alone == ("odd",)


def test_functions_can_be_set_later(pack: Pack):
    """As timm's create_loader does."""
    dataset = PackedDataset(pack, target_transform=parity)
    assert (dataset.transform, dataset.target_transform) == (None, parity)
    dataset.transform, dataset.target_transform = scaled, None
    assert torch.equal(dataset[17].image, PackedDataset(pack)[17].image / 255)
    assert dataset[17].label == 51
    with pytest.raises(UsageError, match=r"^transform=3: cannot be called with an image"):
        dataset.transform = 3
    assert dataset.transform is scaled


def test_functions_of_pillow_images_are_told_apart(pack: Pack):
    dataset = PackedDataset(pack, transform=lambda image: image.transpose(1).mode)
    with pytest.raises(UsageError) as error:
        dataset[0]
    assert str(error.value).startswith("transform: raised TypeError (transpose() ")
    assert str(error.value).endswith(
        ") on an image; images are tensors [C, H, W]. If it takes Pillow images, put torchvision's ToPILImage() before it:"
        " transform=Compose([ToPILImage(), ...])."
    )


def test_functions_in_a_dataloader_and_its_workers(pack: Pack):
    dataset = PackedDataset(pack, subset=range(50, 60), transform=scaled, target_transform=parity)
    sampler = BatchSampler(range(10), batch_size=5, drop_last=False)
    for loader in (
        DataLoader(dataset, batch_size=5),
        DataLoader(dataset, sampler=sampler, batch_size=None),
        DataLoader(dataset, batch_size=5, num_workers=1, multiprocessing_context="forkserver"),
    ):
        batches = list(loader)
        assert [batch.label[0] for batch in batches] == ["even", "odd"]
        assert all(batch.image.dtype == torch.float32 for batch in batches)
        assert torch.equal(torch.cat([batch.image for batch in batches]), dataset[:].image)


def test_rows_of_some_classes(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "p.h5", size=16)
    dataset = PackedDataset(tmp_path / "p.h5", classes=["blue", "red"], subset=range(20))
    everything = PackedDataset(tmp_path / "p.h5")
    wanted = [row for row in range(20) if everything.targets[row] != 1]
    assert dataset.targets == [everything.targets[row] for row in wanted]
    assert dataset[:].label.tolist() == dataset.targets
    assert torch.equal(dataset[3].image, everything[wanted[3]].image)
    assert dataset.classes == ["blue", "green", "red"]  # numbers stay


def masked(tmp_path: Path) -> Pack:
    """A pack with a mask and boxes beside its images."""
    fields = (
        Field("image", "|u1", (4, 4, 3), {"layout": "HWC"}),
        Field("mask", "|u1", (4, 4), {"layout": "HW", "sampling": "nearest"}),
    )
    with PackWriter(str(tmp_path / "m.h5"), fields=fields, rows=2, block_rows=2, format="h5") as writer:
        writer.write_block(
            0, {"image": np.zeros((2, 4, 4, 3), np.uint8), "mask": np.zeros((2, 4, 4), np.uint8)}
        )
        writer.finish(rows=2, ragged={})
    return open_pack(tmp_path / "m.h5")


def test_a_transform_of_the_image_alone_is_refused_beside_a_mask(tmp_path: Path):
    pack = masked(tmp_path)
    with pytest.raises(UsageError) as error:
        PackedDataset(pack, transform=scaled)
    assert str(error.value) == (
        f"transform: gets only the image, and mask of {pack.path} would not move with it. Name fields without these, or take"
        " PackedBatchDataset(augment=...), which moves them together."
    )
    assert PackedDataset(pack, fields=["image"], transform=scaled)[0].image.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": 3}, "transform=3: cannot be called with an image. Pass a function"),
        ({"transform": "RandomCrop(4)"}, "transform='RandomCrop(4)': cannot be called with an image."),
        ({"transform": dict}, "transform=<class 'dict'>: cannot be called with an image."),
        ({"target_transform": {}}, "target_transform={}: cannot be called with a label. Pass a function"),
        (
            {"transform": scaled, "fields": ["label"]},
            "transform: works on the field 'image', and the fields label of ",
        ),
        (
            {"target_transform": parity, "fields": ["image"]},
            "target_transform: works on the field 'label', and the fields image of ",
        ),
        (
            {"transform": RandomHorizontalFlip()},
            "transform: RandomHorizontalFlip of packer works on batches; functions of one image are allowed."
            " Pass it to PackedBatchDataset(augment=[...]).",
        ),
        (
            {"transform": PythonTransform(scaled)},
            "transform: PythonTransform of packer works on batches; functions of one image are allowed."
            " Pass it to PackedBatchDataset(transform=...).",
        ),
        ({"classes": ["cat"]}, "classes: 'cat' is not in "),
        ({"subset": [103]}, "subset: row 103 was given; the pack has rows 0 to 102. Leave it out."),
    ],
    ids=range(10),
)
def test_what_cannot_be_right_is_refused(pack: Pack, options: dict[str, object], message: str):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        PackedDataset(pack, **options)


def test_results_that_make_no_batch_are_a_sentence(pack: Pack):
    sizes = iter(range(1, 9))
    dataset = PackedDataset(pack, transform=lambda image: image[:, : next(sizes)])
    assert dataset[0].image.shape == (3, 1, SHAPE[1])
    with pytest.raises(
        UsageError,
        match=r"^transform: its results for 2 rows cannot be collated \(.*\); tensors of one shape",
    ):
        dataset[0:2]


def test_torchvisions_transforms(pack: Pack):
    from tests import torchvision_here  # in the test: its processes load this module

    if not torchvision_here.READY:
        pytest.skip(torchvision_here.REASON)
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    plain = PackedDataset(pack)
    flipped = PackedDataset(
        pack,
        transform=v2.Compose(
            [
                v2.RandomHorizontalFlip(p=1.0),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.5] * 3),
            ]
        ),
    )[7].image
    assert torch.allclose((flipped.flip(-1) * 0.5 + 0.5) * 255, plain[7].image.float(), atol=1e-3)
    through_pil = PackedDataset(pack, transform=v1.Compose([v1.ToPILImage(), v1.ToTensor()]))[7].image
    assert torch.allclose(through_pil * 255, plain[7].image.float(), atol=1e-3)
