"""Mini-ImageNet for semi-supervised learning, in the four forms in which it circulates."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit import (
    DataError,
    Dataset,
    DatasetDefaults,
    ImageArray,
    ImageTable,
    array_table,
    default_root,
    file_table,
    hashed_order,
)
from ssl_toolkit_benchmarks.safe_pickle import read_array_pickle

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
CACHES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test"))
CATEGORIES = tuple(
    f"miniImageNet_category_split_{part}.pickle" for part in ("train_phase_train", "val", "test")
)
LISTS = ("train.csv", "val.csv", "test.csv")
FORMS = (
    f"the caches {', '.join(CACHES)}; the category splits {', '.join(CATEGORIES)}; images/ with "
    f"{', '.join(LISTS)}; or folders of the classes, in train/, val/, test/ or side by side"
)
"""The accepted forms, for messages."""

CLASSES, A_CLASS = 100, 600
SIZE = 84
TEST_SHARE = 1 / 6
"""100 of the 600 images of each class."""


class MiniImageNet(Dataset):
    """Mini-ImageNet (Vinyals et al. 2016): 60,000 images, 84 x 84 pixels, 100 classes.

    It was made for few-shot learning, whose files part it by classes. Here the 64, 16 and 20
    classes are merged to 100, as SimPLE (Hu et al. 2021) does, and every class has 500 training
    and 100 test images. The papers don't say which: here the test images of a class are the
    first sixth in the order of SHA-256("test", key), whatever the seed of the run. Of the training
    ones 72 a class are for validation and 40 have labels by default. Pixels of the pickles are
    taken as RGB.
    """

    defaults = DatasetDefaults(
        image_size=SIZE,
        batch_size=16,
        labels_per_class=40,
        val_fraction=72 / 500,
        mean=(0.47269102, 0.44823737, 0.40233998),
        std=(0.28327602, 0.27511246, 0.2884859),
    )

    citation = "O. Vinyals et al. (2016), Matching Networks for One Shot Learning"

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the form that the names of the files in the folder show; see `Dataset.load`.

        Pickles are read without running anything they name. It can't be downloaded.

        Raises:
            DataError: Also when a pickle names a function, which is then not called.
        """
        folder = default_root() / "mini_imagenet" if root is None else root
        if all((folder / name).is_file() for name in CACHES):
            table = _parted_arrays(map(_cache, (folder / name for name in CACHES)))
        elif all((folder / name).is_file() for name in CATEGORIES):
            table = _parted_arrays(map(_category_split, (folder / name for name in CATEGORIES)))
        elif (folder / "images").is_dir() and all((folder / name).is_file() for name in LISTS):
            table = _parted_files(folder, *_listed(folder))
        elif folders := _class_folders(folder):
            table = _parted_files(folder, *_walked(folder, folders))
        else:
            never = "; it can't be fetched with --download" if download else ""
            raise DataError(
                f"mini_imagenet is not in {folder}; give its folder with --root "
                "DIR. It "
                f"holds {FORMS}{never}"
            )
        return table


Group = tuple[str, NDArray[np.uint8]]
"""Name of a class and its images."""
Row = tuple[str, int]
"""Key and label of an image."""


def _parted_arrays(parts: Iterator[Iterator[Group]]) -> ImageTable:
    groups = sorted(chain.from_iterable(parts), key=lambda group: group[0])
    names = [name for name, _ in groups]
    if len(set(names)) < len(names):
        raise DataError(f"mini_imagenet: the files share classes ({', '.join(sorted(names)[:10])})")

    def table(parts: list[NDArray[np.str_]]) -> ImageTable:
        arrays = [
            ImageArray(f"mini_imagenet/{name}/", part, images, np.full(len(images), label))
            for label, ((name, images), part) in enumerate(zip(groups, parts, strict=True))
        ]
        return array_table(names, arrays, _counted(names, sum(len(part) for part in parts)))

    parts_of = [np.full(len(images), "pool") for _, images in groups]
    undivided = table(parts_of)
    split = _test_parts(undivided)
    ends = np.cumsum([len(images) for _, images in groups])[:-1]
    return table(np.split(split, ends))


def _parted_files(folder: Path, names: Sequence[str], rows: Sequence[Row]) -> ImageTable:
    whole = file_table(folder, names, [(key, label, "pool") for key, label in rows])
    parts = _test_parts(whole).tolist()
    files = [(key, label, part) for (key, label), part in zip(rows, parts, strict=True)]
    return file_table(folder, names, files, _counted(names, len(rows)))


def _test_parts(table: ImageTable) -> NDArray[np.str_]:
    parts = np.full(len(table.keys), "pool")
    for rows in hashed_order(table, np.arange(len(table.keys)), "test"):
        parts[rows[: round(TEST_SHARE * len(rows))]] = "test"
    return parts


def _counted(names: Sequence[str], count: int) -> list[str]:
    if (len(names), count) == (CLASSES, CLASSES * A_CLASS):
        return []
    return [
        f"mini_imagenet is not whole: {len(names)} of {CLASSES} classes, {count:,} of "
        f"{CLASSES * A_CLASS:,} images"
    ]


def _cache(path: Path) -> Iterator[Group]:
    content = read_array_pickle(path)
    images = _images(path, content.get("image_data"))
    members = content.get("class_dict")
    if not isinstance(members, dict):
        raise DataError(f"{path} has no dictionary 'class_dict' of the classes' rows")
    for name, rows in members.items():
        yield _name(name), _rows(path, images, rows)


def _category_split(path: Path) -> Iterator[Group]:
    content = read_array_pickle(path)
    images = _images(path, content.get("data"))
    try:
        labels = np.asarray(content.get("labels"), dtype=np.int64)
    except (TypeError, ValueError):
        labels = np.empty(0, dtype=np.int64)
    if labels.shape != (len(images),):
        raise DataError(f"{path} has no list 'labels', a number for each image")
    known = content.get("catname2label")
    named = known.items() if isinstance(known, dict) else ()
    names = {number: _name(name) for name, number in named}
    for label in np.unique(labels).tolist():
        yield names.get(label, f"{label:03d}"), images[labels == label]


def _name(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _images(path: Path, value: Any) -> NDArray[np.uint8]:
    """The images of a pickle, checked."""
    shape_is_right = isinstance(value, np.ndarray) and value.ndim == 4 and value.shape[-1] == 3
    if not shape_is_right or value.dtype != np.uint8:
        raise DataError(f"{path} has no images, a uint8 array (N, height, width, 3)")
    return np.asarray(value)


def _rows(path: Path, images: NDArray[np.uint8], rows: Any) -> NDArray[np.uint8]:
    try:
        places = np.asarray(list(rows), dtype=np.int64)
        if places.ndim != 1 or (places < 0).any():
            raise ValueError
        # One after another, as in the circulating files, they are a view without a copy.
        if len(places) and (np.diff(places) == 1).all() and places[-1] < len(images):
            return images[places[0] : places[-1] + 1]
        return images[places]
    except (TypeError, ValueError, IndexError):
        raise DataError(f"{path}: 'class_dict' has rows that aren't there") from None


def _listed(folder: Path) -> tuple[list[str], list[Row]]:
    """Read images/ with train.csv, val.csv and test.csv, each ``filename,label``."""
    labels: dict[str, str] = {}
    faults = []
    for path in (folder / name for name in LISTS):
        with path.open(encoding="utf-8-sig", newline="") as lines:
            for row in csv.DictReader(lines):
                name, label = row.get("filename"), row.get("label")
                if not name or not label or Path(name).name != name:
                    faults.append(f"{path}: the row {row} has no plain filename and label")
                elif labels.setdefault(name, label) != label:
                    faults.append(f"{path}: {name} has two labels, {labels[name]}, {label}")
    if faults:
        raise DataError(faults[:20])
    classes = sorted(set(labels.values()))
    numbers = {name: number for number, name in enumerate(classes)}
    by_class = sorted(labels.items(), key=lambda item: (item[1], item[0]))
    return classes, [(f"images/{name}", numbers[label]) for name, label in by_class]


def _class_folders(folder: Path) -> list[Path]:
    """Return the class folders in train/, val/ and test/ or in the folder itself, if any."""
    tops = [folder / part for part in ("train", "val", "test") if (folder / part).is_dir()]
    if not tops and not folder.is_dir():
        return []
    found = [entry for top in tops or [folder] for entry in top.iterdir() if entry.is_dir()]
    filled = [entry for entry in found if _image_names(entry)]
    return filled if len(filled) > 1 else []


def _walked(folder: Path, folders: list[Path]) -> tuple[list[str], list[Row]]:
    classes = sorted(path.name for path in folders)
    if len(set(classes)) < len(classes):
        raise DataError(f"{folder}: train/, val/ and test/ share classes; they must not")
    rows = [
        (f"{path.relative_to(folder).as_posix()}/{name}", classes.index(path.name))
        for path in sorted(folders, key=lambda path: path.name)
        for name in _image_names(path)
    ]
    return classes, rows


def _image_names(folder: Path) -> list[str]:
    names = (path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(name for name in names if not name.startswith("."))
