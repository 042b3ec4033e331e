"""TissueMNIST: kidney cells of MedMNIST, from its ``.npz`` file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from ssl_toolkit import (
    Dataset,
    DatasetDefaults,
    ImageTable,
    SplitName,
    array_table,
    require_files,
    wrap_dataset_errors,
)
from ssl_toolkit_benchmarks.arrays import image_array

FILE = "tissuemnist.npz"
URL = "https://zenodo.org/record/5208230/files/tissuemnist.npz?download=1"
MD5 = "ebe78ee8b05294063de985d821c1c34b"
CLASSES = (
    "Collecting Duct, Connecting Tubule",
    "Distal Convoluted Tubule",
    "Glomerular endothelial cells",
    "Interstitial endothelial cells",
    "Leukocytes",
    "Podocytes",
    "Proximal Tubule Segments",
    "Thick Ascending Limb",
)
SPLITS: dict[str, SplitName] = {"train": "pool", "val": "validation", "test": "test"}


class TissueMNIST(Dataset):
    """TissueMNIST (Yang et al. 2023): 236,386 gray images of cells, 28 x 28 pixels, 8 classes.

    165,466 are for training, 23,640 for validation and 47,280 for testing. By default 10 labels per
    class and 32 pixels, as USB (Wang et al. 2022).
    """

    defaults = DatasetDefaults(labels_per_class=10, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    citation = (
        "J. Yang et al. (2023), MedMNIST v2 - A large-scale lightweight benchmark for 2D and 3D "
        "biomedical image classification"
    )
    homepage = "https://medmnist.com"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``tissuemnist.npz``, 125 MB; see `Dataset.load`."""
        folder = require_files(root, "tissuemnist", [FILE], download=download)
        with wrap_dataset_errors("tissuemnist", folder):
            if download:
                from torchvision.datasets.utils import download_url

                download_url(URL, folder, FILE, MD5)  # keeps a file that has this checksum
            zipfile.ZipFile(folder / FILE).close()  # np.load mistakes any other file for a pickle
            with np.load(folder / FILE) as arrays:
                groups = [
                    image_array(
                        f"tissuemnist/{name}/",
                        split,
                        arrays[f"{name}_images"],
                        arrays[f"{name}_labels"].reshape(-1),
                        len(CLASSES),
                    )
                    for name, split in SPLITS.items()
                ]
        return array_table(CLASSES, groups)
