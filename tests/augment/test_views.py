"""Views at test time: which pixels they are, what they copy, in which layout; and the mean over them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from packer.augment import FiveCrop, HorizontalFlips, Shifts, TenCrop, averaged
from packer.augment.averaged_views import Views
from packer.errors import UsageError

ALL: list[Callable[[], Views]] = [
    lambda: FiveCrop(5),
    lambda: TenCrop((4, 6)),
    lambda: TenCrop(5, vertical_flip=True),
    HorizontalFlips,
    lambda: Shifts(2),
]
DTYPES = [torch.uint8, torch.float32, torch.float16]


def images(dtype: torch.dtype = torch.uint8, channels: int = 3, device: str = "cpu") -> Tensor:
    """Four images of 8x9, no two pixels alike, channels_last."""
    count = 4 * channels * 8 * 9
    made = torch.randperm(count, generator=torch.Generator().manual_seed(0)) % 251
    return made.view(4, channels, 8, 9).to(device, dtype).contiguous(memory_format=torch.channels_last)


def test_five_crops_are_corners_and_centre_in_torchvisions_order() -> None:
    x = images()
    top_left, top_right, bottom_left, bottom_right, centre = FiveCrop((5, 4))(x)
    assert torch.equal(top_left, x[:, :, :5, :4])
    assert torch.equal(top_right, x[:, :, :5, 5:])
    assert torch.equal(bottom_left, x[:, :, 3:, :4])
    assert torch.equal(bottom_right, x[:, :, 3:, 5:])
    # int(round((8 - 5) / 2)) and int(round((9 - 4) / 2)): Python rounds halves to even, as torchvision does.
    assert torch.equal(centre, x[:, :, 2:7, 2:6])


@pytest.mark.parametrize(("vertical", "axis"), [(False, -1), (True, -2)])
def test_ten_crops_are_five_and_five_of_the_mirrored_images(vertical: bool, axis: int) -> None:
    x = images()
    crops = TenCrop(5, vertical_flip=vertical)(x)
    expected = (*FiveCrop(5)(x), *FiveCrop(5)(x.flip(axis)))
    assert all(torch.equal(a, b) for a, b in zip(crops, expected, strict=True))


def test_flips_and_shifts() -> None:
    x = images(torch.float32)
    same, mirrored = HorizontalFlips()(x)
    assert same is x
    assert torch.equal(mirrored, x.flip(3))
    padded = functional.pad(x, (2, 2, 2, 2), mode="reflect")
    centre, up_left, down_right = Shifts(2)(x)
    assert centre is x
    assert torch.equal(up_left, padded[:, :, :8, :9])
    assert torch.equal(down_right, padded[:, :, 4:, 4:])


def test_the_largest_shift_and_the_largest_crop() -> None:
    x = images(torch.float32)
    padded = functional.pad(x, (7, 7, 7, 7), mode="reflect")
    assert torch.equal(Shifts(7)(x)[1], padded[:, :, :8, :9])
    assert all(torch.equal(crop, x) for crop in FiveCrop((8, 9))(x))


def test_windows_are_not_copied() -> None:
    x = images()
    mine = x.untyped_storage().data_ptr()
    assert {crop.untyped_storage().data_ptr() for crop in FiveCrop(5)(x)} == {mine}
    ten = [crop.untyped_storage().data_ptr() for crop in TenCrop(5)(x)]
    assert set(ten[:5]) == {mine}
    assert len(set(ten[5:])) == 1  # mirrored once


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_number_dtype_and_layout_are_kept(
    make: Callable[[], Views], dtype: torch.dtype, layout: torch.memory_format
) -> None:
    x, views = images(dtype).contiguous(memory_format=layout), make()
    before = x.clone()
    made = views(x)
    assert len(made) == len(views)
    for view in made:
        assert view.dtype == dtype
        assert (view.stride(1) == 1) == (layout == torch.channels_last)
    assert torch.equal(x, before)


@pytest.mark.parametrize("make", ALL)
def test_views_of_one_channel_and_of_one_image(make: Callable[[], Views]) -> None:
    x = images(channels=1)
    for many, one in zip(make()(x), make()(x[2]), strict=True):
        assert torch.equal(many[2], one)


def test_views_of_views() -> None:
    x = images(torch.float32)
    seen: list[Tensor] = []

    def model(view: Tensor) -> Tensor:
        seen.append(view)
        return view.mean(dim=(1, 2, 3))

    made = averaged(model, x, [Shifts(1), HorizontalFlips()])
    expected = [view for shifted in Shifts(1)(x) for view in (shifted, shifted.flip(3))]
    assert len(seen) == 6
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
    torch.testing.assert_close(made, torch.stack([v.mean(dim=(1, 2, 3)) for v in expected]).mean(0))
    seen.clear()
    averaged(model, x, [FiveCrop(6), Shifts(2)])
    assert [tuple(view.shape) for view in seen] == [(4, 3, 6, 6)] * 15
    assert seen[0].stride(1) == seen[1].stride(1) == 1


def test_weights_as_the_cifar_record_has_them() -> None:
    x = images(torch.float32)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 9, 5))
    with torch.inference_mode():
        made = averaged(model, x, [Shifts(1), HorizontalFlips()], weights=(2, 2, 1, 1, 1, 1))

        def mirror(view: Tensor) -> Tensor:
            return 0.5 * model(view) + 0.5 * model(view.flip(-1))

        padded = functional.pad(x, (1, 1, 1, 1), "reflect")
        moved = torch.stack([mirror(padded[:, :, :8, :9]), mirror(padded[:, :, 2:10, 2:11])]).mean(0)
        expected = 0.5 * mirror(x) + 0.5 * moved
    assert made.shape == (4, 5)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-3)


def test_a_weight_of_zero_costs_no_run() -> None:
    runs: list[int] = []

    def model(view: Tensor) -> Tensor:
        runs.append(1)
        return view.float().sum(dim=(1, 2, 3))

    x = images()
    assert torch.equal(
        averaged(model, x, HorizontalFlips(), weights=(0, 3)), x.flip(3).float().sum(dim=(1, 2, 3))
    )
    assert len(runs) == 1


def test_half_precision_is_summed_in_float32_and_returned_as_it_came() -> None:
    values = iter([2048.0, 1.0, 1.0, 1.0, 1.0])
    made = averaged(lambda view: torch.full((4,), next(values), dtype=torch.float16), images(), FiveCrop(4))
    # Summed up in float16, 2048 + 1 stays 2048 and the mean 409.5.
    assert made.dtype == torch.float16
    assert torch.equal(made, torch.full((4,), 2052 / 5, dtype=torch.float16))


def test_gradients_flow() -> None:
    x = images(torch.float32).requires_grad_()
    averaged(lambda view: view.sum(dim=(1, 2, 3)), x, HorizontalFlips()).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_views_are_made_one_at_a_time() -> None:
    class Counting(Views):
        made = 0

        def __len__(self) -> int:
            return 3

        def each(self, images: Tensor):  # type: ignore[no-untyped-def]
            for _ in range(3):
                self.made += 1
                yield images

    views, seen = Counting(), []
    averaged(lambda view: (seen.append(views.made), view.float())[1], images(), views)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda x: FiveCrop(9)(x),
            "FiveCrop: size is 9x9 and the images are 8x9; up to 8x9 is allowed. Pass a smaller size.",
        ),
        (
            lambda x: TenCrop(9)(x),
            "TenCrop: size is 9x9 and the images are 8x9; up to 8x9 is allowed. Pass a smaller size.",
        ),
        (
            lambda x: Shifts(8)(x),
            "Shifts: pixels is 8 and the images are 8x9; less than their height and width is allowed. Pass fewer.",
        ),
        (lambda x: Shifts(0), "Shifts: pixels is 0; whole numbers from 1 up are allowed. Pass pixels."),
        (
            lambda x: averaged(lambda v: v.float(), x, HorizontalFlips(), weights=(1, 1, 1)),
            "averaged: weights is [1, 1, 1] and there are 2 views; one number a view, from 0 up and not all 0, is allowed. "
            "Pass 2 of them, or None.",
        ),
        (
            lambda x: averaged(lambda v: v.float(), x, HorizontalFlips(), weights=(0, 0)),
            "averaged: weights is [0, 0] and there are 2 views; one number a view, from 0 up and not all 0, is allowed. "
            "Pass 2 of them, or None.",
        ),
        (
            lambda x: averaged(lambda v: (v, v), x, HorizontalFlips()),
            "averaged: the model returned tuple; a floating-point tensor is allowed. Pass a function that returns the logits "
            "alone.",
        ),
        (
            lambda x: averaged(lambda v: v, x, ["flip"]),
            "averaged: 'flip' is among the views; FiveCrop, TenCrop, HorizontalFlips, Shifts and other Views are allowed. "
            "Pass such.",
        ),
        (
            lambda x: averaged(lambda v: v, x, "flip"),
            "averaged: 'flip' is among the views; FiveCrop, TenCrop, HorizontalFlips, Shifts and other Views are allowed. "
            "Pass such.",
        ),
        (
            lambda x: averaged(lambda v: v, x, HorizontalFlips),
            "averaged: <class 'packer.augment.averaged_views.HorizontalFlips'> is among the views; FiveCrop, TenCrop, "
            "HorizontalFlips, Shifts and other Views are allowed. Pass HorizontalFlips(), an instance.",
        ),
        (
            lambda x: averaged(lambda v: v, x, [Shifts(1), HorizontalFlips]),
            "averaged: <class 'packer.augment.averaged_views.HorizontalFlips'> is among the views; FiveCrop, TenCrop, "
            "HorizontalFlips, Shifts and other Views are allowed. Pass HorizontalFlips(), an instance.",
        ),
        (
            lambda x: averaged(lambda v: v, x, len),
            "averaged: <built-in function len> is among the views; FiveCrop, TenCrop, HorizontalFlips, Shifts and other "
            "Views are allowed. Pass such.",
        ),
        (
            lambda x: TenCrop(4, vertical_flip="no"),
            "TenCrop: vertical_flip is 'no'; True and False are allowed. Pass one of them.",
        ),
    ],
)
def test_errors_are_sentences(run: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        run(images())
    assert str(error.value) == message


@pytest.mark.gpu
@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_the_same_views(make: Callable[[], Views], dtype: torch.dtype) -> None:
    for near, far in zip(make()(images(dtype)), make()(images(dtype, device="cuda")), strict=True):
        assert far.is_cuda
        assert far.stride(1) == 1
        assert torch.equal(near, far.cpu())
