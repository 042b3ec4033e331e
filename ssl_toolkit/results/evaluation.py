"""Scores of a trained model, on the data of its run or on other pictures with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from ssl_toolkit.data.cache_files import Progress
from ssl_toolkit.data.pictures import shown
from ssl_toolkit.data.sources import read_data
from ssl_toolkit.data.store import ImageStore, build_store
from ssl_toolkit.engine.checkpoints import load_checkpoint
from ssl_toolkit.engine.costs import seconds_each
from ssl_toolkit.engine.evaluation import predict
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.features import FeatureStore
from ssl_toolkit.engine.metrics import confusion_matrix, scores
from ssl_toolkit.engine.needs import check_input
from ssl_toolkit.engine.trainer import needed
from ssl_toolkit.errors import DataError, ModelError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.results.folder import RunFolder, check_classes
from ssl_toolkit.results.model import load_model, reported_weights

Predictions = dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]
"""By part of the data: (N, C) probabilities and (N,) labels."""


def predict_parts(experiment: Experiment, *, alone: bool = False) -> Predictions:
    """Probabilities of the evaluated weights and labels of ``validation`` and ``test``.

    Args:
        experiment: the run.
        alone: whether this process does it without the others of the run.
    """
    trainer = experiment.trainer
    size = needed(trainer.settings.eval_batch_size)
    ranks = None if alone else trainer.ranks
    parts = {"validation": trainer.validation, "test": experiment.test}
    return {
        part: (
            predict(trainer.evaluated, trainer.batches.images.plain, rows, size, ranks).numpy(),
            labels.cpu().numpy(),
        )
        for part, (rows, labels) in parts.items()
    }


def prediction_seconds(experiment: Experiment) -> float:
    """Estimate how long predicting an image takes in this process, from a few of them."""
    trainer = experiment.trainer
    images = trainer.batches.images
    most = min(needed(trainer.settings.eval_batch_size), len(images.store))
    rows = torch.arange(most, device=images.labels.device)
    return seconds_each(
        lambda count: predict(trainer.evaluated, images.plain, rows[:count], count),
        experiment.device,
        most,
    )


def score_parts(
    predictions: Predictions, classes: Sequence[str]
) -> dict[str, dict[str, Any] | None]:
    """`scores` of each part, None for an empty one."""
    return {
        part: scores(probs, labels, classes) if len(labels) else None
        for part, (probs, labels) in predictions.items()
    }


def worst_mistakes(
    experiment: Experiment, predictions: Predictions, most: int = 24, size: int = 64
) -> dict[str, NDArray[Any]]:
    """The most confidently wrong test pictures, small, so that a report needs no data.

    Args:
        experiment: the run.
        predictions: of `predict_parts`.
        most: how many are kept.
        size: the longest side that is kept, in pixels.

    Returns:
        ``mistakes`` (n,) places in the test arrays, the most confident first; ``mistakes_keys``
        (n,) names; ``mistakes_pictures`` (n, H, W, 3) uint8. Nothing where the data are features.
    """
    if experiment.table.features is not None:
        return {}
    probs, labels = predictions["test"]
    wrong = np.flatnonzero(probs.argmax(axis=1) != labels) if len(labels) else labels
    places = (
        wrong[np.argsort(-probs[wrong].max(axis=1), kind="stable")][:most] if len(wrong) else wrong
    )
    rows = experiment.test[0][torch.from_numpy(places)]
    pictures = experiment.trainer.batches.images.store.pixels(rows).cpu()
    if len(places) and pictures.shape[-1] > size:
        small = F.interpolate(pictures.float(), size=(size, size), mode="area")
        pictures = small.round().to(torch.uint8)
    keys = [experiment.table.keys[row] for row in experiment.split.test[places]]
    return {
        "mistakes": places,
        "mistakes_keys": np.array(keys, dtype=np.str_),
        "mistakes_pictures": pictures.permute(0, 2, 3, 1).numpy(),
    }


def confusions(predictions: Predictions) -> dict[str, NDArray[np.int64]]:
    """`confusion_matrix` of each part."""
    return {part: confusion_matrix(probs, labels) for part, (probs, labels) in predictions.items()}


def predict_own_data(
    path: Path,
    *,
    device: str | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> tuple[Predictions, tuple[str, ...]]:
    """Probabilities of the weights that a finished run reports, on the data that it used.

    Args:
        path: folder of the run.
        device: see `load_model`; None for the run's own.
        batch_size: pictures in a forward; None for the run's own.
        progress: called while pictures are decoded.

    Returns:
        Probabilities and labels of ``validation`` and ``test``; and the classes.

    Raises:
        UserError: the run is not finished, or its data is not there any more or not the same.
    """
    folder = RunFolder(path)
    summary = folder.read_summary()
    if summary["status"] != "completed":
        raise ModelError(
            f"{shown(path)}: the run is {summary['status']}; go on with "
            f"`ssl-toolkit resume {shown(path)}`"
        )
    config = folder.reopen()
    given = {"device": device, "eval_batch_size": batch_size}
    update = {key: value for key, value in given.items() if value is not None}
    config = replace(config, settings=config.settings.model_copy(update=update))
    experiment = prepare(config, progress=progress)
    check_classes(experiment.classes, summary["classes"], path, config.settings.data)
    state = load_checkpoint(folder.best if folder.best.exists() else folder.last, experiment.device)
    experiment.trainer.evaluated.load_state_dict(reported_weights(state))
    return predict_parts(experiment), experiment.classes


def predict_other_data(
    path: Path,
    data: Path,
    *,
    root: Path | None = None,
    skip_bad: bool = False,
    device: str = "auto",
    batch_size: int = 64,
    progress: Progress | None = None,
) -> tuple[Predictions, tuple[str, ...]]:
    """Probabilities of a trained model on pictures of the same classes that it wasn't trained on.

    Args:
        path: folder of a run or of an exported model, see `load_model`.
        data: a folder or manifest, as for training.
        root: what the paths of a manifest are relative to.
        skip_bad: leave unreadable pictures out instead of refusing them.
        device: see `load_model`.
        batch_size: pictures in a forward; changes speed and memory, not the result.
        progress: called while pictures are decoded.

    Returns:
        Probabilities and labels of ``test``; where the data names no test part, of ``labelled``:
        all training pictures with a label. And the classes in the order of the model.

    Raises:
        DataError: the data can't be read, no picture has a label, or its classes are others.
    """
    model = load_model(path, device)
    table = read_data(
        data,
        root=root,
        on_bad_image="skip" if skip_bad else "error",
        size=model.image_size,
        fit=model.fit,
        progress=progress,
    )
    check_classes(table.classes, model.classes, path, data)
    part, rows = _to_score(table)
    if not len(rows):
        raise DataError(f"{shown(data)}: no picture carries a label, so nothing can be scored")
    check_input(table.features, model.backbone)
    store: ImageStore | FeatureStore
    if table.features is not None:
        store = FeatureStore.of(table.features[rows], model.device)
    else:
        store = build_store(table, rows, model.image_size, model.device)
    places = torch.arange(len(rows))
    probabilities = predict(model.classifier, store, places, batch_size).numpy()
    order = np.array([model.classes.index(name) for name in table.classes], dtype=np.int64)
    return {part: (probabilities, order[table.labels[rows]])}, model.classes


def _to_score(table: ImageTable) -> tuple[str, NDArray[np.int64]]:
    test = np.flatnonzero(table.parts == "test")
    if len(test):
        return "test", test
    return "labelled", np.flatnonzero(
        np.isin(table.parts, ("labelled", "pool")) & (table.labels >= 0)
    )
