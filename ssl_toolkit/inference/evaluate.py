"""Score a trained model on the data of its run, or on other labeled images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ssl_toolkit.config.settings import OnBadImage
from ssl_toolkit.data.cache import Progress
from ssl_toolkit.data.load import read_data
from ssl_toolkit.engine.checkpoints import load_checkpoint
from ssl_toolkit.engine.compatibility import check_input
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.training_images import load_images
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.files import at_home, check_target
from ssl_toolkit.inference.confusion import draw_confusion
from ssl_toolkit.inference.model import Model, load_model
from ssl_toolkit.inference.prior import Prior, make_adjustment
from ssl_toolkit.inference.reported import reported_algorithm, reported_weights
from ssl_toolkit.inference.run_inputs import check_beside, data_of
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.runs.folder import RunFolder, check_classes, require_completed
from ssl_toolkit.runs.multilabel import MultiLabelScores
from ssl_toolkit.runs.predictions import (
    Predictions,
    confusions,
    predict_parts,
    score_parts,
    score_several,
)
from ssl_toolkit.runs.summary import Scores
from ssl_toolkit.tabular import write_image
from ssl_toolkit.text import display_path


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model, as `evaluate` returns them."""

    classes: tuple[str, ...]
    """Names in the order of the confusion matrices."""
    scores: Mapping[str, Scores | None]
    """By split, None for an empty one: ``validation`` and ``test`` for the run's data; for other
    data ``test``, or ``labeled`` without test images."""
    confusion: Mapping[str, NDArray[np.int64]]
    """By split: (C, C) counts; a row for each true class, a column for each predicted one."""
    multilabel: Mapping[str, MultiLabelScores | None] = field(default_factory=dict)
    """Scores by split under ``--task multilabel``, where the other two are empty; else empty."""
    estimates: Mapping[str, list[str]] = field(default_factory=dict)
    """Estimated class shares by split, as lines; empty unless they are estimated."""

    @property
    def validation(self) -> Scores | None:
        """Scores on the validation images; None without any."""
        return self.scores.get("validation")

    @property
    def test(self) -> Scores | None:
        """Scores on the test images, or on all labeled ones of data without test images."""
        return self.scores.get("test") or self.scores.get("labeled")


def evaluate(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    on_bad_image: OnBadImage = "error",
    confusion: str | os.PathLike[str] | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    prior: Prior | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Score a trained model on the data of its run, or on other labeled images.

    Args:
        model: Folder of a run; with `data`, also of an exported model.
        data: A folder or manifest as for training, with the same classes; None for the data of
            the run.
        root: Folder that the paths of a manifest are relative to.
        on_bad_image: As for `embed`, for the images of `data`.
        confusion: Path to a .png file for the confusion matrix of the test images, or of the
            last split that has scores.
        device: See `load_model`; None for that of the run.
        batch_size: Images per forward pass; changes speed and memory, not the result.
        prior: As for `Model.predict`; an estimate is that of each split.
        progress: Called while images are decoded.

    Returns:
        The scores and confusion matrices of each split.

    Raises:
        ModelError: The run is not finished.
        DataError: The data is not found or not readable, has other classes, or has no labels.
        ConfigError: The .png file can't be written, or is in the data; or it is for a model of
            ``--task multilabel``.
    """
    path, image = at_home(model), None if confusion is None else at_home(confusion)
    source, base = None if data is None else at_home(data), None if root is None else at_home(root)
    check_target(image, (".png",))
    for place, place_root in data_of(path) if source is None else [(source, base)]:
        check_beside(image, place, place_root)
    thresholds: Sequence[float] = ()
    if source is None:
        predictions, classes = _predict_run(path, device, batch_size, progress)
        if (several := RunFolder(path).read_summary().multilabel) is not None:
            scored = several.validation or several.test
            thresholds = [one.threshold for one in scored.per_class.values()] if scored else ()
    else:
        loaded = load_model(path, device or "auto")
        thresholds = loaded.thresholds
        table = read_data(
            source,
            root=base,
            on_bad_image=on_bad_image,
            size=loaded.image_size,
            fit=loaded.fit,
            pixels=loaded.pixels,
            multilabel=loaded.task == "multilabel",
            progress=progress,
        )
        check_classes(table.classes, loaded.classes, path, source)
        classes = loaded.classes
        predictions = _predict_table(loaded, table, source, batch_size or 64)
    estimates: dict[str, list[str]] = {}
    if prior is not None:
        task = "multilabel" if thresholds else "multiclass"
        adjustment = make_adjustment(prior, path, classes, task)
        for part, (probs, labels) in predictions.items():
            adjusted, estimate = adjustment.apply(probs)
            predictions[part] = adjusted, labels
            if estimate is not None and len(labels):
                estimates[part] = adjustment.lines(estimate)
    if thresholds:
        if image is not None:
            raise ConfigError("--confusion: a model of --task multilabel has no confusion matrix")
        return Evaluation(classes, {}, {}, score_several(predictions, classes, thresholds))
    result = Evaluation(
        classes, score_parts(predictions, classes), confusions(predictions), estimates=estimates
    )
    if image is not None:
        parts = [part for part, scores in result.scores.items() if scores is not None]
        if not parts:
            raise DataError(f"{display_path(path)}: nothing to score; name images with --data")
        write_image(image, draw_confusion(result.confusion[parts[-1]], classes))
    return result


def _predict_run(
    path: Path, device: str | None, batch_size: int | None, progress: Progress | None
) -> tuple[Predictions, tuple[str, ...]]:
    """Predict validation and test images of a finished run with the weights that it reports."""
    folder = RunFolder(path)
    summary = folder.read_summary()
    require_completed(folder, summary.status)
    config = folder.reopen()
    settings = config.settings
    config = config.with_settings(
        device=device or settings.device,
        eval_batch_size=batch_size or settings.eval_batch_size,
        # In eval mode it changes nothing, and a CPU has no such layer.
        model=settings.model.model_copy(update={"sync_batchnorm": False}),
    )
    experiment = prepare(config, progress=progress)
    check_classes(experiment.classes, summary.classes, path, config.settings.data)
    state = load_checkpoint(folder.best if folder.best.exists() else folder.last, experiment.device)
    experiment.trainer.predictor.load(reported_weights(state), reported_algorithm(state))
    return predict_parts(experiment), experiment.classes


def _predict_table(model: Model, table: ImageTable, data: Path, batch_size: int) -> Predictions:
    """Predict the test images, or all labeled training images if there are none."""
    part, rows = "test", np.flatnonzero(table.splits == "test")
    if not len(rows):
        trained = np.isin(table.splits, ("labeled", "pool"))
        part, rows = "labeled", np.flatnonzero(trained & (table.labels >= 0))
    if not len(rows):
        raise DataError(f"{display_path(data)}: no image has a label, so nothing can be scored")
    check_input(table.features, model.backbone)
    probabilities = predict_rows(model, table, rows, batch_size)
    order = np.array([model.classes.index(name) for name in table.classes], dtype=np.int64)
    if table.label_sets is not None:
        targets = np.empty((len(rows), len(order)), dtype=np.int64)
        targets[:, order] = table.targets(rows)
        return {part: (probabilities, targets)}
    return {part: (probabilities, order[table.labels[rows]])}


def predict_rows(
    model: Model, table: ImageTable, rows: NDArray[np.int64], batch_size: int
) -> NDArray[np.float32]:
    """Return the probabilities (n, C) of images of a table, in the order of the model's classes.

    Args:
        model: The model.
        table: Table of images.
        rows: (n,) rows of the table.
        batch_size: Images per forward pass.
    """
    images = load_images(table, rows, model.image_size, model.device)
    network = model.predictor or model.classifier
    return predict(network, images, torch.arange(len(rows)), batch_size).numpy()
