"""Benchmarks that torchvision reads from disk as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit import (
    DataError,
    Dataset,
    DatasetDefaults,
    ImageArray,
    ImageTable,
    array_table,
    require_files,
    wrap_dataset_errors,
)

FOLD = "fold:"
"""Start of the names of STL-10's selections of labeled images."""


class CIFAR10(Dataset):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels, 10 classes.

    4,000 labels by default, and a tenth of the training part for validation.
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
        folder = require_files(root, "cifar10", ["cifar-10-batches-py"], download=download)
        with wrap_dataset_errors("cifar10", folder):
            from torchvision.datasets import CIFAR10 as Source

            train = Source(folder, train=True, download=download)
            test = Source(folder, train=False, download=download)
        return array_table(
            train.classes,
            [
                ImageArray("cifar10/train/", "pool", train.data, train.targets),
                ImageArray("cifar10/test/", "test", test.data, test.targets),
            ],
        )


class CIFAR100(Dataset):
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels, 100 classes.

    10,000 labels by default, and a tenth of the training part for validation.
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
        folder = require_files(root, "cifar100", ["cifar-100-python"], download=download)
        with wrap_dataset_errors("cifar100", folder):
            from torchvision.datasets import CIFAR100 as Source

            train = Source(folder, train=True, download=download)
            test = Source(folder, train=False, download=download)
        return array_table(
            train.classes,
            [
                ImageArray("cifar100/train/", "pool", train.data, train.targets),
                ImageArray("cifar100/test/", "test", test.data, test.targets),
            ],
        )


class SVHN(Dataset):
    """Street View House Numbers (Netzer et al. 2011), cropped: 73,257 + 26,032 images.

    1,000 labels by default and 5,000 images for validation. The part ``extra`` is not used.
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
        folder = require_files(
            root, "svhn", ["train_32x32.mat", "test_32x32.mat"], download=download
        )
        with wrap_dataset_errors("svhn", folder):
            from torchvision.datasets import SVHN as Source

            train = Source(folder, split="train", download=download)
            test = Source(folder, split="test", download=download)
        return array_table(
            [str(digit) for digit in range(10)],
            [
                ImageArray("svhn/train/", "pool", train.data.transpose(0, 2, 3, 1), train.labels),
                ImageArray("svhn/test/", "test", test.data.transpose(0, 2, 3, 1), test.labels),
            ],
        )


class STL10(Dataset):
    """STL-10 (Coates et al. 2011): 5,000 labeled, 100,000 unlabeled, 8,000 test images.

    96 x 96 pixels, 10 classes. All labels are used by default, less a tenth for validation.
    """

    defaults = DatasetDefaults(image_size=96, batch_size=64, val_fraction=0.1)
    citation = (
        "A. Coates, H. Lee and A. Y. Ng (2011), An Analysis of Single Layer "
        "Networks in Unsupervised Feature Learning"
    )
    homepage = "https://cs.stanford.edu/~acoates/stl10/"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``stl10_binary/``, 2.7 GB; see `Dataset.load`."""
        folder = require_files(root, "stl10", ["stl10_binary"], download=download)
        with wrap_dataset_errors("stl10", folder):
            from torchvision.datasets import STL10 as Source

            train = Source(folder, split="train", download=download)
            unlabeled = Source(folder, split="unlabeled")
            test = Source(folder, split="test")
        bare = np.full(len(unlabeled.data), -1)
        return array_table(
            train.classes,
            [
                ImageArray("stl10/train/", "pool", train.data.transpose(0, 2, 3, 1), train.labels),
                ImageArray(
                    "stl10/unlabeled/", "unlabeled", unlabeled.data.transpose(0, 2, 3, 1), bare
                ),
                ImageArray("stl10/test/", "test", test.data.transpose(0, 2, 3, 1), test.labels),
            ],
        )

    def labeled_rows(self, name: str, table: ImageTable, root: Path) -> NDArray[np.int64] | None:
        """Return the 1,000 images of ``fold:0`` to ``fold:9``; see `Dataset.labeled_rows`.

        Raises:
            DataError: the file of the folds is missing or corrupt, or has no such fold.
        """
        if not name.startswith(FOLD):
            return None
        path = root / "stl10_binary" / "fold_indices.txt"
        rows = [row for row, key in enumerate(table.keys) if key.startswith("stl10/train/")]
        places = _fold(path, name)
        if not places <= set(range(len(rows))):
            raise DataError(f"{path} is corrupt: {name} names images that don't exist")
        return np.array(sorted(rows[place] for place in places), dtype=np.int64)


def _fold(path: Path, name: str) -> set[int]:
    """Return the places of one of the folds in ``fold_indices.txt``."""
    try:
        folds = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"--labels {name}: can't read {path}: {error.strerror}") from None
    number = name.removeprefix(FOLD)
    if not number.isdecimal() or int(number) >= len(folds):
        raise DataError(f"--labels {name}: folds go from {FOLD}0 to {FOLD}{len(folds) - 1}")
    try:
        return {int(place) for place in folds[int(number)].split()}
    except ValueError:
        raise DataError(f"{path} is corrupt: fold {number} names no images") from None
