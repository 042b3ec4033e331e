"""Which arguments and files belong to each data set of torchvision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ssl_toolkit import SplitName

Arguments = Mapping[str, Any]

_TRAIN: dict[SplitName, Arguments] = {"pool": {"train": True}, "test": {"train": False}}
_SPLIT: dict[SplitName, Arguments] = {"pool": {"split": "train"}, "test": {"split": "test"}}
_THREE: dict[SplitName, Arguments] = {
    "pool": {"split": "train"},
    "validation": {"split": "val"},
    "test": {"split": "test"},
}
_VAL_IS_TEST: dict[SplitName, Arguments] = {"pool": {"split": "train"}, "test": {"split": "val"}}
_ONE: dict[SplitName, Arguments] = {"pool": {}}

SETS: dict[str, dict[SplitName, Arguments]] = {
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
"""Arguments of torchvision for each split of each data set. Those with a single one have no test
split, or, as Omniglot, one of other classes: ``--test-fraction`` draws one."""

EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
"""Classes of FER2013, which torchvision does not name."""
FILES: dict[str, Callable[[Any], Iterable[tuple[Any, int]]]] = {
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
"""Return path and label of each image, for the data sets that neither accept a loader nor list
their files: private attributes avoid decoding every image."""
