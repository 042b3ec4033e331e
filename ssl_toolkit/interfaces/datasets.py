"""Data sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces.backbones import ChannelStatistics

Part = Literal["pool", "labeled", "unlabeled", "validation", "test"]


def _unread(rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    raise DataError("the data set gives neither `read` nor `files` for its images")


@dataclass(frozen=True)
class ImageTable:
    """Everything a data set holds, before a split is drawn. N images."""

    classes: tuple[str, ...]
    keys: Sequence[str]
    """(N,) a name for each image that means the same on every machine (a relative path), unique;
    a tuple, or where there are many something smaller."""
    labels: NDArray[np.int64]
    """(N,) index into `classes`; -1 where the image carries no label."""
    parts: NDArray[np.str_]
    """(N,) each a `Part`; from ``pool`` the labeled, validation and test ones are drawn."""
    read: Callable[[NDArray[np.int64], int], NDArray[np.uint8]] = field(
        default_factory=lambda: _unread
    )
    """Return the images of these rows as (n, size, size, 3) uint8, for a size in pixels; not
    needed with `files`."""
    digest: Callable[[int], str] | None = None
    """Hash of the image's bytes, for finding the same image twice; None where unknown."""
    notes: tuple[str, ...] = ()
    """Lines the user should see, such as what was ignored."""
    features: NDArray[np.float32] | None = None
    """(N, D) feature vectors in place of images, which `read` then refuses; None for images."""
    files: Sequence[str] | None = None
    """(N,) path of each image file, in place of `read` and `digest`: the toolkit decodes the files
    once into its cache, reports unreadable ones, finds duplicates, and can stream them."""


@dataclass(frozen=True)
class DatasetDefaults:
    """Settings of a data set where the user gives none."""

    image_size: int = 32
    min_stride_size: int | None = None
    """Side for backbones that stride too much for `image_size`; None for the same."""
    backbone: str | None = None
    """None: the default backbone of the toolkit."""
    batch_size: int = 16
    labels_per_class: int | None = None
    """None: every image that carries a label."""
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    flip: bool = True
    mean: ChannelStatistics | None = None
    """Channel statistics in RGB order; None: measured on the training images."""
    std: ChannelStatistics | None = None


class Dataset(ABC):
    """A source of labeled and unlabeled images, by name."""

    plugin_kind: ClassVar[str] = "datasets"
    defaults: ClassVar[DatasetDefaults] = DatasetDefaults()
    license: ClassVar[str] = ""
    """License of the images, by its SPDX name where it has one; empty: not known."""
    citation: ClassVar[str] = ""
    """Authors, year and title, in one line of Markdown."""
    homepage: ClassVar[str] = ""
    is_example: ClassVar[bool] = False
    """True if it comes with a package, for trying the toolkit out: the end of a run then says how
    to train on other images."""

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
        """Return the labeled images of a published selection, which ``--labels NAME`` asks for.

        Args:
            name: Name of the selection.
            table: What `load` has returned.
            root: Path to the folder with the files.

        Returns:
            Indices of rows, ascending, or None if the data set has no selection of this name: it
            is then the path to a file.

        Raises:
            DataError: The files of the selection are not found or corrupt.
        """
        return None
