"""AutoAugment: pairs of operations that were found by search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from packer.augment import validation
from packer.augment.geometric import SAMPLINGS
from packer.augment.policies import NUMBER, SIGNED, rand_magnitudes, slot_parts
from packer.augment.transform import Draws, Params, Shape, Transform, TransformPart

POLICIES = {
    "imagenet": """
        Posterize 0.4 8, Rotate 0.6 9
        Solarize 0.6 5, AutoContrast 0.6
        Equalize 0.8, Equalize 0.6
        Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4, Solarize 0.2 4
        Equalize 0.4, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6
        Posterize 0.8 5, Equalize 1.0
        Rotate 0.2 3, Solarize 0.6 8
        Equalize 0.6, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0
        Rotate 0.4 9, Equalize 0.6
        Equalize 0.0, Equalize 0.8
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7
        Sharpness 0.4 7, Invert 0.6
        ShearX 0.6 5, Equalize 1.0
        Color 0.4 0, Equalize 0.6
        Equalize 0.4, Solarize 0.2 4
        Solarize 0.6 5, AutoContrast 0.6
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Equalize 0.8, Equalize 0.6
    """,
    "cifar10": """
        Invert 0.1, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5, Equalize 0.9
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6, Equalize 0.5
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3, AutoContrast 0.4
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0
        Equalize 0.2, AutoContrast 0.6
        Equalize 0.2, Equalize 0.6
        Color 0.9 9, Equalize 0.6
        AutoContrast 0.8, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9, Solarize 0.8 3
        Equalize 0.8, Invert 0.1
        TranslateY 0.7 9, AutoContrast 0.9
    """,
    "svhn": """
        ShearX 0.9 4, Invert 0.2
        ShearY 0.9 8, Invert 0.7
        Equalize 0.6, Solarize 0.6 6
        Invert 0.9, Equalize 0.6
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, AutoContrast 0.8
        ShearY 0.9 8, Invert 0.4
        ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9, AutoContrast 0.8
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3
        ShearY 0.8 8, Invert 0.7
        Equalize 0.9, TranslateY 0.6 6
        Invert 0.9, Equalize 0.6
        Contrast 0.3 3, Rotate 0.8 4
        Invert 0.8, TranslateY 0.0 2
        ShearY 0.7 6, Solarize 0.4 8
        Invert 0.6, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3
        ShearX 0.1 6, Invert 0.6
        Solarize 0.7 2, TranslateY 0.6 7
        ShearY 0.8 4, Invert 0.8
        ShearX 0.7 9, TranslateY 0.8 3
        ShearY 0.8 5, AutoContrast 0.7
        ShearX 0.7 2, Invert 0.1
    """,
}
"""Of each policy the pairs, one a line: both operations, each with its probability and its strength, 0 to 9."""

_BINS = 10


@cache
def _table(policy: str) -> NDArray[np.float64]:
    """Return float64 [pairs, 2, 3]: number of the operation, probability, strength, 0 for those that have none."""
    pairs = [
        [
            (NUMBER[name], float(share), *map(float, strength or ["0"]))
            for name, share, *strength in map(str.split, line)
        ]
        for line in (pair.split(",") for pair in POLICIES[policy].strip().splitlines())
    ]
    return np.array(pairs)


class AutoAugment(Transform):
    """Two operations for each image, of a pair out of 25, as torchvision.transforms.v2.AutoAugment.

    policy: the data on which the pairs were found: "imagenet", "cifar10" or "svhn"; torchvision's AutoAugmentPolicy works
    too. interpolation, fill: as TrivialAugmentWide's. uint8 images only.

    E. D. Cubuk, B. Zoph, D. Mané, V. Vasudevan, Q. V. Le, "AutoAugment: learning augmentation policies from data"
    (arXiv:1805.09501).
    """

    def __init__(
        self,
        policy: str = "imagenet",
        interpolation: str = "nearest",
        fill: float | Sequence[float] = 0,
    ) -> None:
        name = "AutoAugment"
        self.policy = validation.one_of(name, "policy", policy, tuple(POLICIES))
        self.interpolation = validation.one_of(name, "interpolation", interpolation, tuple(SAMPLINGS))
        self.fill = validation.colour(name, "fill", fill)

    def parts(self) -> Sequence[TransformPart]:
        return [part for slot in range(2) for part in slot_parts(self, slot, self.interpolation, self.fill)]

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw operation: int64 [N, 2], numbers of OPERATIONS, 14 for Invert; magnitude: float64 [N, 2], with its sign.

        An operation that is left out is Identity, number 0.
        """
        table = _table(self.policy)
        drawn = table[draws.integers("pair", len(table))]
        number = drawn[..., 0].astype(np.int64)
        strengths = np.concatenate([rand_magnitudes(_BINS, *shape[1:]), np.zeros((1, _BINS))])
        magnitude = strengths[number, drawn[..., 2].astype(np.int64)]
        for slot in range(2):
            negative = draws.happens(f"sign {slot}", 0.5) & SIGNED[number[:, slot]]
            magnitude[negative, slot] *= -1
            spared = draws.uniform(f"operation {slot}") >= drawn[:, slot, 1]
            number[spared, slot], magnitude[spared, slot] = NUMBER["Identity"], 0
        return {"operation": number, "magnitude": magnitude}
