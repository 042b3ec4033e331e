"""DomainNet-Real: the photographs of DomainNet, with its own lists."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit import DataError, Dataset, DatasetDefaults, ImageTable
from ssl_toolkit_benchmarks.listed_files import Layout

CLASSES, SIZE = 345, 84
LAYOUT = Layout(
    name="domainnet_real",
    folder="domainnet",
    lists={"real_train.txt": "pool", "real_test.txt": "test"},
    images={"real": "real.zip"},
    line=r"[^/]+(/[^/]+){2,} \d+",
    form="real/<class>/<image> and a number",
)


class DomainNetReal(Dataset):
    """DomainNet's domain "real" (Peng et al. 2019): 345 long-tailed classes, read at 84 pixels.

    The lists ``real_train.txt`` and ``real_test.txt`` define the split. By default 11 labels per
    class, 3,795 in all, as in SimPLE's transfer experiments (Hu et al. 2021), and a tenth of the
    training images for validation, which the paper doesn't specify.
    """

    defaults = DatasetDefaults(
        image_size=SIZE,
        batch_size=16,
        labels_per_class=11,
        val_fraction=0.1,
        mean=(0.60511086, 0.5840634, 0.54873651),
        std=(0.32637834, 0.31887854, 0.33955591),
    )
    citation = "X. Peng et al. (2019), Moment Matching for Multi-Source Domain Adaptation"
    homepage = "https://ai.bu.edu/M3SDA/"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read ``real_train.txt``, ``real_test.txt`` and ``real/``; see `Dataset.load`.

        A line of a list is a path such as ``real/zebra/real_345_000001.jpg``, a space and a number
        from 0; the folder is the class. It can't be downloaded.

        Raises:
            DataError: Also when lists and folders contradict each other.
        """
        folder, images, errors = LAYOUT.read(root, download)
        names: dict[int, str] = {}
        for image in images:
            name = image.key.split("/")[-2]
            if names.setdefault(image.label, name) != name:
                errors.append(
                    f"{image.source}: {image.key!r} has the number {image.label} of class "
                    f"{names[image.label]!r}"
                )
        gaps = [str(number) for number in range(len(names)) if number not in names]
        if not errors and (gaps or len(set(names.values())) < len(names)):
            raise DataError(
                f"domainnet_real: the classes of {folder} are not numbered from 0, one "
                f"number per folder (missing: {', '.join(gaps) or 'none'})"
            )
        notes = [f"domainnet_real is incomplete: {len(names)} of {CLASSES} classes"]
        return LAYOUT.table(
            folder,
            [names[number] for number in sorted(names)],
            images,
            errors,
            notes if len(names) != CLASSES else [],
        )
