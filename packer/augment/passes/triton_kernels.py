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
from packer.augment.passes.triton_colors import CONTRAST, boxed, cast, in_box, noise, stepped
from packer.augment.passes.triton_sampling import TIE, geometry_at, number_of, read, sampled

# Each launch compares these globals with their values at compile time, a microsecond each.
RED, GREEN, BLUE = map(tl.constexpr, spec.GREY)
STEPS_AT, STEP_WIDTH, BOX_WIDTH = map(tl.constexpr, (spec.STEPS_AT, spec.STEP_WIDTH, spec.BOX_WIDTH))

# Triton must not compile a kernel for each value of these arguments, nor for each alignment of a slice.
# Only the alignment of results is known when it compiles: stores are then as wide as they can be.
_ANY = ["images", "columns", "means", "image_stride", "row_stride", "column_stride", "limit"]


@triton.jit
def _chosen(channel, numbers, C: tl.constexpr):
    """Return the channel's number of up to four."""
    chosen = numbers[0]
    for i in tl.static_range(1, C):
        chosen = tl.where(channel == i, numbers[i], chosen)
    return chosen


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
        across = number_of(x, x0, x1, REFLECT) * C + channel
    for loop in range(LOOPS):
        line = begin + loop * SHAPE.down + below
        v = line.to(tl.float32)
        if STRAIGHT:
            y = e * v + f
        else:
            x, y = a * u + (b * v + c), d * u + (e * v + f)
            across = number_of(x, x0, x1, REFLECT) * C + channel
        there = (number < WIDTH * C) & (line < WHAT.size[0])
        offset = number_of(y, y0, y1, REFLECT) * row_stride + across
        value = read(image + offset)
        if WHAT.framed:
            value = tl.where((x >= left) & (x < right) & (y >= top) & (y < bottom), value, fill)
        if WHAT.scaled:
            value = value * scale + shift
        place = line * (WIDTH * C) + number
        for i in tl.static_range(BOXES):
            box_at = at + (WHAT.boxes_at + BOX_WIDTH * i)
            erased, seed = boxed(box_at)
            if erased:
                inside = in_box(box_at, u, v)
                value = tl.where(inside, noise(seed, place.to(tl.uint32)) if WHAT.noise else box, value)
        tl.store(result + place, cast(value, result.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=_ANY)
def flat(
    out,
    images,
    columns,
    image_stride,
    row_stride,
    column_stride,
    fill,
    scale,
    shift,
    box,
    WHAT: tl.constexpr,
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
    image = images + sample.to(tl.int64) * image_stride
    result = out + sample.to(tl.int64) * (HEIGHT * WIDTH * C)
    a, b, c, d, e, f, x0, y0, x1, y1, _sx, _sy, left, top, right, bottom, _kx, _ky = geometry_at(at)
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


@triton.jit(do_not_specialize=_ANY)
def pixels(
    out,
    images,
    columns,
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
    image = images + sample.to(tl.int64) * image_stride
    result = out + sample.to(tl.int64) * (PIXELS * C)
    geometry = geometry_at(at)
    for loop in range(LOOPS):
        start = begin + loop * BLOCK
        pixel = start + tl.arange(0, BLOCK)
        line = pixel.to(tl.uint32) // WIDTH
        u = (pixel.to(tl.uint32) - line * WIDTH).to(tl.int32).to(tl.float32)
        v = line.to(tl.int32).to(tl.float32)
        red, green, blue, alpha = sampled(image, row_stride, u, v, geometry, fill, WHAT)
        for step in tl.static_range(STEPS):
            step_at, mean = at + STEPS_AT + STEP_WIDTH * step, means + sample * STEPS + step
            red, green, blue = stepped(step_at, mean, red, green, blue, limit, C)
        if WHAT.scaled:
            red, green = red * scale[0] + shift[0], green * scale[1] + shift[1]
            blue, alpha = blue * scale[2] + shift[2], alpha * scale[3] + shift[3]
        for i in tl.static_range(BOXES):
            box_at = at + (WHAT.boxes_at + BOX_WIDTH * i)
            erased, seed = boxed(box_at)
            if erased:
                inside = in_box(box_at, u, v)
                if WHAT.noise:
                    number = pixel.to(tl.uint32) * C
                    red = tl.where(inside, noise(seed, number), red)
                    green = tl.where(inside, noise(seed, number + 1), green)
                    blue = tl.where(inside, noise(seed, number + 2), blue)
                    alpha = tl.where(inside, noise(seed, number + 3), alpha)
                else:
                    red, green = tl.where(inside, box[0], red), tl.where(inside, box[1], green)
                    blue, alpha = tl.where(inside, box[2], blue), tl.where(inside, box[3], alpha)
        dtype: tl.constexpr = out.dtype.element_ty
        colors = cast(red, dtype), cast(green, dtype), cast(blue, dtype), cast(alpha, dtype)
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


@triton.jit(do_not_specialize=_ANY)
def means(
    result,
    images,
    columns,
    image_stride,
    row_stride,
    column_stride,
    limit,
    fill,
    WHAT: tl.constexpr,
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
    image = images + sample.to(tl.int64) * image_stride
    geometry = geometry_at(at)
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
                red, green, blue, _alpha = sampled(image, row_stride, u, v, geometry, fill, WHAT)
                for step in tl.static_range(number):
                    step_at, mean = at + STEPS_AT + STEP_WIDTH * step, result + sample * STEPS + step
                    red, green, blue = stepped(step_at, mean, red, green, blue, limit, C)
                if C == 1:
                    green, blue = red, red
                total += tl.where(there, RED * red + GREEN * green + BLUE * blue, 0.0)
            tl.store(result + sample * STEPS + number, tl.sum(total) / (COLUMNS * LINES))
            tl.debug_barrier()  # later steps read the mean that one thread stored
