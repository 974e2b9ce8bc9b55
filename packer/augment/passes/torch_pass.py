"""The reference implementation of pass_spec.py in plain torch operations, for any device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import MIRRORED, Pass
from packer.augment.passes.prepared_draws import PreparedDraws


def run(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor) -> None:
    """Run a pass, and write its results to `out`. It does not synchronise with a GPU.

    images: [N, C, H, W], uint8 or floating point, any strides; [P, C] for a ragged pass.
    draws: the columns. out: [N, C, h, w], on the device of the images.
    """
    height, width = what.size
    columns = draws.on(images.device)
    source = _source(what, images, columns, draws.host)
    u = torch.arange(width, device=columns.device, dtype=torch.float32)
    v = torch.arange(height, device=columns.device, dtype=torch.float32)
    if what.contrast:
        columns = _with_means(what, source, columns)
    pixels = _sampled(what, source, columns, u, v)
    for step in range(what.steps):
        pixels = _stepped(what, pixels, _step(columns, step))
    if what.scale is not None and what.shift is not None:
        pixels = pixels * _constants(what.scale, pixels) + _constants(what.shift, pixels)
    for box in range(what.boxes):
        start = what.boxes_at + pass_spec.BOX_WIDTH * box
        left, top, right, bottom, seed = _each(columns, start, start + pass_spec.BOX_WIDTH)
        inside = (u >= left) & (u < right) & (v[:, None] >= top) & (v[:, None] < bottom)
        fill = noise(seed[..., None], pixels.shape) if what.noise else _constants(what.box_fill, pixels)
        pixels = torch.where(inside[..., None], fill, pixels)
    if out.dtype == torch.uint8:
        pixels = (pixels.clamp(0, 255) + 0.5).floor()
    out.copy_(pixels.permute(0, 3, 1, 2))


def _constants(numbers: tuple[float, ...], like: Tensor) -> Tensor:
    """Return numbers as a tensor. Copying them to a GPU would synchronise; filling does not."""
    return torch.stack([like.new_full((), number) for number in numbers])


def _each(columns: Tensor, begin: int, end: int) -> Iterator[Tensor]:
    """Yield columns begin to end - 1, each as float32 [N, 1, 1]."""
    return (column[:, None, None] for column in columns[:, begin:end].T)


class Source(NamedTuple):
    """The pixels of all images, and the location of each sample in them.

    pixels: [P, C]. places: number of the sample's first pixel; strides: pixels from an image row to the next;
        int64 [N, 1, 1] each. taps: of the widest filter, across and down.
    """

    pixels: Tensor
    places: Tensor
    strides: Tensor
    taps: list[int]


def _source(what: Pass, images: Tensor, columns: Tensor, known: Tensor) -> Source:
    """Return the source. known: the columns in host memory: asking a GPU for the taps would synchronise."""
    taps = (2 * known[:, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT]).ceil().amax(dim=0).int().tolist()
    if what.ragged:
        high, low, _, _, stride = _each(columns.long(), what.source_at, what.width)
        return Source(images[:, : what.channels], high * pass_spec.PLACE_STEP + low, stride, taps)
    height, width = images.shape[2:]
    pixels = images.permute(0, 2, 3, 1).contiguous().view(-1, what.channels)
    number = torch.arange(len(columns), dtype=torch.int64, device=columns.device)[:, None, None]
    return Source(pixels, number * (height * width), torch.full_like(number, width), taps)


def _step(columns: Tensor, step: int) -> Tensor:
    start = pass_spec.STEPS_AT + pass_spec.STEP_WIDTH * step
    return columns[:, start : start + pass_spec.STEP_WIDTH]


def _with_means(what: Pass, source: Source, columns: Tensor) -> Tensor:
    """Return columns in which each CONTRAST is replaced by the equivalent MATRIX, using its mean."""
    height, width = what.size
    p, q = what.strides
    u = torch.arange(p // 2, width, p, device=columns.device, dtype=torch.float32)
    v = torch.arange(q // 2, height, q, device=columns.device, dtype=torch.float32)
    pixels = _sampled(what, source, columns, u, v)
    columns = columns.clone()
    for number in range(what.steps):
        step = _step(columns, number)
        red, green, blue = _channels(pixels)
        grey = pass_spec.GREY[0] * red + pass_spec.GREY[1] * green + pass_spec.GREY[2] * blue
        factor = step[:, 1:2]
        matrix = step.new_zeros(len(step), 3, 4)
        matrix.diagonal(dim1=1, dim2=2)[:] = factor
        matrix[:, :, 3] = (1 - factor) * grey.mean(dim=(1, 2))[:, None]
        contrast = step[:, :1] == pass_spec.CONTRAST
        step[:, 1:] = torch.where(contrast, matrix.flatten(1), step[:, 1:])
        step[:, :1] = torch.where(contrast, float(pass_spec.MATRIX), step[:, :1])
        pixels = _stepped(what, pixels, step)
    return columns


def _sampled(what: Pass, source: Source, columns: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return the results at pixels (u, v) after steps 1 and 2: float32 [N, len(v), len(u), C]."""
    a, b, c, d, e, f = _each(columns, 0, pass_spec.TAPS_AT)
    x = a * u + (b * v[:, None] + c)
    y = d * u + (e * v[:, None] + f)
    if what.weighted:
        pixels = _filtered(what, source, columns, x, y)
    else:
        x0, y0, x1, y1 = _each(columns, pass_spec.TAPS_AT, pass_spec.SUPPORT_AT)
        i = _inside(what, (x + pass_spec.TIE + 0.5).floor(), x0, x1)
        j = _inside(what, (y + pass_spec.TIE + 0.5).floor(), y0, y1)
        pixels = _taken(source, j, i)
    if not what.framed:
        return pixels
    left, top, right, bottom, kx, ky = _each(columns, pass_spec.FRAME_AT, pass_spec.STEPS_AT)
    if what.weighted:
        across = _edge((x - left) * kx) * _edge((right - x) * kx)
        cover = across * _edge((y - top) * ky) * _edge((bottom - y) * ky)
    else:
        xn, yn = x + pass_spec.TIE, y + pass_spec.TIE
        cover = ((xn >= left) & (xn < right) & (yn >= top) & (yn < bottom)).float()
    fill, cover = _constants(what.fill, pixels), cover[..., None]
    return torch.where(cover > 0, cover * pixels + (1 - cover) * fill, fill)


def _edge(distance: Tensor) -> Tensor:
    return (distance + 0.5).clamp(0, 1)


def _filtered(what: Pass, source: Source, columns: Tensor, x: Tensor, y: Tensor) -> Tensor:
    x0, y0, x1, y1 = _each(columns, pass_spec.TAPS_AT, pass_spec.SUPPORT_AT)
    sx, sy = _each(columns, pass_spec.SUPPORT_AT, pass_spec.FRAME_AT)
    if what.outside not in MIRRORED:
        beyond = 0.5 if what.sampling == "cubic" else 0.0
        x, y = x.clamp(x0 - beyond, x1 + beyond), y.clamp(y0 - beyond, y1 + beyond)
    first_x, first_y = (x - sx).floor() + 1, (y - sy).floor() + 1
    total, weights = x.new_zeros(()), x.new_zeros(())
    for down in range(source.taps[1]):
        j = first_y + down
        weight_y = _weight(what, j, y, sy, y0, y1)
        for across in range(source.taps[0]):
            i = first_x + across
            weight = weight_y * _weight(what, i, x, sx, x0, x1)
            taken = _taken(source, _inside(what, j, y0, y1), _inside(what, i, x0, x1))
            total = total + weight[..., None] * taken
            weights = weights + weight
    total = total / weights[..., None]
    return total.clamp(0, what.limit) if what.sampling == "cubic" and what.limit > 1 else total


def _weight(what: Pass, tap: Tensor, middle: Tensor, half: Tensor, first: Tensor, last: Tensor) -> Tensor:
    near = (tap - middle).abs() / half
    weight = _cubic(2 * near) if what.sampling == "cubic" else (1 - near).clamp(min=0)
    return weight if what.outside in MIRRORED else weight * ((tap >= first) & (tap <= last))


def _cubic(t: Tensor) -> Tensor:
    inner, outer = (1.5 * t - 2.5) * t * t + 1, ((2.5 - 0.5 * t) * t - 4) * t + 2
    return torch.where(t < 1, inner, torch.where(t < 2, outer, 0))


def _inside(what: Pass, tap: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the number of the pixel inside the box that a tap reads: int64."""
    if what.outside in MIRRORED:
        length, twice = last - first, int(what.outside == "symmetric")
        period = (2 * (length + twice)).clamp(min=1)
        away = (tap - first) % period  # torch's % has the divisor's sign
        back = period - twice - away
        tap = first + torch.minimum(away, back).clamp(max=length.clamp(min=0)) * (length > 0)
    return torch.minimum(torch.maximum(tap, first), last).long()


def _taken(source: Source, j: Tensor, i: Tensor) -> Tensor:
    # More than twice as fast as images[rows, j, i] on a CPU.
    number = source.places + j * source.strides + i
    return source.pixels.index_select(0, number.view(-1)).view(*number.shape, -1).float()


def _channels(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue, *_ = pixels.expand(*pixels.shape[:-1], max(3, pixels.shape[-1])).unbind(-1)
    return red, green, blue


def _stepped(what: Pass, pixels: Tensor, step: Tensor) -> Tensor:
    """Return pixels after one colour step, whose kind may differ between samples."""
    pixels, alpha = pixels[..., :3], pixels[..., 3:]
    result, kinds, number = pixels, step[:, :1, None, None], step[:, 1:2, None, None]
    for kind, made in (
        (pass_spec.MATRIX, _multiplied(what, pixels, step[:, 1:].view(-1, 3, 4))),
        (pass_spec.HUE, _turned(pixels, step[:, 1])),
        (pass_spec.SOLARIZE, torch.where(pixels >= number, what.limit - pixels, pixels)),
        (pass_spec.POSTERIZE, number * ((pixels + 0.5).floor() / number).floor()),
    ):
        result = torch.where(kinds == kind, made, result)
    return torch.cat([result, alpha], dim=-1) if alpha.shape[-1] else result


def _multiplied(what: Pass, pixels: Tensor, matrix: Tensor) -> Tensor:
    red, green, blue = _channels(pixels)
    made = [
        m[:, 0] * red + m[:, 1] * green + m[:, 2] * blue + m[:, 3]
        for m in (matrix[:, i, :, None, None] for i in range(pixels.shape[-1]))
    ]
    return torch.stack(made, -1).clamp(0, what.limit)


def _turned(pixels: Tensor, turns: Tensor) -> Tensor:
    if pixels.shape[-1] != 3:
        return pixels
    red, green, blue = _channels(pixels)
    value, least = pixels.amax(-1), pixels.amin(-1)
    spread = value - least
    divisor = torch.where(spread > 0, spread, torch.ones_like(spread))
    hue = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    hue = hue + 6 * turns[:, None, None]
    sixths = ((n + hue) % 6 for n in (5, 3, 1))
    return torch.stack([value - spread * torch.minimum(k, 4 - k).clamp(0, 1) for k in sixths], -1)


def noise(seed: Tensor, shape: torch.Size) -> Tensor:
    """Return the noise of pass_spec.NOISE_STEP: float32 of `shape`, [N, h, w, C]. seed: [N, 1, 1, 1]."""
    _, height, width, channels = shape
    number = torch.arange(height * width * channels, dtype=torch.int64, device=seed.device)
    number = number.view(1, height, width, channels)
    hashed = _hash((seed.long() + pass_spec.NOISE_STEP * (number + 1)) & 0xFFFFFFFF)
    a = ((hashed >> 8).float() + 0.5) / 2**24
    b = (_hash(hashed ^ pass_spec.NOISE_STEP) >> 8).float() / 2**24
    return (-2 * a.log()).sqrt() * (2 * math.pi * b).cos()


def _hash(x: Tensor) -> Tensor:
    """Return MurmurHash3's finaliser of x. x: int64, 0 <= x < 2**32."""
    for shift, factor in ((16, pass_spec.NOISE_1), (13, pass_spec.NOISE_2)):
        x = (x ^ (x >> shift)) * factor & 0xFFFFFFFF  # int64 overflow keeps the low 32 bits
    return x ^ (x >> 16)
