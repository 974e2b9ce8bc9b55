"""packer.augment.kinds, Draws: keyed, counted by row, fair, and frozen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer.augment import ColorJitter, Pipeline, RandomAffine, RandomCrop, RandomErasing, RandomResizedCrop
from packer.augment.kinds import Draws
from packer.errors import UsageError
from tests.augment.conftest import assert_fair, assert_uniform, assert_unrelated

ROWS = np.arange(40_000)


def draws(rows: Any = ROWS, seed: int = 0, epoch: int = 0, place: int | str = 0, name: str = "it") -> Draws:
    return Draws(np.asarray(rows, np.int64), seed, epoch, place, name)


def test_fractions_are_uniform_within_their_bounds() -> None:
    assert_uniform(draws().uniform("a"))
    found = draws().uniform("a", -3, 5)
    assert -3 <= found.min() < found.max() < 5
    assert_uniform((found + 3) / 8)
    assert set(draws().uniform("a", 2, 2)) == {2.0}


def test_whole_numbers_are_fair() -> None:
    assert_fair(np.bincount(draws().integers("a", 7), minlength=7))
    highs = 1 + ROWS % 5
    found = draws().integers("a", highs)
    assert (found < highs).all()
    assert_fair(np.bincount(found[highs == 5], minlength=5))


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_events_happen_with_their_probability(p: float) -> None:
    assert abs(draws().happens("a", p).mean() - p) <= 3.5 * (p * (1 - p) / len(ROWS)) ** 0.5


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_all_orders_are_equally_likely(length: int) -> None:
    found = draws().permutations("a", length)
    assert (np.sort(found, axis=1) == np.arange(length)).all()
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == [1, 1, 2, 6, 24][length]
    if length > 1:
        assert_fair(counts)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 2.0, 8.0])
def test_beta_has_its_mean_variance_and_symmetry(alpha: float) -> None:
    found = draws().beta("a", alpha)
    assert 0 <= found.min() < found.max() <= 1
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(found.mean() - 0.5) < 3.5 * (variance / len(found)) ** 0.5
    assert abs(found.var() / variance - 1) < 0.04
    expected = np.random.default_rng(0).beta(alpha, alpha, len(found))
    edges = np.quantile(expected, np.linspace(0, 1, 21)[1:-1])
    counts = [np.bincount(np.searchsorted(edges, some), minlength=20) for some in (found, expected)]
    # Both sides vary, so the expected variance is twice that of one.
    assert (
        (counts[0] - counts[1]) ** 2 / (counts[0] + counts[1])
    ).sum() < 47  # 19 degrees of freedom: 1 in 2,800


def test_everything_in_the_key_makes_other_draws() -> None:
    base = draws().uniform("a")
    others = [
        draws(seed=1).uniform("a"),
        draws(epoch=1).uniform("a"),
        draws(place=1).uniform("a"),
        draws(place="0").uniform("a"),
        draws(name="other").uniform("a"),
        draws().uniform("b"),
        draws(seed=-1).uniform("a"),
        draws(rows=ROWS + 1).uniform("a"),
        draws().every_epoch("a"),
    ]
    assert_unrelated(base, *others)


def test_a_row_draws_the_same_whoever_is_beside_it() -> None:
    chosen = np.random.default_rng(0).permutation(len(ROWS))[:500]
    for made in (
        lambda d: d.uniform("a", 2, 3),
        lambda d: d.integers("a", 1000),
        lambda d: d.permutations("a", 4),
        lambda d: d.beta("a", 0.4),
        lambda d: d.every_epoch("a"),
    ):
        np.testing.assert_array_equal(made(draws(rows=chosen)), made(draws())[chosen])
        np.testing.assert_array_equal(made(draws().only(chosen)), made(draws())[chosen])
        assert len(made(draws(rows=[]))) == 0


def test_every_epoch_is_the_same_in_every_epoch() -> None:
    np.testing.assert_array_equal(draws(epoch=0).every_epoch("a"), draws(epoch=9).every_epoch("a"))
    assert not np.array_equal(draws(seed=1).every_epoch("a"), draws().every_epoch("a"))


def test_a_seed_that_is_no_whole_number_is_refused_though_its_equal_was_used() -> None:
    draws(seed=3).uniform("a")
    with pytest.raises(UsageError) as error:
        draws(seed=3.0).uniform("a")  # type: ignore[arg-type]
    assert str(error.value) == (
        "random key: 3.0 is a float; int and str are allowed. Pass a whole number as the seed."
    )


# Frozen: a resumed epoch, and a training that is repeated, depend on these numbers. They never change.
GOLDEN_ROWS = np.array([0, 1, 2, 1_000_000, 2**40])


GOLDEN_DRAWS: dict[str, Any] = {
    "uniform": [
        0.9430082852419116,
        0.03397137088215729,
        0.23291833927464234,
        0.23378878531801117,
        0.12287505002143695,
    ],
    "integers": [94, 3, 23, 23, 12],
    "permutations": [2310, 1203, 3102, 321, 1320],
    "every_epoch": [
        0.734759965547987,
        0.996613029058126,
        0.9514844420105606,
        0.8685240921627957,
        0.6859510761017665,
    ],
    "beta": [
        0.04951992468362205,
        0.0013860694985106494,
        0.0929422255219466,
        0.05465434837989436,
        0.5777112092302502,
    ],
}


def test_draws_are_frozen() -> None:
    some = draws(GOLDEN_ROWS, seed=7, epoch=3, place=2, name="RandomCrop")
    found = {
        "uniform": some.uniform("a"),
        "integers": some.integers("a", 100),
        "permutations": some.permutations("a", 4) @ [1000, 100, 10, 1],
        "every_epoch": some.every_epoch("a"),
        "beta": some.beta("a", 0.4),
    }
    for name, expected in GOLDEN_DRAWS.items():
        np.testing.assert_allclose(found.pop(name), expected, rtol=1e-12)
    assert not found


GOLDEN_SAMPLES: list[dict[str, list[Any]]] = [
    {
        "top": [0, 5, 0, 10, 16],
        "left": [34, 17, 22, 2, 22],
        "height": [23, 29, 42, 37, 17],
        "width": [29, 37, 42, 36, 18],
    },
    {"top": [5, 7, 2, 1, 0], "left": [4, 8, 0, 0, 8]},
    {
        "angle": [
            -1.3158688185507916,
            -8.78314469300199,
            -2.9839886888584672,
            -1.6460005361212922,
            -8.91018891214123,
        ],
        "scale": [
            0.9907511692554658,
            1.0145016972970222,
            0.9019197505457595,
            1.0222557064737132,
            0.9291076050049365,
        ],
        "shear_x": [
            -4.656565373940589,
            -4.170078095378537,
            -2.815125720556706,
            -3.0536455417212496,
            1.2284413637347917,
        ],
        "shear_y": [0.0, 0.0, 0.0, 0.0, 0.0],
        "move_x": [2.0, 3.0, 2.0, -1.0, -3.0],
        "move_y": [-3.0, 1.0, 3.0, 0.0, -1.0],
    },
    {
        "brightness": [
            0.9314611318875038,
            1.3938912848333929,
            1.313410049632082,
            0.8819518166619454,
            0.983828343243855,
        ],
        "contrast": [
            0.6864963105249298,
            0.8981826187010689,
            1.194189098780222,
            0.8242169686848873,
            0.846906129522921,
        ],
        "saturation": [
            0.9412360901635557,
            0.9483503811761819,
            0.6560267462381971,
            0.6278380414600799,
            0.7376240322630851,
        ],
        "hue": [
            0.08958271328125317,
            0.006522276227137941,
            -0.027609412546525117,
            -0.014151200796420405,
            0.06744042832248412,
        ],
        "order": [[2, 3, 0, 1], [1, 2, 3, 0], [3, 2, 1, 0], [0, 3, 2, 1], [3, 2, 1, 0]],
    },
    {
        "top": [28, 0, 23, 19, 13],
        "left": [20, 22, 1, 6, 1],
        "height": [4, 5, 9, 9, 16],
        "width": [8, 8, 18, 15, 5],
    },
]


def test_samples_are_frozen() -> None:
    pipeline = Pipeline(
        [
            RandomResizedCrop(32),
            RandomCrop(32, padding=4),
            RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5),
            ColorJitter(0.4, 0.4, 0.4, 0.1),
            RandomErasing(0.5),
        ],
        (3, 48, 64),
        seed=7,
    )
    found = pipeline.sample(GOLDEN_ROWS, 3)
    assert [list(drawn) for drawn in found] == [list(drawn) for drawn in GOLDEN_SAMPLES]
    for drawn, expected in zip(found, GOLDEN_SAMPLES, strict=True):
        for name, numbers in expected.items():
            np.testing.assert_allclose(drawn[name].numpy(), numbers, rtol=1e-12)
