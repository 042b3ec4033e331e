"""Any classification set of torchvision, by ``torchvision:<Class>``."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit.data.benchmarks import default_root, told_faults
from ssl_toolkit.data.pictures import pillow_muted, try_picture
from ssl_toolkit.errors import DataError, PluginError
from ssl_toolkit.interfaces import Dataset, DatasetDefaults, ImageTable, Part
from ssl_toolkit.registry import did_you_mean

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
    "FGVCAircraft": _THREE,
    "FashionMNIST": _TRAIN,
    "Flowers102": _THREE,
    "Food101": _SPLIT,
    "GTSRB": _SPLIT,
    "ImageNet": _VAL_IS_TEST,
    "Imagenette": _VAL_IS_TEST,
    "KMNIST": _TRAIN,
    "MNIST": _TRAIN,
    "OxfordIIITPet": {"pool": {"split": "trainval"}, "test": {"split": "test"}},
    "PCAM": _THREE,
    "Places365": {"pool": {"split": "train-standard", "small": True},
                  "test": {"split": "val", "small": True}},
    "QMNIST": {"pool": {"what": "train"}, "test": {"what": "test"}},
    "RenderedSST2": _THREE,
    "SEMEION": _ONE,
    "STL10": _SPLIT | {"unlabelled": {"split": "unlabeled"}},
    "SUN397": _ONE,
    "SVHN": _SPLIT,
    "StanfordCars": _SPLIT,
    "USPS": _TRAIN,
}  # fmt: skip
"""The sets, and with which arguments torchvision gives each part. Those with a single part have
no test split of their own: ``--test-fraction`` makes one."""


class TorchvisionSet(Dataset):
    """A classification set of torchvision, read from the disk.

    Args:
        name: the name of its class in ``torchvision.datasets``, with or without `PREFIX`.

    Raises:
        PluginError: the name is none of `SETS`; tells near ones.
    """

    defaults = DatasetDefaults()

    def __init__(self, name: str) -> None:
        self.name = name.removeprefix(PREFIX)
        if self.name not in SETS:
            near = {known.lower(): known for known in SETS}.get(self.name.lower())
            hint = f", did you mean {near!r}?" if near else did_you_mean(self.name, SETS)
            raise PluginError(
                f"unknown dataset {PREFIX}{self.name}{hint}; known: {', '.join(sorted(SETS))}"
            )

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Read the set; see `Dataset.load`. Pictures that are files stay on the disk.

        Pictures are not verified beforehand; one that can't be read is told when it is.
        """
        import torchvision.datasets

        folder = default_root() if root is None else root
        kind = getattr(torchvision.datasets, self.name)
        sources: dict[Part, Any] = {}
        with told_faults(f"{PREFIX}{self.name}", folder):
            accepted = inspect.signature(kind.__init__).parameters
            fetch = {"download": download} if {"download", "kwargs"} & accepted.keys() else {}
            if self.name == "ImageNet":  # not even with False: it can't be fetched
                fetch = {}
            try:
                for part, arguments in SETS[self.name].items():
                    sources[part] = kind(folder, **arguments, **fetch)
                labels = {part: _labels(source) for part, source in sources.items()}
            except ImportError as error:
                raise DataError(
                    f"torchvision reads {self.name} with {error.name}: pip install {error.name}"
                ) from None
        first = sources["pool"]
        return _table(self.name, _classes(first, labels["pool"]), sources, labels)


def _table(
    name: str,
    classes: tuple[str, ...],
    sources: Mapping[Part, Any],
    labels: Mapping[Part, NDArray[np.int64]],
) -> ImageTable:
    for part, own in labels.items():
        if len(own) and own.max() >= len(classes):
            raise DataError(
                f"{PREFIX}{name}: the {part} part has class {own.max()}, beyond the "
                f"{len(classes)} of its training part"
            )
    parts = list(sources)
    starts = np.cumsum([0, *(len(own) for own in labels.values())])

    def picture(row: int) -> Image.Image:
        which = int(np.searchsorted(starts, row, side="right")) - 1
        image = sources[parts[which]][row - int(starts[which])][0]
        return image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))

    def read(rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        pictures = np.empty((len(rows), size, size, 3), dtype=np.uint8)
        faults = []
        with pillow_muted():
            for place, row in enumerate(rows.tolist()):
                try:
                    answer = try_picture(picture(row), size)
                except Exception as error:  # torchvision decodes with whatever a set needs
                    answer = " ".join(str(error).split()) or type(error).__name__
                if isinstance(answer, str):
                    faults.append(f"can't read picture {keys[row]}: {answer}")
                else:
                    pictures[place] = answer
        if faults:
            raise DataError(faults)
        return pictures

    def digest(row: int) -> str:
        image = picture(row)
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
        read=read,
        digest=digest,
    )


def _labels(source: Any) -> NDArray[np.int64]:
    """The labels of a set, without decoding a picture where torchvision keeps them."""
    count = len(source)
    for attribute in ("targets", "labels", "_labels", "y"):
        value = getattr(source, attribute, None)
        if value is not None and len(value) == count:
            array = np.asarray(value)
            array = array[:, 0] if array.ndim == 2 else array  # QMNIST: the digit comes first
            if np.issubdtype(array.dtype, np.integer):
                return array.astype(np.int64)
    samples = getattr(source, "samples", getattr(source, "_samples", None))
    if isinstance(samples, Sequence) and len(samples) == count:
        return np.array([int(sample[1]) for sample in samples], dtype=np.int64)
    return np.array([int(source[row][1]) for row in range(count)], dtype=np.int64)


def _classes(source: Any, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Names of the classes; numbers where torchvision has no names, or not as many."""
    names = getattr(source, "classes", getattr(source, "categories", None)) or []
    count = int(labels.max()) + 1
    told = [name[0] if isinstance(name, tuple) else str(name) for name in names]
    if len(told) >= count and len(set(told)) == len(told):
        return tuple(told)
    return tuple(str(number) for number in range(max(count, len(told))))
