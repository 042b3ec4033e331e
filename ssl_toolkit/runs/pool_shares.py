"""Predict the pool of a finished run: its class shares for ``prior.json``, and its strangers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ssl_toolkit.data.readers.priors import PriorFile
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.shares import shares_of
from ssl_toolkit.interfaces import ForwardOutput
from ssl_toolkit.models.known_scores import LEAST, KnownScores
from ssl_toolkit.models.probe import TEMPERATURE_SPREAD, TEMPERATURES
from ssl_toolkit.runs.class_shares import Labeled, calibrated, estimate_class_shares
from ssl_toolkit.runs.predictions import Predictions
from ssl_toolkit.runs.summary import ExpectedStrangers

LEAST_VALIDATION = 50
"""Least number of validation images that calibrate the probabilities and their intervals."""
_POINTS = 60
LEAST_POOL = 500
"""Number of images of the pool that are predicted even if the test has fewer."""
MOST_VALIDATION = 1000
"""Most validation images whose stranger scores are computed."""


def temperature_of(probs: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature that calibrates validation images; 1 without enough of them.

    Args:
        probs: (N, C) probabilities.
        labels: (N,) true classes.
    """
    if len(labels) < LEAST_VALIDATION or labels.ndim != 1:
        return 1.0
    logits = np.log(np.maximum(probs.astype(np.float64), 1e-30))
    lowest, highest = np.log(TEMPERATURES)
    step = (highest - lowest) / _POINTS
    values = np.linspace(lowest, highest, _POINTS + 1)
    # A search in two grids: scipy and scikit-learn would take as long to import as a short run.
    for _ in range(2):
        best = values[np.argmin([_loss(logits, labels, value) for value in values])]
        values = np.clip(np.linspace(best - step, best + step, _POINTS + 1), lowest, highest)
    return float(np.exp(best))


def calibrated_validation(
    probs: np.ndarray, labels: np.ndarray, temperature: float
) -> Labeled | None:
    """Return calibrated validation images; None without enough of them.

    Args:
        probs: (N, C) probabilities.
        labels: (N,) true classes.
        temperature: Of `temperature_of`.
    """
    enough = len(labels) >= LEAST_VALIDATION and labels.ndim == 1
    return (calibrated(probs, temperature), labels) if enough else None


def _loss(logits: np.ndarray, labels: np.ndarray, log_temperature: float) -> float:
    """Return the objective of `ssl_toolkit.models.probe.fit_temperature`."""
    scaled = logits / np.exp(log_temperature)
    scaled -= scaled.max(axis=1, keepdims=True)
    truth = scaled[np.arange(len(labels)), labels]
    likelihood = (np.log(np.exp(scaled).sum(axis=1)) - truth).sum()
    return float(likelihood + (log_temperature / TEMPERATURE_SPREAD) ** 2 / 2)


class Outputs(NamedTuple):
    """Predictions of the reported weights for some images, on the CPU."""

    logits: Tensor
    """(N, C)."""
    scores: Tensor
    """(N,) stranger scores, see `Algorithm.stranger_scores`."""


def pool_outputs(experiment: Experiment, predictions: Predictions) -> Outputs | None:
    """Return the predictions of the reported weights for images of the pool.

    At most as many images are predicted as have been for the test, evenly spaced. None without
    unlabeled images, for streamed ones and for several classes per image.

    Args:
        experiment: With the reported weights.
        predictions: Of validation and test images.
    """
    trainer = experiment.trainer
    images = trainer.batches.images
    pool = images.unlabeled
    if (
        images.streamed is not None
        or not len(pool)
        or experiment.config.settings.task != "multiclass"
    ):
        return None
    most = max(LEAST_POOL, sum(len(labels) for _, labels in predictions.values()))
    return _outputs(experiment, pool, most)


def _outputs(experiment: Experiment, rows: Tensor, most: int) -> Outputs:
    """Return the outputs for at most this many of the images, evenly spaced."""
    trainer = experiment.trainer
    if len(rows) > most:
        rows = rows[torch.linspace(0, len(rows) - 1, most).long().to(rows.device)]
    inputs, batch_size = trainer.batches.images.inputs, trainer.settings.eval_batch_size
    predictor = trainer.predictor

    def convert(output: ForwardOutput) -> Tensor:
        scores = predictor.stranger_scores(output)
        return torch.cat([output.logits.float(), scores.float()[:, None]], dim=1)

    both = predict(predictor, inputs, rows, batch_size, convert=convert)
    return Outputs(both[:, :-1], both[:, -1])


def known_scores(experiment: Experiment, pool: Outputs | None) -> KnownScores | None:
    """Return the stranger scores of validation images or, with too few of them, of the pool.

    None under ``--task multilabel``, and if both are too few.

    Args:
        experiment: With the reported weights.
        pool: Of `pool_outputs`.
    """
    if experiment.config.settings.task != "multiclass":
        return None
    images, outputs = "unlabeled", pool
    if len(rows := experiment.trainer.validation[0]) >= LEAST:
        images, outputs = "validation", _outputs(experiment, rows, MOST_VALIDATION)
    return None if outputs is None else KnownScores.of(outputs.scores.numpy(), images)


def expected_strangers(known: KnownScores | None, pool: Outputs | None) -> ExpectedStrangers | None:
    """Return how many unlabeled images are expected to belong to no class.

    Args:
        known: Of `known_scores`; None, or of the pool itself, for no estimate.
        pool: Of `pool_outputs`.
    """
    if known is None or known.images != "validation" or pool is None:
        return None
    share, lower = known.share_of_strangers(pool.scores.numpy())
    return ExpectedStrangers(share=round(share, 6), lower=round(lower, 6))


def pool_shares(
    experiment: Experiment, predictions: Predictions, pool: Outputs | None
) -> PriorFile | None:
    """Return the class shares of the pool; None where it isn't predicted.

    Args:
        experiment: With the reported weights.
        predictions: Of validation and test images.
        pool: Of `pool_outputs`.
    """
    if pool is None:
        return None
    trainer = experiment.trainer
    validation = predictions["validation"]
    temperature = temperature_of(*validation)
    probs = calibrated(trainer.predictor.probabilities(pool.logits).numpy(), temperature)
    training = shares_of(trainer.algorithm.task.label_counts).double().numpy()
    estimate = estimate_class_shares(
        probs,
        training / training.sum(),
        validation=calibrated_validation(*validation, temperature),
    )
    values = (estimate.shares, estimate.lower, estimate.upper)
    shares, lower, upper = ([round(float(x), 6) for x in ends] for ends in values)
    return PriorFile(
        source="EM on the predictions of the pool, bootstrap over images",
        images=len(pool.logits),
        shares=dict(zip(experiment.classes, shares, strict=True)),
        intervals=dict(zip(experiment.classes, zip(lower, upper, strict=True), strict=True)),
    )
