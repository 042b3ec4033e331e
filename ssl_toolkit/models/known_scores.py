"""Stranger scores of images of the classes, which are stored with a model to reject others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.errors import ModelError

LEAST = 50
"""Least number of images: fewer determine their upper quantiles too poorly."""

ACCEPTED = 0.95
"""Share of the images of the classes below the limit, unless another one is given."""
MANY = 0.1
"""Share of strangers that calls for a warning, and from which ``--drop-strangers`` acts."""

_STEPS = 100


def are_many(share: float, lower: float) -> bool:
    """Return True if an estimate of `KnownScores.share_of_strangers` is of many strangers."""
    return share >= MANY and lower > 0


@dataclass(frozen=True)
class KnownScores:
    """Quantiles of the stranger scores of some images."""

    images: str
    """Kind of the images: ``validation`` or ``unlabeled``."""
    count: int
    """Number of the images."""
    quantiles: tuple[float, ...]
    """From the smallest score to the largest, in steps of 1 %."""

    @classmethod
    def of(cls, scores: NDArray[np.floating[Any]], images: str) -> KnownScores | None:
        """Return the quantiles of scores; None of too few or equal ones.

        Args:
            scores: (N,).
            images: Kind of the images.
        """
        values = scores.astype(np.float64)
        # Votes of neighbors are log probabilities, whose energy is 0 up to rounding.
        if len(values) < LEAST or not np.ptp(values) > 1e-4:
            return None
        # The expected share of further images below the q-th of these quantiles is q.
        points = np.linspace(0, 1, _STEPS + 1)
        quantiles = np.quantile(values, points, method="weibull")
        return cls(images, len(values), tuple(round(float(value), 6) for value in quantiles))

    @classmethod
    def parse(cls, tree: Mapping[str, Any], where: str) -> KnownScores:
        """Return what `tree` returned.

        Args:
            tree: The result of `tree`.
            where: Its file, for messages.

        Raises:
            ModelError: It is something else.
        """
        try:
            quantiles = (*map(float, tree["quantiles"]),)
            if len(quantiles) != _STEPS + 1 or not (np.diff(quantiles) >= 0).all():
                raise ValueError("the quantiles must be 101 numbers in ascending order")
            return cls(str(tree["images"]), int(tree["count"]), quantiles)
        except (ValueError, TypeError, LookupError) as error:
            raise ModelError(f"{where}: invalid known_scores: {error!r}") from error

    def tree(self) -> dict[str, Any]:
        """Return the content as plain values."""
        return {**asdict(self), "quantiles": list(self.quantiles)}

    def limit(self, accepted: float) -> float:
        """Return the score that this share of the images doesn't exceed, in (0, 1]."""
        return float(np.interp(accepted * _STEPS, np.arange(_STEPS + 1), self.quantiles))

    def share_of_strangers(self, scores: NDArray[np.floating[Any]]) -> tuple[float, float]:
        """Estimate which share of some images belongs to no class.

        Of images of the classes, 5 % exceed the limit that 95 % don't. A larger share of the images
        exceeds it by as many strangers as that needs; more may be below it, so this is the least
        number of strangers.

        Args:
            scores: (N,) of the images.

        Returns:
            The share, and the lower end of its one-sided 97.5 % interval, in [0, 1].
        """
        beyond = float((scores > self.limit(ACCEPTED)).mean())
        # Both shares vary: that of the images, and the one that the limit really accepts.
        variance = beyond * (1 - beyond) / len(scores)
        variance += ACCEPTED * (1 - ACCEPTED) / (self.count + 2)
        ends = (beyond, beyond - 1.96 * variance**0.5)
        share, lower = (max(0.0, (end - (1 - ACCEPTED)) / ACCEPTED) for end in ends)
        return share, lower
