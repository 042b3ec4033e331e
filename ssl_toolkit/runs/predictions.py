"""Predict and score the validation and test images of a run, and store the predictions."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from ssl_toolkit.data.images.levels import for_display
from ssl_toolkit.engine.costs import seconds_each
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import check_format, checked_archive, write_bytes
from ssl_toolkit.runs.multilabel import MultiLabelScores, choose_thresholds, multilabel_scores
from ssl_toolkit.runs.scoring import confusion_matrix, scores
from ssl_toolkit.runs.summary import Results, Scores
from ssl_toolkit.text import display_path

FORMAT = 1
"""The format number of ``predictions.npz``, its array ``format``."""

SCHEMA = {
    "classes": ("U", 1),
    "validation_probabilities": ("f", 2),
    "validation_labels": ("i", 1),
    "test_probabilities": ("f", 2),
    "test_labels": ("i", 1),
    "mistakes": ("i", 1),
    "mistakes_keys": ("U", 1),
    "mistakes_images": ("u", 4),
}
"""Kind of dtype and number of dimensions by array; those of the mistakes are optional. Under
``--task multilabel``, labels have two dimensions."""

Predictions = dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]
"""By part of the data: (N, C) probabilities and (N,) labels; under ``--task multilabel`` (N, C)
labels in {0, 1}."""


def predict_parts(experiment: Experiment, *, alone: bool = False) -> Predictions:
    """Return the probabilities and labels of ``validation`` and ``test``.

    Args:
        experiment: the run.
        alone: predict in this process only, without the others of the run.
    """
    trainer = experiment.trainer
    parts = {"validation": trainer.validation, "test": experiment.test}
    return {
        part: (trainer.predict(rows, alone=alone).numpy(), labels.long().cpu().numpy())
        for part, (rows, labels) in parts.items()
    }


def prediction_seconds(experiment: Experiment) -> float:
    """Estimate the seconds to predict an image in this process, from a few images."""
    trainer = experiment.trainer
    images = trainer.batches.images
    most = min(trainer.settings.eval_batch_size, len(images.loaded))
    rows = torch.arange(most, device=images.labels.device)
    return seconds_each(
        lambda count: trainer.predict(rows[:count], count, alone=True),
        experiment.device,
        most,
    )


def score_parts(predictions: Predictions, classes: Sequence[str]) -> Results:
    """Return the `Scores` of each part, None for an empty one."""
    return {
        part: Scores(**scores(probs, labels, classes)) if len(labels) else None
        for part, (probs, labels) in predictions.items()
    }


def thresholds_of(predictions: Predictions) -> tuple[float, ...] | None:
    """Return the thresholds of the classes by the validation images; None for one class per image.

    Args:
        predictions: of `predict_parts`.
    """
    probs, labels = predictions["validation"]
    if labels.ndim == 1:
        return None
    return choose_thresholds(probs, labels)


def score_several(
    predictions: Predictions, classes: Sequence[str], thresholds: Sequence[float]
) -> dict[str, MultiLabelScores | None]:
    """Return the scores of each part under ``--task multilabel``, None for an empty one."""
    return {
        part: MultiLabelScores(**multilabel_scores(probs, labels, classes, thresholds))
        if len(labels)
        else None
        for part, (probs, labels) in predictions.items()
    }


def worst_mistakes(
    experiment: Experiment, predictions: Predictions, most: int = 24, size: int = 64
) -> dict[str, NDArray[Any]]:
    """Return the test images with the most confident mistakes, downscaled for reports.

    Args:
        experiment: the run.
        predictions: of `predict_parts`.
        most: maximum number of images.
        size: maximum side in pixels.

    Returns:
        ``mistakes`` (n,) indices into the test arrays, the most confident first; ``mistakes_keys``
        (n,) names; ``mistakes_images`` (n, H, W, 3) uint8, see `for_display`. Empty if the data
        are features, and under ``--task multilabel``.
    """
    probs, labels = predictions["test"]
    if experiment.table.features is not None or labels.ndim == 2:
        return {}
    wrong = np.flatnonzero(probs.argmax(axis=1) != labels)
    indices = wrong[np.argsort(-probs[wrong].max(axis=1), kind="stable")][:most]
    rows = experiment.test[0][torch.from_numpy(indices)]
    levels = experiment.trainer.batches.images.loaded.pixels(rows).cpu()
    images = torch.from_numpy(for_display(levels.permute(0, 2, 3, 1).numpy())).permute(0, 3, 1, 2)
    if len(indices) and max(images.shape[-2:]) > size:
        factor = size / max(images.shape[-2:])
        smaller = [max(1, round(factor * side)) for side in images.shape[-2:]]
        small = F.interpolate(images.float(), size=smaller, mode="area")
        images = small.round().to(torch.uint8)
    keys = [experiment.table.keys[row] for row in experiment.split.test[indices]]
    return {
        "mistakes": indices,
        "mistakes_keys": np.array(keys, dtype=np.str_),
        "mistakes_images": images.permute(0, 2, 3, 1).numpy(),
    }


def confusions(predictions: Predictions) -> dict[str, NDArray[np.int64]]:
    """Return the `confusion_matrix` of each part."""
    return {part: confusion_matrix(probs, labels) for part, (probs, labels) in predictions.items()}


def write_predictions(
    path: Path,
    predictions: Predictions,
    classes: Sequence[str],
    mistakes: Mapping[str, NDArray[Any]],
) -> None:
    """Write ``predictions.npz``, whole or not at all.

    Args:
        path: the file.
        predictions: of `predict_parts`.
        classes: C names.
        mistakes: of `worst_mistakes`.
    """
    arrays: dict[str, Any] = {"format": FORMAT, "classes": np.array(classes), **mistakes}
    for part, (probs, labels) in predictions.items():
        arrays |= {f"{part}_probabilities": probs, f"{part}_labels": labels}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of ``predictions.npz``.

    Raises:
        ModelError: it is not found or damaged, or of an unknown format.
    """
    try:
        # np.load would leave the file of a damaged archive open.
        with path.open("rb") as file, np.load(checked_archive(file), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise ModelError(f"{display_path(path)}: not found") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ModelError(f"{display_path(path)}: damaged: {error}") from error
    number = arrays.pop("format", None)
    check_format(path, None if number is None else number.tolist(), FORMAT)
    for name, (kind, dimensions) in SCHEMA.items():
        array = arrays.get(name)
        if array is None and not name.startswith("mistakes"):
            raise ModelError(f"{display_path(path)}: damaged: array {name} not found")
        several = name.endswith("_labels") and array is not None and array.ndim == 2
        if array is not None and (array.dtype.kind, array.ndim - several) != (kind, dimensions):
            raise ModelError(
                f"{display_path(path)}: damaged: {name} is {array.dtype} {array.shape}"
            )
    return arrays
