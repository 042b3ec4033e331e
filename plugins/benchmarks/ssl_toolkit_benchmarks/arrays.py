"""Benchmarks that torchvision reads from disk as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit import (
    DataError,
    Dataset,
    DatasetDefaults,
    ImageArray,
    ImageTable,
    Part,
    array_table,
    require_files,
    wrap_dataset_errors,
)

FOLD = "fold:"
"""Prefix of the names of STL-10's predefined selections of labeled images."""


class _TorchvisionDataset(Dataset):
    """A data set that torchvision has under the name of the class."""

    name: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    parts: ClassVar[dict[str, Part]] = {"train": "pool", "test": "test"}
    """Part of the table that each split of torchvision belongs to."""

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the files with torchvision; see `Dataset.load`."""
        folder = require_files(root, self.name, self.files, download=download)
        with wrap_dataset_errors(self.name, folder):
            import torchvision.datasets

            source = getattr(torchvision.datasets, type(self).__name__)
            splits = {
                split: source(folder, download=download, **self._arguments(split))
                for split in self.parts
            }
        return array_table(
            self._classes(splits["train"]),
            [
                ImageArray(f"{self.name}/{split}/", self.parts[split], *self._arrays(data))
                for split, data in splits.items()
            ],
        )

    def _arguments(self, split: str) -> dict[str, Any]:
        return {"split": split}

    def _arrays(self, data: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the images (N, H, W, 3) and their labels."""
        return data.data.transpose(0, 2, 3, 1), data.labels

    def _classes(self, train: Any) -> list[str]:
        return list(train.classes)


class CIFAR10(_TorchvisionDataset):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels, 10 classes.

    4,000 labels by default, and a tenth of the training images for validation.
    """

    name = "cifar10"
    files = ("cifar-10-batches-py",)
    defaults = DatasetDefaults(
        batch_size=64,
        labels_per_class=400,
        val_fraction=0.1,
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
    )
    citation = "A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images"
    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"

    def _arguments(self, split: str) -> dict[str, Any]:
        return {"train": split == "train"}

    def _arrays(self, data: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return data.data, data.targets


class CIFAR100(CIFAR10):
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels, 100 classes.

    10,000 labels by default, and a tenth of the training images for validation.
    """

    name = "cifar100"
    files = ("cifar-100-python",)
    defaults = DatasetDefaults(
        batch_size=64,
        labels_per_class=100,
        val_fraction=0.1,
        mean=(0.50707516, 0.48654887, 0.44091784),
        std=(0.26733429, 0.25643846, 0.27615047),
    )


class SVHN(_TorchvisionDataset):
    """Street View House Numbers (Netzer et al. 2011), cropped: 73,257 + 26,032 images.

    1,000 labels by default and 5,000 images for validation. The split ``extra`` is not used.
    """

    name = "svhn"
    files = ("train_32x32.mat", "test_32x32.mat")
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

    def _classes(self, train: Any) -> list[str]:
        return [str(digit) for digit in range(10)]


class STL10(_TorchvisionDataset):
    """STL-10 (Coates et al. 2011): 5,000 labeled, 100,000 unlabeled, 8,000 test images.

    96 x 96 pixels, 10 classes. All labels are used by default, except for a tenth of the images,
    which are for validation.
    """

    name = "stl10"
    files = ("stl10_binary",)
    parts: ClassVar[dict[str, Part]] = {
        "train": "pool",
        "unlabeled": "unlabeled",
        "test": "test",
    }
    defaults = DatasetDefaults(image_size=96, batch_size=64, val_fraction=0.1)
    citation = (
        "A. Coates, H. Lee and A. Y. Ng (2011), An Analysis of Single Layer "
        "Networks in Unsupervised Feature Learning"
    )
    homepage = "https://cs.stanford.edu/~acoates/stl10/"

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
