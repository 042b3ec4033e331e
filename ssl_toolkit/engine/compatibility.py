"""Requirements between algorithm, model, data and processes, checked before any training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.errors import ConfigError, DataError, PluginError
from ssl_toolkit.interfaces import Algorithm, FeatureAlgorithm, ImageTable, Views
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.feature_input import feature_length
from ssl_toolkit.models.freezing import has_batchnorm


def check_needs(
    algorithm: Algorithm,
    algorithm_class: type[Algorithm],
    classifier: Classifier,
    table: ImageTable,
    split: Split,
    settings: ResolvedSettings,
) -> list[str]:
    """Refuse what can't work.

    Returns:
        Lines about what will not be used.

    Raises:
        DataError: there are no labels, or no unlabeled images, or an oracle lacks labels.
        ConfigError: the batch is too small for the backbone.
        PluginError: `views` doesn't say how many views of each kind.
    """
    check_input(table.features, settings.backbone)
    views = algorithm.views()
    if not isinstance(views, Views) or not _are_counts(views):
        raise PluginError(
            f"views of algorithm {settings.algo!r} returned {views!r}; it must return Views(...) "
            "of whole numbers from 0, with an unlabeled_ratio of at least 1"
        )
    if not len(split.labeled):
        raise DataError("no image carries a label; label a few of each class")
    if views.needs_unlabeled and not len(split.unlabeled):
        where = (
            f"{settings.data}: there are no unlabeled images; put some into its folder "
            "unlabeled/, or say how many labels to keep with --labels-per-class N"
            if settings.data
            else "no unlabeled images are left; ask for fewer labels or --labeled-in-pool"
        )
        raise DataError(f"--algo {settings.algo} learns from unlabeled images too, but {where}")
    hidden = table.labels[split.unlabeled]
    if algorithm_class.uses_hidden_labels and (hidden < 0).any():
        raise DataError(
            f"--algo {settings.algo} is an upper bound that needs the labels of the unlabeled "
            f"images, and {(hidden < 0).sum()} of {len(hidden)} carry none"
        )
    fitted = isinstance(algorithm, FeatureAlgorithm)
    if fitted and settings.stream_buffer is not None:
        raise ConfigError(
            f"--stream-buffer: --algo {settings.algo} looks at the features of all images at once; "
            "leave it out"
        )
    trained = not fitted and settings.model.freeze not in ("backbone", "bn")
    if settings.batch_size == 1 and trained and has_batchnorm(classifier):
        raise ConfigError(
            f"--batch-size 1: BatchNorm of backbone {settings.backbone} needs at least 2 images "
            "in a batch; use --batch-size 2 or more"
        )
    if fitted and not settings.pretrained and settings.weights is None:
        return [
            f"--algo {settings.algo} fits a head to the features of random weights here; use "
            "--pretrained, or --weights FILE"
        ]
    if not (views.needs_unlabeled or fitted) and len(split.unlabeled):
        return [f"--algo {settings.algo} does not use the {len(split.unlabeled)} unlabeled images"]
    return []


def check_input(features: NDArray[np.float32] | None, backbone: str | None) -> None:
    """Refuse features for a model of images, and the reverse.

    Args:
        features: (N, D) of the data; None where it holds images.
        backbone: name of the model's backbone.

    Raises:
        ConfigError: names what the model takes and what the data holds.
    """
    holds = None if features is None else features.shape[1]
    takes = feature_length(backbone or "")
    if holds != takes:
        inputs = [
            "images" if length is None else f"features of length {length}"
            for length in (takes, holds)
        ]
        raise ConfigError(f"--backbone {backbone} takes {inputs[0]}, the data holds {inputs[1]}")


def check_parts(settings: ResolvedSettings, classifier: Classifier, size: int) -> None:
    """Refuse a run that several processes can't share in equal parts.

    Raises:
        ConfigError: names the key.
    """
    batch_size = settings.batch_size
    if batch_size % size:
        raise ConfigError(
            f"--batch-size {batch_size}: {size} processes share it in equal parts; use "
            f"{batch_size // size * size or size} or another multiple of {size}"
        )
    if batch_size == size and has_batchnorm(classifier) and not settings.model.sync_batchnorm:
        raise ConfigError(
            f"--batch-size {batch_size}: BatchNorm of backbone {settings.backbone} needs at least "
            f"2 images in the part of each process; use {2 * size} or more"
        )
    if settings.stream_buffer is not None:
        raise ConfigError(
            "--stream-buffer: shards are read from start to end by one process; leave it out, or "
            "train with --devices 1"
        )


def _are_counts(views: Views) -> bool:
    counts = vars(views).values()
    return all(isinstance(c, int) and c >= 0 for c in counts) and views.unlabeled_ratio > 0
