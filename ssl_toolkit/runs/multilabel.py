"""Scores and thresholds under ``--task multilabel``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ssl_toolkit.documents import Part
from ssl_toolkit.engine.multilabel import average_precisions

DEFAULT_THRESHOLD = 0.5
"""Threshold of a class without validation images that have it."""

RESAMPLES = 500
"""Of the images, for the interval of the mean average precision."""


class LabelScore(Part):
    """Scores of one class under ``--task multilabel``."""

    average_precision: float | None
    """None if no image has the class."""
    f1: float
    """With its threshold; 0 without a hit."""
    threshold: float
    """Least probability of an image that is predicted to have the class."""
    count: int
    """Number of images that have the class."""


class MultiLabelScores(Part):
    """Scores of a model on labeled images under ``--task multilabel``."""

    map: float
    """Mean average precision: the mean over the classes that an image has."""
    count: int
    """Number of images."""
    micro_f1: float
    """F1 over all pairs of image and class."""
    macro_f1: float
    """Mean of F1 over all classes."""
    exact: float
    """Share of the images whose classes are all predicted, and no others."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the mean average precision over the images."""
    per_class: dict[str, LabelScore]
    """By class name."""


class MultiLabelResults(Part):
    """Scores of a run under ``--task multilabel``."""

    validation: MultiLabelScores | None
    """None without validation images."""
    test: MultiLabelScores | None
    """None without test images."""


def choose_thresholds(
    probs: NDArray[np.float32], targets: NDArray[np.integer[Any]]
) -> tuple[float, ...]:
    """Return for each class the threshold with the highest F1, from validation images.

    It is halfway between two neighboring probabilities; of equal ones the closest to
    `DEFAULT_THRESHOLD`, which is that of a class that no image has.

    Args:
        probs: (N, C) probabilities.
        targets: (N, C) in {0, 1}.
    """
    thresholds = []
    for p, y in zip(probs.T.astype(np.float64), targets.T.astype(bool), strict=True):
        if not y.any():
            thresholds.append(DEFAULT_THRESHOLD)
            continue
        order = np.argsort(p, kind="stable")
        values = np.unique(p)
        halfway = (values[1:] + values[:-1]) / 2
        candidates = np.concatenate([[DEFAULT_THRESHOLD], halfway, values[:1] / 2])
        candidates = candidates[np.argsort(np.abs(candidates - DEFAULT_THRESHOLD), kind="stable")]
        first = np.searchsorted(p[order], candidates)
        hits = np.concatenate([np.cumsum(y[order][::-1])[::-1], [0]])[first]
        f1 = 2 * hits / (len(p) - first + y.sum())
        thresholds.append(float(candidates[np.argmax(f1 >= f1.max() - 1e-12)]))
    return tuple(thresholds)


def multilabel_scores(
    probs: NDArray[np.float32],
    targets: NDArray[np.integer[Any]],
    classes: Sequence[str],
    thresholds: Sequence[float],
) -> dict[str, Any]:
    """Return the fields of `MultiLabelScores`.

    Args:
        probs: (N, C) probabilities, N >= 1.
        targets: (N, C) in {0, 1}.
        classes: C names.
        thresholds: C thresholds.
    """
    truth = targets.astype(bool)
    predicted = probs.astype(np.float64) >= np.array(thresholds)
    hits, count, guesses = (each.sum(axis=0) for each in (truth & predicted, truth, predicted))
    f1 = 2 * hits / np.maximum(count + guesses, 1)
    precisions = _precisions(probs, targets)
    return {
        "map": _mean(precisions),
        "count": len(targets),
        "micro_f1": float(2 * hits.sum() / max(count.sum() + guesses.sum(), 1)),
        "macro_f1": float(f1.mean()),
        "exact": float((truth == predicted).all(axis=1).mean()),
        "interval": list(_interval(probs, targets)),
        "per_class": {
            name: {
                "average_precision": float(ap) if np.isfinite(ap) else None,
                "f1": float(score),
                "threshold": float(threshold),
                "count": int(n),
            }
            for name, ap, score, threshold, n in zip(
                classes, precisions, f1, thresholds, count, strict=True
            )
        },
    }


def _precisions(
    probs: NDArray[np.float32], targets: NDArray[np.integer[Any]]
) -> NDArray[np.float64]:
    result: NDArray[np.float64] = average_precisions(
        torch.from_numpy(probs), torch.from_numpy(targets.astype(np.float64))
    ).numpy()
    return result


def _mean(precisions: NDArray[np.float64]) -> float:
    present = precisions[np.isfinite(precisions)]
    return float(present.mean()) if len(present) else 0.0


def _interval(probs: NDArray[np.float32], targets: NDArray[np.integer[Any]]) -> tuple[float, float]:
    """Return the percentile interval of the mean average precision under resampling of images."""
    generator = np.random.default_rng(0)
    values = []
    for _ in range(RESAMPLES):
        rows = generator.integers(0, len(probs), len(probs))
        values.append(_mean(_precisions(probs[rows], targets[rows])))
    lower, upper = np.quantile(values, [0.025, 0.975])
    return float(lower), float(upper)
