"""Mini-ImageNet for semi-supervised learning, in the four forms in which it circulates."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
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
    SplitName,
    array_table,
    default_root,
    file_table,
    hashed_order,
)
from ssl_toolkit_benchmarks.safe_pickle import read_array_pickle

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
LEFT_BY_TOOLS = (".", "@eaDir", "__MACOSX")
"""Prefixes of names that hold no images of the data set."""
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

    It was made for few-shot learning, so its files are split by class. Here the 64, 16 and 20
    classes are merged to 100, as SimPLE (Hu et al. 2021) does, and every class has 500 training
    and 100 test images. The papers don't say which: here the test images of a class are the
    first sixth in the order of SHA-256("test", key), whatever the seed of the run. By
    default, 72 training images per class are for validation and 40 have labels. Pixels in the
    pickles are RGB.
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
        for names, read in ((CACHES, _cache), (CATEGORIES, _category_split)):
            if all((folder / name).is_file() for name in names):
                return _array_table(chain.from_iterable(read(folder / name) for name in names))
        if (folder / "images").is_dir() and all((folder / name).is_file() for name in LISTS):
            return _file_table(folder, _listed_images(folder))
        if folders := _class_folders(folder):
            return _file_table(folder, _images_by_class(folder, folders))
        never = "; it can't be fetched with --download" if download else ""
        raise DataError(
            f"mini_imagenet is not in {folder}; give its folder with --root DIR. It "
            f"holds {FORMS}{never}"
        )


Group = tuple[str, NDArray[np.uint8]]
"""Name of a class and its images."""
ListedImage = tuple[str, str, str]
"""Name of the class, key of an image, and where it is listed."""


def _array_table(classes: Iterable[Group]) -> ImageTable:
    groups = sorted(classes, key=lambda group: group[0])
    names = [name for name, _ in groups]
    if len(set(names)) < len(names):
        raise DataError(f"mini_imagenet: the files share classes ({', '.join(sorted(names)[:10])})")

    def table(splits: list[NDArray[np.str_]]) -> ImageTable:
        arrays = [
            ImageArray(f"mini_imagenet/{name}/", split, images, np.full(len(images), label))
            for label, ((name, images), split) in enumerate(zip(groups, splits, strict=True))
        ]
        return array_table(names, arrays, _counted(names, sum(len(split) for split in splits)))

    parts_of = [np.full(len(images), "pool") for _, images in groups]
    undivided = table(parts_of)
    split = _test_splits(undivided)
    ends = np.cumsum([len(images) for _, images in groups])[:-1]
    return table(np.split(split, ends))


def _file_table(folder: Path, images: Sequence[ListedImage]) -> ImageTable:
    images = sorted(images)
    names = sorted({name for name, _, _ in images})
    labels = [names.index(name) for name, _, _ in images]
    keys, sources = [key for _, key, _ in images], [source for _, _, source in images]

    def table(splits: Iterable[SplitName], notes: Sequence[str] = ()) -> ImageTable:
        return file_table(folder, names, zip(keys, labels, splits, strict=False), notes, sources)

    splits = _test_splits(table(repeat("pool")))
    return table(splits.tolist(), _counted(names, len(images)))


def _test_splits(table: ImageTable) -> NDArray[np.str_]:
    splits = np.full(len(table.keys), "pool")
    for rows in hashed_order(table, np.arange(len(table.keys)), "test"):
        splits[rows[: round(TEST_SHARE * len(rows))]] = "test"
    return splits


def _counted(names: Sequence[str], count: int) -> list[str]:
    if (len(names), count) == (CLASSES, CLASSES * A_CLASS):
        return []
    return [
        f"mini_imagenet is incomplete: {len(names)} of {CLASSES} classes, {count:,} of "
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
    numbers = content.get("catname2label")
    named = numbers.items() if isinstance(numbers, dict) else ()
    names = {number: _name(name) for name, number in named}
    for label in np.unique(labels).tolist():
        yield names.get(label, f"{label:03d}"), images[labels == label]


def _name(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _images(path: Path, value: Any) -> NDArray[np.uint8]:
    """Return the images of a pickle after checking them."""
    shape_is_right = isinstance(value, np.ndarray) and value.ndim == 4 and value.shape[-1] == 3
    if not shape_is_right or value.dtype != np.uint8:
        raise DataError(f"{path} has no images, a uint8 array (N, height, width, 3)")
    return np.asarray(value)


def _rows(path: Path, images: NDArray[np.uint8], rows: Any) -> NDArray[np.uint8]:
    try:
        places = np.asarray(list(rows), dtype=np.int64)
        if places.ndim != 1 or (places < 0).any():
            raise ValueError
        # Consecutive rows, as in the circulating files, are a view without a copy.
        if len(places) and (np.diff(places) == 1).all() and places[-1] < len(images):
            return images[places[0] : places[-1] + 1]
        return images[places]
    except (TypeError, ValueError, IndexError):
        raise DataError(f"{path}: 'class_dict' has rows outside the images") from None


def _listed_images(folder: Path) -> list[ListedImage]:
    """Read train.csv, val.csv and test.csv, each ``filename,label`` of files in images/."""
    images: dict[str, ListedImage] = {}
    errors = []
    for path in (folder / name for name in LISTS):
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            for row in rows:
                name, label = row.get("filename"), row.get("label")
                source = f"{path}, line {rows.line_num}"
                if not name or not label or Path(name).name != name:
                    errors.append(f"{source}: no plain filename and label in {row}")
                    continue
                first = images.setdefault(name, (label, f"images/{name}", source))[0]
                if first != label:
                    errors.append(f"{source}: {name} has two labels, {first} and {label}")
    if errors:
        raise DataError(errors[:20])
    return list(images.values())


def _class_folders(folder: Path) -> list[Path]:
    """Return the folders with images in train/, val/ and test/, or in the folder itself."""
    tops = [folder / part for part in ("train", "val", "test") if (folder / part).is_dir()]
    if not tops and not folder.is_dir():
        return []
    children = [child for top in tops or [folder] for child in top.iterdir() if child.is_dir()]
    filled = [child for child in children if any(map(_is_image, child.iterdir()))]
    if len({child.name for child in filled}) < len(filled):
        raise DataError(f"{folder}: train/, val/ and test/ share classes; they must not")
    return filled if len(filled) > 1 else []


def _images_by_class(folder: Path, folders: Sequence[Path]) -> list[ListedImage]:
    """Return the images in the folders of the classes, subfolders included."""
    return [
        (top.name, path.relative_to(folder).as_posix(), str(top))
        for top in folders
        for path in top.rglob("*")
        if not any(part.startswith(LEFT_BY_TOOLS) for part in path.relative_to(top).parts)
        if _is_image(path)
    ]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(LEFT_BY_TOOLS)
