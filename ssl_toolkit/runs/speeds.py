"""Measure the speed of the parts of a run on this device, with noise instead of its images.

Only a few images are read, to measure the reading time; nothing is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from ssl_toolkit.config.images import Size, sides
from ssl_toolkit.config.loading import ResolvedConfig
from ssl_toolkit.data.images.levels import Levels
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.engine.costs import Costs, seconds, seconds_each
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.features import FeatureExtractor
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.training_images import FeatureViews, ImageSource
from ssl_toolkit.errors import UserError
from ssl_toolkit.interfaces import FeatureAlgorithm, ImageTable

READ = 8
"""Number of images to read to measure the reading time."""
SHORT = 2.0
"""Minimum seconds of a measurement; a shorter one is repeated with more steps."""
REPEATED = 2
"""Number of times that a short step is repeated."""
OF_THE_DATA = (
    *("data", "labels", "labels_per_class", "num_labels", "split", "pseudo_labels", "classes"),
    *("stream_buffer", "weights", "minutes"),
)
"""Settings that do not apply to noise."""


@dataclass(frozen=True)
class Speeds:
    """Durations of the parts of a run at one image size, in seconds."""

    read: float
    """Reading one image; `plain`, `view` and `predict` are per image too."""
    plain: float
    """Computing its features; 0 if none are computed."""
    view: float
    """Computing the features of a weak and a strong view, if steps sample from them."""
    fixed_views: int
    """Views that the algorithm requires; the number of others depends on the time."""
    predict: float
    """Predicting it."""
    costs: Costs | None
    """Costs of training in steps; None for a head that is fitted without steps."""
    on_features: bool
    """True if steps train on features, whose cost does not depend on the image size."""

    def scaled(self, factor: float) -> Speeds:
        """Return the expected speeds for images with `factor` times as many pixels."""
        costs = self.costs
        if costs is not None and not self.on_features:
            parts = ("step", "evaluation", "scan", "selection")
            costs = replace(costs, **{part: factor * getattr(costs, part) for part in parts})
        return replace(
            self,
            plain=factor * self.plain,
            view=factor * self.view,
            predict=self.predict if self.on_features else factor * self.predict,
            costs=costs,
        )


def rows_of(split: Split) -> Rows:
    """Return the distinct rows of all parts."""
    parts = [split.labeled, split.unlabeled, split.validation, split.test]
    return np.unique(np.concatenate(parts))


def measure_speeds(
    config: ResolvedConfig, table: ImageTable, split: Split, *, ready: bool
) -> Speeds:
    """Measure the speeds of a run.

    Args:
        config: resolved configuration of the run.
        table: images of the run.
        split: split of the table.
        ready: True if the features are computed already.

    Raises:
        UserError: as `prepare`.
    """
    trainer = _trainer(config, split, table)
    transfer = trainer.transfer
    cached = transfer is not None and transfer.cached
    fitted = isinstance(trainer.algorithm, FeatureAlgorithm)
    read = plain = view = 0.0
    if not ready and table.features is None:
        read = _reading(table, rows_of(split), config.settings.image_size)
        plain, view = _feature_seconds(trainer, probe=config.settings.pretrained)
    costs, predict = None, 0.0
    if not fitted:
        if cached:
            _use_features(trainer)
        costs, predict = _costs(trainer, split)
    return Speeds(
        read=read,
        plain=plain,
        view=view,
        fixed_views=transfer.count if fitted and transfer is not None else 0,
        predict=predict,
        costs=costs,
        on_features=cached,
    )


def step_seconds(config: ResolvedConfig, table: ImageTable, split: Split) -> float | None:
    """Return the seconds of a training step; None for a head that is fitted without steps.

    A short step is repeated and the shortest one counts, because other processes delay it.

    Args:
        config: resolved configuration of the run.
        table: its classes and the format of its images are used, but no images.
        split: numbers of images.

    Raises:
        UserError: as `prepare`.
    """
    trainer = _trainer(config, split, table)
    if isinstance(trainer.algorithm, FeatureAlgorithm):
        return None
    if trainer.transfer is not None and trainer.transfer.cached:
        _use_features(trainer)
    step = trainer.measure(steps=1, warm=1).step
    repeated = REPEATED if step < SHORT else 0
    return min([step, *(trainer.measure(steps=1, warm=0).step for _ in range(repeated))])


def _feature_seconds(trainer: Trainer, *, probe: bool) -> tuple[float, float]:
    """Return the seconds to compute the features of an image, and of the views that steps use."""
    transfer, batches = trainer.transfer, trainer.batches
    size = trainer.settings.eval_batch_size
    extractor = FeatureExtractor(trainer.classifier, size, cached=False)
    store = batches.images.loaded
    rows = torch.arange(len(store), device=batches.images.labels.device)

    def each(compute: Callable[[torch.Tensor], torch.Tensor]) -> float:
        return seconds_each(lambda count: compute(rows[:count]), rows.device, len(rows))

    plain = view = 0.0
    if probe or transfer is not None:
        plain = each(lambda rows: extractor.plain(store, rows))
    if transfer is not None and transfer.cached:
        for name, augmenter in batches.augmenters.items():
            if name != "plain" and transfer.views.uses(name):
                views = partial(extractor.views, store, augmenter=augmenter, count=1, seed=0)
                view += each(views)
    return plain, view


def _reading(table: ImageTable, rows: Rows, size: Size) -> float:
    """Return the seconds to read an image, from the cache of decoded images if it exists."""
    if (files := files_of(table)) is not None:
        files.open_existing(size)
    sample = rows[np.linspace(0, len(rows) - 1, min(READ, len(rows))).astype(np.int64)]
    with contextlib.suppress(UserError):  # reported when all are read
        # As in training: a pair of sides only where `read` takes one.
        read = partial(table.read, sample, size)  # type: ignore[arg-type]
        return seconds(read, torch.device("cpu")) / len(sample)
    return 0.0


def _trainer(config: ResolvedConfig, split: Split, table: ImageTable) -> Trainer:
    """Return a trainer like that of the run, on noise."""
    classes, limit = len(table.classes), config.settings.eval_batch_size
    counts = [min(len(rows), limit) for rows in (split.labeled, split.unlabeled, split.validation)]
    counts[0] = max(classes, counts[0])
    ends = np.cumsum([0, *counts])
    labels, unlabeled, validation = (np.arange(a, b) for a, b in pairwise(ends))
    generator = np.random.default_rng(0)

    pixels = table.pixels

    def noise(rows: NDArray[np.int64], size: Size) -> Levels:
        shape = len(rows), *sides(size), pixels.channels
        levels: Levels = generator.integers(0, pixels.white + 1, shape, dtype=pixels.dtype)
        return levels

    total, features = int(ends[-1]), None
    if table.features is not None:
        features = generator.standard_normal((total, table.features.shape[1]), np.float32)
    random_table = ImageTable(
        classes=table.classes,
        keys=tuple(str(row) for row in range(total)),
        labels=np.arange(total) % classes,
        splits=np.full(total, "pool"),
        read=noise,
        features=features,
        pixels=pixels,
    )
    resolved = config.with_settings(
        **dict.fromkeys(OF_THE_DATA), drop_leaks=False, pretrained=False
    )
    small = Split(labels, unlabeled, validation, np.empty(0, dtype=np.int64))
    return prepare(resolved, table=random_table, split=small).trainer


def _use_features(trainer: Trainer) -> None:
    """Replace the images of the batches with random features."""
    images, views = trainer.batches.images, trainer.batches.views
    rows = torch.unique(torch.cat([images.labeled, images.unlabeled]))
    size = trainer.classifier.backbone.feature_dim
    device = rows.device

    trainer.batches.images = replace(
        images,
        features=ImageSource(torch.randn(len(images.loaded), size, device=device)),
        feature_views=FeatureViews(
            {
                name: torch.randn(int(views.uses(name)), len(rows), size, device=device)
                for name in trainer.batches.augmenters
            },
            torch.searchsorted(rows, images.labeled),
            torch.searchsorted(rows, images.unlabeled),
        ),
    )


def _costs(trainer: Trainer, split: Split) -> tuple[Costs, float]:
    """Return the costs of training on the images of the run, and of predicting one."""
    costs = trainer.measure(steps=2, warm=1)
    if 12 * costs.step < SHORT:
        costs = trainer.measure()
    images = trainer.batches.images
    evaluated = len(trainer.validation[0]) or len(images.labeled)
    predict = costs.evaluation / evaluated
    seen = len(images.labeled) + len(images.unlabeled)
    scan = costs.scan * max(1.0, (len(split.labeled) + len(split.unlabeled)) / seen)
    evaluation = predict * (len(split.validation) or len(split.labeled))
    selection = costs.selection * len(split.unlabeled) / max(1, len(images.unlabeled))
    return replace(costs, evaluation=evaluation, scan=scan, selection=selection), predict
