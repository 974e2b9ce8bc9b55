"""Passes that use everything that a pass has, with columns and images for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from packer.augment.passes import pass_spec, torch_pass, triton_pass
from packer.augment.passes.pass_spec import Pass
from packer.augment.passes.prepared_draws import PreparedDraws


def normalised(channels: int = 3) -> dict[str, Any]:
    return {
        "scale": tuple(0.02 + 0.003 * c for c in range(channels)),
        "shift": tuple(0.3 * c - 2 for c in range(channels)),
    }


def make_columns(what: Pass, count: int, side: int, seed: int = 0) -> Tensor:
    """Columns that use everything that a pass has: every second sample is straight, the others are turned."""
    draws = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(size or (count,), generator=draws)

    def whole(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=draws).float()

    columns = torch.zeros(count, what.width)
    h, w = what.size
    if what.sampling == "shift":
        quarter = whole(0, 4) * (torch.arange(count) % 2)
        flip = torch.where(whole(0, 2) > 0, -1.0, 1.0)
        cos = torch.tensor([1.0, 0.0, -1.0, 0.0])[quarter.long()]
        sin = torch.tensor([0.0, 1.0, 0.0, -1.0])[quarter.long()]
        columns[:, 0], columns[:, 1], columns[:, 3], columns[:, 4] = cos * flip, -sin, sin * flip, cos
        columns[:, 2] = whole(-3, max(side - w, 0) + 4) + (w - 1) * (columns[:, 0] < 0) + (h - 1) * (sin > 0)
        columns[:, 5] = (
            whole(-3, max(side - h, 0) + 4) + (h - 1) * (columns[:, 4] < 0) + (w - 1) * (columns[:, 3] < 0)
        )
    else:
        angle = uniform(-3, 3) * (torch.arange(count) % 2)
        zoom = uniform(0.6, 2)
        cos, sin = zoom * angle.cos(), zoom * angle.sin()
        columns[:, 0], columns[:, 1], columns[:, 3], columns[:, 4] = cos, -sin, sin, cos
        columns[:, 2] = side / 2 - (w - 1) / 2 * cos + (h - 1) / 2 * sin + uniform(-1, 1)
        columns[:, 5] = side / 2 - (w - 1) / 2 * sin - (h - 1) / 2 * cos + uniform(-1, 1)
        columns[:, 10], columns[:, 11] = zoom.clamp(min=1), (0.8 * zoom).clamp(min=1)
        if what.sampling == "cubic":
            columns[:, 10:12] *= 2
    columns[:, 6:8] = torch.stack([whole(0, 3), whole(0, 3)], 1)
    columns[:, 8:10] = side - 1 - torch.stack([whole(0, 3), whole(0, 3)], 1)
    columns[:, 12:14], columns[:, 14:16] = uniform(-1, 1, count, 2), side - uniform(0, 2, count, 2)
    columns[:, 16:18] = uniform(0.5, 2, count, 2)
    for number in range(what.steps):
        at = pass_spec.STEPS_AT + pass_spec.STEP_WIDTH * number
        columns[:, at] = (torch.arange(count) + number + seed) % 6
        if not what.contrast:
            columns[:, at][columns[:, at] == pass_spec.CONTRAST] = pass_spec.MATRIX
        numbers = {
            pass_spec.MATRIX: uniform(-0.3, 0.9, count, 12),
            pass_spec.CONTRAST: uniform(0.5, 1.5, count, 1),
            pass_spec.HUE: uniform(-0.5, 0.5, count, 1),
            pass_spec.SOLARIZE: uniform(0.3, 0.8, count, 1) * what.limit,
            pass_spec.POSTERIZE: 2.0 ** whole(0, 7)[:, None],
        }
        for kind, values in numbers.items():
            columns[:, at + 1 : at + 1 + values.shape[1]] = torch.where(
                columns[:, at, None] == kind, values, columns[:, at + 1 : at + 1 + values.shape[1]]
            )
    for number in range(what.boxes):
        at = what.boxes_at + pass_spec.BOX_WIDTH * number
        columns[:, at], columns[:, at + 1] = whole(0, w), whole(0, h)
        columns[:, at + 2] = columns[:, at] + whole(-2, w)
        columns[:, at + 3] = columns[:, at + 1] + whole(0, h)
        columns[:, at + 4] = whole(0, 1 << 24)
    return columns


def make_images(
    count: int, channels: int, side: int, dtype: torch.dtype = torch.uint8, device: str = "cpu"
) -> Tensor:
    draws = torch.Generator().manual_seed(count)
    small = torch.randint(0, 256, (count, channels, side, side), generator=draws)
    # Smooth from row to row, so that a position's rounding is no jump of colour.
    images = (torch.arange(side)[:, None] * 2 + torch.arange(side) + 40 * small[:, :, :1, :1]) % 256
    images = torch.where(small < 32, small, images)
    if dtype != torch.uint8:
        images = images / 255
    return images.to(device, dtype).contiguous(memory_format=torch.channels_last)


def both(what: Pass, images: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The results of Triton and of torch; columns with a gap between rows, as they may have."""
    expected = torch.empty(
        (len(columns), what.channels, *what.size), dtype=getattr(torch, what.dtype), device=images.device
    ).contiguous(memory_format=torch.channels_last)
    found = torch.full_like(expected, 77)
    torch_pass.run(what, images, PreparedDraws(columns), expected)
    wide = torch.full((len(columns), what.width + 3), float("nan"))
    wide[:, : what.width] = columns
    draws = PreparedDraws(wide, wide.to(images.device))[:, slice(what.width)]
    assert triton_pass.can(what, images, found)
    triton_pass.run(what, images, draws, found)
    assert all(triton_pass._agreed.values())
    return found, expected


TINY = Pass(3, (7, 11))
CASES: dict[str, tuple[Pass, torch.dtype]] = {
    "shift": (TINY, torch.uint8),
    "shift, uint8": (replace(TINY, dtype="uint8"), torch.uint8),
    "shift, gray": (Pass(1, (7, 11), dtype="uint8"), torch.uint8),
    "shift, two channels, filled": (Pass(2, (7, 11), framed=True, fill=(9, 8)), torch.uint8),
    "shift, four channels, erased": (
        Pass(4, (7, 11), outside="edge", boxes=1, box_fill=(1, 2, 3, 4), **normalised(4)),
        torch.uint8,
    ),
    "shift, bfloat16, reflected": (
        replace(TINY, outside="reflect", dtype="bfloat16", **normalised()),
        torch.uint8,
    ),
    "shift, noise": (replace(TINY, boxes=2, noise=True, **normalised()), torch.uint8),
    "shift, colors": (replace(TINY, steps=2, contrast=True), torch.uint8),
    "shift, colors, gray, of 1": (Pass(1, (7, 11), steps=2, contrast=True, limit=1.0), torch.float16),
    "shift, large, contrast": (Pass(1, (100, 3), steps=1, contrast=True), torch.uint8),
    "nearest, framed": (replace(TINY, sampling="nearest", framed=True, fill=(9, 8, 7)), torch.float32),
    "nearest, reflected": (replace(TINY, sampling="nearest", outside="reflect"), torch.uint8),
    "cubic, framed": (
        replace(TINY, sampling="cubic", framed=True, fill=(9, 8, 7), **normalised()),
        torch.uint8,
    ),
    "cubic, reflected, floats": (
        replace(TINY, sampling="cubic", outside="reflect", dtype="float32"),
        torch.float32,
    ),
    "nearest, symmetric": (replace(TINY, sampling="nearest", outside="symmetric"), torch.uint8),
    "nearest, colors, erased": (
        replace(TINY, sampling="nearest", steps=3, boxes=1, box_fill=(5, 6, 7), **normalised()),
        torch.uint8,
    ),
    "linear": (replace(TINY, sampling="linear"), torch.uint8),
    "linear, gray, edge, uint8": (
        Pass(1, (7, 11), sampling="linear", outside="edge", dtype="uint8"),
        torch.uint8,
    ),
    "linear, two channels": (Pass(2, (7, 11), sampling="linear"), torch.bfloat16),
    "linear, four channels, framed": (
        Pass(4, (7, 11), sampling="linear", framed=True, fill=(9, 8, 7, 6)),
        torch.uint8,
    ),
    "linear, reflected": (replace(TINY, sampling="linear", outside="reflect", dtype="float16"), torch.uint8),
    "linear, everything": (
        replace(
            TINY,
            sampling="linear",
            framed=True,
            fill=(9, 8, 7),
            steps=3,
            contrast=True,
            boxes=1,
            noise=True,
            **normalised(),
        ),
        torch.uint8,
    ),
}
# The interpreter takes as long for what lies beyond a tiny image as for what lies in it.
SMALL = triton_pass.LaunchShape(across=64, down=1, loops=2, warps=1)
