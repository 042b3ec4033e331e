"""Data sets that break one rule of their contract each, and a valid one."""

from __future__ import annotations

import hashlib
import secrets
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from contract_fakes import breaks

from ssl_toolkit import (
    DataError,
    Dataset,
    DatasetDefaults,
    ImageTable,
)

LEVELS = np.random.default_rng(0).integers(0, 256, (30, 3)).astype(np.uint8)


def read(rows: Any, size: int) -> Any:
    """Return images that consist of two halves."""
    images = np.broadcast_to(LEVELS[rows][:, None, None], (len(rows), size, size, 3)).copy()
    images[:, size // 2 :] //= 2
    return images


TABLE = ImageTable(
    classes=("a", "b", "c"),
    keys=tuple(f"{row}.png" for row in range(30)),
    labels=np.arange(30) % 3,
    splits=np.array(["pool"] * 24 + ["test"] * 6),
    read=read,
    digest=lambda row: hashlib.sha256(LEVELS[row].tobytes()).hexdigest(),
)


class ImageArray(Dataset):
    """Thirty images."""

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        if root is not None:
            raise DataError(f"{root}: no images here")
        return self.table()

    @abstractmethod
    def table(self) -> ImageTable: ...


class Thirty(ImageArray):
    """It breaks no rule."""

    def table(self) -> ImageTable:
        return TABLE


@breaks("has_distinct_class_names")
class Twins(ImageArray):
    """Two classes have the same name."""

    def table(self) -> ImageTable:
        return replace(TABLE, classes=("a", "b", "a"))


@breaks("has_stable_keys")
class AbsoluteKeys(ImageArray):
    """Its keys are absolute paths."""

    def table(self) -> ImageTable:
        return replace(TABLE, keys=[f"/home/me/{key}" for key in TABLE.keys])


@breaks("has_stable_keys")
class DoubleKeys(ImageArray):
    """Two images have the same key."""

    def table(self) -> ImageTable:
        return replace(TABLE, keys=["1.png", *TABLE.keys[1:]])


@breaks("has_label_indices")
class NarrowLabels(ImageArray):
    """Its labels are int32."""

    def table(self) -> ImageTable:
        return replace(TABLE, labels=TABLE.labels.astype(np.int32))


@breaks("labels_every_class")
class EmptyClass(ImageArray):
    """A class has no images."""

    def table(self) -> ImageTable:
        return replace(TABLE, classes=("a", "b", "c", "d"))


@breaks("has_valid_splits")
class ValPart(ImageArray):
    """It names a part val."""

    def table(self) -> ImageTable:
        parts = TABLE.splits.copy()
        parts[:3] = "val"
        return replace(TABLE, splits=parts)


@breaks("reads_images_by_row")
class Sorting(ImageArray):
    """It returns images in ascending order of their rows."""

    def table(self) -> ImageTable:
        return replace(TABLE, read=lambda rows, size: read(np.sort(rows), size))


@breaks("has_distinct_images")
class OneImage(ImageArray):
    """All its images are equal."""

    def table(self) -> ImageTable:
        return replace(TABLE, read=lambda rows, size: read(0 * rows, size))


@breaks("loads_reproducibly")
class Shuffled(ImageArray):
    """It shuffles when it is loaded."""

    def table(self) -> ImageTable:
        keys = [*TABLE.keys]
        secrets.SystemRandom().shuffle(keys)
        return replace(TABLE, keys=keys)


@breaks("has_distinct_digests")
class OneDigest(ImageArray):
    """It has the same digest for all images."""

    def table(self) -> ImageTable:
        return replace(TABLE, digest=lambda row: "same")


@breaks("reports_missing_files")
class Unprepared(Dataset):
    """It doesn't catch the error of a missing file."""

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        if root is not None:
            (root / "images.npz").read_bytes()
        return TABLE


@breaks("has_valid_defaults")
class InPercent(ImageArray):
    """Its fraction for validation is in percent."""

    defaults = DatasetDefaults(val_fraction=10)

    def table(self) -> ImageTable:
        return TABLE
