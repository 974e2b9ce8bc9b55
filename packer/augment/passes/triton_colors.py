# mypy: ignore-errors
# Triton's language has Python's syntax, but annotations have another meaning.
"""Steps 3, 5 and 6 of a pass in Triton (pass_spec.py): colour steps, erased boxes with noise, and casts."""

import triton
import triton.language as tl

from packer.augment.passes import pass_spec as spec

# Each launch compares these globals with their values at compile time, a microsecond each.
_, MATRIX, CONTRAST, HUE, SOLARIZE, POSTERIZE = map(tl.constexpr, spec.KINDS)
NOISE_STEP, NOISE_1, NOISE_2 = map(tl.constexpr, (spec.NOISE_STEP, spec.NOISE_1, spec.NOISE_2))


@triton.jit
def _row(at, red, green, blue, limit):
    """Return the product of a matrix row with a colour, clamped."""
    made = tl.load(at) * red + tl.load(at + 1) * green + tl.load(at + 2) * blue + tl.load(at + 3)
    return tl.minimum(tl.maximum(made, 0.0), limit)


@triton.jit
def _mixed(color, factor, added, limit):
    return tl.minimum(tl.maximum(factor * color + added, 0.0), limit)


@triton.jit
def _turned(value, spread, place):
    k = place - 6.0 * tl.floor(place * (1.0 / 6.0))
    return value - spread * tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0)


@triton.jit
def _posterized(color, q):
    # The approximate division could round the quotient of two whole numbers below a whole number.
    return q * tl.floor(tl.div_rn(tl.floor(color + 0.5), tl.zeros_like(color) + q))


@triton.jit
def stepped(at, mean, red, green, blue, limit, C: tl.constexpr):
    """Apply a colour step. at: pointer to its 13 numbers. mean: pointer to its mean, for CONTRAST."""
    kind = tl.load(at)
    at += 1
    if C == 1:
        green, blue = red, red
    if kind == MATRIX:
        r = _row(at, red, green, blue, limit)
        if C > 1:
            g = _row(at + 4, red, green, blue, limit)
            blue = _row(at + 8, red, green, blue, limit)
            green = g
        red = r
    elif kind == CONTRAST:
        factor = tl.load(at)
        added = (1.0 - factor) * tl.load(mean)
        red, green = _mixed(red, factor, added, limit), _mixed(green, factor, added, limit)
        blue = _mixed(blue, factor, added, limit)
    elif kind == HUE:
        if C > 1:
            value = tl.maximum(tl.maximum(red, green), blue)
            spread = value - tl.minimum(tl.minimum(red, green), blue)
            over = 1.0 / tl.where(spread > 0, spread, 1.0)
            hue = tl.where(
                value == red,
                (green - blue) * over,
                tl.where(value == green, 2.0 + (blue - red) * over, 4.0 + (red - green) * over),
            )
            hue += 6.0 * tl.load(at)
            red = _turned(value, spread, 5.0 + hue)
            green = _turned(value, spread, 3.0 + hue)
            blue = _turned(value, spread, 1.0 + hue)
    elif kind == SOLARIZE:
        threshold = tl.load(at)
        red = tl.where(red >= threshold, limit - red, red)
        green = tl.where(green >= threshold, limit - green, green)
        blue = tl.where(blue >= threshold, limit - blue, blue)
    elif kind == POSTERIZE:
        q = tl.load(at)
        red, green, blue = _posterized(red, q), _posterized(green, q), _posterized(blue, q)
    return red, green, blue


@triton.jit
def _hash(x):
    x = x ^ (x >> 16)
    x = x * NOISE_1
    x = x ^ (x >> 13)
    x = x * NOISE_2
    return x ^ (x >> 16)


@triton.jit
def _cosine(turns):
    """Return cos(2 pi turns), 0 <= turns <= 1, to 1e-7, by sine's series to z**11 within a quarter turn.

    tl.cos takes any angle; its code for large angles uses local memory.
    """
    z = 6.283185307179586 * (tl.abs(turns - 0.5) - 0.25)
    w = z * z
    series = w * (1.0 / 362880.0 - w * (1.0 / 39916800.0)) - 1.0 / 5040.0
    return z * (1.0 + w * (-1.0 / 6.0 + w * (1.0 / 120.0 + w * series)))


@triton.jit
def noise(seed, number):
    """Return draws of N(0, 1). seed: float32, a whole number. number: uint32."""
    hashed = _hash(seed.to(tl.int32).to(tl.uint32) + NOISE_STEP * (number + 1))
    a = ((hashed >> 8).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 16777216.0)
    b = (_hash(hashed ^ NOISE_STEP) >> 8).to(tl.int32).to(tl.float32) * (1.0 / 16777216.0)
    # The approximate logarithm may be slightly above 0 for a just below 1.
    return tl.sqrt(tl.maximum(-2.0 * tl.log(a), 0.0)) * _cosine(b)


@triton.jit
def in_box(box_at, u, v):
    """Return True for pixels (u, v) inside a box."""
    left, top = tl.load(box_at), tl.load(box_at + 1)
    right, bottom = tl.load(box_at + 2), tl.load(box_at + 3)
    return (u >= left) & (u < right) & (v >= top) & (v < bottom)


@triton.jit
def boxed(box_at):
    """Return True if a box is not empty, and its seed."""
    left, right = tl.load(box_at), tl.load(box_at + 2)
    return left < right, tl.load(box_at + 4)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """Return results as they are written."""
    if dtype == tl.uint8:
        return tl.floor(tl.minimum(tl.maximum(x, 0.0), 255.0) + 0.5).to(tl.int32).to(tl.uint8)
    return x.to(dtype)
