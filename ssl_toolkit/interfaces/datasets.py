"""Data sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.images import RGB8, PixelFormat, Size
from ssl_toolkit.errors import DataError, PluginError
from ssl_toolkit.interfaces.backbones import ChannelStatistics

SplitName = Literal["pool", "labeled", "unlabeled", "validation", "test"]


STRANGER = -2
"""Label of an unlabeled image that is known to belong to no class (``--strangers``)."""


def _unread(rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    raise DataError("the data set gives neither `read` nor `files` for its images")


@dataclass(frozen=True)
class ImageTable:
    """The N images of a data set, before a split is drawn."""

    classes: tuple[str, ...]
    keys: Sequence[str]
    """(N,) unique name of each image, equal on every machine, such as a relative path."""
    labels: NDArray[np.int64]
    """(N,) index into `classes`, or into the rows of `label_sets`; -1 for an image without a
    label, `STRANGER` for one of no class."""
    splits: NDArray[np.str_]
    """(N,) `SplitName` of each image; labeled, validation and test images are drawn from
    ``pool``."""
    read: Callable[[NDArray[np.int64], int], NDArray[np.unsignedinteger[Any]]] = field(
        default_factory=lambda: _unread
    )
    """Return the images of these rows as (n, size, size, C) in the format of `pixels`, for a side
    in pixels; not needed with `files`."""
    digest: Callable[[int], str] | None = None
    """Return a hash of the bytes of the image in a row, to detect duplicates; None if unknown."""
    notes: tuple[str, ...] = ()
    """Lines to print, such as the number of ignored files."""
    features: NDArray[np.float32] | None = None
    """(N, D) features instead of images; `read` then raises an error."""
    files: Sequence[str] | None = None
    """(N,) path to each image file, instead of `read` and `digest`: the toolkit caches the decoded
    images, reports corrupt files, detects duplicates and supports streaming."""
    pixels: PixelFormat = RGB8
    """Channels and bits of the images that `read` returns."""
    label_sets: NDArray[np.bool_] | None = None
    """(K, C) for ``--task multilabel``: the distinct sets of classes that images have, which
    `labels` is an index into; None where an image has one class."""

    def targets(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return (n, C) labels of the images in `rows` (n,): 0 or 1, nan without a label.

        Only with `label_sets`.
        """
        assert self.label_sets is not None
        targets = np.full((len(rows), len(self.classes)), np.nan, dtype=np.float32)
        known = self.labels[rows] >= 0
        targets[known] = self.label_sets[self.labels[rows][known]]
        return targets

    def has(self, row: int, label: int) -> bool:
        """Return True if the labeled image in a `row` has the class `label`, an index."""
        number = int(self.labels[row])
        return number == label if self.label_sets is None else bool(self.label_sets[number, label])

    def class_counts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (C,) how many of the labeled images in `rows` (n,) have each class."""
        if self.label_sets is None:
            return np.bincount(self.labels[rows], minlength=len(self.classes))
        counts: NDArray[np.int64] = self.label_sets[self.labels[rows]].sum(axis=0, dtype=np.int64)
        return counts


@dataclass(frozen=True)
class DatasetDefaults:
    """Default settings for a data set."""

    image_size: Size = 32
    """Side in pixels; or (height, width), for a table with `files` or of `array_table`."""
    min_stride_size: Size | None = None
    """Image size for backbones with large strides; None for `image_size`."""
    backbone: str | None = None
    """Name of the backbone; None for the default of the toolkit."""
    batch_size: int = 16
    labels_per_class: int | None = None
    """Number of labeled images per class; None for all labels."""
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    flip: bool = True
    mean: ChannelStatistics | None = None
    """RGB mean of images in [0, 1]; None to compute it from the training images."""
    std: ChannelStatistics | None = None
    """RGB standard deviation; None to compute it from the training images."""
    pixels: PixelFormat = RGB8
    """Channels and bits, unless ``--channels`` and ``--bits`` set others."""


class Dataset(ABC):
    """Base class of sources of labeled and unlabeled images."""

    plugin_kind: ClassVar[str] = "datasets"
    defaults: ClassVar[DatasetDefaults] = DatasetDefaults()
    license: ClassVar[str] = ""
    """License of the images, by its SPDX identifier if it has one; empty if unknown."""
    citation: ClassVar[str] = ""
    """Authors, year and title, in one line of Markdown."""
    homepage: ClassVar[str] = ""
    """URL of the data set, linked in model cards."""
    is_example: ClassVar[bool] = False
    """True for a small data set to try out the toolkit: after a run, the terminal then shows how to
    train on other images."""

    @classmethod
    def from_name(cls, rest: str) -> Dataset:
        """Return a data set of a collection, for ``--dataset PREFIX:REST``.

        Override it in a class that is registered as PREFIX, such as ``torchvision`` in
        ``torchvision:DTD``. The default refuses every name.

        Args:
            rest: Name in the collection.

        Raises:
            PluginError: The collection has no such data set.
        """
        raise PluginError(
            f"dataset {cls.__name__} is not a collection: write its name without ':{rest}'"
        )

    @abstractmethod
    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Return the images.

        Args:
            root: Path to the folder with the files; None for `ssl_toolkit.default_root`.
            download: True if missing files may be downloaded.

        Raises:
            DataError: The files are not found or corrupt; names the folder.
        """

    def labeled_rows(self, name: str, table: ImageTable, root: Path) -> NDArray[np.int64] | None:
        """Return the labeled images of a published selection, for ``--labels NAME``.

        Args:
            name: Name of the selection.
            table: Table from `load`.
            root: Path to the folder with the files.

        Returns:
            Row indices in ascending order, or None if there is no selection of this name, which is
            then the path to a file.

        Raises:
            DataError: The files of the selection are not found or corrupt.
        """
        return None
