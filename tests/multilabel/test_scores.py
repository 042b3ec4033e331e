"""Scores with several classes per image, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from ssl_toolkit.engine.multilabel import (
    average_precisions,
    binary_cross_entropy,
    mean_average_precision,
)
from ssl_toolkit.runs.multilabel import MultiLabelScores, choose_thresholds, multilabel_scores


def draw(count: int, classes: int, decimals: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities, with ties if rounded, and labels."""
    draws = np.random.default_rng(seed)
    targets = (draws.random((count, classes)) < 0.3).astype(np.int64)
    probs = np.clip(0.4 * targets + 0.6 * draws.random((count, classes)), 0, 1)
    return probs.round(decimals).astype(np.float32), targets


@pytest.mark.parametrize("decimals", [7, 1, 0])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_average_precision_is_that_of_scikit_learn(count: int, decimals: int) -> None:
    probs, targets = draw(count, 5, decimals, count)
    found = average_precisions(torch.from_numpy(probs), torch.from_numpy(targets))
    for label in range(5):
        if targets[:, label].any():
            expected = average_precision_score(targets[:, label], probs[:, label])
            assert found[label].item() == pytest.approx(expected, abs=1e-12)
        else:
            assert found[label].isnan()


def test_the_mean_leaves_out_classes_without_an_image() -> None:
    probs = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.8, 0.5]])
    targets = torch.tensor([[1, 0, 0], [0, 1, 0]])
    assert mean_average_precision(probs, targets) == 1.0
    assert mean_average_precision(probs, torch.zeros(2, 3)) == 0.0


@pytest.mark.parametrize("decimals", [7, 1])
def test_f1_is_that_of_scikit_learn(decimals: int) -> None:
    probs, targets = draw(200, 4, decimals, 0)
    thresholds = (0.5, 0.3, 0.7, 0.9)
    scores = MultiLabelScores(**multilabel_scores(probs, targets, list("abcd"), thresholds))
    predicted = (probs.astype(np.float64) >= np.array(thresholds)).astype(int)
    options = {"zero_division": 0}
    assert scores.micro_f1 == pytest.approx(f1_score(targets, predicted, average="micro"))
    assert scores.macro_f1 == pytest.approx(
        f1_score(targets, predicted, average="macro", **options)
    )
    assert scores.exact == (targets == predicted).all(axis=1).mean()
    expected = average_precision_score(targets, probs, average="macro")
    assert scores.map == pytest.approx(expected, abs=1e-12)
    lower, upper = scores.interval
    assert lower < scores.map < upper
    each = f1_score(targets, predicted, average=None)
    assert [score.f1 for score in scores.per_class.values()] == pytest.approx(each)
    assert [score.count for score in scores.per_class.values()] == targets.sum(axis=0).tolist()


@pytest.mark.parametrize("decimals", [7, 1])
@pytest.mark.parametrize("seed", range(5))
def test_a_threshold_has_the_highest_f1(seed: int, decimals: int) -> None:
    probs, targets = draw(60, 3, decimals, seed)
    for label, threshold in enumerate(choose_thresholds(probs, targets)):
        p, y = probs[:, label].astype(np.float64), targets[:, label]
        best = max(f1_score(y, p >= least) for least in [0.0, *np.unique(p)])
        assert f1_score(y, p >= threshold) == pytest.approx(best)


def test_a_threshold_is_the_default_where_nothing_says_otherwise() -> None:
    probs = np.array([[0.9, 0.4], [0.2, 0.3]], dtype=np.float32)
    assert choose_thresholds(probs, np.array([[1, 0], [0, 0]])) == (0.5, 0.5)
    assert choose_thresholds(probs[:0], np.zeros((0, 2), int)) == (0.5, 0.5)
    (only, _) = choose_thresholds(probs[:, ::-1], np.array([[1, 0], [0, 0]]))
    assert only == pytest.approx(0.35)


def test_the_loss_is_that_of_torch() -> None:
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    targets = (logits > 0.3).float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    assert binary_cross_entropy(logits.sigmoid(), targets) == pytest.approx(float(expected), 1e-5)
    assert np.isfinite(binary_cross_entropy(torch.zeros(1, 1), torch.ones(1, 1)))
