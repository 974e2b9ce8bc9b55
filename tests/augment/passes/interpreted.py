"""Triton's interpreter against torch, as a script: Triton reads TRITON_INTERPRET when it is imported.

python interpreted.py cases              prints {case: [largest difference, disagreement]}
python interpreted.py mutations SEEDS EVERY  prints {mutation: [passes that it changes, in which it is noticed]};
                                         EVERY above 1: of these passes only FEW
python interpreted.py random COUNT       prints [random passes, the largest disagreement, its number]
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from packer.augment.passes import pass_agreement, torch_pass, triton_pass
from packer.augment.passes.prepared_draws import PreparedDraws
from tests.augment.passes.pass_cases import CASES, both, make_columns, make_images

# The interpreter takes as long for what lies beyond a tiny image as for what lies in it.
SMALL = triton_pass.LaunchShape(across=64, down=1, loops=2, warps=1)
COUNT = 8  # images, of which a run of FEW takes half
# Between them, both kernels and the means, each sampling but the slow cubic one, and every effect.
FEW = (
    "shift",
    "shift, four channels, erased",
    "shift, large, contrast",
    "nearest, colors, erased",
    "linear, gray, edge, uint8",
    "linear, everything",
)
# A result of other strides is copied behind the launch of either kernel, whatever the pass.
OTHER_STRIDES = ("shift", "shift, four channels, erased", "shift, colors", "linear, two channels")
KERNELS = ("triton_sampling", "triton_colors", "triton_kernels")
MUTATIONS = {
    "all samples read the first image": ("* image_stride", "* 0"),
    "rows are a pixel too near": ("REFLECT) * row_stride", "REFLECT) * (row_stride - C)"),
    "red is read as blue": ("blue = read(pointer + 2)", "blue = read(pointer)"),
    "the fourth channel is the third": ("alpha = read(pointer + 3)", "alpha = read(pointer + 2)"),
    "green is written as blue": (
        "tl.join(red, blue), tl.join(green, green)",
        "tl.join(red, green), tl.join(blue, blue)",
    ),
    "all channels are red": ("REFLECT) * C + channel", "REFLECT) * C"),
    "the second tap is the first": ("number_of(i + 1.5,", "number_of(i + 0.5,"),
    "a wide filter begins a tap early": ("tl.floor(x - sx) + 1.0", "tl.floor(x - sx)"),
    "a wide filter ends a tap early": ("while down < count_y", "while down < count_y - 2"),
    "weights are not divided by their sum": ("over = 1.0 / weights", "over = 1.0"),
    "the cubic filter's weights": ("(1.5 * t - 2.5) * t * t", "(1.5 * t - 2.0) * t * t"),
    "positions are not clamped": (
        "x, y = tl.minimum(tl.maximum(x, x0), x1), tl.minimum(tl.maximum(y, y0), y1)",
        "x, y = x, y",
    ),
    "pixels before the tap box": ("tl.maximum(x, first), last + 0.5", "tl.maximum(x, 0.0), last + 0.5"),
    "mirrored at the wrong side": ("period - TWICE - away", "period + 1 - TWICE - away"),
    "no right edge of the frame": ("& (x < right)", ""),
    "the frame's edges are not soft": (
        "tl.minimum(tl.maximum(distance + 0.5, 0.0), 1.0)",
        "(distance > 0).to(tl.float32)",
    ),
    "the fill of another channel": ("_framed(green, cover, fill[1])", "_framed(green, cover, fill[0])"),
    "x depends on the row's number alone": (
        "x, y = a * u + (b * v + c), d * u + (e * v + f)",
        "x, y = a * u + c, d * u + (e * v + f)",
    ),
    "green by the matrix's last row": ("g = _row(at + 4", "g = _row(at + 8"),
    "colours are not clamped": (
        "tl.minimum(tl.maximum(factor * color + added, 0.0), limit)",
        "factor * color + added",
    ),
    "the mean of other pixels": (
        "total += tl.where(there, RED * red",
        "total += tl.where(there, 0.9 * RED * red",
    ),
    "means of no pixel": (
        "tl.where(there, RED * red + GREEN * green + BLUE * blue, 0.0)",
        "RED * red + GREEN * green + BLUE * blue",
    ),
    "a sixth of the hue": ("hue += 6.0 * tl.load(at)", "hue += tl.load(at)"),
    "solarized from below": ("red >= threshold", "red < threshold"),
    "posterized half a level lower": ("tl.floor(color + 0.5)", "tl.floor(color - q * 0.5)"),
    "noise of the next number": ("NOISE_STEP * (number + 1)", "NOISE_STEP * (number + 2)"),
    "noise with another seed": ("seed.to(tl.int32)", "(seed + 1).to(tl.int32)"),
    "noise without its cosine": ("* _cosine(b)", ""),
    "boxes begin late": ("(u >= left)", "(u >= left + 1)"),
    "boxes are not erased": ("return left < right,", "return left < left,"),
    "scale is shift": ("red * scale[0] + shift[0]", "red * shift[0] + scale[0]"),
    "bytes are cut off": ("255.0) + 0.5)", "255.0))"),
    "the first block is written again": ("start = begin + loop * BLOCK", "start = begin"),
}


def cases() -> dict[str, list[float]]:
    found = {}
    for name, (what, dtype) in CASES.items():
        count = 6 if what.steps else 3
        images = chosen(make_images(5, what.channels, 13, dtype), count)
        columns = make_columns(what, count, 13)
        triton, plain = both(what, images, columns)
        if name in OTHER_STRIDES:
            planes = torch.empty_like(triton, memory_format=torch.contiguous_format)
            triton_pass.run(what, images.contiguous(), PreparedDraws(columns), planes)
            assert torch.equal(planes, triton)
        apart = (triton.float() - plain.float()).abs().max()
        found[name] = [float(apart), float(pass_agreement.disagreement(what, triton, plain))]
    return found


def chosen(images: Tensor, count: int) -> Tensor:
    """Images in another order, channels_last."""
    return images[torch.arange(count) * 3 % len(images)].contiguous(memory_format=torch.channels_last)


def mutations(seeds: int, every: int = 1) -> dict[str, list[int]]:
    """A pass is changed if any number of the batch is beyond the tolerance."""
    names, count = (list(CASES), COUNT) if every == 1 else (FEW, COUNT // 2)
    expected: dict[tuple[str, int], Any] = {}
    for name in names:
        what, dtype = CASES[name]
        for seed in range(seeds):
            images, columns = (
                chosen(make_images(5, what.channels, 13, dtype), count),
                make_columns(what, count, 13, seed),
            )
            out = torch.empty((count, *what.size, what.channels), dtype=getattr(torch, what.dtype)).permute(
                0, 3, 1, 2
            )
            torch_pass.run(what, images, PreparedDraws(columns), out)
            expected[name, seed] = images, columns, out
    counts = {}
    for number, (mutation, (old, new)) in enumerate([*MUTATIONS.items()][::every]):
        counts[mutation] = [0, 0]
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            kernels = mutant(f"mutant{number}_", old, new, Path(folder))
            patch.setattr(triton_pass, "_kernels", lambda kernels=kernels: kernels)
            for (name, _), (images, columns, plain) in expected.items():
                what, draws, out = CASES[name][0], PreparedDraws(columns), torch.full_like(plain, 77)
                triton_pass._plan.cache_clear()
                triton_pass._launch(what, images, draws, out)
                apart = (out.float() - plain.float()).abs()
                changed = not bool((apart <= pass_agreement.tolerance(what)).all())
                noticed = not triton_pass._agrees(what, images, draws, out)
                counts[mutation][0] += changed or noticed
                counts[mutation][1] += noticed
    triton_pass._plan.cache_clear()
    return counts


def mutant(prefix: str, old: str, new: str, folder: Path) -> Any:
    """The module of the kernels with a text replaced."""
    replaced = 0
    for name in KERNELS:
        text = (Path(triton_pass.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        replaced += text.count(old)
        text = text.replace(old, new).replace("from packer.augment.passes.triton_", f"from {prefix}triton_")
        (folder / f"{prefix}{name}.py").write_text(text, encoding="utf-8")
    assert replaced, old
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return importlib.import_module(f"{prefix}triton_kernels")


def random_passes(count: int) -> list[float]:
    from tests.augment.passes.test_native_pass import made, results

    triton_pass.launch_shape = lambda _: triton_pass.LaunchShape(across=4096, down=1, loops=1, warps=1)
    worst = (0.0, -1)
    for number in range(count):
        what, images, columns = made(number, sampling=("shift", "nearest", "linear", "cubic")[number % 4])  # type: ignore[arg-type]
        found, plain = results(what, len(columns)), results(what, len(columns))
        images = images.contiguous(memory_format=torch.channels_last)
        triton_pass._launch(what, images, PreparedDraws(columns), found)
        torch_pass.run(what, images, PreparedDraws(columns), plain)
        worst = max(worst, (float(pass_agreement.disagreement(what, found, plain)), number))
    return [count, *worst]


def main() -> None:
    torch.set_num_threads(1)
    launch_shape = triton_pass.launch_shape
    triton_pass.launch_shape = lambda what: launch_shape(what) if triton_pass.is_flat(what) else SMALL
    run, *given = sys.argv[1:]
    done: Any = {"cases": cases, "mutations": mutations, "random": random_passes}[run](*map(int, given))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
