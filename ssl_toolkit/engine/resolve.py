"""What the settings that were left open become, given the data set and the backbone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit import registry
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.data.benchmarks import default_root
from ssl_toolkit.data.file_pictures import FilePictures
from ssl_toolkit.data.labels_file import choose_labelled
from ssl_toolkit.data.layout import lay_out
from ssl_toolkit.data.names import class_name, name_fault
from ssl_toolkit.data.npz import feature_length
from ssl_toolkit.data.sources import read_data
from ssl_toolkit.data.splits import Rows
from ssl_toolkit.data.torchvision_sets import PREFIX, TorchvisionSet
from ssl_toolkit.data.verified import verify
from ssl_toolkit.data.walk import some
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.files import holds_features
from ssl_toolkit.interfaces import Dataset, DatasetDefaults, ImageTable
from ssl_toolkit.models.factory import own_image_size, size_for
from ssl_toolkit.models.feature_input import feature_backbone

DEFAULT_DATASET = "digits"
STEPS = 1000
LEARNING_RATE = 0.002
MOST_HEADERS = 200
"""Images whose headers are read to learn how large the images of a data set are."""
MOST_ROWS = 20
"""Evaluations of a run whose ``eval_every`` was left open."""


def dataset_defaults(settings: Settings) -> DatasetDefaults:
    """The suggestions of the data set that the settings name; reads no data.

    Raises:
        ConfigError: both ``data`` and ``dataset`` are given, or ``labels`` and a number of labels.
        PluginError: the data set is unknown or broken.
    """
    if settings.labels is not None:
        others = ("labels_per_class", "num_labels")
        if given := [name for name in others if getattr(settings, name) is not None]:
            raise ConfigError(
                f"--labels says which pictures are labelled; leave --{given[0].replace('_', '-')} "
                "out"
            )
    if settings.data is not None:
        if settings.dataset is not None:
            raise ConfigError(
                f"--data {settings.data} and --dataset {settings.dataset}: give only one of them"
            )
        return _features_defaults(settings) if holds_features(settings.data) else DatasetDefaults()
    return _dataset(settings.dataset or DEFAULT_DATASET).defaults


def _features_defaults(settings: Settings) -> DatasetDefaults:
    """Those of data that hold features in place of images.

    Raises:
        ConfigError: the settings name a backbone for images, or weights of one.
    """
    for flag, given in (
        ("pretrained", settings.pretrained),
        (
            f"backbone {settings.backbone}",
            not (settings.backbone or "features_").startswith("features_"),
        ),
    ):
        if given:
            raise ConfigError(f"--{flag}: {settings.data} holds features already; leave it out")
    length = feature_length(Path(settings.data or ""))
    return DatasetDefaults(image_size=1, backbone=feature_backbone(length))


def load_table(
    settings: Settings,
    progress: Callable[[int, int], None] | None = None,
    *,
    lazily: bool = False,
) -> ImageTable:
    """The pictures that the settings name, before a split is drawn.

    Args:
        settings: with ``image_size``, pictures that are files are decoded into the cache; with
            ``stream_buffer`` none is opened.
        progress: called while pictures are decoded.
        lazily: open no picture that is a file; unreadable ones stay in the table.

    Raises:
        DataError: they can't be found or read, or ``classes`` are not those of the data.
        ConfigError: ``stream_buffer`` is given and they can't be streamed.
    """
    streamed = settings.stream_buffer is not None
    if settings.data is not None:
        table = read_data(
            Path(settings.data),
            root=None if settings.root is None else Path(settings.root),
            on_bad_image=settings.on_bad_image,
            workers=settings.workers,
            size=settings.image_size,
            progress=progress,
            lazily=streamed or lazily,
            fit=settings.fit,
        )
    else:
        dataset = _dataset(settings.dataset or DEFAULT_DATASET)
        root = None if settings.root is None else Path(settings.root)
        table = lay_out(_named(dataset.load(root, download=settings.download)), settings.fit)
        if settings.image_size is not None and not streamed and not lazily:
            table = verify(
                table,
                settings.image_size,
                refuse=settings.on_bad_image == "error",
                workers=settings.workers,
                progress=progress,
            )
    if streamed and (not isinstance(table.read, FilePictures) or table.read.in_parquet):
        raise ConfigError(
            f"--stream-buffer: the pictures of {settings.data or settings.dataset} are neither "
            "shards nor files of their own; leave it out"
        )
    return table if settings.classes is None else _reorder(table, settings.classes)


def chosen_labels(table: ImageTable, settings: Settings) -> tuple[ImageTable, Rows | None]:
    """The table and the rows that ``labels`` names; None when it is not given.

    Raises:
        DataError: as `choose_labelled`.
    """
    if settings.labels is None:
        return table, None
    folder = default_root() if settings.root is None else Path(settings.root)
    if settings.data is not None and settings.root is None:
        data = Path(settings.data)
        folder = data if data.is_dir() else data.parent
    return choose_labelled(table, settings.labels, folder)


def typical_side(settings: Settings) -> int | None:
    """Median shorter side of the user's images in pixels, where the image size depends on it.

    Reads the headers of some images, evenly chosen; None where they can't be read either.
    """
    if settings.data is None or not settings.pretrained or settings.image_size is not None:
        return None
    try:
        table = load_table(settings, lazily=True)
    except DataError:  # told where the data is read
        return None
    sides = table.read.sides(MOST_HEADERS) if isinstance(table.read, FilePictures) else []
    return int(np.median(sides)) if sides else None


def resolve(settings: Settings, defaults: DatasetDefaults, side: int | None = None) -> Settings:
    """Fill every setting that was left open.

    Args:
        settings: validated settings.
        defaults: what the data set suggests.
        side: `typical_side`.
    """
    steps = settings.steps or STEPS
    backbone = settings.backbone or defaults.backbone
    eval_every = settings.eval_every or max(1, steps // MOST_ROWS)
    labels_given = any(
        value is not None
        for value in (settings.labels_per_class, settings.num_labels, settings.labels)
    )
    image_size = settings.image_size or _image_size(settings, backbone, defaults, side)
    update: dict[str, Any] = {
        "dataset": None if settings.data else settings.dataset or DEFAULT_DATASET,
        "backbone": backbone,
        "image_size": image_size,
        "steps": steps,
        "batch_size": settings.batch_size or defaults.batch_size,
        "eval_batch_size": settings.eval_batch_size or (256 if image_size <= 64 else 64),
        "lr": settings.lr or LEARNING_RATE,
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
    model: dict[str, Any] = {}
    if settings.model.batchnorm_momentum == "auto":
        wide = backbone.rpartition(":")[2].startswith("wrn_")
        model["batchnorm_momentum"] = min(0.1, max(0.001, 100 / steps)) if wide else None
    if settings.model.channels_last == "auto":
        model["channels_last"] = True
    update["model"] = settings.model.model_copy(update=model)
    return settings.model_copy(update=update)


def _dataset(name: str) -> Dataset:
    """The data set of a registered name, or of torchvision's.

    Raises:
        PluginError: it is unknown or broken.
    """
    if name.startswith(PREFIX):
        return TorchvisionSet(name)
    made: Dataset = registry.load("datasets", name)()
    return made


def _image_size(
    settings: Settings, backbone: str, defaults: DatasetDefaults, side: int | None
) -> int:
    if settings.data is not None and settings.pretrained:
        trained = settings.model.freeze not in ("auto", "backbone")
        if side is None:
            return own_image_size(backbone) or defaults.image_size
        return size_for(backbone, side, trained=trained) or defaults.image_size
    own = registry.has("backbones", backbone)
    return defaults.image_size if own else defaults.min_stride_size or defaults.image_size


def _reorder(table: ImageTable, classes: list[str]) -> ImageTable:
    """The table with its classes in the order given."""
    classes = [*map(class_name, classes)]
    missing = sorted(set(table.classes) - set(classes))
    foreign = sorted(set(classes) - set(table.classes))
    if missing or foreign or len(classes) != len(table.classes):
        raise DataError(
            f"classes: the data has {some(table.classes)}; the list given lacks "
            f"{some(missing) or 'none'} and adds {some(foreign) or 'none'}"
        )
    place = np.array([classes.index(name) for name in table.classes], dtype=np.int64)
    labels = np.where(table.labels >= 0, place[table.labels], -1).astype(np.int64)
    return replace(table, classes=tuple(classes), labels=labels)


def _named(table: ImageTable) -> ImageTable:
    """The table of a data set with its classes named as those of files are.

    Raises:
        DataError: one of the names can't be a name.
    """
    for name in table.classes:
        if fault := name_fault(name):
            raise DataError(f"the data set's class {name!r} {fault}")
    return replace(table, classes=tuple(map(class_name, table.classes)))


def _first(given: float | None, default: float) -> float:
    return default if given is None else given
