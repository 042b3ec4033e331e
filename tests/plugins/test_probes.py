"""Classifiers on frozen features, against scikit-learn and against plain loops."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelPropagation, LabelSpreading
from ssl_toolkit_probes.graph import spread_labels
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    TaskInfo,
    TrainingFeatures,
    fit_probe,
    fit_soft_labels,
    registry,
    unit_length,
)
from ssl_toolkit.models.probe import STRENGTHS, choose_strength, fit_temperature
from ssl_toolkit.ops import follow_shares

D, C = 12, 3
Array = NDArray[np.float64]


def blobs(count: int, seed: int, classes: int = C) -> tuple[Tensor, Tensor]:
    """Features around a center for each class, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centers = torch.randn(classes, D, generator=torch.Generator().manual_seed(99))
    return centers[labels] + torch.randn(count, D, generator=generator), labels


def given(per_class: int = 5, pool: int = 60, classes: int = C) -> TrainingFeatures:
    labeled, labels = blobs(per_class * classes, 1, classes)
    unlabeled, _ = blobs(pool, 2, classes)
    return TrainingFeatures(labeled[None], labels, unlabeled[None], (D,))


def fitted(name: str, features: TrainingFeatures, classes: int = C, **options: object):
    plugin = registry.load("algorithms", name)
    counts = tuple(np.bincount(features.labels.numpy(), minlength=classes).tolist())
    size = features.labeled.shape[2]
    task = TaskInfo(classes, size, counts, features.unlabeled.shape[1], 1)
    return plugin(plugin.Config(**options), task).fit(features, torch.Generator())


QUERIES, _ = blobs(40, 3)


def probabilities(head, queries: Tensor = QUERIES) -> Array:
    with torch.no_grad():
        return head(queries).double().softmax(dim=-1).numpy()


def unit(x: Tensor, center: Tensor | None = None) -> Array:
    """Features of unit length in float64."""
    y = x.double().numpy()
    y = y if center is None else y - center.double().numpy().mean(0)
    return y / np.linalg.norm(y, axis=1, keepdims=True)


# --- equal to scikit-learn -----------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_probe_equals_scikit_learn(classes: int) -> None:
    features = given(classes=classes)
    x, y = unit(features.labeled[0]), features.labels.numpy()
    strength, accuracy, folds, _ = choose_strength(x, y)
    assert strength in STRENGTHS
    assert folds == 5
    assert accuracy is not None
    model = LogisticRegression(C=strength, max_iter=10000, tol=1e-10).fit(x, y)
    result = probabilities(fitted("linear_probe", features, classes))
    assert np.abs(result - model.predict_proba(unit(QUERIES))).max() < 1e-6


def test_the_strength_is_the_one_with_the_least_held_out_loss() -> None:
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    x, y = unit(given().labeled[0]), given().labels.numpy()
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    losses = [
        -cross_val_score(
            LogisticRegression(C=c, max_iter=1000), x, y, cv=folds, scoring="neg_log_loss"
        ).mean()
        for c in STRENGTHS
    ]
    assert choose_strength(x, y)[0] == STRENGTHS[int(np.argmin(losses))]


@pytest.mark.parametrize("k", [1, 3, 15])
def test_knn_equals_scikit_learn(k: int) -> None:
    features = given()
    center = torch.cat([features.labeled[0], features.unlabeled[0]])
    model = KNeighborsClassifier(k).fit(unit(features.labeled[0], center), features.labels)
    wanted = model.predict_proba(unit(QUERIES, center))
    assert np.abs(probabilities(fitted("knn", features, k=k)) - wanted).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("label_propagation", LabelPropagation("knn", n_neighbors=7, max_iter=1000)),
        ("label_spreading", LabelSpreading("knn", n_neighbors=7, alpha=0.3, max_iter=1000)),
    ],
)
def test_propagation_and_spreading_equal_scikit_learn(name: str, estimator) -> None:
    features = given()
    pool = torch.cat([features.labeled[0], features.unlabeled[0]])
    labels = np.concatenate([features.labels.numpy(), np.full(60, -1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(unit(pool, pool), labels)
    options = {"k": 7, **({"alpha": 0.3} if name == "label_spreading" else {})}
    result = probabilities(fitted(name, features, **options))
    assert np.abs(result - estimator.predict_proba(unit(QUERIES, pool))).max() < 1e-6


def test_soft_labels_that_are_one_hot_are_labels() -> None:
    x, y = blobs(50, 4)
    weights = torch.ones(50, dtype=torch.float64)
    w, b = fit_soft_labels(x, F.one_hot(y, C), weights, 3.0)
    model = LogisticRegression(C=3.0, max_iter=10000, tol=1e-10).fit(x.double().numpy(), y)
    assert np.abs(w.numpy() - model.coef_).max() < 1e-5
    ours = (QUERIES.double() @ w.T + b).softmax(-1).numpy()
    assert np.abs(ours - model.predict_proba(QUERIES.double().numpy())).max() < 1e-6
    # A weight of 2 is the same image twice; a distribution is its classes by their shares.
    weights[:10] = 2
    doubled, _ = fit_soft_labels(x, F.one_hot(y, C), weights, 3.0)
    again = torch.cat([x, x[:10]]), F.one_hot(torch.cat([y, y[:10]]), C)
    wanted, _ = fit_soft_labels(*again, torch.ones(60), 3.0)
    assert torch.allclose(doubled, wanted, atol=1e-6)


# --- graph_probe ---------------------------------------------------------------------------------


def dense_spread(x: Array, one_hot: Array, k: int, alpha: float, gamma: float) -> Array:
    """Equations 1 and 2 of the docstring, entry by entry."""
    n, labeled = len(x), len(one_hot)
    a = np.zeros((n, n))
    for i in range(n):
        nearest = sorted((np.linalg.norm(x[i] - x[j]), j) for j in range(n) if j != i)[:k]
        for _, j in nearest:
            a[i, j] = max(0.0, float(x[i] @ x[j])) ** gamma
    a = np.maximum(a, a.T)
    d = a.sum(axis=1)
    s = np.array(
        [[a[i, j] / np.sqrt(d[i] * d[j]) if a[i, j] else 0.0 for j in range(n)] for i in range(n)]
    )
    y = np.zeros((n, one_hot.shape[1]))
    for i in range(labeled):
        y[i] = one_hot[i] / one_hot[:, one_hot[i].argmax()].sum()
    f = np.linalg.inv(np.eye(n) - alpha * s) @ y
    q = (np.maximum(f, 0) + 1e-9) / (np.maximum(f, 0) + 1e-9).sum(axis=1, keepdims=True)
    q[:labeled] = one_hot
    return q


def test_spread_labels_against_a_dense_graph() -> None:
    features = given(per_class=2, pool=25)
    pool = torch.cat([features.labeled[0], features.unlabeled[0]])
    x = torch.from_numpy(unit(pool, pool))
    one_hot = F.one_hot(features.labels, C).double()
    result = spread_labels(x, one_hot, 4, 0.65, 3.0)
    wanted = dense_spread(x.numpy(), one_hot.numpy(), 4, 0.65, 3.0)
    assert np.abs(result.numpy() - wanted).max() < 1e-6


def test_shares_follow_the_documented_formula() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.4, 0.6]], dtype=torch.float64)
    probs = probs.repeat(25, 1)
    weights = np.ones(2)
    for _ in range(20):
        result = probs.numpy() * weights
        result = result / result.sum(axis=1, keepdims=True)
        shares = (result.sum(axis=0) + 5) / (100 + 10)
        weights = (2 * shares) ** 0.5
    assert np.abs(follow_shares(probs, 0.5).numpy() - result).max() < 1e-12
    assert torch.equal(follow_shares(probs, 0.0), probs)
    assert follow_shares(probs, 1.0)[:, 0].mean() > follow_shares(probs, 0.5)[:, 0].mean()


def test_the_graph_helps_where_the_labels_are_few() -> None:
    features = given(per_class=1, pool=300)
    queries, labels = blobs(600, 7)
    accuracy = {
        name: (probabilities(fitted(name, features), queries).argmax(1) == labels.numpy()).mean()
        for name in ("linear_probe", "graph_probe")
    }
    assert accuracy["graph_probe"] > accuracy["linear_probe"] + 0.02


# --- edges ---------------------------------------------------------------------------------------

NAMES = ("linear_probe", "knn", "label_propagation", "label_spreading", "graph_probe")


def _one_each() -> TrainingFeatures:
    return given(per_class=1)


def _class_without_label() -> TrainingFeatures:
    features = given()
    kept = features.labels != 1
    return TrainingFeatures(
        features.labeled[:, kept], features.labels[kept], features.unlabeled, (D,)
    )


def _single_class() -> TrainingFeatures:
    features = given()
    kept = features.labels == 1
    return TrainingFeatures(
        features.labeled[:, kept], features.labels[kept], features.unlabeled, (D,)
    )


def _empty_pool() -> TrainingFeatures:
    features = given()
    return TrainingFeatures(features.labeled, features.labels, features.unlabeled[:, :0], (D,))


def _labels_in_pool() -> TrainingFeatures:
    features = given()
    both = torch.cat([features.labeled, features.unlabeled], dim=1)
    return TrainingFeatures(features.labeled, features.labels, both, (D,))


def _duplicates() -> TrainingFeatures:
    features = given()
    labeled = features.labeled[:, :3].repeat(1, 5, 1)
    return TrainingFeatures(labeled, features.labels, labeled.repeat(1, 4, 1), (D,))


def _constant() -> TrainingFeatures:
    features = given()
    return TrainingFeatures(
        torch.ones_like(features.labeled), features.labels, torch.ones(1, 60, D), (D,)
    )


def _few_images() -> TrainingFeatures:
    return given(per_class=1, pool=2)


EDGES = [
    _one_each,
    _class_without_label,
    _single_class,
    _empty_pool,
    _labels_in_pool,
    _duplicates,
    _constant,
    _few_images,
]


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.__name__.strip("_"))
@pytest.mark.parametrize("name", NAMES)
def test_awkward_features_give_probabilities(name: str, edge) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = fitted(name, edge())
    result = probabilities(head)
    assert np.isfinite(result).all()
    assert np.abs(result.sum(axis=1) - 1).max() < 1e-6
    with torch.no_grad():
        assert torch.isfinite(head(torch.zeros(2, D))).all()
    if edge is _class_without_label:
        assert (result.argmax(axis=1) != 1).all()
    if edge is _single_class:
        assert (result.argmax(axis=1) == 1).all()


def test_two_classes() -> None:
    features = given(classes=2)
    for name in NAMES:
        queries, labels = blobs(40, 3, 2)
        result = probabilities(fitted(name, features, 2), queries)
        assert result.shape == (40, 2)
        assert (result.argmax(axis=1) == labels.numpy()).mean() > 0.7, name


def test_a_probe_of_one_label_a_class_has_the_default_strength() -> None:
    features = given(per_class=1)
    probe = fit_probe(features.labeled[0], features.labels, C, unit_length((D,)))
    assert (probe.strength, probe.accuracy, probe.folds) == (10.0, None, 0)
    assert probe.temperature == 1


# --- calibration ---------------------------------------------------------------------------------


def test_the_temperature_is_that_of_the_labels_where_there_are_many() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 2, (4000, 3))
    y = (logits + draw.gumbel(size=logits.shape)).argmax(axis=1)
    assert fit_temperature(logits, y) == pytest.approx(1, abs=0.05)
    assert fit_temperature(3 * logits, y) == pytest.approx(3, rel=0.05)
    assert fit_temperature(logits / 3, y) == pytest.approx(1 / 3, rel=0.05)


def test_few_labels_move_the_temperature_little() -> None:
    """All of them right, the likelihood alone would ask for a temperature of 0."""
    assert fit_temperature(2 * np.eye(3), np.arange(3)) > 0.7


def test_a_calibrated_head_predicts_the_same_with_another_confidence() -> None:
    features = given()
    probe = fit_probe(features.labeled[0], features.labels, C, unit_length((D,)))
    assert probe.temperature != 1
    with torch.no_grad():
        plain, calibrated = probe.head(QUERIES), probe.calibrated_head()(QUERIES)
    assert torch.allclose(calibrated * probe.temperature, plain, rtol=1e-4, atol=1e-4)
    assert torch.equal(calibrated.argmax(dim=1), plain.argmax(dim=1))
