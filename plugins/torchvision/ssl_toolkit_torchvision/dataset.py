"""Classification data sets of torchvision, named ``torchvision:CLASS``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit import (
    DataError,
    Dataset,
    ImageArray,
    ImageTable,
    PluginError,
    SplitName,
    array_table,
    default_root,
    did_you_mean,
    wrap_dataset_errors,
)
from ssl_toolkit_torchvision.tables import EMOTIONS, FILES, SETS

PREFIX = "torchvision:"
"""Start of the names of these data sets."""


class TorchvisionSet(Dataset):
    """A classification data set of torchvision.

    Args:
        name: Name of its class in ``torchvision.datasets``.

    Raises:
        PluginError: `SETS` has no such name; suggests similar ones.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        if name in SETS:
            return
        import torchvision.datasets

        reason = f"unknown dataset {PREFIX}{name}{did_you_mean(name, SETS)}"
        if not name:
            reason = f"the name of a torchvision data set is missing, write {PREFIX}NAME"
        elif name in torchvision.datasets.__all__:
            reason = (
                f"{PREFIX}{name} is not for classification: its images don't carry one class each"
            )
        raise PluginError(f"{reason}; known: {', '.join(sorted(SETS))}")

    @classmethod
    def from_name(cls, rest: str) -> TorchvisionSet:
        """Return the data set of this class of torchvision; see `Dataset.from_name`."""
        return cls(rest)

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the data set; see `Dataset.load`. Image files are not opened.

        The key of an image file is its path relative to the folder, after the data set and split.

        Raises:
            DataError: As `Dataset.load`; or a package is missing; or images have no labels.
        """
        import torchvision.datasets

        folder = default_root() if root is None else root
        kind = getattr(torchvision.datasets, self.name)
        sources: dict[SplitName, Any] = {}
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
        classes = EMOTIONS if self.name == "FER2013" else _classes(sources["pool"], labels["pool"])
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
    """Images of a data set of torchvision, each decoded when it is read."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Any) -> Any:
        image = self._source[index][0]
        return image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))


def _check_labels(
    name: str, classes: tuple[str, ...], labels: Mapping[SplitName, NDArray[np.int64]]
) -> None:
    for part, part_labels in labels.items():
        if len(part_labels) and part_labels.max() >= len(classes):
            raise DataError(
                f"{PREFIX}{name}: the {part} split has class {part_labels.max()}, beyond the "
                f"{len(classes)} of its training images"
            )
        if part != "unlabeled" and (part_labels < 0).any():
            way_out = " (fer2013.csv and icml_face_data.csv have them)" * (name == "FER2013")
            raise DataError(f"{PREFIX}{name}: its {part} images carry no labels{way_out}")


def _file_table(
    name: str,
    folder: Path,
    classes: tuple[str, ...],
    files: Mapping[SplitName, Sequence[tuple[str, int]] | None],
    labels: Mapping[SplitName, NDArray[np.int64]],
) -> ImageTable:
    """Return a table of files, each split sorted by key: torchvision may list them unsorted."""
    rows = []
    for part, part_labels in labels.items():
        paths = [path for path, _ in files[part] or ()]
        keys = (
            f"{name.lower()}/{part}/" + _text(Path(os.path.relpath(path, folder)).as_posix())
            for path in paths
        )
        parts = [part] * len(paths)
        rows += sorted(zip(keys, paths, part_labels.tolist(), parts, strict=True))
    return ImageTable(
        classes=classes,
        keys=[key for key, _, _, _ in rows],
        labels=np.array([label for _, _, label, _ in rows], dtype=np.int64),
        splits=np.array([part for _, _, _, part in rows], dtype=np.str_),
        files=[path for _, path, _, _ in rows],
    )


def _text(name: str) -> str:
    """Return a file name as the UTF-8 text of its bytes, independent of the locale."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _files(name: str, source: Any) -> list[tuple[str, int]] | None:
    """Return path and label of each image, in the order of torchvision; None without files."""
    items: Any = next(
        (getattr(source, of) for of in ("samples", "imgs") if hasattr(source, of)), ()
    )
    if name in FILES:
        items = FILES[name](source)
    elif not items and len(source) and isinstance(source[0][0], str):
        items = (source[row] for row in range(len(source)))
    return [(os.fspath(path), int(label)) for path, label in items] or None


def _labels(source: Any, files: Sequence[tuple[str, int]] | None) -> NDArray[np.int64]:
    """Return the label of each image, -1 for none."""
    if files is not None:
        return np.array([label for _, label in files], dtype=np.int64)
    array = np.asarray(getattr(source, "targets", getattr(source, "labels", None)))
    if len(array.shape) and np.issubdtype(array.dtype, np.integer):
        # QMNIST describes a digit by several numbers; the first is its class.
        return (array[:, 0] if array.ndim == 2 else array).astype(np.int64)
    labels = (source[row][1] for row in range(len(source)))
    return np.array([-1 if label is None else int(label) for label in labels], dtype=np.int64)


def _classes(source: Any, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the names of the classes; numbers if torchvision names none, or too few."""
    attributes = ("classes", "categories", "all_categories", "class_to_idx")
    names: Any = next(filter(None, (getattr(source, name, None) for name in attributes)), [])
    count = int(labels.max()) + 1
    texts = [name[0] if isinstance(name, tuple) else str(name) for name in names]
    if len(texts) >= count and len(set(texts)) == len(texts):
        return tuple(texts)
    return tuple(str(number) for number in range(max(count, len(texts))))
