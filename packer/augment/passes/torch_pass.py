"""A pass in plain torch operations, on any device: what pass_spec.py says, and what the others are held against."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import MIRRORED, Pass


def run(what: Pass, images: Tensor, columns: Tensor, rows: Tensor | None, out: Tensor) -> None:
    """Fill out.

    images: [M, C, H, W], uint8 or floating point, any strides; of a ragged pass [P, C]. columns: float32 [N, P]. rows: int64 [N],
    which of the images each sample is made of, or None: M is N, in order. out: [N, C, h, w]. All on one device; on a GPU waits for it.
    """
    height, width = what.size
    source = _source(what, images, columns, rows)
    u = torch.arange(width, device=columns.device, dtype=torch.float32)
    v = torch.arange(height, device=columns.device, dtype=torch.float32)
    if what.contrast:
        columns = _with_means(what, source, columns)
    pixels = _sampled(what, source, columns, u, v)
    for step in range(what.steps):
        pixels = _stepped(what, pixels, _step(columns, step))
    if what.scale is not None and what.shift is not None:
        pixels = pixels * pixels.new_tensor(what.scale) + pixels.new_tensor(what.shift)
    for box in range(what.boxes):
        start = what.boxes_at + pass_spec.BOX_WIDTH * box
        left, top, right, bottom, seed = (
            column[:, None, None, None] for column in columns[:, start : start + pass_spec.BOX_WIDTH].T
        )
        across, down = u[:, None], v[:, None, None]
        inside = (across >= left) & (across < right) & (down >= top) & (down < bottom)
        fill = noise(seed, pixels.shape) if what.noise else pixels.new_tensor(what.box_fill)
        pixels = torch.where(inside, fill, pixels)
    if out.dtype == torch.uint8:
        pixels = (pixels.clamp(0, 255) + 0.5).floor()
    out.copy_(pixels.permute(0, 3, 1, 2))


class Source(NamedTuple):
    """The pixels of all images [P, C], and where samples lie in them: int64 [N, 1, 1], the first pixel, and from a row to the next."""

    pixels: Tensor
    places: Tensor
    strides: Tensor


def _source(what: Pass, images: Tensor, columns: Tensor, rows: Tensor | None) -> Source:
    if what.ragged:
        high, low, _, _, stride = columns[:, what.source_at : what.width].long().T[:, :, None, None]
        return Source(images[:, : what.channels], high * pass_spec.PLACE_STEP + low, stride)
    if rows is None:
        rows = torch.arange(len(columns), device=columns.device)
    height, width = images.shape[2:]
    pixels = images.permute(0, 2, 3, 1).contiguous().view(-1, what.channels)
    places = rows[:, None, None] * (height * width)
    return Source(pixels, places, torch.full_like(places, width))


def _step(columns: Tensor, step: int) -> Tensor:
    start = pass_spec.STEPS_AT + pass_spec.STEP_WIDTH * step
    return columns[:, start : start + pass_spec.STEP_WIDTH]


def _with_means(what: Pass, source: Source, columns: Tensor) -> Tensor:
    """Turn every CONTRAST into the MATRIX that it is, once the mean is known."""
    height, width = what.size
    p, q = what.strides
    u = torch.arange(p // 2, width, p, device=columns.device, dtype=torch.float32)
    v = torch.arange(q // 2, height, q, device=columns.device, dtype=torch.float32)
    pixels = _sampled(what, source, columns, u, v)
    columns = columns.clone()
    for number in range(what.steps):
        step = _step(columns, number)
        red, green, blue = _channels(pixels)
        means = (pass_spec.GREY[0] * red + pass_spec.GREY[1] * green + pass_spec.GREY[2] * blue).mean(
            dim=(1, 2)
        )
        factor = step[:, 1]
        matrix = torch.zeros(len(step), 3, 4, device=step.device)
        for channel in range(3):
            matrix[:, channel, channel] = factor
        matrix[:, :, 3] = ((1 - factor) * means)[:, None]
        contrast = step[:, :1] == pass_spec.CONTRAST
        step[:, 1:] = torch.where(contrast, matrix.flatten(1), step[:, 1:])
        step[:, :1] = torch.where(contrast, float(pass_spec.MATRIX), step[:, :1])
        pixels = _stepped(what, pixels, step)
    return columns


def _sampled(what: Pass, source: Source, columns: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Steps 1 and 2 for the pixels at these columns and rows of the results: float32 [N, len(v), len(u), C]."""
    a, b, c, d, e, f = (column[:, None, None] for column in columns[:, :6].T)
    across, down = u[None, None, :], v[None, :, None]
    x = a * across + (b * down + c)
    y = d * across + (e * down + f)
    x0, y0, x1, y1 = (
        column[:, None, None] for column in columns[:, pass_spec.TAPS_AT : pass_spec.SUPPORT_AT].T
    )
    if what.weighted:
        pixels = _filtered(what, source, columns, x, y, (x0, y0, x1, y1))
    else:
        i = _inside(what, (x + pass_spec.TIE + 0.5).floor(), x0, x1)
        j = _inside(what, (y + pass_spec.TIE + 0.5).floor(), y0, y1)
        pixels = _taken(source, j, i)
    if not what.framed:
        return pixels
    left, top, right, bottom, kx, ky = (
        column[:, None, None] for column in columns[:, pass_spec.FRAME_AT : pass_spec.STEPS_AT].T
    )
    if what.weighted:
        cover = (
            _edge((x - left) * kx)
            * _edge((right - x) * kx)
            * _edge((y - top) * ky)
            * _edge((bottom - y) * ky)
        )
    else:
        xn, yn = x + pass_spec.TIE, y + pass_spec.TIE
        cover = ((xn >= left) & (xn < right) & (yn >= top) & (yn < bottom)).float()
    fill = pixels.new_tensor(what.fill)
    return torch.where(cover[..., None] > 0, cover[..., None] * pixels + (1 - cover[..., None]) * fill, fill)


def _edge(distance: Tensor) -> Tensor:
    return (distance + 0.5).clamp(0, 1)


def _filtered(
    what: Pass, source: Source, columns: Tensor, x: Tensor, y: Tensor, box: tuple[Tensor, ...]
) -> Tensor:
    x0, y0, x1, y1 = box
    if what.outside not in MIRRORED:
        beyond = 0.5 if what.sampling == "cubic" else 0.0
        x, y = x.clamp(x0 - beyond, x1 + beyond), y.clamp(y0 - beyond, y1 + beyond)
    sx, sy = (column[:, None, None] for column in columns[:, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT].T)
    first_x, first_y = (x - sx).floor() + 1, (y - sy).floor() + 1
    count_x, count_y = (
        math.ceil(2 * float(column.max()))
        for column in columns[:, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT].T
    )
    total: Tensor | float = 0.0
    weights: Tensor | float = 0.0
    for down in range(count_y):
        j = first_y + down
        weight_y = _weight(what, j, y, sy, y0, y1)
        for across in range(count_x):
            i = first_x + across
            weight = weight_y * _weight(what, i, x, sx, x0, x1)
            taken = _taken(source, _inside(what, j, y0, y1), _inside(what, i, x0, x1))
            total = total + weight[..., None] * taken
            weights = weights + weight
    assert isinstance(total, Tensor)
    assert isinstance(weights, Tensor)
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
    """Return the number of the pixel that stands for this one: int64."""
    if what.outside in MIRRORED:
        length, twice = last - first, int(what.outside == "symmetric")
        period = (2 * (length + twice)).clamp(min=1)
        away = (tap - first) % period  # torch's % has the divisor's sign
        back = period - twice - away
        tap = first + torch.minimum(away, back).clamp(max=length.clamp(min=0)) * (length > 0)
    return torch.minimum(torch.maximum(tap, first), last).long()


def _taken(source: Source, j: Tensor, i: Tensor) -> Tensor:
    # On a CPU more than twice as fast as images[rows, j, i].
    number = source.places + j * source.strides + i
    return source.pixels.index_select(0, number.view(-1)).view(*number.shape, -1).float()


def _channels(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if pixels.shape[-1] == 1:
        return pixels[..., 0], pixels[..., 0], pixels[..., 0]
    return pixels[..., 0], pixels[..., 1], pixels[..., 2]


def _stepped(what: Pass, pixels: Tensor, step: Tensor) -> Tensor:
    """Step 3 for one colour step of every sample: its own kind each."""
    kinds = step[:, 0]
    matrix = step[:, 1:].view(-1, 3, 4)
    pixels, alpha = pixels[..., :3], pixels[..., 3:]
    result = pixels
    for kind, made in (
        (pass_spec.MATRIX, _multiplied(what, pixels, matrix)),
        (pass_spec.HUE, _turned(pixels, step[:, 1])),
        (pass_spec.SOLARIZE, torch.where(pixels >= _sample(step[:, 1]), what.limit - pixels, pixels)),
        (pass_spec.POSTERIZE, _sample(step[:, 1]) * ((pixels + 0.5).floor() / _sample(step[:, 1])).floor()),
    ):
        result = torch.where(_sample(kinds) == kind, made, result)
    return torch.cat([result, alpha], dim=-1) if alpha.shape[-1] else result


def _sample(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


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
    made = []
    for n in (5, 3, 1):
        k = (n + hue) % 6
        made.append(value - spread * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(made, -1)


def noise(seed: Tensor, shape: torch.Size) -> Tensor:
    """Draws of N(0, 1) for every number of [N, h, w, C]: float32, as NOISE_STEP in pass_spec.py says. seed: [N, 1, 1, 1]."""
    _, height, width, channels = shape
    number = torch.arange(height * width * channels, device=seed.device).view(1, height, width, channels)
    hashed = _hash((seed.long() + pass_spec.NOISE_STEP * (number + 1)) & 0xFFFFFFFF)
    a = ((hashed >> 8) + 0.5) / 2**24
    b = (_hash(hashed ^ pass_spec.NOISE_STEP) >> 8) / 2**24
    return (-2 * a.log()).sqrt() * (2 * math.pi * b).cos()


def _hash(x: Tensor) -> Tensor:
    """x: int64, 0 <= x < 2**32."""
    x = x ^ (x >> 16)
    x = _times(x, pass_spec.NOISE_1)
    x = x ^ (x >> 13)
    x = _times(x, pass_spec.NOISE_2)
    return x ^ (x >> 16)


def _times(x: Tensor, factor: int) -> Tensor:
    """Return the low 32 bits of a product that would not fit 63."""
    low = x * (factor & 0xFFFF)
    high = (x * (factor >> 16) & 0xFFFF) << 16
    return (low + high) & 0xFFFFFFFF
