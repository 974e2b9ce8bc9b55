# mypy: ignore-errors
# Triton's language has Python's syntax, but annotations have another meaning.
"""Steps 1 and 2 of a pass in Triton (pass_spec.py): sample the source, and apply the frame.

REFLECT is 1 for "reflect", 2 for "symmetric", else 0. C is the number of channels, WHAT a Pass.
"""

import triton
import triton.language as tl

from packer.augment.passes import pass_spec as spec

# The first 18 columns of a sample have no names here: each launch compares globals with their values at
# compile time, a microsecond each.
TIE = tl.constexpr(spec.TIE)


@triton.jit
def geometry_at(at):
    """Return a sample's first 18 columns. Call it before any loop: the compiler moves no load before a store.

    An empty tap box may end before 0; its pixels are undefined, but reads must stay inside the image.
    """
    a, b, c = tl.load(at), tl.load(at + 1), tl.load(at + 2)
    d, e, f = tl.load(at + 3), tl.load(at + 4), tl.load(at + 5)
    x0, y0 = tl.load(at + 6), tl.load(at + 7)
    x1, y1 = tl.maximum(tl.load(at + 8), 0.0), tl.maximum(tl.load(at + 9), 0.0)
    sx, sy = tl.load(at + 10), tl.load(at + 11)
    left, top = tl.load(at + 12), tl.load(at + 13)
    right, bottom = tl.load(at + 14), tl.load(at + 15)
    kx, ky = tl.load(at + 16), tl.load(at + 17)
    return a, b, c, d, e, f, x0, y0, x1, y1, sx, sy, left, top, right, bottom, kx, ky


@triton.jit
def read(pointer):
    """Return numbers of images as float32.

    Loads need no mask: positions past the end of a block or frame are clamped to the tap box too, and a mask
    costs more than a load from the cache.
    """
    value = tl.load(pointer)
    if value.dtype == tl.uint8:
        value = value.to(tl.int32)  # a GPU converts 32 bits four times as fast as 8
    return value.to(tl.float32)


@triton.jit
def _mirrored(tap, first, last, TWICE: tl.constexpr):
    """Return pixel numbers mirrored at the ends of a box, which TWICE repeats; all float32 and whole."""
    length = last - first
    period = tl.maximum(2.0 * (length + TWICE), 1.0)
    away = tap - first
    away = away - period * tl.floor(away / period)
    away = tl.minimum(tl.minimum(away, period - TWICE - away), length)
    return tl.minimum(tl.maximum(first + away, first), last)


@triton.jit
def number_of(x, first, last, REFLECT: tl.constexpr):
    """Return the pixel number in the box for a position plus 0.5: int32; the first for NaN."""
    if REFLECT:
        return _mirrored(tl.floor(x), first, last, REFLECT - 1).to(tl.int32)
    # Clamped to the box it is not negative, so truncation rounds down.
    return tl.minimum(tl.maximum(x, first), last + 0.5).to(tl.int32)


@triton.jit
def _edge(distance):
    return tl.minimum(tl.maximum(distance + 0.5, 0.0), 1.0)


@triton.jit
def _taken(pointer, C: tl.constexpr):
    """Return four channels of pixels. Those beyond C repeat the first; they are unused and cost nothing."""
    red = read(pointer)
    green, blue, alpha = red, red, red
    if C > 1:
        green = read(pointer + 1)
    if C > 2:
        blue = read(pointer + 2)
    if C > 3:
        alpha = read(pointer + 3)
    return red, green, blue, alpha


@triton.jit
def _weight(tap, middle, over, first, last, CUBIC: tl.constexpr, REFLECT: tl.constexpr):
    near = tl.abs(tap - middle) * over
    weight = tl.maximum(1.0 - near, 0.0)
    if CUBIC:
        t = 2.0 * near
        outer = tl.where(t < 2.0, ((2.5 - 0.5 * t) * t - 4.0) * t + 2.0, 0.0)
        weight = tl.where(t < 1.0, (1.5 * t - 2.5) * t * t + 1.0, outer)
    if not REFLECT:
        weight = tl.where(tl.minimum(tl.maximum(tap, first), last) == tap, weight, 0.0)
    return weight


@triton.jit
def _bilinear(image, row_stride, x, y, box, C: tl.constexpr, REFLECT: tl.constexpr):
    """Sample with a triangle filter of half width 1: two by two taps, whose weights sum to 1.

    A second tap outside the box has weight 0.
    """
    x0, y0, x1, y1 = box
    i, j = tl.floor(x), tl.floor(y)
    right, below = x - i, y - j
    left, above = 1.0 - right, 1.0 - below
    first, second = number_of(i + 0.5, x0, x1, REFLECT) * C, number_of(i + 1.5, x0, x1, REFLECT) * C
    upper = number_of(j + 0.5, y0, y1, REFLECT) * row_stride
    lower = number_of(j + 1.5, y0, y1, REFLECT) * row_stride
    r0, g0, b0, a0 = _taken(image + (upper + first), C)
    r1, g1, b1, a1 = _taken(image + (upper + second), C)
    r2, g2, b2, a2 = _taken(image + (lower + first), C)
    r3, g3, b3, a3 = _taken(image + (lower + second), C)
    w0, w1, w2, w3 = above * left, above * right, below * left, below * right
    return (
        w0 * r0 + w1 * r1 + w2 * r2 + w3 * r3,
        w0 * g0 + w1 * g1 + w2 * g2 + w3 * g3,
        w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3,
        w0 * a0 + w1 * a1 + w2 * a2 + w3 * a3,
    )


@triton.jit
def _wide(image, row_stride, x, y, box, half, C: tl.constexpr, CUBIC: tl.constexpr, REFLECT: tl.constexpr):
    """Sample with a filter of any width. box: the tap box. half: half the filter's width, across and down."""
    x0, y0, x1, y1 = box
    sx, sy = half
    first_x, first_y = tl.floor(x - sx) + 1.0, tl.floor(y - sy) + 1.0
    count_x, count_y = tl.ceil(2.0 * sx).to(tl.int32), tl.ceil(2.0 * sy).to(tl.int32)
    over_x, over_y = 1.0 / sx, 1.0 / sy
    red = tl.zeros_like(x)
    green, blue, alpha, weights = red, red, red, red
    # Two by two taps at a time, so that their loads overlap; an excess tap has weight 0.
    down = 0
    while down < count_y:
        across = 0
        while across < count_x:
            for second_down in tl.static_range(2):
                j = first_y + (down + second_down)
                weight_y = _weight(j, y, over_y, y0, y1, CUBIC, REFLECT)
                line = number_of(j + 0.5, y0, y1, REFLECT) * row_stride
                for second_across in tl.static_range(2):
                    i = first_x + (across + second_across)
                    weight = weight_y * _weight(i, x, over_x, x0, x1, CUBIC, REFLECT)
                    r, g, b, a = _taken(image + (line + number_of(i + 0.5, x0, x1, REFLECT) * C), C)
                    red += weight * r
                    green += weight * g
                    blue += weight * b
                    alpha += weight * a
                    weights += weight
            across += 2
        down += 2
    over = 1.0 / weights
    return red * over, green * over, blue * over, alpha * over


@triton.jit
def _filtered(image, row_stride, x, y, box, half, WHAT: tl.constexpr, REFLECT: tl.constexpr):
    """Sample with the triangle or the cubic filter."""
    C: tl.constexpr = WHAT.channels
    MOST: tl.constexpr = WHAT.limit
    x0, y0, x1, y1 = box
    sx, sy = half
    if WHAT.sampling == "cubic":
        if not REFLECT:
            x = tl.minimum(tl.maximum(x, x0 - 0.5), x1 + 0.5)
            y = tl.minimum(tl.maximum(y, y0 - 0.5), y1 + 0.5)
        red, green, blue, alpha = _wide(image, row_stride, x, y, box, half, C, True, REFLECT)
        if MOST > 1:
            red, green = tl.minimum(tl.maximum(red, 0.0), MOST), tl.minimum(tl.maximum(green, 0.0), MOST)
            blue, alpha = tl.minimum(tl.maximum(blue, 0.0), MOST), tl.minimum(tl.maximum(alpha, 0.0), MOST)
    else:
        if not REFLECT:
            x, y = tl.minimum(tl.maximum(x, x0), x1), tl.minimum(tl.maximum(y, y0), y1)
        if (sx <= 1.0) & (sy <= 1.0):
            red, green, blue, alpha = _bilinear(image, row_stride, x, y, box, C, REFLECT)
        else:
            red, green, blue, alpha = _wide(image, row_stride, x, y, box, half, C, False, REFLECT)
    return red, green, blue, alpha


@triton.jit
def _framed(color, cover, fill):
    return tl.where(cover > 0, cover * color + (1.0 - cover) * fill, fill)


@triton.jit
def sampled(image, row_stride, u, v, geometry, fill, WHAT: tl.constexpr):
    """Return the pixels at u and v (float32) after steps 1 and 2."""
    C: tl.constexpr = WHAT.channels
    REFLECT: tl.constexpr = (WHAT.outside == "reflect") + 2 * (WHAT.outside == "symmetric")
    a, b, c, d, e, f, x0, y0, x1, y1, sx, sy, left, top, right, bottom, kx, ky = geometry
    x, y = a * u + (b * v + c), d * u + (e * v + f)
    if WHAT.framed:
        if WHAT.weighted:
            cover = _edge((x - left) * kx) * _edge((right - x) * kx)
            cover *= _edge((y - top) * ky) * _edge((bottom - y) * ky)
        else:
            xn, yn = x + TIE, y + TIE
            cover = ((xn >= left) & (xn < right) & (yn >= top) & (yn < bottom)).to(tl.float32)
    if WHAT.weighted:
        red, green, blue, alpha = _filtered(
            image, row_stride, x, y, (x0, y0, x1, y1), (sx, sy), WHAT, REFLECT
        )
    else:
        i = number_of(x + (TIE + 0.5), x0, x1, REFLECT)
        j = number_of(y + (TIE + 0.5), y0, y1, REFLECT)
        red, green, blue, alpha = _taken(image + (j * row_stride + i * C), C)
    if WHAT.framed:
        red, green = _framed(red, cover, fill[0]), _framed(green, cover, fill[1])
        blue, alpha = _framed(blue, cover, fill[2]), _framed(alpha, cover, fill[3])
    return red, green, blue, alpha
