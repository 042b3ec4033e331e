"""The linear probe with several classes per image, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from ssl_toolkit import fit_multilabel_probe, unit_length
from ssl_toolkit.models.probe import DEFAULT_STRENGTH, STRENGTHS


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, 8, generator=generator)
    noise = torch.randn(count, 3, generator=generator)
    return features, (features[:, :3] + noise > 0.5).float()


def test_it_is_one_logistic_regression_for_each_class() -> None:
    features, targets = draw(80)
    transform = unit_length((8,))
    probe = fit_multilabel_probe(features, targets, transform)
    assert probe.strength in STRENGTHS
    assert probe.folds == 5
    model = LogisticRegression(C=probe.strength, max_iter=5000, tol=1e-9)
    x = transform(features).double().numpy()
    expected = OneVsRestClassifier(model).fit(x, targets.numpy()).predict_proba(x)
    found = probe.head(features).sigmoid().detach().numpy()
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_class_of_all_or_no_images_has_a_constant_probability() -> None:
    features, targets = draw(6)
    targets[:, 0], targets[:, 1] = 1, 0
    probe = fit_multilabel_probe(features, targets, unit_length((8,)))
    assert (probe.strength, probe.folds) == (DEFAULT_STRENGTH, 0)
    probs = probe.head(features).sigmoid().detach().numpy()
    assert np.allclose(probs[:, 0], 6.5 / 7)
    assert np.allclose(probs[:, 1], 0.5 / 7)
