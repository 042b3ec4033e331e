"""EuroSAT: satellite images of land, with the split of VTAB and USB."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit import (
    DataError,
    Dataset,
    DatasetDefaults,
    ImageTable,
    SplitName,
    default_root,
    file_table,
    wrap_dataset_errors,
)

CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)
IMAGES = 27_000
FOLDERS = ("eurosat/2750", "2750", "EuroSAT_RGB", "")
"""Where the folders of the classes are: as torchvision unpacks them, in the two archives that are
published, or in the folder itself."""


class EuroSAT(Dataset):
    """EuroSAT (Helber et al. 2019): 27,000 satellite images of 64 x 64 pixels, 10 classes.

    Of each class, in the order of file names, the first 60 % are for training (16,200 images), the
    next 20 % for validation and the last 20 % for testing (5,400 each), as VTAB (Zhai et al. 2019)
    and USB (Wang et al. 2022) do. By default 4 labels per class and 32 pixels, as USB.
    """

    defaults = DatasetDefaults(labels_per_class=4, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    license = "MIT"
    citation = (
        "P. Helber et al. (2019), EuroSAT: A Novel Dataset and Deep Learning Benchmark for Land "
        "Use and Land Cover Classification"
    )
    homepage = "https://github.com/phelber/EuroSAT"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the unpacked ``EuroSAT.zip`` or ``EuroSAT_RGB.zip``; see `Dataset.load`.

        Raises:
            DataError: Also when the archive is not unpacked, or a class has too few images.
        """
        folder = default_root() if root is None else root
        if _top(folder) is None and download:
            with wrap_dataset_errors("eurosat", folder):
                import torchvision.datasets

                torchvision.datasets.EuroSAT(folder, download=True)
        if (top := _top(folder)) is None:
            archives = [
                path.name for path in folder.glob("*.zip") if "eurosat" in path.name.lower()
            ]
            reason = f"unpack {archives[0]} there" if archives else "or fetch it with --download"
            raise DataError(
                f"eurosat is not in {folder} (no folders {CLASSES[0]} to {CLASSES[-1]}, also not "
                f"in 2750 or EuroSAT_RGB); give its folder with --root DIR, {reason}"
            )
        files: list[tuple[str, int, SplitName]] = []
        for label, name in enumerate(CLASSES):
            keys = sorted(f"{name}/{path.name}" for path in (top / name).glob("[!.]*.jpg"))
            train, validation = int(0.6 * len(keys)), int(0.8 * len(keys))
            if not 0 < train < validation < len(keys):
                raise DataError(
                    f"eurosat is incomplete: {top / name} has {len(keys)} .jpg images; unpack the "
                    "archive again, or give another folder with --root DIR"
                )
            splits: tuple[tuple[SplitName, list[str]], ...] = (
                ("pool", keys[:train]),
                ("validation", keys[train:validation]),
                ("test", keys[validation:]),
            )
            files += [(key, label, split) for split, chosen in splits for key in chosen]
        notes = [f"eurosat is incomplete: {len(files):,} of {IMAGES:,} images"]
        return file_table(top, CLASSES, files, notes if len(files) != IMAGES else [])


def _top(folder: Path) -> Path | None:
    """Return the folder that holds the folders of all classes; None if there is none."""
    tops = (folder / name for name in FOLDERS)
    return next((top for top in tops if all((top / name).is_dir() for name in CLASSES)), None)
