"""Semi-Aves: birds of iNaturalist with few labels and many images without."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit import Dataset, DatasetDefaults, ImageTable
from ssl_toolkit_benchmarks.listed_files import Layout

CLASSES = 200
LAYOUT = Layout(
    name="semi_aves",
    folder="semi_aves",
    lists={
        "l_train.txt": "labeled",
        "u_train_in.txt": "unlabeled",
        "val.txt": "validation",
        "test.txt": "test",
    },
    images={name: f"{name}.tar.gz" for name in ("trainval_images", "u_train_in", "test")},
    line=r"[^/]+(/[^/]+)+ (-1|\d+)",
    form=f"a path and a class from 0 to {CLASSES - 1}, or -1 in u_train_in.txt",
)


class SemiAves(Dataset):
    """Semi-Aves (Su and Maji 2021): 200 long-tailed bird species, 3,959 labeled images.

    Also 26,640 unlabeled images of the same species, 2,000 for validation and 4,000 for testing.
    The 122,208 images of other species (``u_train_out.txt``) are not used. All labels are used by
    default.
    """

    defaults = DatasetDefaults(
        image_size=224,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
    citation = (
        "J.-C. Su and S. Maji (2021), The Semi-Supervised iNaturalist-Aves Challenge at FGVC7 "
        "Workshop"
    )
    homepage = "https://github.com/cvl-umass/semi-inat-2020"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the lists and the folders of the images; see `Dataset.load`.

        The lists are those of "A Realistic Evaluation of Semi-Supervised Learning for Fine-Grained
        Classification" (Su et al. 2021). A line is a path such as ``trainval_images/0/12.jpg``, a
        space and the number of the class, which is its name here. It can't be downloaded.

        Raises:
            DataError: Also when a label is out of range, or is missing or given where it may not.
        """
        folder, images, errors = LAYOUT.read(root, download)
        for image in images:
            if image.label >= CLASSES or (image.label < 0) != (image.split == "unlabeled"):
                errors.append(f"{image.source}: class {image.label}; expected {LAYOUT.form}")
        names = [str(number) for number in range(CLASSES)]
        counts = {part: sum(i.split == part for i in images) for part in ("labeled", "test")}
        notes = []
        if counts != {"labeled": 3959, "test": 4000}:
            notes = [
                f"semi_aves is incomplete: {counts['labeled']:,} of 3,959 labeled and "
                f"{counts['test']:,} of 4,000 test images"
            ]
        return LAYOUT.table(folder, names, images, errors, notes)
