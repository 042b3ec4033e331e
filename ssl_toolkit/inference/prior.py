"""Adjust predictions to class shares: those of a file, or an estimate from the images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.readers.priors import ordered_prior, read_prior
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import at_home
from ssl_toolkit.runs.class_shares import (
    EstimatedShares,
    Floats,
    Labeled,
    adjust_probabilities,
    calibrated,
    estimate_class_shares,
)
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.pool_shares import calibrated_validation, temperature_of
from ssl_toolkit.runs.predictions import read_arrays

ESTIMATE = "estimate"
"""Word in place of a file: estimate the shares from the images that are predicted."""

T = TypeVar("T")

Prior = Mapping[str, float] | str | os.PathLike[str]
"""Class shares by name, the path to a file of them, or ``estimate``."""


@dataclass(frozen=True)
class Adjustment:
    """How to adjust the probabilities of a model to class shares."""

    classes: tuple[str, ...]
    training: Floats
    """(C,) class shares of the labels that the model was trained with."""
    temperature: float
    """Temperature that calibrates the probabilities."""
    shares: Floats | None
    """(C,) class shares of the images; None to estimate them."""
    validation: Labeled | None = None
    """Calibrated validation images, for the intervals of an estimate."""

    def apply(
        self, probs: NDArray[np.floating]
    ) -> tuple[NDArray[np.float32], EstimatedShares | None]:
        """Return (N, C) adjusted probabilities, and the estimate if there is one."""
        tempered = calibrated(probs, self.temperature)
        estimate, shares = None, self.shares
        if shares is None:
            estimate = estimate_class_shares(tempered, self.training, validation=self.validation)
            shares = estimate.shares
        adjusted = adjust_probabilities(tempered, shares, self.training)
        return adjusted.astype(np.float32), estimate

    def stream(
        self, rows: Iterator[NDArray[np.float32] | T], notes: list[str]
    ) -> Iterator[NDArray[np.float32] | T]:
        """Yield adjusted rows of probabilities; other items, such as errors, pass through.

        Args:
            rows: Of `Model.stream`; an estimate needs all of them in memory.
            notes: Takes the lines of an estimate.
        """
        if self.shares is not None:
            yield from (
                self.apply(row[None])[0][0] if isinstance(row, np.ndarray) else row for row in rows
            )
            return
        collected = [*rows]
        good = [row for row in collected if isinstance(row, np.ndarray)]
        adjusted, estimate = self.apply(np.array(good).reshape(-1, len(self.classes)))
        assert estimate is not None
        notes += self.lines(estimate)
        each = iter(adjusted)
        yield from (next(each) if isinstance(row, np.ndarray) else row for row in collected)

    def lines(self, estimate: EstimatedShares) -> list[str]:
        """Return an estimate as lines for the user."""
        return ["class shares, estimated (95 % interval):", *estimate.lines(self.classes)]


def make_adjustment(
    prior: Prior, folder: Path | None, classes: Sequence[str], task: str = "multiclass"
) -> Adjustment:
    """Return the adjustment of the predictions of a model.

    Args:
        prior: Class shares, a file of them, or ``estimate``.
        folder: Folder of the run, or its ``model/``; without a run, equal shares of the labels and
            no temperature are assumed.
        classes: Names in the order of the probabilities.
        task: Task of the model.

    Raises:
        ConfigError: The model is of ``--task multilabel``.
        DataError: As `read_prior` and `ordered_prior`.
    """
    if task == "multilabel":
        raise ConfigError("--prior: a model of --task multilabel has no class shares; leave it out")
    shares = None
    if isinstance(prior, Mapping):
        shares = ordered_prior(prior, classes, "prior")
    elif os.fspath(prior) != ESTIMATE:
        shares = ordered_prior(read_prior(at_home(prior)), classes, f"--prior {prior}")
    training, temperature, validation = np.full(len(classes), 1 / len(classes)), 1.0, None
    if folder is not None:
        run = RunFolder(folder.parent if folder.name == "model" else folder)
        training = _label_shares(run, classes, training)
        temperature, validation = _calibration(run)
    return Adjustment(tuple(classes), training, temperature, shares, validation)


def _label_shares(run: RunFolder, classes: Sequence[str], default: Floats) -> Floats:
    if not run.summary.exists():
        return default
    labeled = run.read_summary().health.labeled
    counts = np.array([labeled.get(name, 0) for name in classes], dtype=np.float64)
    return counts / counts.sum() if counts.sum() else default


def _calibration(run: RunFolder) -> tuple[float, Labeled | None]:
    """Return the temperature of a run and its validation images; 1 and None without enough."""
    try:
        arrays = read_arrays(run.predictions)
    except (ModelError, OSError):
        return 1.0, None
    validation = arrays["validation_probabilities"], arrays["validation_labels"]
    temperature = temperature_of(*validation)
    return temperature, calibrated_validation(*validation, temperature)
