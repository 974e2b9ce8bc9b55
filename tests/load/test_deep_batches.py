"""Loading 16-bit images and bands: torch.uint16 as stored; augmented on the scale where 65,535 is 1.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from packer import PackedBatchDataset, PackedDataset, open_pack, pack_dataset
from packer.augment import (
    CenterCrop,
    ColorJitter,
    CutMix,
    GaussianBlur,
    Normalize,
    Pipeline,
    RandomAdjustSharpness,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomPosterize,
    RandomResizedCrop,
    ToDtype,
)
from packer.convert.image_conversion import convert_images
from packer.errors import UsageError
from tests.augment.conftest import forced

GRAY = np.random.default_rng(1).integers(0, 65_536, (12, 10, 8), dtype=np.uint16)
BANDS = np.random.default_rng(2).integers(0, 65_536, (12, 10, 8, 6), dtype=np.uint16)


@pytest.fixture(scope="module", params=["gray", "bands"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("deep")
    if request.param == "gray":
        pack_dataset((GRAY, np.arange(12)), root / "p.h5", shuffle=False)
        return root / "p.h5"
    (root / "tiles").mkdir()
    for number, image in enumerate(BANDS):
        np.save(root / "tiles" / f"{number:02}.npy", image)
    (root / "labels.csv").write_text("".join(f"{number:02}.npy,{number}\n" for number in range(12)))
    made: dict[str, Any] = {"size": "10x8", "dtype": "uint16", "channels": 6}
    convert_images(root / "tiles", root / "p.h5", labels=root / "labels.csv", shuffle=False, **made)
    return root / "p.h5"


def values(pack: Path) -> NDArray[np.uint16]:
    """The images of a pack by label, [N, C, H, W]."""
    return np.moveaxis(open_pack(pack).read("image"), -1, 1)


@pytest.mark.parametrize("placement", ["ram", "disk"])
def test_batches_are_what_is_stored(pack: Path, placement: str) -> None:
    with PackedBatchDataset(pack, 5, shuffle=True, placement=placement) as dataset:
        for image, label in dataset:
            assert image.dtype == torch.uint16
            assert image.is_contiguous(memory_format=torch.channels_last)
            assert np.array_equal(image.numpy(), values(pack)[label.numpy()])
    with PackedBatchDataset(pack, 12, output="numpy") as dataset:
        assert np.array_equal(np.moveaxis(next(iter(dataset)).image, -1, 1), values(pack))
    rows = PackedDataset(pack)
    assert np.array_equal(rows[3][0].numpy(), values(pack)[3])
    (image, label), *_ = DataLoader(rows, batch_size=4)
    assert np.array_equal(image.numpy(), values(pack)[:4])


def test_65_535_is_1(pack: Path) -> None:
    expected = torch.from_numpy(values(pack).astype(np.float64)) / 65_535
    with PackedBatchDataset(pack, 12, augment="ToDtype()") as dataset:
        assert torch.allclose(next(iter(dataset)).image.double(), expected, atol=1e-7)
    known = open_pack(pack).header.statistics["image"]
    mean, std = (torch.tensor(known[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    listed = [Normalize()], [Normalize(**known)]
    for augment in ("Normalize()", *listed, *map(Pipeline, listed)):
        with PackedBatchDataset(pack, 12, augment=augment) as dataset:
            found = next(iter(dataset)).image
            assert found.dtype == torch.float32
            assert torch.allclose(found.double(), (expected - mean) / std, atol=1e-5)


def test_geometry_keeps_16_bits_and_any_number_of_channels(pack: Path) -> None:
    with PackedBatchDataset(pack, 12, augment=[CenterCrop(6), RandomHorizontalFlip(1.0)]) as dataset:
        found = next(iter(dataset)).image
    assert found.dtype == torch.uint16
    assert np.array_equal(found.numpy(), values(pack)[:, :, 2:8, 1:7][..., ::-1])
    both = []
    for implementation in ("auto", "plain"):
        channels = values(pack).shape[1]
        pipeline = Pipeline(
            [RandomCrop(10, padding=2, fill=9.0), RandomResizedCrop(7), RandomErasing(1.0, value=40_000)],
            (channels, 10, 8),
            dtype=torch.uint16,
        )
        with forced(implementation):
            both.append(pipeline(torch.from_numpy(values(pack).copy()), np.arange(12)))
    assert both[0].dtype == torch.uint16
    assert np.abs(both[0].numpy().astype(int) - both[1].numpy()).max() <= 2
    assert (both[0].numpy() == 40_000).any()


def test_mixing_follows_the_scale(pack: Path) -> None:
    with PackedBatchDataset(pack, 12, augment=[ToDtype(), CutMix(num_classes=12)]) as dataset:
        image, label = next(iter(dataset))
    assert image.max() <= 1
    assert label.shape == (12, 12)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (CutMix(num_classes=12), "CutMix: the images are torch.uint16; floating point is allowed. Put ToDtype() or Normalize before it."),
        (GaussianBlur(3), "GaussianBlur: the images are torch.uint16; floating point is allowed. Put ToDtype() or Normalize before it."),
    ],
)  # fmt: skip
def test_what_needs_floats_says_so(pack: Path, transform: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        PackedBatchDataset(pack, 4, augment=[transform])
    assert str(error.value) == message


def test_colours_of_16_bits() -> None:
    pipeline = Pipeline([ColorJitter(brightness=(0.5, 0.5))], (1, 10, 8), dtype=torch.uint16)
    found = pipeline(torch.from_numpy(GRAY[:, None]), np.arange(12))
    assert np.abs(found.numpy()[:, 0] - GRAY / 2).max() <= 0.51
    for transform in (RandomPosterize(4), RandomAdjustSharpness(2.0)):
        with pytest.raises(UsageError, match="Leave it out"):
            Pipeline([transform], (1, 10, 8), dtype=torch.uint16)
    with pytest.raises(UsageError, match="ColorJitter: the images have 6 channels; 1, 3 and 4 are allowed"):
        Pipeline([ColorJitter(0.5)], (6, 10, 8), dtype=torch.uint16)
