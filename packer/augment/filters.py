"""Operations on images between passes: sharpness, autocontrast, equalize, blur, user-defined transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import kinds, validation
from packer.augment.validation import Parameter, ParamLayout, Unfit, described
from packer.errors import UsageError

# Bytes of images changed at a time: they and intermediate results fit a CPU's cache, or use little of a GPU's
# memory.
_CPU_BYTES, _GPU_BYTES = 512 << 10, 64 << 20

Change = Callable[[Tensor, Tensor, kinds.Columns], Tensor]
"""A function of pixels [n, H, W, C], contiguous, their columns float32 [n, P], and the columns on the host.

It returns changed pixels, in a new tensor.
"""


def changed(
    images: Tensor, columns: Tensor, known: kinds.Columns, changes: Sequence[tuple[NDArray[np.bool_], Change]]
) -> Tensor:
    """Return images, each changed by at most one of several functions.

    images: [N, C, H, W], channels_last; not modified. columns: float32 [N, P], same device. known: the same
        columns on the host.
    changes: for each function, the images it applies to, bool [N] on the host (so that no call synchronises).
    Returns: the same shape and dtype, channels_last; the images themselves if none is changed.
    """
    if not any(chosen.any() for chosen, _ in changes):
        return images
    pixels = images.permute(0, 2, 3, 1).contiguous()
    every = any(chosen.all() for chosen, _ in changes)
    result = torch.empty_like(pixels) if every else pixels.clone()
    step = max(1, (_CPU_BYTES if images.device.type == "cpu" else _GPU_BYTES) // pixels[:1].nbytes)
    for chosen, change in changes:
        numbers = np.flatnonzero(chosen)
        index = torch.from_numpy(numbers)
        if images.device.type == "cuda":
            index = index.pin_memory()
        index = index.to(images.device, non_blocking=True)
        for start in range(0, len(numbers), step):
            part = slice(start, start + step)
            mine = known[numbers[part]]
            if every:
                result[part] = change(pixels[part], columns[part], mine)
            else:
                some = index[part]
                made = change(pixels.index_select(0, some), columns.index_select(0, some), mine)
                result.index_copy_(0, some, made)
    return result.permute(0, 3, 1, 2)


class FilterPart(kinds.WholeImagePart):
    """A part that applies one of FILTERS, or none, to each image.

    Columns: number of the filter, from 1, 0 for unchanged images; weight of the smoothed image, for
        sharpness.
    """

    width = 2
    colours = bytes_only = True

    def change(self, images: Tensor, columns: Tensor, known: kinds.Columns) -> Tensor:
        chosen = [(known[:, 0] == number, change) for number, change in enumerate(FILTERS.values(), 1)]
        return changed(images, columns, known, chosen)


class _RandomFilter(kinds.RandomChange, FilterPart):
    """A filter of FILTERS, applied with probability p.

    filter: its name. share: weight of the smoothed image; below 0 sharpens.
    """

    filter = ""
    share: float = 0.0

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return np.full((count, 2), [1 + list(FILTERS).index(self.filter), self.share], np.float32)


@dataclass(eq=False)
class RandomAdjustSharpness(_RandomFilter):
    """Change the sharpness of each image with probability p, as torchvision's RandomAdjustSharpness.

    sharpness_factor: from 0 up: 0 smooths, 1 changes nothing, 2 doubles the sharpness. p: 0 <= p <= 1. uint8
    images only.
    """

    gate = "sharpen"
    filter = "Sharpness"

    sharpness_factor: validation.Number = Parameter(validation.number, MISSING, 0)
    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)

    @property
    def share(self) -> float:  # type: ignore[override]
        return 1 - self.sharpness_factor


class RandomAutocontrast(kinds.PlainChange, _RandomFilter):
    """Stretch each channel to 0..255 with probability p, as torchvision.transforms.v2.RandomAutocontrast.

    p: 0 <= p <= 1. uint8 images only.
    """

    filter = "AutoContrast"


class RandomEqualize(kinds.PlainChange, _RandomFilter):
    """Equalise each channel's histogram with probability p, as torchvision.transforms.v2.RandomEqualize.

    p: 0 <= p <= 1. uint8 images only.
    """

    filter = "Equalize"


def smoothed_by(pixels: Tensor, share: Tensor) -> Tensor:
    """Blend images with their convolution with [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13.

    pixels: uint8 [N, H, W, C]. share: weight of the smoothed image, float32 [N]; below 0 sharpens.
    Returns: uint8, rounded like torchvision's adjust_sharpness: the smoothed image to the nearest integer,
        the result down. Pixels at the edges are unchanged.
    """
    count, height, width, channels = pixels.shape
    if min(height, width) < 3:
        return pixels.clone()
    source = pixels.reshape(count, height, -1).float()
    rows = source[:, :-2] + source[:, 1:-1]
    rows += source[:, 2:]
    middle = source[:, 1:-1, channels:-channels]
    smooth = rows[:, :, : -2 * channels] + rows[:, :, channels:-channels]
    smooth += rows[:, :, 2 * channels :]
    smooth.add_(middle, alpha=4).mul_(
        1 / 13
    ).round_()  # multiples of 1/13 are never half way between integers
    smooth.sub_(middle).mul_(share[:, None, None]).add_(middle).clamp_(0, 255)
    result = pixels.clone()
    result[:, 1:-1, 1:-1] = smooth.view(count, height - 2, width - 2, channels)
    return result


def autocontrast(pixels: Tensor) -> Tensor:
    """Stretch each channel from its smallest and largest value to 0..255; a constant channel is unchanged.

    pixels: uint8 [N, H, W, C]. Returns: the same shape and dtype, rounded down.
    """
    count, height, width, channels = pixels.shape
    rows = pixels.reshape(count, height, -1)
    # Reduce over rows first: a reduction over both sides at once would access memory with stride C.
    least = rows.amin(dim=1).view(count, width, channels).amin(dim=1).float()
    most = rows.amax(dim=1).view(count, width, channels).amax(dim=1).float()
    step = (most - least) * (1 / 255)
    flat = most == least
    least, step = least.masked_fill(flat, 0), step.masked_fill(flat, 1)
    made = rows.float().sub_(least.repeat(1, width)[:, None]).div_(step.repeat(1, width)[:, None])
    return made.clamp_(0, 255).to(torch.uint8).view(pixels.shape)


def equalized(pixels: Tensor) -> Tensor:
    """Equalise the histogram of each channel by Pillow's formula; channels whose `step` is 0 are unchanged.

    With histogram n, and `step` = number of pixels below the channel's largest value // 255, value i becomes
    (n[0] + ... + n[i - 1] + step // 2) // step. pixels: uint8 [N, H, W, C]. Returns: the same shape and
    dtype.
    """
    count, height, width, channels = pixels.shape
    planes = count * channels
    first = torch.arange(planes, dtype=torch.int64, device=pixels.device).view(count, 1, channels) * 256
    places = (pixels.reshape(count, -1, channels) + first).view(-1)
    ones = torch.ones(1, dtype=torch.int32, device=pixels.device).expand(len(places))
    histogram = torch.zeros(planes * 256, dtype=torch.int32, device=pixels.device)
    histogram = histogram.scatter_add_(0, places, ones).view(planes, 256)
    so_far = histogram.cumsum(dim=1)
    last = so_far.argmax(dim=1, keepdim=True)  # the largest value that occurs
    step = (height * width - histogram.gather(1, last)) // 255
    made = (so_far - histogram + step // 2) // step.clamp(min=1)
    same = torch.arange(256, dtype=torch.int64, device=pixels.device)
    table = torch.where(step > 0, made.clamp(0, 255), same).to(torch.uint8)
    return table.view(-1).index_select(0, places).view(pixels.shape)


def _of_colours(filtered: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Return a Change that keeps a fourth channel. filtered: a function of pixels and the last column."""

    def change(pixels: Tensor, columns: Tensor, _: kinds.Columns) -> Tensor:
        made = filtered(pixels[..., :3].contiguous(), columns[:, -1])
        return made if pixels.shape[-1] < 4 else torch.cat([made, pixels[..., 3:]], dim=-1)

    return change


FILTERS: dict[str, Change] = {
    "Sharpness": _of_colours(smoothed_by),
    "AutoContrast": _of_colours(lambda pixels, _: autocontrast(pixels)),
    "Equalize": _of_colours(lambda pixels, _: equalized(pixels)),
}
"""Name of the filter, as in policies -> its function."""


_ROWS = 32  # of a result for each matrix product, which reads half a kernel more above and below
_FEW = 7  # weights down up to which shifted sums are faster than products
_CPU_NUMBERS = (
    200_000  # blurred at a time on a CPU: an image of 224 px; three at a time took twice as long each
)
_DEVIATIONS = 5  # weights beyond these are omitted; their sum is 6e-7


def _odd_sides(value: Any) -> tuple[int, int]:
    """Return (across, down), in the order of torchvision's kernels."""
    found = validation.sides(value)
    if any(side % 2 == 0 for side in found):
        raise Unfit("odd numbers are allowed. Pass one more or one less.")
    return found


def _sigma(value: Any) -> tuple[float, float]:
    if validation.is_number(value):
        value = [validation.number(value, 1e-3)] * 2
    return validation.interval(value, 1e-3)


@dataclass(eq=False)
class GaussianBlur(kinds.WholeImagePart):
    """Blur each image, as torchvision.transforms.v2.GaussianBlur, with a sigma drawn for each image.

    kernel_size: odd number of pixels, or (across, down). sigma: range (low, high) of the standard deviation
        in pixels, above 0, or a single number.

    Edges are mirrored without repeating the outermost pixel. uint8 results are rounded once, at the end;
    floating-point images are supported, too.
    """

    kernel_size: validation.Sides = Parameter(_odd_sides)
    sigma: validation.Around = Parameter(_sigma, (0.1, 2.0))
    width = 1

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw sigma, in pixels: float64 [N]."""
        return {"sigma": draws.uniform("sigma", *self.sigma)}

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        across, down = self.kernel_size
        if across // 2 >= shape[2] or down // 2 >= shape[1]:
            raise UsageError(
                f"GaussianBlur: kernel_size is {across}x{down} and the images are {shape[2]}x{shape[1]}, "
                "across x down; less than twice the image's sides is allowed. Pass a smaller kernel."
            )
        return shape

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return params["sigma"].astype(np.float32)[:, None]

    def change(self, images: Tensor, columns: Tensor, known: kinds.Columns) -> Tensor:
        return changed(images, columns, known, [(known[:, 0] > 0, self._blurred)])

    def _blurred(self, pixels: Tensor, columns: Tensor, known: kinds.Columns) -> Tensor:
        far = math.ceil(_DEVIATIONS * float(known.max()))
        across, down = (_middle(kernels(columns[:, 0], size), far) for size in self.kernel_size)
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
    """Return Gaussian weights that sum to 1: float32 [N, size]. sigma: [N]; 0 selects the middle pixel."""
    far = torch.arange(size, device=sigma.device, dtype=torch.float32) - size // 2
    weights = torch.exp(-0.5 * (far / sigma.clamp(min=1e-3)[:, None]) ** 2)
    return weights / weights.sum(dim=1, keepdim=True)


# Matrix products down and shifted sums across need no transposition. Grouped convolutions took three to four
# times as long (224 px, one CPU thread).
def blurred(pixels: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Blur images, down, then across.

    pixels: [N, H, W, C], uint8 or floating point. across, down: weights [N, k], k odd.
    Returns: float32 [N, H, W, C].
    """
    count, height, width, channels = pixels.shape
    r, s = across.shape[1] // 2, down.shape[1] // 2
    source = pixels.index_select(1, _mirrored(height, s, pixels.device)).reshape(count, -1, width * channels)
    source = source.float()
    wide = source.new_empty(count, height, width + 2 * r, channels)
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
    result = source.new_empty(count, height, width * channels)
    taps = range(0, across.shape[1] * channels, channels)
    _sum([numbers[:, :, tap : tap + width * channels] for tap in taps], across, result)
    return result.view(count, height, width, channels)


def _sum(taps: Sequence[Tensor], weights: Tensor, out: Tensor) -> None:
    """Write the weighted sum of k tensors [N, a, b] to `out`. weights: [N, k]."""
    torch.mul(taps[0], weights[:, 0, None, None], out=out)
    for number in range(1, len(taps)):
        out.addcmul_(taps[number], weights[:, number, None, None])


def _middle(weights: Tensor, far: int) -> Tensor:
    """Return the weights at distances up to `far`: [N, min(k, 2 far + 1)] of [N, k]."""
    away = weights.shape[1] // 2 - far
    return weights[:, away:-away] if away > 0 else weights


def _bands(weights: Tensor) -> Tensor:
    """Return band matrices [N, 32, 32 + 2 r] that map 32 + 2 r rows to 32. weights: [N, 2 r + 1]."""
    r = weights.shape[1] // 2
    number = torch.arange(_ROWS + 2 * r, dtype=torch.int64, device=weights.device)
    tap = (number - number[:_ROWS, None]).clamp(-1, 2 * r + 1) + 1
    return torch.nn.functional.pad(weights, (1, 1))[:, tap]


def _mirrored(length: int, more: int, device: torch.device) -> Tensor:
    """Return pixel numbers for -more..length + more - 1, mirrored at the first and the last pixel."""
    number = torch.arange(-more, length + more, dtype=torch.int64, device=device).abs()
    return torch.minimum(number, 2 * (length - 1) - number)


class CustomPart(kinds.WholeImagePart):
    """A part that calls `apply` of a user-defined transform. layout: shapes and dtypes of its draws.

    The columns are the bytes of a record: a flag, which RandomApply sets to 0 for unchanged images, and the
    draws.
    """

    name: str
    width: int

    def __init__(self, transform: kinds.Transform, layout: ParamLayout) -> None:
        drawn = [(name, dtype, shape) for name, (shape, dtype) in layout.items() if name != "apply"]
        self._transform, self._record = transform, np.dtype([("apply", np.float32), *drawn], align=True)
        fields: Any = self._record.fields
        self._fields = {name: fields[name][:2] for name, _, _ in drawn}
        self.name, self.width = type(transform).__name__, self._record.itemsize // 4

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        records = np.zeros(count, self._record)
        records["apply"] = 1
        for name in self._fields:
            records[name] = params[name]
        return records.view(np.float32).reshape(count, self.width)

    def change(self, images: Tensor, columns: Tensor, known: kinds.Columns) -> Tensor:
        chosen = known[:, 0] != 0
        if chosen.all():
            return self._made(images, columns)

        def some(pixels: Tensor, mine: Tensor, _: kinds.Columns) -> Tensor:
            return self._made(pixels.permute(0, 3, 1, 2), mine).permute(0, 2, 3, 1)

        return changed(images, columns, known, [(chosen, some)])

    def _made(self, images: Tensor, columns: Tensor) -> Tensor:
        # Flatten first: an empty tensor's last stride may be 0.
        numbers = columns.reshape(-1).contiguous()  # slices of columns are strided
        memory, params = numbers.view(torch.uint8).view(len(columns), 4 * self.width), {}
        for name, (dtype, at) in self._fields.items():
            drawn = memory[:, at : at + dtype.itemsize].reshape(-1).clone()  # to align it for its dtype
            like = torch.from_numpy(np.empty(0, dtype.base)).dtype
            params[name] = drawn.view(like).view(len(columns), *dtype.shape)
        tracked = not images.is_inference()
        version = images._version if tracked else 0
        made: Any = self._transform.apply(images, params)
        if tracked and images._version != version:
            raise UsageError(f"{self.name}: apply changed the images that it was given. Return new ones.")
        if not isinstance(made, Tensor) or made.shape != images.shape or made.dtype != images.dtype:
            found = described(made) if isinstance(made, Tensor) else type(made).__name__
            raise UsageError(
                f"{self.name}: apply returned {found} for {images.dtype} {list(images.shape)}; "
                "the same shape and dtype are allowed. Return those."
            )
        return made
