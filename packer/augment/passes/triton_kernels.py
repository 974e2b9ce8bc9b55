# mypy: ignore-errors
# Triton's language has Python's syntax, but annotations have another meaning.
"""The Triton kernels of a pass: a kernel that reads and writes once, and another for the means of CONTRAST.

    flat      independent numbers in memory order: shift and nearest without colour steps
    pixels    all channels of a pixel at a time: every other pass
    means     the means of CONTRAST, one program for each sample, launched before `pixels`

Each program computes some blocks of one sample and reads the sample's columns once. A difference between
samples therefore costs a branch or a loop bound, not a selection for each pixel. pass_spec.py specifies the
computation.

WHAT is a Pass without its numbers, which are arguments (see triton_pass.py); SHAPE is a LaunchShape.
"""

import triton
import triton.language as tl

from packer.augment.passes import pass_spec as spec

DIRECT = tuple(map(int, triton.__version__.split(".")[:2])) == (3, 6)
"""True for versions of Triton whose compiled kernels take the function's arguments, constants included."""

# Each launch compares these globals with their values at compile time, a microsecond each. The first 18
# columns of a sample therefore have no names here.
TIE = tl.constexpr(spec.TIE)
RED, GREEN, BLUE = map(tl.constexpr, spec.GREY)
_, MATRIX, CONTRAST, HUE, SOLARIZE, POSTERIZE = map(tl.constexpr, spec.KINDS)
STEPS_AT, STEP_WIDTH, BOX_WIDTH = map(tl.constexpr, (spec.STEPS_AT, spec.STEP_WIDTH, spec.BOX_WIDTH))
NOISE_STEP, NOISE_1, NOISE_2 = map(tl.constexpr, (spec.NOISE_STEP, spec.NOISE_1, spec.NOISE_2))

# Triton must not compile a kernel for each value of these arguments.
_NUMBERS = ["image_stride", "row_stride", "column_stride", "limit"]


@triton.jit
def _geometry(at):
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
def _source(images, rows, sample, image_stride, ROWS: tl.constexpr):
    """Return a pointer to the first pixel of a sample's image."""
    return images + (tl.load(rows + sample) if ROWS else sample.to(tl.int64)) * image_stride


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
def _noise(seed, number):
    """Return draws of N(0, 1). seed: float32, a whole number. number: uint32."""
    hashed = _hash(seed.to(tl.int32).to(tl.uint32) + NOISE_STEP * (number + 1))
    a = ((hashed >> 8).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 16777216.0)
    b = (_hash(hashed ^ NOISE_STEP) >> 8).to(tl.int32).to(tl.float32) * (1.0 / 16777216.0)
    # The approximate logarithm may be slightly above 0 for a just below 1.
    return tl.sqrt(tl.maximum(-2.0 * tl.log(a), 0.0)) * _cosine(b)


@triton.jit
def _read(pointer):
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
def _number(x, first, last, REFLECT: tl.constexpr):
    """Return the pixel number in the box for a position plus 0.5: int32; the first for NaN."""
    if REFLECT:
        return _mirrored(tl.floor(x), first, last, REFLECT - 1).to(tl.int32)
    # Clamped to the box it is not negative, so truncation rounds down.
    return tl.minimum(tl.maximum(x, first), last + 0.5).to(tl.int32)


@triton.jit
def _chosen(channel, numbers, C: tl.constexpr):
    """Return the channel's number of up to four."""
    chosen = numbers[0]
    for i in tl.static_range(1, C):
        chosen = tl.where(channel == i, numbers[i], chosen)
    return chosen


@triton.jit
def _in_box(box_at, u, v):
    left, top = tl.load(box_at), tl.load(box_at + 1)
    right, bottom = tl.load(box_at + 2), tl.load(box_at + 3)
    return (u >= left) & (u < right) & (v >= top) & (v < bottom)


@triton.jit
def _boxed(box_at):
    """Return True if a box is not empty, and its seed."""
    left, right = tl.load(box_at), tl.load(box_at + 2)
    return left < right, tl.load(box_at + 4)


@triton.jit
def _cast(x, dtype: tl.constexpr):
    if dtype == tl.uint8:
        return tl.floor(tl.minimum(tl.maximum(x, 0.0), 255.0) + 0.5).to(tl.int32).to(tl.uint8)
    return x.to(dtype)


@triton.jit
def _lines(where, block, geometry, numbers, WHAT: tl.constexpr, SHAPE: tl.constexpr, STRAIGHT: tl.constexpr):
    """Run the loop of `flat`. STRAIGHT: b and d are 0, so all lines share the positions across."""
    C: tl.constexpr = WHAT.channels
    REFLECT: tl.constexpr = (WHAT.outside == "reflect") + 2 * (WHAT.outside == "symmetric")
    WIDTH: tl.constexpr = WHAT.size[1]
    BOXES: tl.constexpr = WHAT.boxes
    LOOPS: tl.constexpr = SHAPE.loops
    result, image, at, row_stride = where
    begin, within, number, channel, u = block
    below = within // SHAPE.across
    fill, scale, shift, box = numbers
    a, b, c, d, e, f, x0, y0, x1, y1, left, top, right, bottom = geometry
    if STRAIGHT:
        x = a * u + c
        across = _number(x, x0, x1, REFLECT) * C + channel
    for loop in range(LOOPS):
        line = begin + loop * SHAPE.down + below
        v = line.to(tl.float32)
        if STRAIGHT:
            y = e * v + f
        else:
            x, y = a * u + (b * v + c), d * u + (e * v + f)
            across = _number(x, x0, x1, REFLECT) * C + channel
        there = (number < WIDTH * C) & (line < WHAT.size[0])
        offset = _number(y, y0, y1, REFLECT) * row_stride + across
        value = _read(image + offset)
        if WHAT.framed:
            value = tl.where((x >= left) & (x < right) & (y >= top) & (y < bottom), value, fill)
        if WHAT.scaled:
            value = value * scale + shift
        place = line * (WIDTH * C) + number
        for i in tl.static_range(BOXES):
            box_at = at + (WHAT.boxes_at + BOX_WIDTH * i)
            erased, seed = _boxed(box_at)
            if erased:
                inside = _in_box(box_at, u, v)
                value = tl.where(inside, _noise(seed, place.to(tl.uint32)) if WHAT.noise else box, value)
        tl.store(result + place, _cast(value, result.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=_NUMBERS)
def flat(
    out,
    images,
    columns,
    rows,
    image_stride,
    row_stride,
    column_stride,
    fill,
    scale,
    shift,
    box,
    WHAT: tl.constexpr,
    ROWS: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Compute `across` numbers of `down * loops` lines of a sample."""
    C: tl.constexpr = WHAT.channels
    HEIGHT: tl.constexpr = WHAT.size[0]
    WIDTH: tl.constexpr = WHAT.size[1]
    ACROSS: tl.constexpr = SHAPE.across
    LINES: tl.constexpr = SHAPE.down * SHAPE.loops
    TILES_ACROSS: tl.constexpr = (WIDTH * C + ACROSS - 1) // ACROSS
    TILES: tl.constexpr = TILES_ACROSS * ((HEIGHT + LINES - 1) // LINES)
    sample = tl.program_id(0) // TILES
    tile = tl.program_id(0) % TILES
    at = columns + sample.to(tl.int64) * column_stride
    image = _source(images, rows, sample, image_stride, ROWS)
    result = out + sample.to(tl.int64) * (HEIGHT * WIDTH * C)
    a, b, c, d, e, f, x0, y0, x1, y1, _sx, _sy, left, top, right, bottom, _kx, _ky = _geometry(at)
    # With this offset, positions rounded down are pixel numbers; the frame needs the same offset.
    c, f = c + (TIE + 0.5), f + (TIE + 0.5)
    left, top, right, bottom = left + 0.5, top + 0.5, right + 0.5, bottom + 0.5
    geometry = a, b, c, d, e, f, x0, y0, x1, y1, left, top, right, bottom
    # The tile is one-dimensional: Triton then sees that stores are contiguous, and loads in the same order.
    # Its optimiser finds the values that neighbouring numbers (a multiple of 32) share.
    within = tl.arange(0, ACROSS * SHAPE.down)
    number = (tile % TILES_ACROSS) * ACROSS + within % ACROSS
    column = number.to(tl.uint32) // C  # unsigned division by a constant is one multiplication
    channel = (number.to(tl.uint32) - column * C).to(tl.int32)
    u = column.to(tl.int32).to(tl.float32)
    begin = (tile // TILES_ACROSS) * LINES
    where = result, image, at, row_stride
    block = begin, within, number, channel, u
    fill, scale = _chosen(channel, fill, C), _chosen(channel, scale, C)
    shift, box = _chosen(channel, shift, C), _chosen(channel, box, C)
    numbers = fill, scale, shift, box
    if (b == 0) & (d == 0):
        _lines(where, block, geometry, numbers, WHAT, SHAPE, STRAIGHT=True)
    else:
        _lines(where, block, geometry, numbers, WHAT, SHAPE, STRAIGHT=False)


@triton.jit
def _edge(distance):
    return tl.minimum(tl.maximum(distance + 0.5, 0.0), 1.0)


@triton.jit
def _taken(pointer, C: tl.constexpr):
    """Return four channels of pixels. Those beyond C repeat the first; they are unused and cost nothing."""
    red = _read(pointer)
    green, blue, alpha = red, red, red
    if C > 1:
        green = _read(pointer + 1)
    if C > 2:
        blue = _read(pointer + 2)
    if C > 3:
        alpha = _read(pointer + 3)
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
    first, second = _number(i + 0.5, x0, x1, REFLECT) * C, _number(i + 1.5, x0, x1, REFLECT) * C
    upper = _number(j + 0.5, y0, y1, REFLECT) * row_stride
    lower = _number(j + 1.5, y0, y1, REFLECT) * row_stride
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
                line = _number(j + 0.5, y0, y1, REFLECT) * row_stride
                for second_across in tl.static_range(2):
                    i = first_x + (across + second_across)
                    weight = weight_y * _weight(i, x, over_x, x0, x1, CUBIC, REFLECT)
                    r, g, b, a = _taken(image + (line + _number(i + 0.5, x0, x1, REFLECT) * C), C)
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
def _sampled(image, row_stride, u, v, geometry, fill, WHAT: tl.constexpr):
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
        i = _number(x + (TIE + 0.5), x0, x1, REFLECT)
        j = _number(y + (TIE + 0.5), y0, y1, REFLECT)
        red, green, blue, alpha = _taken(image + (j * row_stride + i * C), C)
    if WHAT.framed:
        red, green = _framed(red, cover, fill[0]), _framed(green, cover, fill[1])
        blue, alpha = _framed(blue, cover, fill[2]), _framed(alpha, cover, fill[3])
    return red, green, blue, alpha


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
def _stepped(at, mean, red, green, blue, limit, C: tl.constexpr):
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


@triton.jit(do_not_specialize=_NUMBERS)
def pixels(
    out,
    images,
    columns,
    rows,
    means,
    image_stride,
    row_stride,
    column_stride,
    limit,
    fill,
    scale,
    shift,
    box,
    WHAT: tl.constexpr,
    ROWS: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Compute `across * loops` pixels of a sample."""
    C: tl.constexpr = WHAT.channels
    WIDTH: tl.constexpr = WHAT.size[1]
    STEPS: tl.constexpr = WHAT.steps
    BOXES: tl.constexpr = WHAT.boxes
    BLOCK: tl.constexpr = SHAPE.across
    LOOPS: tl.constexpr = SHAPE.loops
    PIXELS: tl.constexpr = WHAT.size[0] * WIDTH
    PROGRAMS: tl.constexpr = (PIXELS + BLOCK * LOOPS - 1) // (BLOCK * LOOPS)
    sample = tl.program_id(0) // PROGRAMS
    begin = (tl.program_id(0) % PROGRAMS) * (BLOCK * LOOPS)
    at = columns + sample.to(tl.int64) * column_stride
    image = _source(images, rows, sample, image_stride, ROWS)
    result = out + sample.to(tl.int64) * (PIXELS * C)
    geometry = _geometry(at)
    for loop in range(LOOPS):
        start = begin + loop * BLOCK
        pixel = start + tl.arange(0, BLOCK)
        line = pixel.to(tl.uint32) // WIDTH
        u = (pixel.to(tl.uint32) - line * WIDTH).to(tl.int32).to(tl.float32)
        v = line.to(tl.int32).to(tl.float32)
        red, green, blue, alpha = _sampled(image, row_stride, u, v, geometry, fill, WHAT)
        for step in tl.static_range(STEPS):
            step_at, mean = at + STEPS_AT + STEP_WIDTH * step, means + sample * STEPS + step
            red, green, blue = _stepped(step_at, mean, red, green, blue, limit, C)
        if WHAT.scaled:
            red, green = red * scale[0] + shift[0], green * scale[1] + shift[1]
            blue, alpha = blue * scale[2] + shift[2], alpha * scale[3] + shift[3]
        for i in tl.static_range(BOXES):
            box_at = at + (WHAT.boxes_at + BOX_WIDTH * i)
            erased, seed = _boxed(box_at)
            if erased:
                inside = _in_box(box_at, u, v)
                if WHAT.noise:
                    number = pixel.to(tl.uint32) * C
                    red = tl.where(inside, _noise(seed, number), red)
                    green = tl.where(inside, _noise(seed, number + 1), green)
                    blue = tl.where(inside, _noise(seed, number + 2), blue)
                    alpha = tl.where(inside, _noise(seed, number + 3), alpha)
                else:
                    red, green = tl.where(inside, box[0], red), tl.where(inside, box[1], green)
                    blue, alpha = tl.where(inside, box[2], blue), tl.where(inside, box[3], alpha)
        dtype: tl.constexpr = out.dtype.element_ty
        colors = _cast(red, dtype), _cast(green, dtype), _cast(blue, dtype), _cast(alpha, dtype)
        _write(result, start, colors, C, PIXELS, SHAPE)


@triton.jit
def _write(result, start, colors, C: tl.constexpr, PIXELS: tl.constexpr, SHAPE: tl.constexpr):
    """Store a block of pixels contiguously.

    For three channels, four threads write a pixel, one of them idle, so that a warp writes full 32-byte
    sectors.
    """
    BLOCK: tl.constexpr = SHAPE.across
    red, green, blue, alpha = colors
    number = start * C + tl.arange(0, BLOCK * C if C != 3 else BLOCK)
    if C == 1:
        tl.store(result + number, red, mask=number < PIXELS)
    elif C == 2:
        tl.store(result + number, tl.interleave(red, green), mask=number < PIXELS * 2)
    elif C == 4:
        both = tl.interleave(tl.interleave(red, blue), tl.interleave(green, alpha))
        tl.store(result + number, both, mask=number < PIXELS * 4)
    else:
        four = tl.reshape(tl.join(tl.join(red, blue), tl.join(green, green)), (BLOCK, 4))
        place = start + tl.arange(0, BLOCK)
        channel = tl.arange(0, 4)
        there = (place < PIXELS)[:, None] & (channel < 3)[None, :]
        tl.store(result + (place * 3)[:, None] + channel[None, :], four, mask=there)


@triton.jit(do_not_specialize=_NUMBERS)
def means(
    result,
    images,
    columns,
    rows,
    image_stride,
    row_stride,
    column_stride,
    limit,
    fill,
    WHAT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Store the mean of every CONTRAST of a sample. result: float32 [N, steps]."""
    C: tl.constexpr = WHAT.channels
    STEPS: tl.constexpr = WHAT.steps
    ACROSS: tl.constexpr = WHAT.strides[0]
    DOWN: tl.constexpr = WHAT.strides[1]
    BLOCK: tl.constexpr = 1024
    COLUMNS: tl.constexpr = (WHAT.size[1] - ACROSS // 2 + ACROSS - 1) // ACROSS
    LINES: tl.constexpr = (WHAT.size[0] - DOWN // 2 + DOWN - 1) // DOWN
    sample = tl.program_id(0)
    at = columns + sample.to(tl.int64) * column_stride
    image = _source(images, rows, sample, image_stride, ROWS)
    geometry = _geometry(at)
    for number in tl.static_range(STEPS):
        if tl.load(at + STEPS_AT + STEP_WIDTH * number) == CONTRAST:
            total = tl.zeros((BLOCK,), dtype=tl.float32)
            for begin in range(0, COLUMNS * LINES, BLOCK):
                place = begin + tl.arange(0, BLOCK)
                there = place < COLUMNS * LINES
                line = place.to(tl.uint32) // COLUMNS
                column = (place.to(tl.uint32) - line * COLUMNS) * ACROSS + ACROSS // 2
                u = column.to(tl.int32).to(tl.float32)
                v = (line * DOWN + DOWN // 2).to(tl.int32).to(tl.float32)
                red, green, blue, _alpha = _sampled(image, row_stride, u, v, geometry, fill, WHAT)
                for step in tl.static_range(number):
                    step_at, mean = at + STEPS_AT + STEP_WIDTH * step, result + sample * STEPS + step
                    red, green, blue = _stepped(step_at, mean, red, green, blue, limit, C)
                if C == 1:
                    green, blue = red, red
                total += tl.where(there, RED * red + GREEN * green + BLUE * blue, 0.0)
            tl.store(result + sample * STEPS + number, tl.sum(total) / (COLUMNS * LINES))
            tl.debug_barrier()  # later steps read the mean that one thread stored
