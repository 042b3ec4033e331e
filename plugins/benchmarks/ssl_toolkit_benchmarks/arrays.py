"""Benchmarks that torchvision reads from disk as arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ssl_toolkit import (
    DataError,
    Dataset,
    DatasetDefaults,
    ImageArray,
    ImageTable,
    SplitName,
    array_table,
    require_files,
    wrap_dataset_errors,
)

FOLD = "fold:"
"""Prefix of the names of STL-10's predefined selections of labeled images."""
TRAIN_AND_TEST: Mapping[str, SplitName] = {"train": "pool", "test": "test"}


class CIFAR10(Dataset):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels, 10 classes.

    4,000 labels by default, and a tenth of the training images for validation.
    """

    defaults = DatasetDefaults(
        batch_size=64,
        labels_per_class=400,
        val_fraction=0.1,
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
    )
    citation = "A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images"
    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``cifar-10-batches-py/``; see `Dataset.load`."""
        return _read("CIFAR10", ["cifar-10-batches-py"], root, download)


class CIFAR100(Dataset):
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels, 100 classes.

    10,000 labels by default, and a tenth of the training images for validation.
    """

    defaults = DatasetDefaults(
        batch_size=64,
        labels_per_class=100,
        val_fraction=0.1,
        mean=(0.50707516, 0.48654887, 0.44091784),
        std=(0.26733429, 0.25643846, 0.27615047),
    )
    citation = "A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images"
    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``cifar-100-python/``; see `Dataset.load`."""
        return _read("CIFAR100", ["cifar-100-python"], root, download)


class SVHN(Dataset):
    """Street View House Numbers (Netzer et al. 2011), cropped: 73,257 + 26,032 images.

    1,000 labels by default and 5,000 images for validation. The split ``extra`` is not used.
    """

    defaults = DatasetDefaults(
        batch_size=64,
        labels_per_class=100,
        val_fraction=5000 / 73257,
        flip=False,
        mean=(0.4376821, 0.4437697, 0.47280442),
        std=(0.19803012, 0.20101562, 0.19703614),
    )
    citation = (
        "Y. Netzer et al. (2011), Reading Digits in Natural Images with "
        "Unsupervised Feature Learning"
    )
    homepage = "http://ufldl.stanford.edu/housenumbers/"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the two .mat files; see `Dataset.load`."""
        return _read("SVHN", ["train_32x32.mat", "test_32x32.mat"], root, download)


class STL10(Dataset):
    """STL-10 (Coates et al. 2011): 5,000 labeled, 100,000 unlabeled, 8,000 test images.

    96 x 96 pixels, 10 classes. All labels are used by default, except for a tenth of the images,
    which are for validation.
    """

    defaults = DatasetDefaults(image_size=96, batch_size=64, val_fraction=0.1)
    citation = (
        "A. Coates, H. Lee and A. Y. Ng (2011), An Analysis of Single Layer "
        "Networks in Unsupervised Feature Learning"
    )
    homepage = "https://cs.stanford.edu/~acoates/stl10/"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``stl10_binary/``, 2.7 GB; see `Dataset.load`."""
        splits: dict[str, SplitName] = {"train": "pool", "unlabeled": "unlabeled", "test": "test"}
        return _read("STL10", ["stl10_binary"], root, download, splits)

    def labeled_rows(self, name: str, table: ImageTable, root: Path) -> NDArray[np.int64] | None:
        """Return the 1,000 images of ``fold:0`` to ``fold:9``; see `Dataset.labeled_rows`.

        Raises:
            DataError: The file of the folds is missing or corrupt, or has no such fold.
        """
        if not name.startswith(FOLD):
            return None
        path = root / "stl10_binary" / "fold_indices.txt"
        try:
            folds = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise DataError(f"--labels {name}: can't read {path}: {error.strerror}") from None
        number = name.removeprefix(FOLD)
        if not number.isdecimal() or int(number) >= len(folds):
            raise DataError(f"--labels {name}: folds are {FOLD}0 to {FOLD}{len(folds) - 1}")
        keys = (row for row, key in enumerate(table.keys) if key.startswith("stl10/train/"))
        rows = dict(enumerate(keys))
        try:
            chosen = {rows[int(index)] for index in folds[int(number)].split()}
        except (ValueError, KeyError):
            raise DataError(
                f"{path} is corrupt: {name} has an index outside 0 to {len(rows) - 1}"
            ) from None
        return np.array(sorted(chosen), dtype=np.int64)


def _read(
    source: str,
    files: Sequence[str],
    root: Path | None,
    download: bool,
    splits: Mapping[str, SplitName] = TRAIN_AND_TEST,
) -> ImageTable:
    """Read a data set with torchvision.

    Args:
        source: Class of torchvision; in lower case, the start of all keys.
        files: Paths in the folder that must exist.
        root: As for `Dataset.load`.
        download: As for `Dataset.load`.
        splits: Split in the table of each split of torchvision.
    """
    name = source.lower()
    folder = require_files(root, name, files, download=download)
    with wrap_dataset_errors(name, folder):
        import torchvision.datasets

        read: Any = getattr(torchvision.datasets, source)
        takes_split = "split" in inspect.signature(read).parameters
        data = {
            split: read(
                folder,
                download=download,
                **({"split": split} if takes_split else {"train": split == "train"}),
            )
            for split in splits
        }
        classes = getattr(data["train"], "classes", [str(digit) for digit in range(10)])
        groups = []
        for split, content in data.items():
            images = content.data
            if images.shape[-1] != 3:  # channels first
                images = images.transpose(0, 2, 3, 1)
            labels = content.targets if hasattr(content, "targets") else content.labels
            prefix = f"{name}/{split}/"
            groups.append(image_array(prefix, splits[split], images, labels, len(classes)))
    return array_table(classes, groups)


def image_array(
    prefix: str, split: SplitName, images: NDArray[Any], labels: ArrayLike, classes: int
) -> ImageArray:
    """Return the images of a split, after checking their shape and labels.

    Args:
        prefix: Start of their keys.
        split: Their split; unlabeled images have the label -1.
        images: (n, height, width) gray or (n, height, width, 3) RGB, uint8.
        labels: (n,) whole numbers below `classes`.
        classes: Number of classes.

    Raises:
        ValueError: The arrays are not such.
    """
    numbers = np.asarray(labels)
    gray_or_rgb = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 3)
    if images.dtype != np.uint8 or not gray_or_rgb or 0 in images.shape:
        raise ValueError(f"{prefix[:-1]} has no images, but {images.dtype} {images.shape}")
    if numbers.shape != images.shape[:1] or numbers.dtype.kind not in "iu":
        raise ValueError(f"{prefix[:-1]} has {len(images)} images, but labels {numbers.shape}")
    lowest, highest = (-1, -1) if split == "unlabeled" else (0, classes - 1)
    if numbers.min() < lowest or numbers.max() > highest:
        raise ValueError(
            f"{prefix[:-1]} has labels {numbers.min()} to {numbers.max()}, not in {lowest} to "
            f"{highest}"
        )
    return ImageArray(prefix, split, images, numbers)
