"""How fast the parts of a run are on this device, measured on noise in place of its images.

Nothing is decoded for it and nothing is left behind; only a few images are read, for the time that
takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from ssl_toolkit.config.loading import ResolvedConfig
from ssl_toolkit.data.cache.image_files import files_of
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.engine.costs import Costs, seconds, seconds_each
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.features import FeatureExtractor
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.training_images import FeatureViews, ImageSource
from ssl_toolkit.errors import UserError
from ssl_toolkit.interfaces import FeatureAlgorithm, ImageTable

READ = 8
"""Images that are read, for the time that takes."""
SHORT = 2.0
"""Seconds of a measurement that is made once more, with more steps."""


@dataclass(frozen=True)
class Counts:
    """Images that a run handles."""

    all: int
    labeled: int
    unlabeled: int
    trained: int
    """In training, counted once."""
    validation: int
    test: int


@dataclass(frozen=True)
class Speeds:
    """Seconds of the parts of a run at one image size."""

    read: float
    """For an image: reading it; likewise below."""
    plain: float
    """Its features; 0 where none are computed."""
    view: float
    """The features of a weak and of a strong view, as far as steps draw from such."""
    fixed_views: int
    """Views that the algorithm takes whatever the time; the others are up to the time."""
    predict: float
    """Its prediction."""
    costs: Costs | None
    """Of training by steps; None for a head that is fitted at once."""
    on_features: bool
    """Whether steps see features, whose number no image size changes."""

    def scaled(self, factor: float) -> Speeds:
        """What is expected of images with so many times the pixels."""
        costs = self.costs
        if costs is not None and not self.on_features:
            costs = replace(
                costs,
                step=factor * costs.step,
                evaluation=factor * costs.evaluation,
                scan=factor * costs.scan,
            )
        return replace(
            self,
            plain=factor * self.plain,
            view=factor * self.view,
            predict=self.predict if self.on_features else factor * self.predict,
            costs=costs,
        )


def count_images(split: Split) -> Counts:
    """Those of a split."""
    return Counts(
        all=len(rows_of(split)),
        labeled=len(split.labeled),
        unlabeled=len(split.unlabeled),
        trained=len(np.union1d(split.labeled, split.unlabeled)),
        validation=len(split.validation),
        test=len(split.test),
    )


def rows_of(split: Split) -> Rows:
    """Rows of all parts, each once."""
    parts = [split.labeled, split.unlabeled, split.validation, split.test]
    return np.unique(np.concatenate(parts))


def measure_speeds(
    config: ResolvedConfig, table: ImageTable, split: Split, *, ready: bool
) -> Speeds:
    """Measure a run.

    Args:
        config: of the run, resolved.
        table: its images.
        split: of the table.
        ready: whether its features are there already.

    Raises:
        UserError: as `prepare`.
    """
    counts = count_images(split)
    trainer = _trainer(config, counts, table)
    transfer = trainer.transfer
    cached = transfer is not None and transfer.cached
    fitted = isinstance(trainer.algorithm, FeatureAlgorithm)
    read = plain = view = 0.0
    if not ready:
        read = _reading(table, rows_of(split), config.settings.image_size)
        plain, view = _feature_seconds(trainer, probe=config.settings.pretrained)
    costs, predict = None, 0.0
    if not fitted:
        if cached:
            _use_features(trainer)
        costs, predict = _costs(trainer, counts)
    return Speeds(
        read=read,
        plain=plain,
        view=view,
        fixed_views=transfer.count if fitted and transfer is not None else 0,
        predict=predict,
        costs=costs,
        on_features=cached,
    )


def _feature_seconds(trainer: Trainer, *, probe: bool) -> tuple[float, float]:
    """For an image: its features, and those of the views of it that steps draw from."""
    transfer, batches = trainer.transfer, trainer.batches
    size = trainer.settings.eval_batch_size
    extractor = FeatureExtractor(trainer.classifier, size, cached=False)
    store = batches.images.loaded
    rows = torch.arange(len(store), device=batches.images.labels.device)

    def each(made: Callable[[torch.Tensor], torch.Tensor]) -> float:
        return seconds_each(lambda count: made(rows[:count]), rows.device, len(rows))

    plain = view = 0.0
    if probe or transfer is not None:
        plain = each(lambda rows: extractor.plain(store, rows))
    if transfer is not None and transfer.cached:
        v = transfer.views
        if v.labeled_weak or v.unlabeled_weak:
            view += each(lambda rows: extractor.views(store, rows, batches.weak, 1, 0))
        if v.labeled_strong or v.unlabeled_strong:
            view += each(lambda rows: extractor.views(store, rows, batches.strong, 1, 0))
    return plain, view


def _reading(table: ImageTable, rows: Rows, size: int) -> float:
    """For an image: reading it, from the cache of decoded ones where that is there."""
    if (files := files_of(table)) is not None:
        files.open_existing(size)
    few = rows[np.linspace(0, len(rows) - 1, min(READ, len(rows))).astype(np.int64)]
    with contextlib.suppress(UserError):  # reported when all are read
        return seconds(lambda: table.read(few, size), torch.device("cpu")) / len(few)
    return 0.0


def _trainer(config: ResolvedConfig, counts: Counts, table: ImageTable) -> Trainer:
    """A trainer like that of the run, on noise."""
    settings = config.settings
    classes = len(table.classes)
    pool = settings.eval_batch_size
    labeled = max(classes, min(counts.labeled, pool))
    ends = np.cumsum([0, labeled, min(counts.unlabeled, pool), min(counts.validation, pool)])
    labels, unlabeled, validation = (np.arange(a, b) for a, b in pairwise(ends))
    drawn = np.random.default_rng(0)

    def noise(rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        return drawn.integers(0, 256, (len(rows), size, size, 3), dtype=np.uint8)

    total = int(ends[-1])
    made = ImageTable(
        classes=table.classes,
        keys=tuple(str(row) for row in range(total)),
        labels=np.arange(total) % classes,
        parts=np.full(total, "pool"),
        read=noise,
    )
    split = Split(labels, unlabeled, validation, np.empty(0, dtype=np.int64))
    update = {
        "data": None,
        "labels": None,
        "labels_per_class": None,
        "num_labels": None,
        "split": None,
        "classes": None,
        "stream_buffer": None,
        "drop_leaks": False,
        "pretrained": False,
        "weights": None,
        "minutes": None,
    }
    resolved = replace(config, settings=settings.model_copy(update=update))
    return prepare(resolved, table=made, split=split).trainer


def _use_features(trainer: Trainer) -> None:
    """Let batches come from features that mean nothing."""
    images, views = trainer.batches.images, trainer.batches.views
    rows = torch.unique(torch.cat([images.labeled, images.unlabeled]))
    size = trainer.classifier.backbone.feature_dim
    device = rows.device

    def made(*wanted: int) -> torch.Tensor:
        return torch.randn(int(any(wanted)), len(rows), size, device=device)

    trainer.batches.images = replace(
        images,
        features=ImageSource(torch.randn(len(images.loaded), size, device=device)),
        feature_views=FeatureViews(
            made(views.labeled_weak, views.unlabeled_weak),
            made(views.labeled_strong, views.unlabeled_strong),
            torch.searchsorted(rows, images.labeled),
            torch.searchsorted(rows, images.unlabeled),
        ),
    )


def _costs(trainer: Trainer, counts: Counts) -> tuple[Costs, float]:
    """Of training with as many images as the run has; and of predicting one."""
    costs = trainer.measure(steps=2, warm=1)
    if 12 * costs.step < SHORT:
        costs = trainer.measure()
    images = trainer.batches.images
    evaluated = len(trainer.validation[0]) or len(images.labeled)
    predict = costs.evaluation / evaluated
    seen = len(images.labeled) + len(images.unlabeled)
    scan = costs.scan * max(1.0, (counts.labeled + counts.unlabeled) / seen)
    evaluation = predict * (counts.validation or counts.labeled)
    return replace(costs, evaluation=evaluation, scan=scan), predict
