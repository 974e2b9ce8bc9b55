"""AugMix: an image blended with copies of itself that chains of operations changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import validation
from packer.augment.filters import changed
from packer.augment.geometric import SAMPLINGS
from packer.augment.pass_stages import PartStage, PassStage, PixelFormat, run_pass, staged
from packer.augment.policies import NUMBER, OPERATIONS, SIGNED, magnitudes, slot_parts
from packer.augment.transform import Columns, Draws, Params, Shape, Transform, TransformPart, WarpPart
from packer.augment.validation import whole
from packer.errors import UsageError

_BINS = 10
_DEEPEST = 3  # of a chain whose depth is drawn
_ENHANCING = ("Brightness", "Color", "Contrast", "Sharpness")


class AugMix(Transform):
    """Blend each image with copies of itself, each changed by a chain of operations, as torchvision.transforms.v2.AugMix.

    severity: the largest strength of operations, 1 to 10. mixture_width: chains. chain_depth: operations in a chain; below
    1: 1 to 3, drawn for each chain. alpha: parameter of the distributions of the shares; above 0. all_ops: brightness,
    color, contrast and sharpness too. interpolation, fill: as TrivialAugmentWide's. uint8 images only; masks, boxes and
    points have no place in a mixture and are refused. Sums are rounded to the nearest, where torchvision rounds down.

    D. Hendrycks, N. Mu, E. D. Cubuk, B. Zoph, J. Gilmer, B. Lakshminarayanan, "AugMix: a simple data processing method to
    improve robustness and uncertainty" (arXiv:1912.02781).
    """

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: str = "bilinear",
        fill: float | Sequence[float] = 0,
    ) -> None:
        name = "AugMix"
        self.severity = whole(name, "severity", severity, 1, _BINS)
        self.mixture_width = whole(name, "mixture_width", mixture_width, 1)
        self.chain_depth = whole(name, "chain_depth", chain_depth, None)
        self.alpha = validation.number(name, "alpha", alpha, 1e-3)
        self.all_ops = validation.flag(name, "all_ops", all_ops)
        self.interpolation = validation.one_of(name, "interpolation", interpolation, tuple(SAMPLINGS))
        self.fill = validation.colour(name, "fill", fill)

    @property
    def deepest(self) -> int:
        """The most operations in a chain."""
        return self.chain_depth if self.chain_depth > 0 else _DEEPEST

    def parts(self) -> Sequence[TransformPart]:
        return (_BlendedChains(self),)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw operation: int64 [N, mixture_width, k], numbers of OPERATIONS, Identity after a chain's end; magnitude:
        float64, the same shape, with its sign; share: float64 [N, 1 + mixture_width], of the image itself and of each chain.
        """
        names = [n for n in OPERATIONS if n != "Identity" and (self.all_ops or n not in _ENHANCING)]
        numbers = np.array([NUMBER[n] for n in names])
        table = mix_magnitudes(shape[1], shape[2])
        own, mixed = draws.dirichlet("own", self.alpha, 2).T
        shares = mixed[:, None] * draws.dirichlet("chain", self.alpha, self.mixture_width)
        operation = np.zeros((len(draws), self.mixture_width, self.deepest), np.int64)
        magnitude = np.zeros(operation.shape)
        for chain in range(self.mixture_width):
            depth = np.full(len(draws), self.chain_depth)
            if self.chain_depth <= 0:
                depth = 1 + draws.integers(f"depth {chain}", _DEEPEST)
            for place in range(self.deepest):
                slot = f"{chain} {place}"
                number = numbers[draws.integers(f"operation {slot}", len(numbers))]
                strength = table[number, draws.integers(f"bin {slot}", self.severity)]
                negative = draws.happens(f"sign {slot}", 0.5) & SIGNED[number]
                there = place < depth
                operation[:, chain, place] = np.where(there, number, NUMBER["Identity"])
                magnitude[:, chain, place] = np.where(there, np.where(negative, -strength, strength), 0)
        share = np.concatenate([own[:, None], shares], axis=1)
        return {"operation": operation, "magnitude": magnitude, "share": share}


def mix_magnitudes(height: int, width: int) -> NDArray[np.float64]:
    """Magnitudes of AugMix for images of this size: float64 [14, 10], without signs."""
    table = magnitudes(_BINS, 0.3, width / 3.0, height / 3.0, 30.0, 0.9, 4)
    table[NUMBER["Posterize"]] -= 4
    return table


class _BlendedChains(WarpPart):
    """The one part of AugMix, for images of one shape: the one that `check` gets.

    Columns: 1, the shares, and then of each chain those of its stages. All chains consist of the same stages.
    """

    bytes_only = True

    def __init__(self, transform: AugMix) -> None:
        self._transform, self.fill = transform, transform.fill
        self._chain: list[PassStage | PartStage] = []

    @property
    def name(self) -> str:
        return "AugMix"

    def check(self, shape: Shape) -> Shape:
        super().check(shape)
        transform = self._transform
        parts = [
            (part, 0)
            for slot in range(transform.deepest)
            for part in slot_parts(transform, slot, transform.interpolation, transform.fill)
        ]
        self._chain = staged(parts, PixelFormat(shape[0], shape[1:], torch.uint8, 255.0))
        self._each = sum(stage.width for stage in self._chain)
        self.width = 2 + transform.mixture_width * (1 + self._each)
        return shape

    def columns(self, params: Params, count: int, size: tuple[int, int]) -> Columns:
        pieces = [np.ones((count, 1), np.float32), params["share"].astype(np.float32)]
        for chain in range(self._transform.mixture_width):
            mine = {name: params[name][:, chain] for name in ("operation", "magnitude")}
            pieces += [stage.columns([mine], count) for stage in self._chain]
        return np.concatenate(pieces, axis=1)

    def change(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        return changed(images, columns, known, [(known[:, 0] != 0, self._mixed)])

    def _mixed(self, pixels: Tensor, columns: Tensor, known: Columns) -> Tensor:
        shares = columns[:, 1 : 2 + self._transform.mixture_width, None, None, None]
        total = pixels * shares[:, 0]
        at = 2 + self._transform.mixture_width
        for chain in range(self._transform.mixture_width):
            made = pixels.permute(0, 3, 1, 2)
            for stage in self._chain:
                mine = slice(at, at := at + stage.width)
                if isinstance(stage, PassStage):
                    made = run_pass(stage.what, made, columns[:, mine])
                else:
                    made = stage.run(made, columns[:, mine], known[:, mine])
            total.addcmul_(made.permute(0, 2, 3, 1), shares[:, 1 + chain])
        return total.add_(0.5).clamp_(0, 255).to(torch.uint8)

    def move_masks(self, masks: Tensor, columns: Tensor, fill: Sequence[float]) -> Tensor:
        self._refuse("masks")

    def move_points(self, points: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
        self._refuse("boxes and points")

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(
            f"AugMix: there are {what}, and they cannot follow a mixture of copies that were moved apart; images and labels "
            "are allowed. Use RandAugment, or pass none."
        )
