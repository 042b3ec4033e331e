"""Default values of settings, given the data set and the backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit import registry
from ssl_toolkit.config.defaults import BACKBONE, DATASET
from ssl_toolkit.config.images import Size, area
from ssl_toolkit.config.loading import ResolvedConfig, RunConfig, filled
from ssl_toolkit.config.released_code import PUBLISHED_STEPS
from ssl_toolkit.config.sections import StrangerSettings
from ssl_toolkit.config.settings import OPEN_VALUES, Settings
from ssl_toolkit.data.load import load_table, named_dataset, pixel_format
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.readers.npz import feature_length
from ssl_toolkit.data.readers.priors import read_prior
from ssl_toolkit.engine.compatibility import check_adapters
from ssl_toolkit.engine.optimization import check_optimizer
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.files import holds_features
from ssl_toolkit.interfaces import Backbone, DatasetDefaults
from ssl_toolkit.models.factory import own_image_size, size_for
from ssl_toolkit.models.feature_input import feature_backbone

MOST_HEADERS = 200
"""Images whose headers are read to estimate the size of the images of a data set."""
MOST_ROWS = 20
"""Evaluations of a run whose ``eval_every`` was left open."""


def dataset_defaults(settings: Settings) -> DatasetDefaults:
    """Return the defaults of the data set that the settings name; reads no data.

    Raises:
        ConfigError: both ``data`` and ``dataset`` are given, or ``labels`` and a number of labels.
        PluginError: the data set is unknown or broken.
    """
    if settings.labels is not None:
        others = ("labels_per_class", "num_labels")
        if extra := [name for name in others if getattr(settings, name) is not None]:
            raise ConfigError(
                f"--labels lists the labeled images; leave --{extra[0].replace('_', '-')} out"
            )
    if settings.data is not None:
        if settings.dataset is not None:
            raise ConfigError(
                f"--data {settings.data} and --dataset {settings.dataset}: use only one of them"
            )
        return _features_defaults(settings) if holds_features(settings.data) else DatasetDefaults()
    return named_dataset(settings.dataset).defaults


def _features_defaults(settings: Settings) -> DatasetDefaults:
    """Return the defaults of data that contain features in place of images.

    Raises:
        ConfigError: the settings name a backbone for images, or weights of one.
    """
    for flag, is_set in (
        ("pretrained", settings.pretrained),
        (f"channels {settings.channels}", settings.channels not in (None, 3)),
        (f"bits {settings.bits}", settings.bits not in (None, 8)),
        (
            f"backbone {settings.backbone}",
            not (settings.backbone or "features_").startswith("features_"),
        ),
    ):
        if is_set:
            raise ConfigError(f"--{flag}: {settings.data} holds features already; leave it out")
    length = feature_length(Path(settings.data or ""))
    return DatasetDefaults(image_size=1, backbone=feature_backbone(length))


def _typical_side(settings: Settings) -> int | None:
    """Return the median shorter side of the user's images, if the image size depends on it.

    Reads the headers of some images, evenly chosen; None where they can't be read either.
    """
    if settings.data is None or not settings.pretrained or settings.image_size is not None:
        return None
    try:
        # Strangers don't count: the images of the classes stay the same with and without them.
        known = settings.model_copy(update={"strangers": StrangerSettings()})
        table = load_table(known, lazily=True)
    except DataError:  # reported where the data is read
        return None
    files = files_of(table)
    sides = [] if files is None else files.sides(MOST_HEADERS)
    return int(np.median(sides)) if sides else None


def resolve_config(config: RunConfig) -> tuple[ResolvedConfig, DatasetDefaults]:
    """Fill every setting that has no value; reads at most the headers of some images.

    Returns:
        The resolved configuration, and the defaults of its data set.

    Raises:
        UserError: the data set is unknown or broken, or settings contradict each other.
    """
    check_optimizer(config.settings.optimizer)
    check_adapters(config.settings)
    defaults = dataset_defaults(config.settings)
    side = _typical_side(config.settings)
    return filled(config, _open_values(config.settings, defaults, side)), defaults


def _open_values(settings: Settings, defaults: DatasetDefaults, side: int | None) -> dict[str, Any]:
    steps, pixels = settings.steps or OPEN_VALUES["steps"], pixel_format(settings)
    backbone = settings.backbone or defaults.backbone or BACKBONE
    eval_every = settings.eval_every or max(1, steps // MOST_ROWS)
    labels_given = any(
        value is not None
        for value in (settings.labels_per_class, settings.num_labels, settings.labels)
    )
    image_size = settings.image_size
    if image_size is None:
        own = settings.model.args.get("img_size")  # a rectangle is refused where the model is built
        image_size = (
            own if isinstance(own, int) else _image_size(settings, backbone, defaults, side)
        )
    update: dict[str, Any] = {
        "dataset": None if settings.data else settings.dataset or DATASET,
        "backbone": backbone,
        "image_size": image_size,
        "channels": pixels.channels,
        "bits": pixels.bits,
        "steps": steps,
        "batch_size": settings.batch_size or defaults.batch_size,
        "eval_batch_size": settings.eval_batch_size or (256 if area(image_size) <= 64 * 64 else 64),
        "lr": settings.lr or OPEN_VALUES["lr"],
        "eval_every": eval_every,
        "log_every": settings.log_every or min(10, eval_every),
        "save_every": settings.save_every or eval_every,
        "labels_per_class": settings.labels_per_class
        if labels_given
        else defaults.labels_per_class,
        "val_fraction": _first(settings.val_fraction, defaults.val_fraction),
        "test_fraction": _first(settings.test_fraction, defaults.test_fraction),
    }
    if settings.augment.flip == "auto":
        update["augment"] = settings.augment.model_copy(update={"flip": defaults.flip})
    if settings.ema and settings.ema.decay == "auto":
        # A memory of a tenth of the run: 0.999 would leave a short run's teacher at chance.
        decay = max(0.0, min(0.999, 1 - 10 / steps))
        update["ema"] = settings.ema.model_copy(update={"decay": decay})
    if isinstance(settings.prior, str):  # the shares themselves: the file may change
        update["prior"] = read_prior(Path(settings.prior))
    model: dict[str, Any] = {}
    if settings.model.batchnorm_momentum == "auto":
        registered = registry.has("backbones", backbone)
        plugin = registry.load("backbones", backbone) if registered else Backbone
        length = steps if settings.profile == "paper" else PUBLISHED_STEPS
        model["batchnorm_momentum"] = plugin.batchnorm_momentum(length)
    if settings.model.channels_last == "auto":
        model["channels_last"] = True
    update["model"] = settings.model.model_copy(update=model)
    return update


def _image_size(
    settings: Settings, backbone: str, defaults: DatasetDefaults, side: int | None
) -> Size:
    if settings.data is not None and settings.pretrained:
        trained = settings.lora.rank > 0 or settings.model.freeze not in ("auto", "backbone")
        if side is None:
            return own_image_size(backbone) or defaults.image_size
        return size_for(backbone, side, trained=trained) or defaults.image_size
    registered = registry.has("backbones", backbone)
    return defaults.image_size if registered else defaults.min_stride_size or defaults.image_size


def _first(value: float | None, default: float) -> float:
    return default if value is None else value
