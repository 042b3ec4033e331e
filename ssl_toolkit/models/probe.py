"""Linear probe: logistic regression on frozen features, with cross-validated regularization."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit.models.heads import FeatureHead, FeatureTransform, linear_layer

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Inverse regularization strengths C that cross-validation chooses from."""
DEFAULT_STRENGTH = 10.0
FOLDS = 5
TEMPERATURES = (0.1, 10.0)
TEMPERATURE_SPREAD = 0.25
"""Standard deviation of the prior on log T: a few dozen labels determine T poorly, and labels that
are all predicted correctly would let it approach 0."""
STAGE_WEIGHT = 0.4
"""Length of the features of an earlier stage, relative to those of the last stage."""


@dataclass(frozen=True)
class Probe:
    """A fitted probe and its cross-validation."""

    head: FeatureHead
    strength: float
    """C of scikit-learn's ``LogisticRegression``."""
    accuracy: float | None
    """Mean accuracy of cross-validation on the labels; None if a class has one label."""
    folds: int
    """Number of folds; 0 without cross-validation."""
    temperature: float = 1.0
    """T that calibrates the probabilities if logits are divided by it, by the same
    cross-validation."""

    def calibrated_head(self) -> FeatureHead:
        """Return the head with its logits divided by the temperature; its classes are the same."""
        linear = self.head.predictor
        assert isinstance(linear, nn.Linear)
        weight, bias = linear.weight / self.temperature, linear.bias / self.temperature
        return FeatureHead.linear(self.head.transform, weight, bias)


class CrossValidation(NamedTuple):
    """Result of cross-validating a logistic regression on the labels."""

    strength: float
    """C with the smallest log loss."""
    accuracy: float | None
    """Accuracy with that C; None if a class has one label."""
    folds: int
    """Number of folds; 0 without cross-validation."""
    temperature: float
    """T that minimizes the log loss of the held-out logits over T, with that C."""


def pooled_transform(features: Tensor, sizes: Sequence[int]) -> FeatureTransform:
    """Return the transform that is most accurate with few labels, from all training images.

    The features of the last stage, the first block, are raised to the power 1/2 and scaled to unit
    length; the means of earlier stages are standardized and scaled to length `STAGE_WEIGHT`; all
    are centered and scaled to unit length.

    Args:
        features: (N, D) features of all training images.
        sizes: Number of features per block, as `append_stages` returns them.
    """
    first, rest = sizes[0], len(sizes) - 1
    x = features.double()
    shift, std = x.mean(dim=0), x.std(dim=0, correction=0)
    shift[:first] = 0
    # A feature that is constant here has no information, and would dominate where it is not.
    scale = torch.where(std > 1e-6, 1 / (std + 1e-6), 0)
    scale[:first] = 1
    transform = FeatureTransform(
        torch.zeros_like(shift),
        sizes=sizes,
        powers=[0.5] + [1.0] * rest,
        weights=[1.0] + [STAGE_WEIGHT] * rest,
        shift=shift,
        scale=scale,
        unit_blocks=True,
    )
    transform.mean.copy_(transform.blocks(features).double().mean(dim=0))
    return transform


def unfitted_head(
    sizes: Sequence[int], num_classes: int, init: str, *, frozen: bool
) -> FeatureHead | nn.Linear:
    """Return a linear head with weights 0.

    On a frozen backbone it has the form of `pooled_transform`. A trained backbone moves away from
    such statistics, and the gradient of a power below 1 is infinite at a feature of 0: there the
    features are used unchanged, or scaled to unit length for a probe.

    Args:
        sizes: Number of features per block.
        num_classes: Number of classes C.
        init: ``zero`` or ``probe``.
        frozen: True if the whole backbone is frozen.
    """
    weight, bias = torch.zeros(num_classes, sum(sizes)), torch.zeros(num_classes)
    if frozen:
        transform = pooled_transform(torch.zeros(1, sum(sizes)), sizes)
        return FeatureHead.linear(transform, weight, bias)
    if init == "probe":
        return FeatureHead.linear(unit_length(sizes), weight, bias)
    return linear_layer(weight, bias)


def unit_length(sizes: Sequence[int], center: Tensor | None = None) -> FeatureTransform:
    """Return the transform to features of the last stage at unit length, the usual probe input.

    Args:
        sizes: Number of features per block; all blocks but the first are dropped.
        center: (N, D) features whose mean is subtracted first; None to subtract nothing.
    """
    scale = torch.zeros(sum(sizes))
    scale[: sizes[0]] = 1
    mean = torch.zeros_like(scale) if center is None else center.double().mean(dim=0) * scale
    return FeatureTransform(mean, scale=scale)


def fit_probe(
    labeled: Tensor, labels: Tensor, num_classes: int, transform: FeatureTransform
) -> Probe:
    """Fit a logistic regression to transformed features.

    C is the one of `STRENGTHS` with the smallest cross-validated log loss, so that the
    probabilities are calibrated as far as the labels allow; `DEFAULT_STRENGTH` if a class has a
    single label.

    Args:
        labeled: (n, D) features.
        labels: (n,) int64.
        num_classes: Number of classes C.
        transform: Transform of the features, such as `unit_length`.
    """
    x = transform(labeled).double().numpy()
    validation = choose_strength(x, labels.numpy())
    weight, bias = fit_logistic_regression(x, labels.numpy(), validation.strength, num_classes)
    head = FeatureHead.linear(transform, torch.from_numpy(weight), torch.from_numpy(bias))
    return Probe(head, *validation)


def fit_multilabel_probe(labeled: Tensor, targets: Tensor, transform: FeatureTransform) -> Probe:
    """Fit a logistic regression for each class to transformed features, for ``multilabel``.

    C is the same for all classes: the one of `STRENGTHS` with the smallest cross-validated log
    loss, or `DEFAULT_STRENGTH` if there are fewer labels than twice the folds. A class that all or
    no images have gets a constant probability.

    Args:
        labeled: (n, D) features.
        targets: (n, C) in {0, 1}.
        transform: Transform of the features, such as `unit_length`.
    """
    x, y = transform(labeled).double().numpy(), targets.numpy() > 0.5
    strength, folds = DEFAULT_STRENGTH, 0
    if len(x) >= 2 * FOLDS:
        from sklearn.model_selection import KFold

        folds = FOLDS
        parts = list(KFold(folds, shuffle=True, random_state=0).split(x))
        signs = np.where(y, 1, -1)
        losses = []
        for each in STRENGTHS:
            logits = np.empty(y.shape)
            for train, test in parts:
                weight, bias = _fit_each_class(x[train], y[train], each)
                logits[test] = x[test] @ weight.T + bias
            losses.append(float(np.logaddexp(0, -signs * logits).mean()))
        strength = STRENGTHS[int(np.argmin(losses))]
    weight, bias = _fit_each_class(x, y, strength)
    head = FeatureHead.linear(transform, torch.from_numpy(weight), torch.from_numpy(bias))
    return Probe(head, strength, None, folds)


def fit_soft_labels(
    x: Tensor, targets: Tensor, weights: Tensor, strength: float
) -> tuple[Tensor, Tensor]:
    """Fit a multinomial logistic regression to distributions in place of labels.

    Minimizes ``strength · sum_i w_i H(q_i, softmax(W x_i + b)) + |W|² / 2``, which for one-hot
    targets is the objective of scikit-learn's ``LogisticRegression(C=strength)``.

    Args:
        x: (N, K) features.
        targets: (N, C) distributions q.
        weights: (N,) nonnegative weights w.
        strength: Inverse regularization strength, above 0.

    Returns:
        W (C, K) and b (C,), float64.
    """
    x, targets, weights = x.double(), targets.double(), weights.double()
    w = torch.zeros(targets.shape[1], x.shape[1], dtype=torch.float64, requires_grad=True)
    b = torch.zeros(targets.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [w, b],
        max_iter=500,
        tolerance_grad=1e-8,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        entropy = -(targets * F.log_softmax(x @ w.T + b, dim=-1)).sum(dim=-1)
        loss = strength * (weights * entropy).sum() + w.square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
    return w.detach(), b.detach()


def choose_strength(x: NDArray[np.float64], y: NDArray[np.int64]) -> CrossValidation:
    """Choose C and the temperature by stratified cross-validation."""
    from scipy.special import softmax
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold

    folds = min(FOLDS, int(np.bincount(y)[np.unique(y)].min()))
    if folds < 2:
        return CrossValidation(DEFAULT_STRENGTH, None, 0, 1.0)
    parts = list(StratifiedKFold(folds, shuffle=True, random_state=0).split(x, y))
    classes = int(y.max()) + 1
    if len(x) < x.shape[1]:  # fewer features with the same inner products, on which the fit depends
        x = np.ascontiguousarray(np.linalg.qr(x.T)[1].T)
    least, best = np.inf, CrossValidation(DEFAULT_STRENGTH, None, 0, 1.0)
    for strength in STRENGTHS:
        logits = np.empty((len(y), classes))
        for train, test in parts:
            weight, bias = fit_logistic_regression(x[train], y[train], strength, classes)
            logits[test] = x[test] @ weight.T + bias
        loss = float(log_loss(y, softmax(logits, axis=1), labels=np.arange(classes)))
        if loss < least:
            accuracy = float((logits.argmax(axis=1) == y).mean())
            least = loss
            best = CrossValidation(strength, accuracy, folds, fit_temperature(logits, y))
    return best


def fit_temperature(logits: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Return T within `TEMPERATURES` that minimizes n · log loss(logits / T) + (log T / s)² / 2.

    Temperature scaling (Guo, Pleiss, Sun and Weinberger, *On Calibration of Modern Neural
    Networks*, ICML 2017) with a normal prior on log T, s being `TEMPERATURE_SPREAD`.

    Args:
        logits: (n, C) logits of held-out images.
        y: (n,) labels of these images.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import softmax
    from sklearn.metrics import log_loss

    classes = np.arange(logits.shape[1])

    def loss(log_t: float) -> float:
        likelihood = log_loss(
            y, softmax(logits / np.exp(log_t), axis=1), labels=classes, normalize=False
        )
        return float(likelihood) + (log_t / TEMPERATURE_SPREAD) ** 2 / 2

    bounds = tuple(np.log(TEMPERATURES))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def _fit_each_class(
    x: NDArray[np.float64], y: NDArray[np.bool_], strength: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit scikit-learn's binary logistic regression to each column; return (C, D) and (C,)."""
    from sklearn.linear_model import LogisticRegression

    weight, bias = np.zeros((y.shape[1], x.shape[1])), np.zeros(y.shape[1])
    for label, has in enumerate(y.T):
        if has.all() or not has.any():
            bias[label] = np.log((has.sum() + 0.5) / ((~has).sum() + 0.5))
            continue
        model = LogisticRegression(C=strength, max_iter=5000, tol=1e-9).fit(x, has)
        weight[label], bias[label] = model.coef_[0], model.intercept_[0]
    return weight, bias


def fit_logistic_regression(
    x: NDArray[np.float64], y: NDArray[np.int64], strength: float, num_classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit scikit-learn's multinomial logistic regression; return weights (C, D), biases (C,).

    A class without labels gets weights 0 and the smallest of the other biases minus 30.
    """
    weight, bias = np.zeros((num_classes, x.shape[1])), np.full(num_classes, -30.0)
    present = np.unique(y)
    if len(present) == 1:  # nothing to distinguish
        bias[present] = 0
        return weight, bias
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=strength, max_iter=5000, tol=1e-9).fit(x, y)
    rows, offsets = model.coef_, model.intercept_
    if len(model.classes_) == 2:  # one row for the second class: split it evenly
        rows = np.concatenate([-rows, rows]) / 2
        offsets = np.concatenate([-offsets, offsets]) / 2
    bias += offsets.min()
    weight[model.classes_], bias[model.classes_] = rows, offsets
    return weight, bias
