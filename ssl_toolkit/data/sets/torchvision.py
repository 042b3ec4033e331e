"""Any classification set of torchvision, by ``torchvision:<Class>``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit.data.cache.image_files import open_files
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.data.readers.arrays import ImageArray, array_table
from ssl_toolkit.data.sets.local_files import default_root, wrap_dataset_errors
from ssl_toolkit.errors import DataError, PluginError
from ssl_toolkit.interfaces import Dataset, DatasetDefaults, ImageTable, Part
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_text

PREFIX = "torchvision:"
"""Start of the names of these data sets."""

Arguments = Mapping[str, Any]

_TRAIN: dict[Part, Arguments] = {"pool": {"train": True}, "test": {"train": False}}
_SPLIT: dict[Part, Arguments] = {"pool": {"split": "train"}, "test": {"split": "test"}}
_THREE: dict[Part, Arguments] = {
    "pool": {"split": "train"},
    "validation": {"split": "val"},
    "test": {"split": "test"},
}
_VAL_IS_TEST: dict[Part, Arguments] = {"pool": {"split": "train"}, "test": {"split": "val"}}
_ONE: dict[Part, Arguments] = {"pool": {}}

SETS: dict[str, dict[Part, Arguments]] = {
    "CIFAR10": _TRAIN,
    "CIFAR100": _TRAIN,
    "CLEVRClassification": _VAL_IS_TEST,
    "Caltech101": _ONE,
    "Caltech256": _ONE,
    "Country211": _THREE | {"validation": {"split": "valid"}},
    "DTD": _THREE,
    "EMNIST": {
        "pool": {"split": "balanced", "train": True},
        "test": {"split": "balanced", "train": False},
    },
    "EuroSAT": _ONE,
    "FER2013": _SPLIT,
    "FGVCAircraft": _THREE,
    "FashionMNIST": _TRAIN,
    "Flowers102": _THREE,
    "Food101": _SPLIT,
    "GTSRB": _SPLIT,
    "INaturalist": {"pool": {"version": "2021_train"}, "test": {"version": "2021_valid"}},
    "ImageNet": _VAL_IS_TEST,
    "Imagenette": _VAL_IS_TEST,
    "KMNIST": _TRAIN,
    "LFWPeople": _ONE,
    "MNIST": _TRAIN,
    "Omniglot": _ONE,
    "OxfordIIITPet": {"pool": {"split": "trainval"}, "test": {"split": "test"}},
    "PCAM": _THREE,
    "Places365": {"pool": {"split": "train-standard", "small": True},
                  "test": {"split": "val", "small": True}},
    "QMNIST": {"pool": {"what": "train"}, "test": {"what": "test"}},
    "RenderedSST2": _THREE,
    "SEMEION": _ONE,
    "STL10": _SPLIT | {"unlabeled": {"split": "unlabeled"}},
    "SUN397": _ONE,
    "SVHN": _SPLIT,
    "StanfordCars": _SPLIT,
    "USPS": _TRAIN,
}  # fmt: skip
"""The sets, and with which arguments torchvision gives each part. Those with a single part have
no test split of their own (or, as Omniglot's, one of other classes): ``--test-fraction`` makes
one."""

_EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
# Of sets that neither take a loader nor list their files: private attributes in place of decoding.
_FILES: dict[str, Callable[[Any], Iterable[tuple[Any, int]]]] = {
    "Caltech101": lambda source: (
        (f"{source.root}/101_ObjectCategories/{source.categories[y]}/image_{n:04d}.jpg", y)
        for y, n in zip(source.y, source.index, strict=True)
    ),
    "Caltech256": lambda source: (
        (f"{source.root}/256_ObjectCategories/{source.categories[y]}/{y + 1:03d}_{n:04d}.jpg", y)
        for y, n in zip(source.y, source.index, strict=True)
    ),
    "GTSRB": lambda source: source._samples,
    "OxfordIIITPet": lambda source: zip(source._images, source._labels, strict=True),
}
"""Paths and labels of a set."""


class TorchvisionSet(Dataset):
    """A classification set of torchvision, read from the disk.

    Args:
        name: The name of its class in ``torchvision.datasets``, with or without `PREFIX`.

    Raises:
        PluginError: The name is not in `SETS`; names near ones.
    """

    defaults = DatasetDefaults()

    def __init__(self, name: str) -> None:
        self.name = name.removeprefix(PREFIX)
        if self.name not in SETS:
            known = ", ".join(sorted(SETS))
            import torchvision.datasets

            if self.name in torchvision.datasets.__all__:
                raise PluginError(
                    f"{PREFIX}{self.name} is not for classification: its images don't carry one "
                    f"class each; known: {known}"
                )
            hint = did_you_mean(self.name, SETS)
            raise PluginError(f"unknown dataset {PREFIX}{self.name}{hint}; known: {known}")

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the set; see `Dataset.load`. Images that are files are not opened yet.

        The keys of these are their paths in the folder, after the name of the set and the part.

        Raises:
            DataError: As `Dataset.load`; a package is missing; or images carry no labels.
        """
        import torchvision.datasets

        folder = default_root() if root is None else root
        kind = getattr(torchvision.datasets, self.name)
        sources: dict[Part, Any] = {}
        with wrap_dataset_errors(f"{PREFIX}{self.name}", folder):
            accepted = inspect.signature(kind.__init__).parameters
            options: dict[str, Any] = {}
            # ImageNet can't be fetched, and refuses even False.
            if {"download", "kwargs"} & accepted.keys() and self.name != "ImageNet":
                options["download"] = download
            if "loader" in accepted:
                options["loader"] = os.fspath  # images are given as paths, not decoded
            try:
                for part, arguments in SETS[self.name].items():
                    sources[part] = kind(folder, **arguments, **options)
                files = {part: _files(self.name, source) for part, source in sources.items()}
                labels = {part: _labels(source, files[part]) for part, source in sources.items()}
            except ImportError as error:
                raise DataError(
                    f"torchvision reads {self.name} with {error.name}: pip install {error.name}"
                ) from None
        classes = _EMOTIONS if self.name == "FER2013" else _classes(sources["pool"], labels["pool"])
        if self.name == "Omniglot":  # which numbers its classes as the disk lists them
            top = sources["pool"].target_folder
            names = [os.path.relpath(os.path.dirname(path), top) for path, _ in files["pool"] or ()]
            found, labels["pool"] = np.unique(names, return_inverse=True)
            classes = tuple(found.tolist())
        _check_labels(self.name, classes, labels)
        if all(listed is not None for listed in files.values()):
            return _file_table(self.name, folder, classes, files, labels)
        groups = [
            ImageArray(f"{self.name.lower()}/{part}/", part, _Images(source), labels[part])
            for part, source in sources.items()
        ]
        return array_table(classes, groups)


class _Images(Sequence[Image.Image]):
    """Images of a set of torchvision, each decoded when it is read."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Any) -> Any:
        image = self._source[index][0]
        return image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))


def _check_labels(
    name: str, classes: tuple[str, ...], labels: Mapping[Part, NDArray[np.int64]]
) -> None:
    for part, part_labels in labels.items():
        if len(part_labels) and part_labels.max() >= len(classes):
            raise DataError(
                f"{PREFIX}{name}: the {part} part has class {part_labels.max()}, beyond the "
                f"{len(classes)} of its training part"
            )
        if part != "unlabeled" and (part_labels < 0).any():
            way_out = " (fer2013.csv and icml_face_data.csv have them)" * (name == "FER2013")
            raise DataError(f"{PREFIX}{name}: its {part} images carry no labels{way_out}")


def _file_table(
    name: str,
    folder: Path,
    classes: tuple[str, ...],
    files: Mapping[Part, Sequence[tuple[str, int]] | None],
    labels: Mapping[Part, NDArray[np.int64]],
) -> ImageTable:
    """Return a table of files, each part by key: torchvision's order may be the disk's."""
    rows = []
    for part, part_labels in labels.items():
        paths = [path for path, _ in files[part] or ()]
        keys = (
            f"{name.lower()}/{part}/" + display_text(Path(os.path.relpath(path, folder)).as_posix())
            for path in paths
        )
        parts = [part] * len(paths)
        rows += sorted(zip(keys, paths, part_labels.tolist(), parts, strict=True))
    table = ImageTable(
        classes=classes,
        keys=PackedStrings(key for key, _, _, _ in rows),
        labels=np.array([label for _, _, label, _ in rows], dtype=np.int64),
        parts=np.array([part for _, _, _, part in rows], dtype=np.str_),
        files=PackedStrings(path for _, path, _, _ in rows),
    )
    return open_files(table)


def _files(name: str, source: Any) -> list[tuple[str, int]] | None:
    """Return path and label of each image of a set, in its order; None if they are not files."""
    items: Any = next(
        (getattr(source, of) for of in ("samples", "imgs") if hasattr(source, of)), ()
    )
    if name in _FILES:
        items = _FILES[name](source)
    elif not items and len(source) and isinstance(source[0][0], str):
        items = (source[row] for row in range(len(source)))
    return [(os.fspath(path), int(label)) for path, label in items] or None


def _labels(source: Any, files: Sequence[tuple[str, int]] | None) -> NDArray[np.int64]:
    """Return the labels of a set, -1 for none."""
    if files is not None:
        return np.array([label for _, label in files], dtype=np.int64)
    array = np.asarray(getattr(source, "targets", getattr(source, "labels", None)))
    if len(array.shape) and np.issubdtype(array.dtype, np.integer):
        # QMNIST has more numbers of a digit, which comes first.
        return (array[:, 0] if array.ndim == 2 else array).astype(np.int64)
    labels = (source[row][1] for row in range(len(source)))
    return np.array([-1 if label is None else int(label) for label in labels], dtype=np.int64)


def _classes(source: Any, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the names of the classes; numbers if torchvision has no names, or too few."""
    attributes = ("classes", "categories", "all_categories", "class_to_idx")
    names: Any = next(filter(None, (getattr(source, name, None) for name in attributes)), [])
    count = int(labels.max()) + 1
    texts = [name[0] if isinstance(name, tuple) else str(name) for name in names]
    if len(texts) >= count and len(set(texts)) == len(texts):
        return tuple(texts)
    return tuple(str(number) for number in range(max(count, len(texts))))
