"""Adjust probabilities to the class shares of the images that are predicted, or estimate these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labeled = tuple[Floats, NDArray[np.int64]]
"""Calibrated probabilities (N, C) of images, and their classes (N,)."""

RESAMPLES = 200
ROUNDS = 1000
"""Most rounds of EM; it converges linearly, and slowly where classes overlap."""
CLOSE = 1e-7
"""Change of all shares in a round of EM below which it has converged."""
CLOSE_RESAMPLE = 1e-5
"""`CLOSE` for resamples, whose spread is much larger."""


@dataclass(frozen=True)
class EstimatedShares:
    """Class shares of some images, estimated from predictions."""

    shares: Floats
    """(C,) they sum to 1."""
    lower: Floats
    """(C,) lower ends of the 95 % intervals."""
    upper: Floats
    """(C,) upper ends."""

    def lines(self, classes: tuple[str, ...]) -> list[str]:
        """Return a line for each class, with its interval."""
        ends = zip(classes, self.shares, self.lower, self.upper, strict=True)
        return [f"{name}: {share:.4f} ({low:.4f} to {up:.4f})" for name, share, low, up in ends]


def calibrated(probs: NDArray[np.floating], temperature: float) -> Floats:
    """Return probabilities whose logits are divided by a temperature.

    Args:
        probs: (N, C) probabilities.
        temperature: Above 0; 1 changes nothing.
    """
    powers: Floats = np.maximum(probs.astype(np.float64), 1e-30) ** (1 / temperature)
    result: Floats = powers / powers.sum(axis=1, keepdims=True)
    return result


def adjust_probabilities(probs: NDArray[np.floating], shares: Floats, training: Floats) -> Floats:
    """Return probabilities for images with other class shares than those of the training.

    p_c · shares_c / training_c, each row normalized. A class that the training doesn't have keeps
    its probability relative to the shares; a row without any probability left is unchanged.

    Args:
        probs: (N, C) calibrated probabilities.
        shares: (C,) class shares of the images.
        training: (C,) class shares of the training.

    Returns:
        (N, C) float64.

    Source: Saerens, Latinne and Decaestecker, Adjusting the Outputs of a Classifier to New a Priori
    Probabilities, Neural Computation 2002, eq. 2.4.
    """
    weights = np.divide(shares, training, out=np.zeros_like(shares), where=training > 0)
    weighted = probs.astype(np.float64) * weights
    total = weighted.sum(axis=1, keepdims=True)
    return np.where(total > 0, weighted / np.where(total > 0, total, 1), probs)


def estimate_class_shares(
    probs: NDArray[np.floating],
    training: Floats,
    *,
    validation: Labeled | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> EstimatedShares:
    """Estimate the class shares of images by EM, from a classifier that was trained with others.

    In turn, the probabilities are adjusted to the shares, and the shares become their mean. This
    maximizes the likelihood of the images if the probabilities are calibrated for the class shares
    of the training. The intervals are the percentiles of a bootstrap over the images. Without
    validation images, they cover the choice of the images, not errors of the calibration. With
    them, each resample is reduced by the error of the estimate on a resample of the validation
    images, which are weighted to the estimated shares.

    Args:
        probs: (N, C) calibrated probabilities.
        training: (C,) class shares of the training.
        validation: Images that were not trained on, which show the errors of the classifier.
        resamples: Number of resamples.
        seed: Seed of a separate numpy generator; equal arguments give equal intervals.

    Source: Saerens, Latinne and Decaestecker, Neural Computation 2002, section 2.2; Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.
    """
    count, classes = probs.shape
    if not count:
        return EstimatedShares(training, np.zeros(classes), np.ones(classes))
    ratios = np.divide(
        probs.astype(np.float64), training, out=np.zeros(probs.shape), where=training > 0
    )
    even = np.full(count, 1 / count)
    shares = _maximize(ratios, even, training)
    generator = np.random.default_rng(seed)
    # Near the maximum, but inside: EM never leaves a share of 0.
    start = 0.9 * shares + 0.1 * training
    samples = [
        _maximize(ratios, generator.multinomial(count, even) / count, start, CLOSE_RESAMPLE)
        for _ in range(resamples)
    ]
    if validation is not None:
        errors = _errors(validation, training, shares, start, resamples, generator)
        samples = list(np.clip(np.array(samples) - errors, 0, 1))
    lower, upper = np.quantile(samples, [0.025, 0.975], axis=0)
    return EstimatedShares(shares, np.minimum(lower, shares), np.maximum(upper, shares))


def _errors(
    validation: Labeled,
    training: Floats,
    shares: Floats,
    start: Floats,
    resamples: int,
    generator: np.random.Generator,
) -> Floats:
    """Return the errors (resamples, C) of the estimate on images whose classes are known.

    The images of each class are resampled, and weighted so that the classes have the given shares.
    """
    probs, labels = validation
    sizes = np.bincount(labels, minlength=len(shares))
    known = np.where(sizes > 0, shares, 0.0)
    if not (total := known.sum()):
        return np.zeros((resamples, len(shares)))
    known /= total
    ratios = np.divide(probs, training, out=np.zeros(probs.shape), where=training > 0)
    errors = np.empty((resamples, len(shares)))
    for error in errors:
        weights = np.zeros(len(labels))
        for label, size in enumerate(sizes.tolist()):
            drawn = generator.multinomial(size, np.full(size, 1 / size)) if size else 0
            weights[labels == label] = known[label] * drawn / max(size, 1)
        error[:] = _maximize(ratios, weights, start, CLOSE_RESAMPLE) - known
    return errors


def _maximize(ratios: Floats, weights: Floats, start: Floats, close: float = CLOSE) -> Floats:
    """Return the shares that maximize the weighted likelihood of the images by EM.

    Args:
        ratios: (N, C) probabilities divided by the shares of the training.
        weights: (N,) weights of the images, which sum to 1.
        start: (C,) shares to start from; a share of 0 stays 0.
        close: largest change of a share at which EM ends.
    """
    shares = start
    for _ in range(ROUNDS):
        total = ratios @ shares
        factors = np.divide(weights, total, out=np.zeros_like(total), where=total > 0)
        updated = shares * (factors @ ratios)
        if not (kept := updated.sum()):  # no image can be of a class of the training
            break
        updated /= kept
        change = np.abs(updated - shares).max()
        shares = updated
        if change < close:
            break
    return shares
