"""What the tests of augmentation share: images, draws that a test chooses, operations one by one, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import Pipeline, Transform, pass_stages
from packer.augment.draw_steps import steps
from packer.augment.kinds import PixelFormat
from packer.augment.pass_stages import run_pass, staged
from packer.augment.passes import native_pass, torch_pass
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.augment.placement import placed
from packer.errors import UsageError

Drawn = list[dict[str, Tensor]]


@pytest.fixture
def torchvision() -> Any:
    """torchvision.transforms.v2, which operations are held to."""
    from tests import torchvision_here

    if not torchvision_here.READY:
        pytest.skip(torchvision_here.REASON)
    from torchvision.transforms import v2

    return v2


@pytest.fixture(params=["plain", "auto"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of passes: the reference, and the one that users get."""
    with forced(request.param):
        yield request.param


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Have all passes made by torch_pass ("plain"), by native_pass ("compiled"), or ("auto") by whatever is best here."""
    modules = {"plain": torch_pass, "compiled": native_pass}
    with pytest.MonkeyPatch.context() as patch:
        if name != "auto":
            patch.setattr(pass_stages, "implementation", lambda *_: modules[name])
        yield


def noise_images(
    count: int,
    channels: int = 3,
    height: int = 24,
    width: int = 20,
    dtype: torch.dtype = torch.uint8,
    seed: int = 0,
) -> Tensor:
    """Images [N, C, H, W] whose pixels are unrelated, channels_last; floating-point ones from 0 to 1."""
    draws = np.random.default_rng([seed, count, channels, height, width])
    pixels = torch.from_numpy(draws.integers(0, 256, (count, height, width, channels), dtype=np.uint8))
    images = pixels if dtype == torch.uint8 else (pixels.double() / 255).to(dtype)
    return images.permute(0, 3, 1, 2)


def smooth_images(count: int, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Images uint8 [N, C, H, W] that change by about 8 from pixel to pixel, 20 to 235, channels_last."""
    draws = np.random.default_rng([seed, count, channels, height, width])
    y, x = np.mgrid[0:height, 0:width]
    turns = draws.uniform(0, 2 * np.pi, (count, 1, 1, channels, 2))
    speeds = draws.uniform(0.03, 0.09, (count, 1, 1, channels, 2))
    waves = np.sin(speeds[..., 0] * x[..., None] + turns[..., 0]) + np.sin(
        speeds[..., 1] * y[..., None] + turns[..., 1]
    )
    pixels = np.rint(127.5 + 53.75 * waves).astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)


def arrays(params: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: drawn.numpy() for name, drawn in params.items()}


def given(**params: Any) -> Drawn:
    """What a pipeline of one operation would have drawn."""
    return [{name: torch.as_tensor(np.asarray(drawn)) for name, drawn in params.items()}]


def one(transform: Transform, images: Tensor, **options: Any) -> Pipeline:
    """A pipeline of one operation for such images."""
    return Pipeline([transform], tuple(images.shape[1:]), dtype=images.dtype, **options)


def separately(transforms: Sequence[Transform], images: Tensor, params: Drawn) -> Tensor:
    """Each operation as a stage of its own, one after the other, with a pipeline's draws."""
    limit = 255.0 if images.dtype == torch.uint8 else 1.0
    pixels = PixelFormat(images.shape[1], (images.shape[2], images.shape[3]), images.dtype, limit)
    for step, drawn in zip(steps(transforms), params, strict=True):
        layout = {name: (tuple(p.shape[1:]), p.numpy().dtype) for name, p in drawn.items()}
        for part in step.parts(layout):
            (stage,) = staged([(part, 0)], pixels)
            columns = stage.columns([arrays(drawn)], len(images))
            images = stage.run(images, PreparedDraws(torch.from_numpy(columns)), None)
            pixels = stage.result
    return images


def refusal(attempt: Callable[[], Any]) -> str:
    """The sentence of the UsageError that it raises."""
    with pytest.raises(UsageError) as error:
        attempt()
    return str(error.value)


def levels(images: Tensor) -> NDArray[np.float64]:
    """Images as float64 [N, H, W, C] in NumPy."""
    return images.permute(0, 2, 3, 1).double().numpy()


def assert_fair(counts: NDArray[Any], expected: Any | None = None) -> None:
    """Chi-square: how far counts are from the expected ones (by default equal ones) happens once in 2,000 times or more.

    The quantile is Wilson and Hilferty's.
    """
    counts = np.asarray(counts, dtype=float).ravel()
    wanted = np.full(counts.shape, counts.mean()) if expected is None else np.asarray(expected, float).ravel()
    freedom = counts.size - 1
    statistic = ((counts - wanted) ** 2 / wanted).sum()
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert z < 3.3, f"chi-square {statistic:.1f} with {freedom} degrees of freedom"


def assert_uniform(fractions: NDArray[np.float64]) -> None:
    """Kolmogorov and Smirnov: such a distance from the uniform distribution on [0, 1] happens once in 2,000 times or more."""
    ordered = np.sort(np.asarray(fractions, dtype=float))
    count = len(ordered)
    above = (np.arange(1, count + 1) / count - ordered).max()
    below = (ordered - np.arange(count) / count).max()
    assert max(above, below) * math.sqrt(count) < 1.95


def assert_alike(first: NDArray[Any], second: NDArray[Any]) -> None:
    """Kolmogorov and Smirnov for two samples, of which one may have many equal numbers."""
    values = np.union1d(first, second)
    shares = [np.searchsorted(np.sort(some), values, side="right") / len(some) for some in (first, second)]
    scale = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    assert np.abs(shares[0] - shares[1]).max() * scale < 1.95


def assert_unrelated(*columns: NDArray[Any]) -> None:
    """No two columns correlate beyond 4 standard errors."""
    found = np.corrcoef(np.stack([np.asarray(column, dtype=float) for column in columns]))
    off = found[~np.eye(len(columns), dtype=bool)]
    assert np.abs(off).max() < 4 / math.sqrt(len(columns[0]))


@dataclass(frozen=True)
class RaggedImages:
    """Images in one memory: pixels [P, C], and for each where it begins, its size, and how many times larger it is in truth."""

    pixels: Tensor
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]
    reductions: NDArray[np.int64]

    def placed(self, columns: Tensor) -> Tensor:
        boxes = np.hstack([np.zeros_like(self.sizes), self.sizes[:, ::-1]])
        return placed(columns, self.places, boxes, self.reductions)


def begin(pipeline: Pipeline, images: RaggedImages, params: Any) -> Tensor:
    """Make images that differ in size alike, by the first stage of a pipeline."""
    first = pipeline.first
    columns = images.placed(pipeline.prepare(params, len(images.sizes)).host[:, : first.width])
    return run_pass(first.what, images.pixels, PreparedDraws(columns))


def side_by_side(images: Sequence[NDArray[Any]]) -> RaggedImages:
    """Images [h, w, C], each of its own size, in one new memory."""
    sizes = np.array([image.shape[:2] for image in images], np.int64)
    areas = sizes.prod(axis=1)
    pixels = torch.from_numpy(np.concatenate([image.reshape(-1, image.shape[2]) for image in images]))
    return RaggedImages(pixels, np.cumsum(areas) - areas, sizes, np.ones(len(images), np.int64))
