"""Perspective maps: stages of their own, in plain torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from packer.augment import validation
from packer.augment.filters import changed
from packer.augment.geometric import SAMPLINGS
from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Sampling
from packer.augment.transform import (
    Columns,
    Draws,
    Floats,
    Params,
    RandomChange,
    Shape,
    WarpPart,
)

_TOGETHER = 32  # images, at most: working out moves of 224 px takes some megabytes an image


class GridPart(WarpPart):
    """Says for each pixel of the result where in the source it lies. The first column is 0 for images that stay.

    sampling: "nearest" or "linear".
    """

    sampling: Sampling = "linear"

    @abstractmethod
    def positions(self, columns: Tensor, size: tuple[int, int]) -> Tensor:
        """Return positions in the source, in pixel numbers (0, 0: the middle of the first), x and y: float32 [N, h, w, 2].

        columns: float32 [N, width]. size: (h, w) of source and result.
        """

    def change(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        channels = images.shape[1]
        fill = (self.fill,) * channels if isinstance(self.fill, int | float) else tuple(self.fill)

        def sampled(pixels: Tensor, mine: Tensor, _: Columns) -> Tensor:
            return self._sampled(pixels, mine, fill, self.sampling == "linear")

        return changed(images, columns, known, [(known[:, 0] != 0, sampled)])

    def move_masks(self, masks: Tensor, columns: Tensor, fill: Sequence[float]) -> Tensor:
        linear = masks.dtype == torch.float32 and self.sampling == "linear"
        pixels = masks.permute(0, 2, 3, 1).contiguous()
        return self._sampled(pixels, columns, fill, linear).permute(0, 3, 1, 2)

    def _sampled(self, pixels: Tensor, columns: Tensor, fill: Sequence[float], linear: bool) -> Tensor:
        """Return moved pixels [N, H, W, C]; those of images that stay too."""
        height, width = pixels.shape[1:3]
        result, same = torch.empty_like(pixels), _pixels(height, width, columns.device)
        for start in range(0, len(pixels), _TOGETHER):
            some = slice(start, start + _TOGETHER)
            there = (columns[some, 0] != 0)[:, None, None, None]
            positions = torch.where(there, self.positions(columns[some], (height, width)), same)
            result[some] = (bilinear if linear else nearest)(pixels[some], positions, fill)
        return result


def nearest(pixels: Tensor, positions: Tensor, fill: Sequence[float]) -> Tensor:
    """Take the pixel in which each position lies, and fill beyond the edges: the same shape and dtype.

    pixels: [N, H, W, C], contiguous. positions: float32 [N, h, w, 2], in pixel numbers; not a number is beyond the edges.
    """
    count, height, width, channels = pixels.shape
    x, y = (positions + (pass_spec.TIE + 0.5)).floor().unbind(-1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    first = torch.arange(count, device=pixels.device)[:, None, None] * (height * width)
    number = torch.where(inside, first + y.long() * width + x.long(), 0)
    taken = pixels.view(-1, channels).index_select(0, number.view(-1)).view(*number.shape, channels)
    return torch.where(inside[..., None], taken, torch.tensor(fill, device=pixels.device).to(pixels.dtype))


def bilinear(pixels: Tensor, positions: Tensor, fill: Sequence[float]) -> Tensor:
    """Interpolate linearly; the picture is laid over the fill, its edges a pixel wide. As `nearest` otherwise."""
    height, width = pixels.shape[1:3]
    filling = torch.tensor(fill, dtype=torch.float32, device=pixels.device)
    # Less the fill, zeros beyond the edges are the fill.
    source = (pixels.float() - filling).permute(0, 3, 1, 2)
    grid = (positions * 2 + 1) / positions.new_tensor([width, height]) - 1
    grid = grid.nan_to_num_(nan=9.0).clamp_(-9, 9)  # as far outside as any
    made = grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    made = made.permute(0, 2, 3, 1) + filling
    return (
        made.add_(0.5).clamp_(0, 255).to(torch.uint8)
        if pixels.dtype == torch.uint8
        else made.to(pixels.dtype)
    )


def _pixels(height: int, width: int, device: torch.device) -> Tensor:
    """Return the pixels' own numbers, x and y: float32 [1, h, w, 2]."""
    x = torch.arange(width, dtype=torch.float32, device=device).expand(height, width)
    y = torch.arange(height, dtype=torch.float32, device=device)[:, None].expand(height, width)
    return torch.stack([x, y], dim=-1)[None]


class RandomPerspective(RandomChange, GridPart):
    """Look at each image from the side with probability p, as torchvision.transforms.v2.RandomPerspective.

    distortion_scale: from 0 to 1, how far each corner may move towards the middle, as a share of half the side.
    p: 0 <= p <= 1. interpolation: "nearest" or "bilinear". fill: beyond the image's edges, one number or one a channel, in
    the images' own scale.
    """

    width = 9  # 1, and the eight numbers of the map

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: str = "bilinear",
        fill: float | Sequence[float] = 0,
    ) -> None:
        name = "RandomPerspective"
        self.distortion_scale = validation.number(name, "distortion_scale", distortion_scale, 0, 1)
        super().__init__(p)
        self.interpolation = validation.one_of(name, "interpolation", interpolation, tuple(SAMPLINGS))
        self.sampling = SAMPLINGS[self.interpolation]
        self.fill = validation.colour(name, "fill", fill)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw change: bool [N]; corners: int64 [N, 4, 2], x and y, in pixels, of the places to which the image's top left,
        top right, bottom right and bottom left pixel go."""
        _, height, width = shape
        across, down = (int(self.distortion_scale * (side // 2)) + 1 for side in (width, height))
        x = np.stack([draws.integers(f"x {corner}", across) for corner in range(4)], axis=1)
        y = np.stack([draws.integers(f"y {corner}", down) for corner in range(4)], axis=1)
        x[:, 1:3] += width - across
        y[:, 2:] += height - down
        return {**super().sample(draws, shape), "corners": np.stack([x, y], axis=2)}

    def columns(self, params: Params, count: int, size: tuple[int, int]) -> Columns:
        columns = np.zeros((count, self.width), np.float32)
        columns[:, 0] = params["change"]
        columns[:, 1:] = coefficients(params["corners"], size)
        return columns

    def positions(self, columns: Tensor, size: tuple[int, int]) -> Tensor:
        middles = _pixels(*size, columns.device) + 0.5
        u, v = middles.unbind(-1)
        a, b, c, d, e, f, g, h = (column[:, None, None] for column in columns[:, 1:].unbind(1))
        away = g * u + h * v + 1
        return torch.stack([(a * u + b * v + c) / away, (d * u + e * v + f) / away], dim=-1) - 0.5

    def move_points(self, points: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
        a, b, c, d, e, f, g, h = (column[:, None] for column in columns[:, 1:].double().unbind(1))
        x, y = points.unbind(-1)
        # The adjugate is the inverse but for a factor, which divides out.
        u = (e - f * h) * x + (c * h - b) * y + (b * f - c * e)
        v = (f * g - d) * x + (a - c * g) * y + (c * d - a * f)
        away = (d * h - e * g) * x + (b * g - a * h) * y + (a * e - b * d)
        there = (columns[:, 0] != 0)[:, None, None]
        return torch.where(there, torch.stack([u / away, v / away], dim=-1), points)


def coefficients(corners: NDArray[np.int64], size: tuple[int, int]) -> Floats:
    """Return the maps from the result to the source that take each `corners` to the image's corners: float64 [N, 8].

    x = (a u + b v + c) / (g u + h v + 1), y = (d u + e v + f) / (g u + h v + 1). corners: as RandomPerspective draws them.
    size: (h, w). Corners on one line have no such map; theirs is the nearest one that there is.
    """
    height, width = size
    starts = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)
    u, v = corners[..., 0].astype(np.float64), corners[..., 1].astype(np.float64)
    x, y = starts[:, 0], starts[:, 1]
    one, zero = np.ones_like(u), np.zeros_like(u)
    equations = np.concatenate(
        [
            np.stack([u, v, one, zero, zero, zero, -x * u, -x * v], axis=2),
            np.stack([zero, zero, zero, u, v, one, -y * u, -y * v], axis=2),
        ],
        axis=1,
    )
    wanted = np.broadcast_to(np.concatenate([x, y])[:, None], (len(corners), 8, 1))
    try:
        solved = np.linalg.solve(equations, wanted)
    except np.linalg.LinAlgError:  # one of them suffices
        solved = np.linalg.pinv(equations) @ wanted
    found: Floats = solved[..., 0]
    return found
