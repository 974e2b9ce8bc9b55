"""GaussianBlur against float64 sums and OpenCV's filter; one draw an image; a sentence a mistake."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import GaussianBlur, Pipeline, RandomApply
from tests.augment.conftest import assert_uniform, given, noise_images, one, refusal

Floats = NDArray[np.float64]


def weights(size: int, sigma: float) -> Floats:
    far = np.arange(size) - size // 2
    drawn = np.exp(-(far**2) / (2 * sigma**2))
    return np.asarray(drawn / drawn.sum())


def blurred(image: Tensor, size: tuple[int, int], sigma: float) -> Floats:
    """One image [C, H, W] blurred in float64: mirrored edges, the sum of shifted images. size: (across, down)."""
    across, down = size
    pixels = image.double().numpy()
    height, width = pixels.shape[1:]
    padded = np.pad(pixels, ((0, 0), (down // 2, down // 2), (across // 2, across // 2)), mode="reflect")
    total = np.zeros_like(pixels)
    for i, a in enumerate(weights(down, sigma)):
        for j, b in enumerate(weights(across, sigma)):
            total += a * b * padded[:, i : i + height, j : j + width]
    return total


def with_sigmas(images: Tensor, kernel_size: int | tuple[int, int], sigmas: list[float]) -> Tensor:
    return one(GaussianBlur(kernel_size), images).apply(images, given(sigma=sigmas))


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (9, 9), (23, 23), (3, 9), (11, 1)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_bytes_are_sums_of_shifted_images(size: tuple[int, int], channels: int) -> None:
    images = noise_images(4, channels, 37, 50)
    sigmas = [0.1, 0.7, 2.0, 5.0]
    before = images.clone()
    made = with_sigmas(images, size, sigmas)
    for image, found, sigma in zip(images, made, sigmas, strict=True):
        # Rounded once; float32 sums may put a tie on the other side.
        assert np.abs(found.numpy() - blurred(image, size, sigma)).max() < 0.5 + 1e-3
    assert made.dtype == torch.uint8
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_floats_are_not_rounded(dtype: torch.dtype) -> None:
    images = noise_images(3, 3, 33, 40, dtype)
    sigmas = [0.3, 1.3, 2.0]
    made = with_sigmas(images, 23, sigmas)
    assert made.dtype == dtype
    allowed = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    for image, found, sigma in zip(images, made, sigmas, strict=True):
        assert np.abs(found.double().numpy() - blurred(image, (23, 23), sigma)).max() < allowed


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.8), (9, 1.5), (23, 2.0)])
def test_opencv_makes_the_same_but_for_its_rounding(size: int, sigma: float) -> None:
    images = noise_images(1, 3, 64, 48)
    made = with_sigmas(images, size, [sigma])[0].permute(1, 2, 0).numpy()
    source = np.ascontiguousarray(images[0].permute(1, 2, 0).numpy())
    expected = cv2.GaussianBlur(
        source, (size, size), sigmaX=sigma, sigmaY=sigma, borderType=cv2.BORDER_REFLECT_101
    )
    assert np.abs(made.astype(int) - expected).max() <= 1


def test_images_smaller_than_half_the_kernel_plus_one_pixel_still_mirror() -> None:
    images = noise_images(2, 3, 6, 5)
    made = with_sigmas(images, (9, 11), [3.0, 1.0])
    for image, found, sigma in zip(images, made, [3.0, 1.0], strict=True):
        assert np.abs(found.numpy() - blurred(image, (9, 11), sigma)).max() < 0.5 + 1e-3


def test_each_image_has_its_sigma_and_keeps_it_in_any_batch() -> None:
    images = noise_images(12, 3, 24, 24)
    pipeline = Pipeline([GaussianBlur(5, (0.2, 3.0))], (3, 24, 24), seed=3)
    rows = np.arange(100, 112)
    together = pipeline(images, rows, epoch=2)
    assert len(np.unique(pipeline.sample(rows, 2)[0]["sigma"])) == 12
    for some in ([3], [11, 0, 5]):
        assert torch.equal(pipeline(images[some], rows[some], epoch=2), together[some])


def test_sigmas_are_uniform_between_their_bounds() -> None:
    sigma = Pipeline([GaussianBlur(3, (0.5, 1.5))], (3, 8, 8)).sample(np.arange(20_000))[0]["sigma"].numpy()
    assert_uniform(sigma - 0.5)


def test_one_number_is_the_sigma_of_all() -> None:
    sigma = Pipeline([GaussianBlur(3, 1.25)], (3, 8, 8)).sample(np.arange(5))[0]["sigma"]
    assert sigma.tolist() == [1.25] * 5


def test_images_that_random_apply_leaves_out_stay_to_the_bit() -> None:
    images = noise_images(40, 3, 20, 20)
    pipeline = Pipeline([RandomApply([GaussianBlur(5, 2.0)], p=0.5)], (3, 20, 20))
    params = pipeline.sample(np.arange(40))
    chosen = params[0]["apply"]
    assert 5 < int(chosen.sum()) < 35
    made = pipeline.apply(images, params)
    assert torch.equal(made[~chosen], images[~chosen])
    assert (made[chosen] != images[chosen]).flatten(1).any(1).all()


def test_the_result_is_no_view_of_the_images_even_if_nothing_is_blurred() -> None:
    images = noise_images(3, 3, 8, 8)
    made = with_sigmas(images, 3, [0.0, 0.0, 0.0])
    assert torch.equal(made, images)
    assert made.data_ptr() != images.data_ptr()


def test_an_empty_batch_stays_empty() -> None:
    assert Pipeline([GaussianBlur(3)], (3, 8, 8))(noise_images(1, 3, 8, 8)[:0], np.arange(0)).shape == (
        0,
        3,
        8,
        8,
    )


def test_an_even_kernel_is_refused() -> None:
    assert refusal(lambda: GaussianBlur((3, 4))) == (
        "GaussianBlur: kernel_size is (3, 4); odd numbers are allowed. Pass one more or one less."
    )


def test_a_kernel_without_pixels_is_refused() -> None:
    assert refusal(lambda: GaussianBlur(0)) == (
        "GaussianBlur: kernel_size is 0; a whole number from 1 up, or two (height, width), are allowed. "
        "Pass the side in pixels."
    )


@pytest.mark.parametrize("sigma", [(0.0, 2.0), (2.0, 1.0), (0.1, 0.2, 0.3), "wide"])
def test_a_sigma_that_is_no_interval_above_0_is_refused(sigma: Any) -> None:
    assert refusal(lambda: GaussianBlur(3, sigma)) == (
        f"GaussianBlur: sigma is {sigma!r}; two numbers (low, high) from 0.001 up are allowed. "
        "Pass those, the smaller first."
    )


def test_one_sigma_of_0_is_refused() -> None:
    assert refusal(lambda: GaussianBlur(3, 0.0)) == (
        "GaussianBlur: sigma is 0.0; numbers from 0.001 up are allowed. Pass one of them."
    )


@pytest.mark.parametrize(
    ("size", "good"), [((15, 3), True), ((17, 3), False), ((3, 11), True), ((3, 13), False)]
)
def test_a_kernel_that_reaches_past_the_mirror_is_refused(size: tuple[int, int], good: bool) -> None:
    if good:
        Pipeline([GaussianBlur(size)], (3, 6, 8))
        return
    assert refusal(lambda: Pipeline([GaussianBlur(size)], (3, 6, 8))) == (
        f"GaussianBlur: kernel_size is {size[0]}x{size[1]} and the images are 8x6, across x down; "
        "less than twice the image's sides is allowed. Pass a smaller kernel."
    )
