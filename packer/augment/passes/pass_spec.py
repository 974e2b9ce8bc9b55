"""The specification of one pass over images, which its implementations share.

A pass makes, from images [M, H, W, C], results [N, h, w, C] in one reading and one writing. What is the same
for all of a batch stands in a `Pass`; what differs by sample stands in one row of float32 `columns` [N, P]:

    0..5     a b c d e f     where the result's pixel (u, v) lies in the source, in pixel numbers:
                             x = a u + b v + c,  y = d u + e v + f    (0, 0: the middle of the first pixel)
    6..9     x0 y0 x1 y1     the taps' box: first and last pixel that may be read (whole numbers, inclusive), in the source:
                             0 <= x0 <= x1 < W, 0 <= y0 <= y1 < H
    10 11    sx sy           half the filter's width, in source pixels, at least 1 (cubic: 2)
    12..15   left top right bottom    the frame: where the picture ends, in the same coordinates (an image of
                             width W that is all picture: -0.5 and W - 0.5)
    16 17    kx ky           the frame's sharpness: 1 / the width of its edges in source pixels, across and down
    18 ..    for each colour step 13 numbers: its kind, and up to 12 numbers
    ...      for each box to erase 5 numbers: left, top, right, bottom (result pixels, the last two exclusive;
             right <= left: nothing is erased), and a seed (whole, 0 <= seed < 2**24) for noise
    ...      if `ragged`, 5 numbers, all whole: place // 2**24, place % 2**24, height H, width W, stride. The source's pixel
             (x, y) is then pixel number place + y stride + x of one memory [P, C] that holds all images, and H and W are its own.
             Where only a part of an image lies there, which the taps' box does not leave, H and W are that part's bottom and
             right edge in the image, and place, of the image's first pixel, may be negative.
             Where b and d are 0 and sampling is "linear", a memory [P, 4] serves 3 channels, too: JPEG is decoded into it faster

For each pixel of a result, in this order, computed in float32:

1. **Sample.** xn = x + 2**-12 and yn = y + 2**-12 break ties alike everywhere (a position between two pixels goes
   to the right one).
   "shift" and "nearest": the pixel floor(xn + 0.5), floor(yn + 0.5). "shift" promises that positions are whole.
   "linear": a triangle filter, as in an antialiased resize. With edge and constant, x is first moved into [x0, x1] and y
   into [y0, y1]. Taps across are i = floor(x - sx) + 1 + k for k < ceil(2 sx), of weight max(0, 1 - |i - x| / sx);
   down alike; a tap's weight is the product, taps outside the box have none, and the sum is divided by the weights' sum.
   "cubic": the same with x moved into [x0 - 0.5, x1 + 0.5], y alike, and of t = 2 |i - x| / sx the weight
   1.5 t^3 - 2.5 t^2 + 1 below 1, -0.5 t^3 + 2.5 t^2 - 4 t + 2 below 2, else 0 (Keys, a = -0.5, as Pillow's); the sum
   is clamped to [0, limit] if that is more than 1.
   Pixel numbers outside the box: with edge and constant the nearest pixel of the box is taken ("shift", "nearest"; the others
   never need one); with "reflect" the number is mirrored at the box's first and last pixel, which are not repeated
   (all samplings, however far outside; a box of one pixel gives that pixel), with "symmetric" at the box's edges, so
   that the first and last pixel are.
2. **Frame**, if `framed`: colour = cover * colour + (1 - cover) * fill. For "linear" and "cubic" cover is the product of
   clamp((x - left) kx + 0.5), clamp((right - x) kx + 0.5) and the same for y, with y's own, clamped to [0, 1] and x not
   moved; for the others it is 1 where left <= xn < right and top <= yn < bottom, else 0.
3. **Colour steps**, in order; red, green, blue of images of 3 channels, three times the same of images of 1; images of 4
   channels: the first three; the fourth is kept:
   NONE     nothing
   MATRIX   12 numbers m, row by row: channel i becomes m[4i] r + m[4i+1] g + m[4i+2] b + m[4i+3], clamped to
            [0, limit] (images of 1 channel: i = 0)
   CONTRAST f: x -> clamp(f x + (1 - f) mean). The mean is that of the grey values (0.2989 r + 0.587 g + 0.114 b) that
            steps 1, 2 and the earlier colour steps give the result's pixels (u, v) with u = p // 2 + i p and
            v = q // 2 + j q, where p, q = `Pass.strides`: all of a small image, 48 to 96 a side of others.
   HUE      t: in HSV, the hue moves by t turns (images of 1 channel: nothing). With V = max, D = V - min, and h in
            sixths of a turn (V == r: (g - b) / D, else V == g: 2 + (b - r) / D, else 4 + (r - g) / D; D == 0: 0),
            channel i becomes V - D clamp(min(k, 4 - k), 0, 1), k = (n_i + h + 6 t) mod 6 with n = 5, 3, 1.
   SOLARIZE t: x >= t becomes limit - x
   POSTERIZE q: x becomes q floor(floor(x + 0.5) / q)
4. **Scale.** x -> x * scale + shift, by channel.
5. **Erase.** Pixels in a box become `box_fill`, by channel, or with `noise` a draw of N(0, 1) for each number
   (`noise` below). Later boxes win.
6. **Write** as `dtype`; uint8 is floor(x + 0.5) of x clamped to [0, 255].

Images are uint8 or floating point, of 1 to 4 channels: deep images, of 16 bits or more channels, are passed as float32, four
channels at a time (`run_pass`); torch_pass.py takes any number, which noise needs.

Means, matrices and coordinates are float32 and sums may be made in another order, so implementations agree to a
few units of float32's last place (of the limit), not to the bit; a position within rounding of a tie may go to
the neighbouring pixel in one of them, and a uint8 may round the other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Sampling = Literal["shift", "nearest", "linear", "cubic"]
Outside = Literal["constant", "edge", "reflect", "symmetric"]
SAMPLINGS, OUTSIDES = get_args(Sampling), get_args(Outside)
"""torchvision's padding modes; of "constant" the nearest pixel counts, and the frame says what is filled."""
MIRRORED = ("reflect", "symmetric")

DTYPES = ("uint8", "float32", "float16", "bfloat16")
"""Of results that the passes in C and in Triton make."""

TIE = 2.0**-12
MOST_CHANNELS = 4
"""That the passes in C and in Triton take."""

GREY = (0.2989, 0.587, 0.114)
"""ITU-R BT.601's luma as torchvision rounds it."""

KINDS = NONE, MATRIX, CONTRAST, HUE, SOLARIZE, POSTERIZE = range(6)

MATRIX_AT, TAPS_AT, SUPPORT_AT, FRAME_AT, SHARPNESS_AT, STEPS_AT = 0, 6, 10, 12, 16, 18
STEP_WIDTH, BOX_WIDTH, SOURCE_WIDTH = 13, 5, 5
PLACE_STEP = 2**24
"""float32 holds every whole number below."""

_GRID = 96


@dataclass(frozen=True)
class Pass:
    """A pass, but for the numbers that differ by sample.

    channels: of source and result (colour steps: 1, 3 or 4). size: (h, w) of the result.
    sampling, outside: see above. framed: whether the frame is looked at, and then fill, in the source's scale, by channel.
    steps: colour steps. limit: the largest value of a pixel, 255, 65535 or 1.
    scale, shift: by channel, or None: values are written as they are.
    boxes: to erase; box_fill: by channel, in the result's scale; noise: instead of it.
    dtype: of the result, "uint8", "float32", "float16" or "bfloat16"; uint8 only without scale. ("uint16" for `run_pass`.)
    contrast: whether a step may be CONTRAST, so that means are needed.
    ragged: whether images differ in size, so that columns say where each lies.
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
        """Columns a sample: P."""
        return self.source_at + SOURCE_WIDTH * self.ragged

    @property
    def source_at(self) -> int:
        """The first of the columns that say where an image lies."""
        return self.boxes_at + BOX_WIDTH * self.boxes

    @property
    def boxes_at(self) -> int:
        """The first of the boxes' columns."""
        return STEPS_AT + STEP_WIDTH * self.steps

    @property
    def weighted(self) -> bool:
        """True if a value is made of several pixels."""
        return self.sampling in ("linear", "cubic")

    @property
    def wider(self) -> bool:
        """True if the memory of ragged images may hold four numbers a pixel, the first three of which count, where b and d are 0."""
        return self.ragged and self.channels == 3 and self.sampling == "linear"

    @property
    def scaled(self) -> bool:
        """True if values are multiplied and moved before they are written."""
        return self.scale is not None

    @property
    def in_loops(self) -> bool:
        """True if the loops in C and in Triton make such colours; torch's operations make all."""
        return 1 <= self.channels <= MOST_CHANNELS and (not self.steps or self.channels in (1, 3))

    @property
    def colours(self) -> tuple[tuple[float, ...], ...]:
        """Fill, scale, shift and box_fill: a number a channel each, then zeros, up to four. None given: zeros."""
        given = (self.fill, self.scale or (), self.shift or (), self.box_fill)
        if any(len(numbers) not in (0, self.channels) for numbers in given):
            raise ValueError(
                f"a pass: {given} are not a number for each of {self.channels} channels. Pass as many as there are channels."
            )
        return tuple((*map(float, numbers), 0.0, 0.0, 0.0, 0.0)[:MOST_CHANNELS] for numbers in given)

    @property
    def strides(self) -> tuple[int, int]:
        """Strides across and down of the grid over which a mean for CONTRAST is taken."""
        return -(-self.size[1] // _GRID), -(-self.size[0] // _GRID)


NOISE_STEP, NOISE_1, NOISE_2 = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35
"""Noise of a number: all in 32-bit unsigned arithmetic that wraps round.

    h = hash(seed + NOISE_STEP * (number + 1)), with seed the column as a whole number, number = (v * w + u) * C + channel
    hash(x): x ^= x >> 16; x *= NOISE_1; x ^= x >> 13; x *= NOISE_2; x ^= x >> 16   (MurmurHash3's finaliser, public domain)
    a = (h + 0.5) / 2**32, b = hash(h ^ NOISE_STEP) / 2**32; noise = sqrt(-2 ln a) cos(2 pi b)   (Box, Muller 1958)

a and b are made of the upper 24 bits (h >> 8) so that float32 holds them: a = ((h >> 8) + 0.5) / 2**24, b = (h' >> 8) / 2**24.
"""
