"""Any classification set of torchvision, by ``torchvision:<Class>``."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.image_files import open_files
from ssl_toolkit.data.images.files import pillow_muted, try_image
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.data.readers.arrays import FittedRead
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
_LISTS = ("_image_files", "_images", "samples", "_samples", "imgs")
_PATHS: dict[str, Callable[[Any], Iterable[str]]] = {
    "Caltech101": lambda source: (
        f"{source.root}/101_ObjectCategories/{source.categories[y]}/image_{number:04d}.jpg"
        for y, number in zip(source.y, source.index, strict=True)
    ),
    "Caltech256": lambda source: (
        f"{source.root}/256_ObjectCategories/{source.categories[y]}/{y + 1:03d}_{number:04d}.jpg"
        for y, number in zip(source.y, source.index, strict=True)
    ),
    "INaturalist": lambda source: (
        f"{source.root}/{source.all_categories[y]}/{name}" for y, name in source.index
    ),
    "LFWPeople": lambda source: source.data,
    "Omniglot": lambda source: (
        f"{source.target_folder}/{source._characters[y]}/{name}"
        for name, y in source._flat_character_images
    ),
}
"""Where the images of a set are, if it keeps no list of them."""


class TorchvisionSet(Dataset):
    """A classification set of torchvision, read from the disk.

    Args:
        name: the name of its class in ``torchvision.datasets``, with or without `PREFIX`.

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
            DataError: as `Dataset.load`; a package is missing; or images carry no labels.
        """
        import torchvision.datasets

        folder = default_root() if root is None else root
        kind = getattr(torchvision.datasets, self.name)
        sources: dict[Part, Any] = {}
        with wrap_dataset_errors(f"{PREFIX}{self.name}", folder):
            accepted = inspect.signature(kind.__init__).parameters
            fetch = {"download": download} if {"download", "kwargs"} & accepted.keys() else {}
            if self.name == "ImageNet":  # not even with False: it can't be fetched
                fetch = {}
            try:
                for part, arguments in SETS[self.name].items():
                    sources[part] = kind(folder, **arguments, **fetch)
                labels = {part: _labels(source) for part, source in sources.items()}
                paths = {part: _paths(self.name, source) for part, source in sources.items()}
            except ImportError as error:
                raise DataError(
                    f"torchvision reads {self.name} with {error.name}: pip install {error.name}"
                ) from None
        classes = _EMOTIONS if self.name == "FER2013" else _classes(sources["pool"], labels["pool"])
        _check_labels(self.name, classes, labels)
        if self.name == "Omniglot":  # numbered as the disk lists its folders
            order = np.array(sorted(range(len(classes)), key=classes.__getitem__))
            labels = {part: np.argsort(order)[own] for part, own in labels.items()}
            classes = tuple(classes[label] for label in order)
        files = {part: found for part, found in paths.items() if found is not None}
        if len(files) == len(sources):
            return _file_table(self.name, folder, classes, files, labels)
        return _table(self.name, classes, sources, labels)


def _check_labels(
    name: str, classes: tuple[str, ...], labels: Mapping[Part, NDArray[np.int64]]
) -> None:
    for part, own in labels.items():
        if len(own) and own.max() >= len(classes):
            raise DataError(
                f"{PREFIX}{name}: the {part} part has class {own.max()}, beyond the "
                f"{len(classes)} of its training part"
            )
        if part != "unlabeled" and (own < 0).any():
            way_out = " (fer2013.csv and icml_face_data.csv have them)" * (name == "FER2013")
            raise DataError(f"{PREFIX}{name}: its {part} images carry no labels{way_out}")


def _file_table(
    name: str,
    folder: Path,
    classes: tuple[str, ...],
    paths: Mapping[Part, Sequence[str]],
    labels: Mapping[Part, NDArray[np.int64]],
) -> ImageTable:
    """A table of files, in each part in the order of the keys: torchvision's may be the disk's."""
    rows = []
    for part, own in paths.items():
        start = f"{name.lower()}/{part}/"
        keys = (
            start + display_text(Path(os.path.relpath(path, folder)).as_posix()) for path in own
        )
        rows += sorted(zip(keys, own, labels[part].tolist(), [part] * len(own), strict=True))
    table = ImageTable(
        classes=classes,
        keys=PackedStrings(key for key, _, _, _ in rows),
        labels=np.array([label for _, _, label, _ in rows], dtype=np.int64),
        parts=np.array([part for _, _, _, part in rows], dtype=np.str_),
        files=PackedStrings(path for _, path, _, _ in rows),
    )
    return open_files(table)


def _table(
    name: str,
    classes: tuple[str, ...],
    sources: Mapping[Part, Any],
    labels: Mapping[Part, NDArray[np.int64]],
) -> ImageTable:
    parts = list(sources)
    starts = np.cumsum([0, *(len(own) for own in labels.values())])

    def opened(row: int) -> Image.Image:
        which = int(np.searchsorted(starts, row, side="right")) - 1
        image = sources[parts[which]][row - int(starts[which])][0]
        return image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))

    def read(rows: NDArray[np.int64], size: int, fit: Fit) -> NDArray[np.uint8]:
        images = np.empty((len(rows), size, size, 3), dtype=np.uint8)
        faults = []
        with pillow_muted():
            for place, row in enumerate(rows.tolist()):
                try:
                    answer = try_image(opened(row), size, fit)
                except Exception as error:  # torchvision decodes with whatever a set needs
                    answer = " ".join(str(error).split()) or type(error).__name__
                if isinstance(answer, str):
                    faults.append(f"can't read image {keys[row]}: {answer}")
                else:
                    images[place] = answer
        if faults:
            raise DataError(faults)
        return images

    def digest(row: int) -> str:
        image = opened(row)
        return hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).hexdigest()

    keys = tuple(
        f"{name.lower()}/{part}/{number:0{len(str(len(own)))}d}"
        for part, own in labels.items()
        for number in range(len(own))
    )
    return ImageTable(
        classes=classes,
        keys=keys,
        labels=np.concatenate(list(labels.values())),
        parts=np.concatenate([np.full(len(own), part) for part, own in labels.items()]),
        read=FittedRead(read),
        digest=digest,
    )


def _paths(name: str, source: Any) -> list[str] | None:
    """The files of a set, in its order; None where its images are no files."""
    if name in _PATHS:
        return [os.fspath(path) for path in _PATHS[name](source)]
    for attribute in _LISTS:
        found = getattr(source, attribute, None)
        if isinstance(found, Sequence) and len(found) == len(source):
            paths = [one[0] if isinstance(one, tuple) else one for one in found]
            if all(isinstance(path, str | os.PathLike) for path in paths):
                return [os.fspath(path) for path in paths]
    return None


def _labels(source: Any) -> NDArray[np.int64]:
    """The labels of a set, -1 for none; without decoding an image where torchvision keeps them."""
    count = len(source)
    for attribute in ("targets", "labels", "_labels", "y"):
        value = getattr(source, attribute, None)
        if value is not None and len(value) == count:
            array = np.asarray(value)
            array = array[:, 0] if array.ndim == 2 else array  # QMNIST: the digit comes first
            if np.issubdtype(array.dtype, np.integer):
                return array.astype(np.int64)
    for attribute in ("samples", "_samples", "_flat_character_images"):
        samples = getattr(source, attribute, None)
        if isinstance(samples, Sequence) and len(samples) == count:
            given = (label for _, label in samples)
            return np.array([-1 if label is None else int(label) for label in given], np.int64)
    if hasattr(source, "all_categories"):  # INaturalist
        return np.array([label for label, _ in source.index], dtype=np.int64)
    return np.array([int(source[row][1]) for row in range(count)], dtype=np.int64)


def _classes(source: Any, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Names of the classes; numbers where torchvision has no names, or not as many."""
    kept = ("classes", "categories", "all_categories", "_characters", "class_to_idx")
    names: Any = next((getattr(source, name) for name in kept if getattr(source, name, None)), [])
    count = int(labels.max()) + 1
    texts = [name[0] if isinstance(name, tuple) else str(name) for name in names]
    if len(texts) >= count and len(set(texts)) == len(texts):
        return tuple(texts)
    return tuple(str(number) for number in range(max(count, len(texts))))
