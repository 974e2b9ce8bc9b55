"""The specification of one pass over images, which all its implementations share.

A pass reads images [M, H, W, C] once and writes results [N, h, w, C] once. A `Pass` holds what all samples of
a batch have in common; one row of float32 `columns` [N, P] holds the numbers of each sample:

    0..5     a b c d e f     position in the source of the result's pixel (u, v), in pixel numbers:
                             x = a u + b v + c,  y = d u + e v + f    (0, 0: the middle of the first pixel)
    6..9     x0 y0 x1 y1     tap box: the first and last pixel that may be read, inclusive, in the source
                             (whole numbers): 0 <= x0 <= x1 < W, 0 <= y0 <= y1 < H
    10 11    sx sy           half the filter's width, in source pixels, at least 1 (cubic: 2)
    12..15   left top right bottom    frame: the edges of the picture, in the same coordinates
                             (-0.5 and W - 0.5 if the picture fills an image of width W)
    16 17    kx ky           sharpness of the frame: 1 / the width of its edges in source pixels, across
                             and down
    18 ..    13 numbers for each colour step: its kind, and up to 12 parameters
    ...      5 numbers for each erased box: left, top, right, bottom (result pixels, right and bottom
             exclusive; right <= left: nothing is erased), and a seed for noise (whole, 0 <= seed < 2**24)
    ...      if `ragged`, 5 whole numbers: place // 2**24, place % 2**24, height H, width W, stride. All
             images lie in one array of pixels [P, C]; the source's pixel (x, y) is its pixel number
             place + y stride + x, and H and W are the size of the sample's image. If only a part of an image
             is stored, which must contain the tap box, H and W are the bottom and right edge of the part in
             the image, and place, the number of the image's first pixel, may be negative.
             If b and d are 0 and sampling is "linear", images of 3 channels may also be stored as [P, 4],
             which JPEG decodes into faster.

Each pixel of a result is computed in float32, in this order:

1. **Sample.** xn = x + 2**-12 and yn = y + 2**-12 make all implementations break ties alike (a position
   between two pixels goes to the right one).
   "shift" and "nearest": the pixel floor(xn + 0.5), floor(yn + 0.5). "shift" guarantees whole positions.
   "linear": a triangle filter, as in an antialiased resize. With edge and constant, x is first clamped to
   [x0, x1] and y to [y0, y1]. The taps across are i = floor(x - sx) + 1 + k for k < ceil(2 sx), with weights
   max(0, 1 - |i - x| / sx); those down correspond. The weight of a tap is the product of both; taps outside
   the box have weight 0, and the sum is divided by the sum of the weights.
   "cubic": the same with x clamped to [x0 - 0.5, x1 + 0.5], y correspondingly, and with t = 2 |i - x| / sx
   the weight 1.5 t^3 - 2.5 t^2 + 1 for t < 1, -0.5 t^3 + 2.5 t^2 - 4 t + 2 for t < 2, else 0 (Keys, a = -0.5,
   as in Pillow); the sum is clamped to [0, limit] if limit is more than 1.
   Taps outside the box: edge and constant take the nearest pixel of the box (only "shift" and "nearest" ever
   need it). "reflect" mirrors pixel numbers at the first and last pixel of the box, without repeating these
   (all samplings, at any distance; a box of one pixel gives that pixel); "symmetric" mirrors at the edges of
   the box, so that the first and last pixel are repeated.
2. **Frame**, if `framed`: colour = cover * colour + (1 - cover) * fill. For "linear" and "cubic", cover is
   the product of clamp((x - left) kx + 0.5), clamp((right - x) kx + 0.5) and the corresponding terms of y,
   each clamped to [0, 1], with x and y before step 1 clamped them. For the others it is 1 where
   left <= xn < right and top <= yn < bottom, else 0.
3. **Colour steps**, in order. They apply to red, green and blue of images of 3 channels, to three copies of
   the channel of images of 1, and to the first three of 4 channels; the fourth is unchanged:
   NONE     no change
   MATRIX   12 numbers m, row by row: channel i becomes m[4i] r + m[4i+1] g + m[4i+2] b + m[4i+3], clamped to
            [0, limit] (images of 1 channel: i = 0)
   CONTRAST f: x -> clamp(f x + (1 - f) mean). mean is the mean of the grey values
            (0.2989 r + 0.587 g + 0.114 b) after steps 1, 2 and the earlier colour steps, over the result's
            pixels (u, v) with u = p // 2 + i p and v = q // 2 + j q, where p, q = `Pass.strides`: all pixels
            of a small image, 48 to 96 a side of a larger one.
   HUE      t: in HSV, the hue moves by t turns (no change to images of 1 channel). With V = max, D = V - min,
            and h in sixths of a turn (V == r: (g - b) / D, else V == g: 2 + (b - r) / D, else 4 + (r - g) /
            D; D == 0: 0), channel i becomes V - D clamp(min(k, 4 - k), 0, 1), k = (n_i + h + 6 t) mod 6 with
            n = 5, 3, 1.
   SOLARIZE t: x >= t becomes limit - x
   POSTERIZE q: x becomes q floor(floor(x + 0.5) / q)
4. **Scale.** x -> x * scale + shift, by channel.
5. **Erase.** Pixels in a box become `box_fill`, by channel. With `noise` each number becomes a draw of
   N(0, 1) instead (see NOISE_STEP). Later boxes overwrite earlier ones.
6. **Write** as `dtype`; uint8 is floor(x + 0.5) of x clamped to [0, 255].

Images are uint8 or floating point, of 1 to 4 channels. `run_pass` converts 16-bit images to float32, and
passes images of more channels in groups of four; torch_pass.py takes any number of channels, which noise
needs.

Means, matrices and coordinates are float32, and the order of summation is free. Implementations therefore
agree to a few units in the last place of float32 (relative to the limit), not bit by bit; a position within
rounding of a tie may select the neighbouring pixel, and a uint8 may round the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Sampling = Literal["shift", "nearest", "linear", "cubic"]
Outside = Literal["constant", "edge", "reflect", "symmetric"]
SAMPLINGS, OUTSIDES = get_args(Sampling), get_args(Outside)
"""torchvision's padding modes. "constant" samples as "edge" does; the frame then applies the fill."""
MIRRORED = ("reflect", "symmetric")

DTYPES = ("uint8", "float32", "float16", "bfloat16")
"""Dtypes of results that the C and Triton implementations support."""

TIE = 2.0**-12
MOST_CHANNELS = 4
"""Largest number of channels that the C and Triton implementations support."""

GREY = (0.2989, 0.587, 0.114)
"""ITU-R BT.601's luma as torchvision rounds it."""

KINDS = NONE, MATRIX, CONTRAST, HUE, SOLARIZE, POSTERIZE = range(6)

MATRIX_AT, TAPS_AT, SUPPORT_AT, FRAME_AT, SHARPNESS_AT, STEPS_AT = 0, 6, 10, 12, 16, 18
STEP_WIDTH, BOX_WIDTH, SOURCE_WIDTH = 13, 5, 5
PLACE_STEP = 2**24
"""float32 represents every whole number below this exactly."""

_GRID = 96


@dataclass(frozen=True)
class Pass:
    """The parameters of a pass that all samples share.

    channels: number of channels of source and result (1, 3 or 4 with colour steps).
    size: (h, w) of the result.
    sampling, outside: see above.
    framed: True if step 2 applies; fill: its colour, by channel, in the source's scale.
    steps: number of colour steps. contrast: True if a step may be CONTRAST, which needs means.
    limit: the largest pixel value: 255, 65535 or 1.
    scale, shift: by channel; None skips step 4.
    boxes: number of erased boxes; box_fill: their colour, by channel, in the result's scale; noise: True to
        fill them with noise instead.
    dtype: of the result, "uint8" (only without scale), "float32", "float16" or "bfloat16"; `run_pass` also
        takes "uint16".
    ragged: True if images differ in size; the last columns then locate each image in memory.
    """

    channels: int
    size: tuple[int, int]
    sampling: Sampling = "shift"
    outside: Outside = "constant"
    framed: bool = False
    fill: tuple[float, ...] = ()
    steps: int = 0
    contrast: bool = False
    limit: float = 255.0
    scale: tuple[float, ...] | None = None
    shift: tuple[float, ...] | None = None
    boxes: int = 0
    box_fill: tuple[float, ...] = ()
    noise: bool = False
    dtype: str = "float32"
    ragged: bool = False

    @property
    def width(self) -> int:
        """Number of columns of a sample, P."""
        return self.source_at + SOURCE_WIDTH * self.ragged

    @property
    def source_at(self) -> int:
        """Index of the first column that locates a ragged image."""
        return self.boxes_at + BOX_WIDTH * self.boxes

    @property
    def boxes_at(self) -> int:
        """Index of the first column of the erased boxes."""
        return STEPS_AT + STEP_WIDTH * self.steps

    @property
    def weighted(self) -> bool:
        """True if sampling computes weighted sums of several pixels."""
        return self.sampling in ("linear", "cubic")

    @property
    def wider(self) -> bool:
        """True if ragged images of 3 channels may be stored as [P, 4], where b and d are 0."""
        return self.ragged and self.channels == 3 and self.sampling == "linear"

    @property
    def scaled(self) -> bool:
        """True if step 4 applies."""
        return self.scale is not None

    @property
    def in_loops(self) -> bool:
        """True if the C and Triton implementations support the channels and steps; torch_pass.py does all."""
        return 1 <= self.channels <= MOST_CHANNELS and (not self.steps or self.channels in (1, 3))

    @property
    def colours(self) -> tuple[tuple[float, ...], ...]:
        """fill, scale, shift and box_fill, each padded with zeros to four numbers."""
        given = (self.fill, self.scale or (), self.shift or (), self.box_fill)
        if any(len(numbers) not in (0, self.channels) for numbers in given):
            raise ValueError(
                f"a pass: fill, scale, shift and box_fill are {given} for {self.channels} channels;"
                " one number a channel, or none, is allowed. Pass as many as there are channels."
            )
        return tuple((*map(float, numbers), 0.0, 0.0, 0.0, 0.0)[:MOST_CHANNELS] for numbers in given)

    @property
    def strides(self) -> tuple[int, int]:
        """Strides, across and down, of the grid over which the mean for CONTRAST is computed."""
        return -(-self.size[1] // _GRID), -(-self.size[0] // _GRID)


NOISE_STEP, NOISE_1, NOISE_2 = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35
"""Constants of the noise; its integer arithmetic is unsigned, 32 bits wide, and wraps around.

    number = (v * w + u) * C + channel, seed = the box's column as a whole number
    h = hash(seed + NOISE_STEP * (number + 1)), h' = hash(h ^ NOISE_STEP)
    a = ((h >> 8) + 0.5) / 2**24, b = (h' >> 8) / 2**24    (24 bits, which float32 represents exactly)
    noise = sqrt(-2 ln a) cos(2 pi b)    (Box, Muller 1958)
    hash(x): x ^= x >> 16; x *= NOISE_1; x ^= x >> 13; x *= NOISE_2; x ^= x >> 16
        (MurmurHash3's finaliser, public domain)
"""
