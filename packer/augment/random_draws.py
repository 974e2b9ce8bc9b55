"""The random numbers of a transform, keyed by (seed, epoch, place in the pipeline, transform) and counted by row."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packer import randomness

Floats = NDArray[np.float64]


class Draws:
    """The draws of one operation for rows of one epoch.

    rows: int64 [N], row numbers of the dataset. The same row draws the same numbers, whatever rows are drawn beside it.
    """

    def __init__(self, rows: NDArray[np.int64], seed: int, epoch: int, place: int | str, name: str) -> None:
        self.rows, self.seed, self.epoch = rows, seed, epoch
        self._place, self._name = place, name

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, samples: NDArray[np.int64] | NDArray[np.bool_]) -> Draws:
        """Return the same draws for some of the rows."""
        return Draws(self.rows[samples], self.seed, self.epoch, self._place, self._name)

    def uniform(self, what: str, low: float = 0.0, high: float = 1.0) -> Floats:
        """Fractions in [low, high): float64 [N]."""
        drawn = randomness.uniform(self.rows, self._key(what))
        return drawn if (low, high) == (0.0, 1.0) else low + (high - low) * drawn

    def integers(self, what: str, high: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole numbers in 0..high-1: int64 [N]. high: one for all, or one a row."""
        return randomness.integers(self.rows, self._key(what), high)

    def happens(self, what: str, p: float) -> NDArray[np.bool_]:
        """True with probability p: bool [N]."""
        return self.uniform(what) < p

    def every_epoch(self, what: str) -> Floats:
        """Fractions in [0, 1) that are the same in every epoch: float64 [N]."""
        return randomness.uniform(
            self.rows, randomness.key(self.seed, "augment", self._place, self._name, what)
        )

    def permutations(self, what: str, length: int) -> NDArray[np.int64]:
        """Orders of 0..length-1, all equally likely: int64 [N, length]."""
        return np.argsort(
            np.stack([self.uniform(f"{what} {i}") for i in range(length)], axis=1), axis=1, kind="stable"
        )

    def beta(self, what: str, alpha: float) -> Floats:
        """Fractions of the symmetric beta distribution with this parameter: float64 [N]."""
        first, second = self._log_gamma(f"{what} a", alpha), self._log_gamma(f"{what} b", alpha)
        return 1 / (1 + np.exp(np.clip(second - first, -700, 700)))

    def _log_gamma(self, what: str, shape: float) -> Floats:
        """Logarithms of draws of the gamma distribution: float64 [N].

        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, with its step for shapes below 1.
        A draw that is refused is made anew, with the number of the attempt in its key.
        """
        raised = shape + 1 if shape < 1 else shape
        d = raised - 1 / 3
        c = 1 / math.sqrt(9 * d)
        result = np.empty(len(self.rows))
        left = np.arange(len(self.rows))
        attempt = 0
        while left.size:
            u, v, w = (
                randomness.uniform(self.rows[left], self._key(f"{what} {attempt} {part}")) for part in "uvw"
            )
            normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * math.pi * v)
            cubed = (1 + c * normal) ** 3
            kept = cubed > 0
            with np.errstate(invalid="ignore", divide="ignore"):
                log_cubed = np.log(cubed)
                kept &= np.log1p(-w) < normal**2 / 2 + d - d * cubed + d * log_cubed
            result[left[kept]] = math.log(d) + log_cubed[kept]
            left = left[~kept]
            attempt += 1
        if shape < 1:
            result += np.log1p(-self.uniform(f"{what} boost")) / shape
        return result

    def _key(self, what: str) -> int:
        return _key(self.seed, self.epoch, "augment", self._place, self._name, what)


# Asked for once a batch, all through an epoch.
_key = lru_cache(maxsize=4096, typed=True)(randomness.key)
