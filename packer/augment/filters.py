"""Operations on images between passes: sharpness, autocontrast, equalize, blur, and what a user's own transform does."""

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

# Images changed at a time: a CPU's cache then holds them and what is worked out between; a GPU's memory holds them easily.
_CPU_BYTES, _GPU_BYTES = 512 << 10, 64 << 20

Change = Callable[[Tensor, Tensor, kinds.Columns], Tensor]
"""(pixels [n, H, W, C], contiguous; their columns float32 [n, P]; the same on the host) -> changed pixels, a new tensor."""


def changed(
    images: Tensor, columns: Tensor, known: kinds.Columns, changes: Sequence[tuple[NDArray[np.bool_], Change]]
) -> Tensor:
    """Change the images that were chosen; each by at most one of the changes.

    images: [N, C, H, W], channels_last; not modified. columns: float32 [N, P], same device. known: the same on the host.
    changes: for each which images it is for, bool [N] on the host (so nothing waits for the device), and what it does.
    Returns: the same shape and dtype, channels_last; the images themselves if none is chosen.
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
    """One of FILTERS for each image, or none.

    Columns: the filter's number, 0 for images that stay as they are; the smoothed image's share for sharpness.
    """

    width = 2
    colours = bytes_only = True

    def change(self, images: Tensor, columns: Tensor, known: kinds.Columns) -> Tensor:
        chosen = [(known[:, 0] == number, change) for number, change in enumerate(FILTERS.values(), 1)]
        return changed(images, columns, known, chosen)


class _RandomFilter(kinds.RandomChange, FilterPart):
    """The filter called `filter` with probability p. share: the smoothed image's, which is below 0 for a sharper one."""

    filter = ""
    share = 0.0

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return np.full((count, 2), [1 + list(FILTERS).index(self.filter), self.share], np.float32)


@dataclass(eq=False)
class RandomAdjustSharpness(_RandomFilter):
    """Change the sharpness of each image with probability p, as torchvision.transforms.v2.RandomAdjustSharpness.

    sharpness_factor: from 0 up: 0 is smoothed, 1 as it is, 2 twice as sharp. p: 0 <= p <= 1. uint8 images only.
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
    """Blend images with themselves smoothed by [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13.

    pixels: uint8 [N, H, W, C]. share: of the smoothed image, float32 [N]; below 0 sharpens.
    Returns: uint8, rounded as torchvision's adjust_sharpness does: the smoothed image to the nearest, the result down.
    Pixels at the edges stay as they are.
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
    smooth.add_(middle, alpha=4).mul_(1 / 13).round_()  # a 13th is never half way between two numbers
    smooth.sub_(middle).mul_(share[:, None, None]).add_(middle).clamp_(0, 255)
    result = pixels.clone()
    result[:, 1:-1, 1:-1] = smooth.view(count, height - 2, width - 2, channels)
    return result


def autocontrast(pixels: Tensor) -> Tensor:
    """Stretch each channel from its least and largest value to 0..255, rounded down; one without contrast stays.

    pixels: uint8 [N, H, W, C]. Returns the same.
    """
    count, height, width, channels = pixels.shape
    rows = pixels.reshape(count, height, -1)
    # First down, over whole rows: reducing both sides at once would go through memory in steps of C.
    least = rows.amin(dim=1).view(count, width, channels).amin(dim=1).float()
    most = rows.amax(dim=1).view(count, width, channels).amax(dim=1).float()
    step = (most - least) * (1 / 255)
    flat = most == least
    least, step = least.masked_fill(flat, 0), step.masked_fill(flat, 1)
    made = rows.float().sub_(least.repeat(1, width)[:, None]).div_(step.repeat(1, width)[:, None])
    return made.clamp_(0, 255).to(torch.uint8).view(pixels.shape)


def equalized(pixels: Tensor) -> Tensor:
    """Give each channel a flat histogram by Pillow's formula; a channel with too few values for that stays.

    With n the histogram and `step` the pixels below the largest value that occurs, over 255, rounded down, value i
    becomes (n[0] + ... + n[i - 1] + step // 2) // step. pixels: uint8 [N, H, W, C]. Returns the same.
    """
    count, height, width, channels = pixels.shape
    planes = count * channels
    first = torch.arange(planes, device=pixels.device).view(count, 1, channels) * 256
    places = (pixels.reshape(count, -1, channels) + first).view(-1)
    ones = torch.ones(1, dtype=torch.int32, device=pixels.device).expand(len(places))
    histogram = torch.zeros(planes * 256, dtype=torch.int32, device=pixels.device)
    histogram = histogram.scatter_add_(0, places, ones).view(planes, 256)
    so_far = histogram.cumsum(dim=1)
    last = so_far.argmax(dim=1, keepdim=True)  # where the sum is complete for the first time
    step = (height * width - histogram.gather(1, last)) // 255
    made = (so_far - histogram + step // 2) // step.clamp(min=1)
    same = torch.arange(256, device=pixels.device)
    table = torch.where(step > 0, made.clamp(0, 255), same).to(torch.uint8)
    return table.view(-1).index_select(0, places).view(pixels.shape)


def _of_colours(filtered: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Return a filter of colours, which keeps a fourth channel. filtered: makes pixels of pixels and the last column."""

    def change(pixels: Tensor, columns: Tensor, _: kinds.Columns) -> Tensor:
        made = filtered(pixels[..., :3].contiguous(), columns[:, -1])
        return made if pixels.shape[-1] < 4 else torch.cat([made, pixels[..., 3:]], dim=-1)

    return change


FILTERS: dict[str, Change] = {
    "Sharpness": _of_colours(smoothed_by),
    "AutoContrast": _of_colours(lambda pixels, _: autocontrast(pixels)),
    "Equalize": _of_colours(lambda pixels, _: equalized(pixels)),
}
"""Name, as policies have it -> what it does."""


_ROWS = 32  # of a result that one product of matrices makes; it reads these and half a kernel above and below
_FEW = 7  # weights down, up to which shifted sums are faster than products
_CPU_NUMBERS = 200_000  # blurred at a time on a CPU: an image of 224 pixels; three took twice as long each
_DEVIATIONS = 5  # beyond which weights are left out: all of them together are 6e-7


def _odd_sides(value: Any) -> tuple[int, int]:
    """(across, down), as torchvision's kernels."""
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
    """Blur each image, as torchvision.transforms.v2.GaussianBlur, with a sigma of its own.

    kernel_size: odd number of pixels, or two of them (across, down). sigma: (least, most) standard deviation in pixels,
    above 0, or one number. Edges are mirrored, without the outermost pixel twice. Works on uint8 images, rounded once at
    the end, and on floating-point ones.
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
                f"GaussianBlur: kernel_size is {across}x{down} and the images are {shape[2]}x{shape[1]}, across x down; "
                "less than twice the image's sides is allowed. Pass a smaller kernel."
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
    """Return the weights at distances up to far: [N, k] becomes [N, 2 far + 1] or stays."""
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


class CustomPart(kinds.WholeImagePart):
    """A user's transform, which has `apply`. layout: of its draws.

    Columns are the bytes of a record: whether an image is changed at all, which RandomApply sets to 0, and its draws.
    """

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
        # By one dimension: an empty tensor's last stride may be 0.
        numbers = columns.reshape(-1).contiguous()  # of one column among others they lie apart
        memory, params = numbers.view(torch.uint8).view(len(columns), 4 * self.width), {}
        for name, (dtype, at) in self._fields.items():
            drawn = memory[:, at : at + dtype.itemsize].reshape(-1).clone()  # at a place that suits its type
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
                f"{self.name}: apply returned {found} for {images.dtype} {list(images.shape)}; the same shape and dtype "
                "are allowed. Return those."
            )
        return made
