"""A user's own operation: alone, among others, for some images only; a sentence a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import (
    Draws,
    Pipeline,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomHorizontalFlip,
    Transform,
)
from tests.augment.conftest import noise_images, refusal

SHAPE = (3, 24, 20)


class Dim(Transform):
    """Darken by a drawn factor, a channel at a time, and count rows in its draws."""

    def sample(self, draws: Draws, shape: Any) -> dict[str, Any]:
        """Draw factor: float64 [N, C]; row: int64 [N]."""
        factors = [draws.uniform(f"factor {c}", 0.2, 0.9) for c in range(shape[0])]
        return {"factor": np.stack(factors, axis=1), "row": draws.rows}

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Darken."""
        assert params["row"].dtype == torch.int64
        return (images * params["factor"][:, :, None, None]).to(images.dtype)


class Negative(Transform):
    """Draws nothing."""

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Invert."""
        assert not params
        return 255 - images


def test_it_gets_what_it_drew() -> None:
    images = noise_images(9, *SHAPE)
    stack = Pipeline([RandomHorizontalFlip(1.0), Dim()], SHAPE)
    params = stack.sample(np.arange(20, 29))
    assert params[1]["row"].tolist() == list(range(20, 29))
    expected = (images.flip(3) * params[1]["factor"][:, :, None, None]).to(torch.uint8)
    assert torch.equal(stack.apply(images, params), expected)
    assert stack.stages == ("pass", "Dim")


def test_one_that_draws_nothing_stands_among_others() -> None:
    images = noise_images(9, *SHAPE)
    stack = Pipeline([RandomHorizontalFlip(1.0), Negative(), RandomHorizontalFlip(1.0)], SHAPE)
    assert torch.equal(stack(images, np.arange(9)), 255 - images)


@pytest.mark.parametrize("own", [Dim(), Negative()], ids=["draws", "draws nothing"])
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_random_apply_spares_images(own: Transform, p: float) -> None:
    images = noise_images(30, *SHAPE)
    stack = Pipeline([RandomApply([own], p)], SHAPE)
    params = stack.sample(np.arange(30))
    chosen = params[0]["apply"]
    alone = Pipeline([own], SHAPE)
    changed = alone.apply(images, [{k: v for k, v in params[0].items() if k != "apply"}])
    assert 0 < chosen.sum() < 30 or p in (0, 1)
    assert torch.equal(stack.apply(images, params), torch.where(chosen[:, None, None, None], changed, images))


def test_random_choice_gives_each_image_one() -> None:
    images = noise_images(200, *SHAPE)
    stack = Pipeline([RandomChoice([Negative(), RandomHorizontalFlip(1.0)], p=[1, 3])], SHAPE)
    params = stack.sample(np.arange(200))
    first, second = params[0]["apply"], params[1]["apply"]
    assert torch.equal(first, ~second)
    assert 30 < first.sum() < 70
    made = stack.apply(images, params)
    assert torch.equal(made[first], 255 - images[first])
    assert torch.equal(made[second], images[second].flip(3))


def test_no_images_make_none() -> None:
    stack = Pipeline([RandomApply([Dim()]), Dim()], SHAPE)
    assert stack(noise_images(1, *SHAPE)[:0], np.arange(0)).shape == (0, *SHAPE)


def test_masks_do_not_follow() -> None:
    masks = torch.arange(20).expand(4, 24, 20)
    stack = Pipeline([Negative()], SHAPE)
    assert torch.equal(stack.apply_masks(masks, stack.sample(np.arange(4))), masks)


class Nothing(Transform):
    """Neither parts nor apply."""


class Returns(Transform):
    """Returns what it is told to."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Return it."""
        made: Tensor = self._value
        return made


class Names(Transform):
    """Draws under a name that may be taken, and another shape each time."""

    def __init__(self, name: str) -> None:
        self._name = name

    def sample(self, draws: Draws, shape: Any) -> dict[str, Any]:
        """Draw numbers."""
        return {self._name: np.zeros((len(draws), 1 + len(draws) % 2))}

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Nothing."""
        return images


def test_mistakes_are_sentences() -> None:
    images = noise_images(2, *SHAPE)
    assert refusal(lambda: Pipeline([Nothing()], SHAPE)) == (
        "Nothing: it has no apply(images, params); a transform of your own needs one. Add it."
    )
    assert refusal(lambda: Pipeline([Negative], SHAPE)) == (  # type: ignore[list-item]
        "augment: Negative is no transform of packer.augment. Write Negative(...)."
    )
    assert refusal(lambda: Pipeline([Returns(None)], SHAPE)(images, np.arange(2))) == (
        "Returns: apply returned NoneType for torch.uint8 [2, 3, 24, 20]; the same shape and dtype are allowed. Return those."
    )
    assert refusal(lambda: Pipeline([Returns(images.float())], SHAPE)(images, np.arange(2))) == (
        "Returns: apply returned torch.float32 [2, 3, 24, 20] for torch.uint8 [2, 3, 24, 20]; the same shape and dtype are "
        "allowed. Return those."
    )
    assert refusal(lambda: Pipeline([Names("apply")], SHAPE)) == (
        "Names: sample draws 'apply', which is RandomApply's name. Choose another one."
    )
    assert refusal(lambda: Pipeline([Names("k")], SHAPE)(noise_images(3, *SHAPE), np.arange(3))) == (
        "Names: k is torch.float64 [3, 2]; a plain tensor on the CPU, torch.float64 [3, 1], is allowed. "
        "Keep its type, and sample the batch's rows."
    )
    assert refusal(lambda: RandomChoice([])) == (
        "RandomChoice: there are no transforms; at least one is needed. Pass some."
    )
    assert refusal(lambda: RandomChoice([Negative()], p=[0])) == (
        "RandomChoice: p is [0.0] for 1 transforms; one number each, not all 0, is allowed. Pass as many."
    )
    assert refusal(lambda: RandomApply(Negative())) == (  # type: ignore[arg-type]
        "RandomApply: transforms is Negative(); a list of transforms is allowed. Put it in brackets."
    )


class Top(Transform):
    """Draws the largest fraction below 1."""

    def sample(self, draws: Draws, shape: Any) -> dict[str, Any]:
        """Draw top: float64 [N]."""
        return {"top": np.full(len(draws), np.nextafter(1.0, 0.0))}

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Fill with a choice among ten."""
        chosen = (params["top"] * 10).long()
        return images.new_zeros(images.shape) + chosen[:, None, None, None].to(images.dtype)


def test_fractions_stay_below_1() -> None:
    made = Pipeline([Top()], SHAPE)(noise_images(2, *SHAPE), np.arange(2))
    assert (made == 9).all()


class Exact(Transform):
    """Draws numbers of all types, and checks that they arrive to the bit."""

    def __init__(self) -> None:
        self._seen: dict[str, Tensor] = {}

    def sample(self, draws: Draws, shape: Any) -> dict[str, Any]:
        """Draw large whole numbers, fractions and truths, some of them several a row."""
        fractions = draws.uniform("a")
        return {
            "b": draws.happens("b", 0.5),
            "large": draws.rows + 2**53 + 1,
            "pair": np.stack([fractions, -fractions], axis=1).astype(np.float32),
            "fraction": fractions,
            "byte": (draws.rows % 256).astype(np.uint8),
            "none": np.zeros((len(draws), 0), np.int16),
        }

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Keep them."""
        self._seen = dict(params)
        return images + 0


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_draws_arrive_to_the_bit(gated: bool, count: int) -> None:
    exact = Exact()
    # The boxes' columns before its own are 5: 8 bytes need not begin at a multiple of 8.
    stack = Pipeline([RandomErasing(), RandomApply([exact], 0.9) if gated else exact], SHAPE)
    params = stack.sample(np.arange(300, 300 + count))
    stack.apply(noise_images(count, *SHAPE), params)
    chosen = params[1].pop("apply", torch.ones(count, dtype=torch.bool))
    assert chosen.any()
    assert exact._seen.keys() == params[1].keys()
    for name, drawn in params[1].items():
        assert exact._seen[name].dtype == drawn.dtype
        assert torch.equal(exact._seen[name], drawn[chosen]), name


class Overwrites(Transform):
    """Works in place, as it must not."""

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Invert."""
        return images.mul_(255)


class Draw(Transform):
    """Draws what it is told to."""

    def __init__(self, drawn: Any) -> None:
        self._drawn = drawn

    def sample(self, draws: Draws, shape: Any) -> Any:
        """Draw it."""
        return self._drawn

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Nothing."""
        return images


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: Pipeline([Overwrites()], SHAPE)(noise_images(2, *SHAPE), np.arange(2)),
            "Overwrites: apply changed the images that it was given. Return new ones.",
        ),
        (
            lambda: Pipeline([Draw(None)], SHAPE),
            "Draw: sample returned NoneType; a dictionary of arrays is allowed. Return one.",
        ),
        (
            lambda: Pipeline([Draw({"k": 0.5})], SHAPE),
            "Draw: sample drew k, a float, for 2 rows; a NumPy array of numbers, an entry a row, is allowed. Return such.",
        ),
        (
            lambda: Pipeline([Draw({"k": np.zeros(2, np.complex64)})], SHAPE),
            "Draw: sample drew k, complex64 [2], for 2 rows; a NumPy array of numbers, an entry a row, is allowed. "
            "Return such.",
        ),
        (
            lambda: RandomChoice([Negative]),  # type: ignore[list-item]
            "augment: Negative is no transform of packer.augment. Write Negative(...).",
        ),
        (
            lambda: RandomChoice([Negative()], 0.5),  # type: ignore[arg-type]
            "RandomChoice: p is 0.5; a list of numbers, one a transform, is allowed. Pass such.",
        ),
        (
            lambda: RandomApply("Negative()"),  # type: ignore[arg-type]
            "RandomApply: transforms is 'Negative()'; a list of transforms is allowed. Put it in brackets.",
        ),
        (
            lambda: Pipeline([Dim()], SHAPE).apply(noise_images(2, *SHAPE), None),  # type: ignore[arg-type]
            "Pipeline: params are no list of 1 dictionaries, one a transform. Pass what sample() returned.",
        ),
        (
            lambda: Pipeline([Draw({"k": np.zeros(2)})], SHAPE).apply(
                noise_images(2, *SHAPE), [{"k": torch.zeros(2, dtype=torch.bfloat16)}]
            ),
            "Draw: k is torch.bfloat16 [2]; a plain tensor on the CPU, torch.float64 [2], is allowed. "
            "Keep its type, and sample the batch's rows.",
        ),
    ],
)
def test_more_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence
