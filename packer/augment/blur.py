"""Images blurred."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from packer.augment import checks
from packer.augment.chosen import changed
from packer.augment.draws import Draws
from packer.augment.transform import Columns, Params, Part, Shape, Transform, Whole
from packer.errors import UsageError

_ROWS = 32  # of a result that one product of matrices makes; it reads these and half a kernel above and below
_FEW = 7  # weights down, up to which shifted sums are faster than products
_CPU_NUMBERS = 200_000  # blurred at a time on a CPU: an image of 224 pixels; three took twice as long each
_DEVIATIONS = 5  # beyond which weights are left out: all of them together are 6e-7


class GaussianBlur(Transform):
    """Blur each image, as torchvision.transforms.v2.GaussianBlur, with a sigma of its own.

    kernel_size: odd number of pixels, or two of them (across, down). sigma: (least, most) standard deviation in pixels,
    above 0, or one number. Edges are mirrored, without the outermost pixel twice. Works on uint8 images, rounded once at
    the end, and on floating-point ones.
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        # Order as torchvision's kernels: across, then down.
        self.kernel_size = checks.sides("GaussianBlur", "kernel_size", kernel_size)
        if any(side % 2 == 0 for side in self.kernel_size):
            raise UsageError(
                f"GaussianBlur: kernel_size is {kernel_size!r}; odd numbers are allowed. Pass one more or one less."
            )
        if checks.is_number(sigma):
            least = checks.number("GaussianBlur", "sigma", sigma, 1e-3)
            self.sigma = least, least
        else:
            self.sigma = checks.interval("GaussianBlur", "sigma", sigma, 1e-3)

    def parts(self) -> Sequence[Part]:
        """The blur."""
        return (_Blur(self.kernel_size),)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw sigma, in pixels: float64 [N]."""
        return {"sigma": draws.uniform("sigma", *self.sigma)}


class _Blur(Whole):
    """Column: sigma, 0 for images that stay as they are."""

    width = 1

    def __init__(self, kernel_size: tuple[int, int]) -> None:
        self._kernel_size = kernel_size

    @property
    def name(self) -> str:
        """The operation's class."""
        return "GaussianBlur"

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError if half the kernel reaches past an edge's mirror."""
        across, down = self._kernel_size
        if across // 2 >= shape[2] or down // 2 >= shape[1]:
            raise UsageError(
                f"GaussianBlur: kernel_size is {across}x{down} and the images are {shape[2]}x{shape[1]}, across x down; "
                "less than twice the image's sides is allowed. Pass a smaller kernel."
            )
        return shape

    def columns(self, params: Params, count: int) -> Columns:
        """Return sigma: float32 [count, 1]."""
        return params["sigma"].astype(np.float32)[:, None]

    def apply(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """Blur those whose sigma is above 0."""
        return changed(images, columns, known, [(known[:, 0] > 0, self._blurred)])

    def _blurred(self, pixels: Tensor, columns: Tensor, known: Columns) -> Tensor:
        far = math.ceil(_DEVIATIONS * float(known.max()))
        across, down = (_middle(kernels(columns[:, 0], size), far) for size in self._kernel_size)
        result = torch.empty_like(pixels)
        step = len(pixels)
        if pixels.device.type == "cpu":
            step = max(1, _CPU_NUMBERS // pixels[0].numel())
        for start in range(0, len(pixels), step):
            some = slice(start, start + step)
            made = blurred(pixels[some], across[some], down[some])
            result[some] = made if pixels.is_floating_point() else made.round_()
        return result


def kernels(sigma: Tensor, size: int) -> Tensor:
    """Weights of a Gaussian at whole distances, their sum 1: float32 [N, size]. sigma: [N]; 0 gives the pixel itself."""
    far = torch.arange(size, device=sigma.device, dtype=torch.float32) - size // 2
    weights = torch.exp(-0.5 * (far / sigma.clamp(min=1e-3)[:, None]) ** 2)
    return weights / weights.sum(dim=1, keepdim=True)


# Products down and shifted sums across need no transposition between them. Grouped convolutions took three to four times
# as long (224 pixels, one CPU thread).
def blurred(pixels: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Blur down, then across.

    pixels: [N, H, W, C], uint8 or floating point. across, down: weights [N, k], of an odd number of pixels each.
    Returns: float32 [N, H, W, C].
    """
    count, height, width, channels = pixels.shape
    r, s = across.shape[1] // 2, down.shape[1] // 2
    source = pixels.index_select(1, _mirrored(height, s, pixels.device)).reshape(count, -1, width * channels)
    source = source.float()
    wide = torch.empty(count, height, width + 2 * r, channels, device=pixels.device)
    numbers = wide.view(count, height, -1)
    middle = numbers[:, :, r * channels : (r + width) * channels]
    if down.shape[1] <= _FEW:
        _sum([source[:, tap : tap + height] for tap in range(2 * s + 1)], down, middle)
    else:
        rows = _bands(down)
        for top in range(0, height, _ROWS):
            some = min(_ROWS, height - top)
            read = some + 2 * s
            middle[:, top : top + some] = torch.bmm(rows[:, :some, :read], source[:, top : top + read])
    wide[:, :, :r] = wide[:, :, r + 1 : 2 * r + 1].flip(2)
    wide[:, :, r + width :] = wide[:, :, width - 1 : r + width - 1].flip(2)
    result = torch.empty(count, height, width * channels, device=pixels.device)
    taps = range(0, across.shape[1] * channels, channels)
    _sum([numbers[:, :, tap : tap + width * channels] for tap in taps], across, result)
    return result.view(count, height, width, channels)


def _sum(taps: Sequence[Tensor], weights: Tensor, out: Tensor) -> None:
    """Add up k times [N, a, b], each with its weight for each image, [N, k]."""
    torch.mul(taps[0], weights[:, 0, None, None], out=out)
    for number in range(1, len(taps)):
        out.addcmul_(taps[number], weights[:, number, None, None])


def _middle(weights: Tensor, far: int) -> Tensor:
    """The weights at distances up to far: [N, k] becomes [N, 2 far + 1] or stays."""
    away = weights.shape[1] // 2 - far
    return weights[:, away:-away] if away > 0 else weights


def _bands(weights: Tensor) -> Tensor:
    """Matrices [N, 32, 32 + 2 r] that make 32 rows of those and r more above and below. weights: [N, 2 r + 1]."""
    r = weights.shape[1] // 2
    row = torch.arange(_ROWS, device=weights.device)[:, None]
    tap = (torch.arange(_ROWS + 2 * r, device=weights.device) - row).clamp(-1, 2 * r + 1) + 1
    return torch.nn.functional.pad(weights, (1, 1))[:, tap]


def _mirrored(length: int, more: int, device: torch.device) -> Tensor:
    """Numbers of the pixels -more..length + more - 1, those outside mirrored at the first and the last one."""
    number = torch.arange(-more, length + more, device=device).abs()
    return torch.minimum(number, 2 * (length - 1) - number)
