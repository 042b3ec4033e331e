"""Check that algorithm, model, data and processes fit together, before any training."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit import registry
from ssl_toolkit.config.images import RGB8, Size, sides, size_text
from ssl_toolkit.config.settings import ResolvedSettings, Settings
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.own_modules import interval_fault, own_modules_fault
from ssl_toolkit.errors import ConfigError, DataError, PluginError
from ssl_toolkit.files import holds_features
from ssl_toolkit.interfaces import Algorithm, Augmenter, FeatureAlgorithm, ImageTable, View, Views
from ssl_toolkit.models.adapters import require_peft
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.factory import find_backbone
from ssl_toolkit.models.feature_input import feature_length
from ssl_toolkit.models.freezing import has_batchnorm
from ssl_toolkit.registry import did_you_mean


def check_needs(
    algorithm: Algorithm,
    algorithm_class: type[Algorithm],
    classifier: Classifier,
    table: ImageTable,
    split: Split,
    settings: ResolvedSettings,
) -> list[str]:
    """Refuse a run that can't work.

    Returns:
        Warnings for the user.

    Raises:
        DataError: labels or unlabeled images are missing, or hidden labels that the algorithm uses.
        ConfigError: the batch is too small for the backbone.
        PluginError: the algorithm declares something invalid, such as averaged modules.
    """
    check_input(table.features, settings.backbone)
    views = algorithm.views()
    if fault := own_modules_fault(algorithm) or interval_fault(algorithm):
        raise PluginError(f"algorithm {settings.algo!r}: {fault}")
    if not len(split.labeled):
        raise DataError("no image carries a label; label a few of each class")
    if views.needs_unlabeled and not len(split.unlabeled):
        where = "no unlabeled images are left; ask for fewer labels or --labeled-in-pool"
        if settings.data:
            way_out = "put some into its folder unlabeled/, or list some without a label"
            if (table.splits == "pool").any():  # images of no other part can lose their label
                way_out = "say how many labels to keep with --labels-per-class N"
            where = f"{settings.data}: there are no unlabeled images; {way_out}"
        raise DataError(f"--algo {settings.algo} learns from unlabeled images too, but {where}")
    hidden = table.labels[split.unlabeled]
    if algorithm_class.uses_hidden_labels and (hidden < 0).any():
        raise DataError(
            f"--algo {settings.algo} is an upper bound that needs the labels of the unlabeled "
            f"images, and {(hidden < 0).sum()} of {len(hidden)} carry none"
        )
    fits_head = isinstance(algorithm, FeatureAlgorithm)
    if fits_head and settings.stream_buffer is not None:
        raise ConfigError(
            f"--stream-buffer: --algo {settings.algo} looks at the features of all images at once; "
            "leave it out"
        )
    if settings.drop_strangers != "no":
        check_filter(settings, fits_head=fits_head)
    updates_batchnorm = not fits_head and not (
        settings.lora.rank or settings.model.freeze in ("backbone", "bn")
    )
    if settings.batch_size == 1 and updates_batchnorm and has_batchnorm(classifier):
        raise ConfigError(
            f"--batch-size 1: BatchNorm of backbone {settings.backbone} needs at least 2 images "
            "in a batch; use --batch-size 2 or more"
        )
    if fits_random_features(algorithm_class, settings):
        return [
            f"--algo {settings.algo} fits a head to the features of random weights here; use "
            "--pretrained, or --weights FILE"
        ]
    if not (views.needs_unlabeled or fits_head) and len(split.unlabeled):
        return [f"--algo {settings.algo} does not use the {len(split.unlabeled)} unlabeled images"]
    return []


def check_filter(settings: ResolvedSettings, *, fits_head: bool) -> None:
    """Refuse ``--drop-strangers`` where no score of the unlabeled images exists.

    Args:
        settings: Settings of the run.
        fits_head: True if the algorithm fits a head to all features at once.

    Raises:
        ConfigError: Names the other setting.
    """
    flag = f"--drop-strangers {settings.drop_strangers}"
    if settings.stream_buffer is not None:
        raise ConfigError(f"{flag}: streamed images are not scored; leave --stream-buffer out")
    if fits_head and settings.drop_strangers == "soft":
        raise ConfigError(
            f"{flag}: --algo {settings.algo} fits a head to all images at once; use hard"
        )


def check_adapters(settings: Settings) -> None:
    """Refuse adapters where they can't be trained.

    Raises:
        ConfigError: peft is missing, another setting freezes the backbone or keeps its features, or
            options of adapters are given without their rank.
    """
    if not settings.lora.rank:
        if given := sorted(settings.lora.model_dump(exclude_defaults=True)):
            names = ", ".join(f"lora.{name}" for name in given)
            raise ConfigError(f"{names}: there are no adapters without a rank; set lora.rank too")
        return
    if (freeze := settings.model.freeze) not in ("auto", "none", "bn"):
        raise ConfigError(
            f"lora.rank: adapters train a frozen backbone; leave model.freeze={freeze} out"
        )
    fits = settings.algo == "auto" or issubclass(
        registry.load("algorithms", settings.algo), FeatureAlgorithm
    )
    if fits:
        raise ConfigError(
            f"lora.rank: --algo {settings.algo} fits heads to frozen features; use another "
            "algorithm, such as supervised"
        )
    require_peft()


def fits_random_features(algorithm: type[Algorithm], settings: Settings) -> bool:
    """Return True if an algorithm would fit a head to features of random weights."""
    fits = issubclass(algorithm, FeatureAlgorithm)
    return fits and not (settings.pretrained or settings.weights or holds_features(settings.data))


def check_input(features: NDArray[np.float32] | None, backbone: str | None) -> None:
    """Refuse features for a model that takes images, and images for one that takes features.

    Args:
        features: (N, D) features of the data; None if it consists of images.
        backbone: name of the model's backbone.

    Raises:
        ConfigError: names the inputs of the model and of the data.
    """
    actual = None if features is None else features.shape[1]
    expected = feature_length(backbone or "")
    if actual != expected:
        inputs = [
            "images" if length is None else f"features of length {length}"
            for length in (expected, actual)
        ]
        raise ConfigError(f"--backbone {backbone} takes {inputs[0]}, the data holds {inputs[1]}")


def check_parts(settings: ResolvedSettings, classifier: Classifier, size: int) -> None:
    """Refuse a run whose batches the processes can't share in equal parts.

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


def check_views(
    views: Views, augmenters: Mapping[str, Augmenter], table: ImageTable, settings: ResolvedSettings
) -> None:
    """Refuse views that can't be created.

    Args:
        views: result of `Algorithm.views`.
        augmenters: result of `Algorithm.augmenters`.
        table: table of the images.
        settings: settings of the run.

    Raises:
        PluginError: a view or an augmenter is invalid.
        ConfigError: the backbone or the data supports one size only.
    """
    if fault := views_fault(views, augmenters):
        raise PluginError(f"algorithm {settings.algo!r}: {fault}")
    if not (other := ", ".join(map(str, other_sizes(views, settings.image_size)))):
        return
    if table.features is not None:
        raise ConfigError(
            f"--algo {settings.algo} requests views of size {other}, but the data holds features"
        )
    backbone, name = find_backbone(settings.backbone)
    if backbone.own_image_size(name) is not None and not backbone.takes_other_sizes(name):
        raise ConfigError(
            f"--algo {settings.algo} requests views of size {other}, but backbone "
            f"{settings.backbone} takes images of size {size_text(settings.image_size)} only; "
            "use another one"
        )


def adapt_augmenters(
    augmenters: Mapping[str, Augmenter], views: Views, settings: ResolvedSettings
) -> list[str]:
    """Prepare the augmenters of all views for images that are not RGB with 8 bits.

    Args:
        augmenters: by the names that views use.
        views: result of `Algorithm.views`.
        settings: settings of the run.

    Returns:
        Notes on operations that are left out.

    Raises:
        ConfigError: an augmenter doesn't take the channels.
    """
    pixels, notes = settings.pixels, []
    names = {"weak": settings.augment.weak, "strong": settings.augment.strong}
    if pixels == RGB8:
        return []
    for key, augmenter in augmenters.items():
        if not views.uses(key):
            continue
        name = names.get(key, f"{type(augmenter).__name__} ({key})")
        if augmenter.channels is not None and pixels.channels not in augmenter.channels:
            known = " or ".join(map(str, sorted(augmenter.channels)))
            setting = f"augment.{key}=weak" if key in names else "another --algo"
            raise ConfigError(
                f"--channels {pixels.channels}: augmenter {name} takes images with {known} "
                f"channels; use {setting}"
            )
        if omitted := augmenter.omit_operations(pixels):
            notes.append(f"augmenter {name} leaves out {', '.join(omitted)}: images have {pixels}")
    return list(dict.fromkeys(notes))


def other_sizes(views: Views, size: Size) -> list[int]:
    """Return the sizes of declared views that are not the (shorter) side of the run's images."""
    side = min(sides(size))
    return sorted({view.size or side for view in views.extra.values()} - {side})


def views_fault(views: object, augmenters: object) -> str:
    """Return the first fault in the views and augmenters of an algorithm; empty for none."""
    if not isinstance(views, Views) or not _are_counts(views):
        return (
            f"views() returned {views!r}; it must return Views(...) of whole numbers from 0, with "
            "an unlabeled_ratio of at least 1"
        )
    if not isinstance(augmenters, Mapping) or not all(
        isinstance(augmenter, Augmenter) for augmenter in augmenters.values()
    ):
        return f"augmenters() returned {augmenters!r}; it must return a dict of Augmenter objects"
    if clash := RUN_AUGMENTERS & augmenters.keys():
        return f"augmenters() returned the name {min(clash)!r}, which the run uses; choose another"
    known = sorted(RUN_AUGMENTERS | augmenters.keys())
    for name, view in views.extra.items():
        if not re.fullmatch("[a-z][a-z0-9_]*", str(name)) or name in Views().kinds:
            return (
                f"views() declares a view {name!r}; a name consists of lower-case letters, digits "
                f"and underscores, and is none of {', '.join(Views().kinds)}"
            )
        if not isinstance(view, View) or view.source not in ("labeled", "unlabeled"):
            return f"view {name!r} is {view!r}; it must be a View of labeled or unlabeled images"
        if view.augmenter not in known:
            return (
                f"view {name!r} has the augmenter {view.augmenter!r}"
                f"{did_you_mean(view.augmenter, known)}; known: {', '.join(known)}"
            )
        if not all(
            type(n) is int and n > 0 for n in (view.count, 1 if view.size is None else view.size)
        ):
            return f"view {name!r} is {view!r}; count and size are whole numbers of at least 1"
    return ""


RUN_AUGMENTERS = frozenset({"weak", "strong", "plain"})
"""Names of augmenters that every run has."""


def _are_counts(views: Views) -> bool:
    counts = [value for name, value in vars(views).items() if name != "extra"]
    return (
        isinstance(views.extra, Mapping)
        and all(type(count) is int and count >= 0 for count in counts)
        and views.unlabeled_ratio > 0
    )
