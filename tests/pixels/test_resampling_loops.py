"""Both forms of each loop against plain arithmetic; the compiled one also against nonsense."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer import native
from packer.convert.pixel_sums import channel_sums, channel_sums_numpy
from packer.pixels.resampling import FilterAxis, resample_numpy, triangle

Resample = Callable[[NDArray[np.uint8], NDArray[np.uint8], FilterAxis, FilterAxis], None]
compiled = pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")


def in_c(source: NDArray[np.uint8], result: NDArray[np.uint8], down: FilterAxis, across: FilterAxis) -> None:
    native.loops.resample(source, result, *down, *across)


FORMS = [pytest.param(resample_numpy, id="numpy"), *([pytest.param(in_c, id="C")] if native.COMPILED else [])]
used = in_c if native.COMPILED else resample_numpy

KINDS = [(1, 1), (3, 3), (4, 3), (4, 4)]


def weighted(source: NDArray[np.uint8], axis: FilterAxis) -> NDArray[np.uint8]:
    """The sums of rows as resampling.py words them."""
    rows = [
        np.tensordot(weights.astype(np.int64), source[first : first + len(weights)].astype(np.int64), 1)
        for first, weights in zip(axis.first, axis.weights, strict=True)
    ]
    return np.asarray((np.stack(rows) + (1 << axis.bits >> 1)) >> axis.bits, np.uint8)


def expected(
    source: NDArray[np.uint8], down: FilterAxis, across: FilterAxis, channels: int
) -> NDArray[np.uint8]:
    rows = weighted(source[..., :channels], down)
    return weighted(rows.swapaxes(0, 1), across).swapaxes(0, 1)


@pytest.mark.parametrize("resample", FORMS)
@settings(max_examples=75)
@given(
    source=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    result=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    shrunk=st.sampled_from([1, 1, 2, 4, 8]),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
    cut=st.tuples(*[st.floats(0, 0.9)] * 4),
)
def test_every_form_gives_the_same_bytes(
    resample: Resample,
    source: tuple[int, int],
    result: tuple[int, int],
    shrunk: int,
    kind: tuple[int, int],
    seed: int,
    cut: tuple[float, float, float, float],
) -> None:
    draws = np.random.default_rng(seed)
    axes = []
    for pixels, results, begin, lost in zip(source, result, cut[:2], cut[2:], strict=True):
        start = int(begin * pixels * shrunk)
        length = max(1, int((1 - lost) * (pixels * shrunk - start)))
        axes.append(triangle(pixels, start, length, shrunk, results))
    # Rows lie apart in both, and nothing beside the result may change.
    sheet = draws.choice(np.array([0, 1, 128, 254, 255], np.uint8), (source[0] + 2, source[1] + 3, kind[0]))
    picture = sheet[1:-1, 1:-2]
    canvas = np.full((result[0] + 2, result[1] + 3, kind[1]), 77, np.uint8)
    out = canvas[1:-1, 1:-2]
    resample(picture, out, axes[0], axes[1])
    assert np.array_equal(out, expected(picture, axes[0], axes[1], kind[1]))
    out[...] = 77
    assert (canvas == 77).all()


@pytest.mark.parametrize("resample", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [300, 130, 84, 30, 9, 2, 1])
def test_white_stays_white_at_every_ratio(resample: Resample, kind: tuple[int, int], side: int) -> None:
    axis = triangle(200, 0, 200, 1, side)
    out = np.zeros((side, side, kind[1]), np.uint8)
    resample(np.full((200, 200, kind[0]), 255, np.uint8), out, axis, axis)
    assert (out == 255).all()


@pytest.mark.parametrize("resample", FORMS)
def test_upside_down_and_read_only_sources(resample: Resample) -> None:
    source = np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8)
    source.flags.writeable = False
    axis = triangle(30, 0, 30, 1, 20)
    out, turned = np.empty((20, 20, 3), np.uint8), np.empty((20, 20, 3), np.uint8)
    resample(source[::-1], out, axis, axis)
    resample(np.ascontiguousarray(source[::-1]), turned, axis, axis)
    assert np.array_equal(out, turned)


def test_threads_do_not_disturb_each_other() -> None:
    draws = np.random.default_rng(0)
    sources = draws.integers(0, 256, (4, 150, 150, 4), dtype=np.uint8)
    axis = triangle(150, 0, 150, 1, 96)
    right = [expected(source, axis, axis, 3) for source in sources]
    wrong = []

    def work(number: int) -> None:
        out = np.empty((96, 96, 3), np.uint8)
        for _ in range(20):
            used(sources[number], out, axis, axis)
            if not np.array_equal(out, right[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("sums", [channel_sums_numpy, channel_sums])
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 4]), st.integers(1, 70), st.integers(1, 90))
def test_sums_are_exact(
    sums: Callable[[NDArray[np.uint8]], tuple[list[int], list[int]]],
    seed: int,
    channels: int,
    rows: int,
    columns: int,
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (2, rows, columns, channels), dtype=np.uint8)
    wide = pixels.reshape(-1, channels).astype(np.int64)
    assert sums(pixels) == (wide.sum(0).tolist(), (wide**2).sum(0).tolist())


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("count", [48 * 256, 48 * 256 * 3 + 12])
def test_sums_of_white_do_not_overflow(channels: int, count: int) -> None:
    pixels = np.full((1, count // channels, channels), 255, np.uint8)
    values = [255 * (count // channels)] * channels
    assert channel_sums(pixels) == (values, [255 * value for value in values])


def picture(*shape: int) -> NDArray[np.uint8]:
    return np.zeros(shape, np.uint8)


GOOD = triangle(8, 0, 8, 1, 4)
PICTURES = "resample: pictures are uint8 [h, w, 1, 3 or 4], with pixels side by side."
UNFIT = "an axis: does not fit the pictures."
FOREIGN = "an axis: its shape or dtype is not that of triangle()."


@compiled
@pytest.mark.parametrize(
    ("source", "result", "down", "message"),
    [
        (picture(8, 8), picture(4, 4, 3), GOOD, PICTURES),
        (picture(8, 8, 3), picture(4, 4, 4), GOOD, PICTURES),
        (picture(8, 8, 2), picture(4, 4, 2), GOOD, PICTURES),
        (picture(8, 16, 3)[:, ::2], picture(4, 4, 3), GOOD, PICTURES),
        (picture(0, 8, 3), picture(4, 4, 3), GOOD, PICTURES),
        (picture(8, 8, 3).astype(np.uint16), picture(4, 4, 3), GOOD, PICTURES),
        (picture(8, 8, 3), picture(5, 4, 3), GOOD, UNFIT),
        (picture(7, 8, 3), picture(4, 4, 3), GOOD, UNFIT),
        (picture(8, 8, 3), picture(4, 4, 3), GOOD._replace(first=GOOD.first - 1), UNFIT),
        (picture(8, 8, 3), picture(4, 4, 3), GOOD._replace(bits=9), UNFIT),
        (picture(8, 8, 3), picture(4, 4, 3), GOOD._replace(weights=GOOD.weights[:3]), UNFIT),
        (picture(8, 8, 3), picture(4, 4, 3), GOOD._replace(weights=np.ones((4, 7), np.uint16)), UNFIT),
        (picture(8, 8, 3), picture(4, 4, 3), GOOD._replace(first=GOOD.first.astype(np.int64)), FOREIGN),
        (picture(8, 8, 3), picture(4, 4, 3), GOOD._replace(weights=GOOD.weights.ravel()), FOREIGN),
    ],
)
def test_nothing_outside_the_arrays_is_touched(
    source: NDArray[np.uint8], result: NDArray[np.uint8], down: FilterAxis, message: str
) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 the whole sentence is compared
        in_c(source, result, down, GOOD)
    assert str(error.value) == message


@compiled
def test_sums_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 the whole sentence is compared
        native.loops.channel_sums(picture(4, 4, 2))
    assert str(error.value) == "channel_sums: pixels are uint8 [..., 1, 3 or 4]."


def test_packer_works_without_the_compiled_form() -> None:
    code = """
        import sys
        sys.modules["packer.native._native"] = None
        import numpy as np
        from packer import native
        from packer.convert.pixel_sums import channel_sums
        from packer.pixels.decode_resize import Box
        from packer.pixels.decode_resize import resize
        assert not native.COMPILED
        out = np.empty((5, 5, 3), np.uint8)
        resize(np.full((9, 9, 4), 50, np.uint8), Box(0, 0, 9, 9), out)
        assert (out == 50).all()
        assert channel_sums(out) == ([1250] * 3, [62500] * 3)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
