"""packer.augment.geometric, AffinePlacement: products of 3x3 matrices, the pixels that may be read, the picture's edges."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from packer.augment.geometric import AffinePlacement
from packer.augment.passes import pass_spec

Floats = NDArray[np.float64]


def matrices(placement: AffinePlacement) -> Floats:
    """float64 [N, 3, 3]."""
    rows = placement.matrix.T.reshape(-1, 2, 3)
    return np.concatenate([rows, np.broadcast_to([[[0.0, 0, 1]]], (len(rows), 1, 3))], axis=1)


def matrix(*numbers: float) -> Floats:
    return np.array([*numbers, 0, 0, 1], float).reshape(3, 3)


def test_operations_are_products_of_matrices() -> None:
    draws = np.random.default_rng(0)
    for _ in range(30):
        placement = AffinePlacement(4, (20, 30))
        expected = np.broadcast_to(np.eye(3), (4, 3, 3))
        for _ in range(6):
            height, width = placement.size
            way = draws.integers(4)
            if way == 0:
                across, down = draws.random((2, 4)) < 0.5
                placement.mirror(across)
                placement.mirror(down, down=True)
                made = [
                    matrix(-1 if x else 1, 0, width if x else 0, 0, -1 if y else 1, height if y else 0)
                    for x, y in zip(across, down, strict=True)
                ]
            elif way == 1:
                left, top = draws.integers(-5, 10, (2, 4))
                placement.cut(left, top, (13, 17))
                made = [matrix(1, 0, x, 0, 1, y) for x, y in zip(left, top, strict=True)]
            elif way == 2:
                left, top = draws.integers(0, 5, (2, 4))
                w, h = draws.integers(1, 9, (2, 4))
                placement.stretch((left, top, w, h), (11, 19), True, "linear")
                made = [
                    matrix(ww / 19, 0, x, 0, hh / 11, y) for x, y, ww, hh in zip(left, top, w, h, strict=True)
                ]
            else:
                numbers = draws.normal(size=(6, 4))
                placement.turn(*numbers)
                made = [matrix(*n) for n in numbers.T]
            expected = expected @ np.stack(made)
        np.testing.assert_allclose(matrices(placement), expected, rtol=1e-9, atol=1e-9)


def test_columns_go_from_the_middle_of_a_pixel_to_the_middle_of_a_pixel() -> None:
    placement = AffinePlacement(1, (20, 30))
    placement.turn(*np.array([[2.0], [0.5], [3.0], [-0.25], [1.5], [4.0]]))
    columns = placement.columns()
    assert columns.dtype == np.float32
    assert columns.shape == (1, pass_spec.STEPS_AT)
    a, b, c, d, e, f = columns[0, :6]
    for u, v in ((0, 0), (7, 3)):
        x, y = (matrices(placement)[0] @ [u + 0.5, v + 0.5, 1])[:2]
        np.testing.assert_allclose([a * u + b * v + c + 0.5, d * u + e * v + f + 0.5], [x, y], rtol=1e-6)


def test_a_resize_reads_only_what_was_cut_before_it() -> None:
    placement = AffinePlacement(2, (20, 30))
    placement.mirror(np.array([False, True]))
    placement.cut(np.array([4, 4]), np.array([2, 2]), (10, 12))
    box = np.array([1, 1]), np.array([3, 3]), np.array([5, 5]), np.array([6, 6])
    placement.stretch(box, (24, 10), True, "linear")
    columns = placement.columns()
    # The second is mirrored: its columns are counted from the right.
    assert columns[:, pass_spec.TAPS_AT : pass_spec.SUPPORT_AT].tolist() == [[5, 5, 9, 10], [20, 5, 24, 10]]
    assert columns[:, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT].tolist() == [[1, 1], [1, 1]]


def test_there_is_always_a_pixel_to_read() -> None:
    placement = AffinePlacement(4, (20, 30))
    left, top = np.array([-40, 60, 3, -3]), np.array([5, 30, -25, -3])
    placement.cut(left, top, (8, 8), read_only=False)
    placement.stretch((0, 0, 8, 8), (4, 4), True, "linear")
    taps = placement.columns()[:, pass_spec.TAPS_AT : pass_spec.SUPPORT_AT].tolist()
    assert taps == [[0, 5, 0, 12], [29, 19, 29, 19], [3, 0, 10, 0], [0, 0, 4, 4]]


@pytest.mark.parametrize(("antialias", "support"), [(True, [3, 2]), (False, [1, 1])])
def test_the_filter_widens_where_it_shrinks(antialias: bool, support: list[float]) -> None:
    placement = AffinePlacement(1, (20, 30))
    placement.stretch((0, 0, 30, 20), (10, 10), antialias, "linear")
    assert placement.columns()[0, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT].tolist() == support
    # What shrinks without a resize keeps the filter, as torchvision's affine.
    placement.turn(2.0, 0.0, 0.0, 0.0, 2.0, 0.0)
    assert placement.columns()[0, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT].tolist() == support


def test_the_picture_ends_where_it_was_cut_and_never_begins_again() -> None:
    placement = AffinePlacement(1, (20, 30))
    assert (np.abs(placement.columns()[0, pass_spec.FRAME_AT : pass_spec.SHARPNESS_AT]) > 1e5).all()
    placement.see_outside()
    placement.cut(-4, -6, (24, 24), read_only=False)
    placement.see_outside()
    assert placement.columns()[0, pass_spec.FRAME_AT : pass_spec.SHARPNESS_AT].tolist() == [
        -0.5,
        -0.5,
        19.5,
        17.5,
    ]
    placement.turn(0.0, 1.0, 0.0, -1.0, 0.0, 0.0)
    placement.see_outside()  # after a turn its edges are no longer level: those before count
    assert placement.columns()[0, pass_spec.FRAME_AT : pass_spec.SHARPNESS_AT].tolist() == [
        -0.5,
        -0.5,
        19.5,
        17.5,
    ]


def test_an_edge_is_as_wide_as_a_pixel_of_the_picture_that_ends() -> None:
    small = AffinePlacement(1, (20, 30))
    small.stretch((0, 0, 30, 20), (80, 60), True, "linear")
    small.see_outside()
    assert small.columns()[0, pass_spec.SHARPNESS_AT : pass_spec.STEPS_AT].tolist() == [2, 4]
    large = AffinePlacement(1, (20, 30))
    large.see_outside()
    assert large.columns()[0, pass_spec.SHARPNESS_AT : pass_spec.STEPS_AT].tolist() == [1, 1]
    large.stretch((0, 0, 30, 20), (10, 60), True, "linear")
    assert large.columns()[0, pass_spec.SHARPNESS_AT : pass_spec.STEPS_AT].tolist() == [1, 0.5]


def test_what_was_undone_did_not_happen() -> None:
    placement = AffinePlacement(3, (20, 20))
    placement.mirror(np.array([True, False, True]))
    before = placement.copy()
    untouched = before.columns().copy()
    placement.see_outside()
    placement.turn(0.5, 0.5, 1.0, -0.5, 0.5, 2.0)
    placement.stretch((1, 2, 10, 10), (20, 20), True, "linear")
    changed = placement.columns()
    placement.restore(np.array([True, False, True]), before)
    found = placement.columns()
    np.testing.assert_array_equal(found[[0, 2]], untouched[[0, 2]])
    np.testing.assert_array_equal(found[1], changed[1])
    np.testing.assert_array_equal(before.columns(), untouched)


def test_no_samples_have_no_columns() -> None:
    placement = AffinePlacement(0, (20, 30))
    placement.mirror(np.zeros(0, bool))
    placement.cut(2, 3, (8, 8))
    placement.see_outside()
    placement.stretch((0, 0, 8, 8), (4, 4), True, "linear")
    assert placement.columns().shape == (0, pass_spec.STEPS_AT)
