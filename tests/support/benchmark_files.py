"""Tiny files of benchmarks in their published form, made of random images."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from ssl_toolkit_benchmarks.eurosat import CLASSES as EUROSAT

RNG = np.random.default_rng(0)
Pixels = dict[str, np.ndarray]


def accept_tiny_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off torchvision's checksums, which are those of the published files."""
    for name in ("CIFAR10", "CIFAR100", "STL10"):
        monkeypatch.setattr(f"torchvision.datasets.{name}._check_integrity", lambda self: True)
    for module in ("cifar", "svhn"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *a: True)


def write_batches(
    folder: Path, names: Sequence[str], per_file: int, key: str, classes: int
) -> Pixels:
    """Write files of CIFAR-10 or CIFAR-100; return their pixels."""
    folder.mkdir(parents=True)
    pixels = {}
    for name in names:
        data = RNG.integers(0, 256, (per_file, 3072)).astype(np.uint8)
        labels = [number % classes for number in range(per_file)]
        (folder / name).write_bytes(pickle.dumps({"data": data, key: labels}, protocol=2))
        pixels[name] = data
    return pixels


def write_cifar10(root: Path, per_file: int = 20, classes: int = 10) -> Pixels:
    folder = root / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    pixels = write_batches(folder, names, per_file, "labels", classes)
    meta = {"label_names": [f"kind {number}" for number in range(classes)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return pixels


def write_cifar100(root: Path, per_file: int = 100, classes: int = 100) -> Pixels:
    folder = root / "cifar-100-python"
    pixels = write_batches(folder, ["train", "test"], per_file, "fine_labels", classes)
    meta = {"fine_label_names": [f"kind {number}" for number in range(classes)]}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    return pixels


def write_mini_imagenet(root: Path, per_class: int = 12, classes: int = 10) -> None:
    """Write the lists and the JPEG files; the three lists share no class."""
    (root / "images").mkdir(parents=True)
    lines: dict[str, list[str]] = {part: ["filename,label"] for part in ("train", "val", "test")}
    for label in range(classes):
        for number in range(per_class):
            file = f"n{label:08d}{number:08d}.jpg"
            _write_image(root / "images" / file)
            lines[("train", "val", "test")[label % 3]].append(f"{file},n{label:08d}")
    for part, of_part in lines.items():
        (root / f"{part}.csv").write_text("\n".join(of_part))


def write_domainnet_real(root: Path, per_class: int = 12, classes: int = 10) -> None:
    """Write ``real/`` and the two lists, in which a sixth of the images of a class is for tests."""
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for label in range(classes):
        for number in range(per_class):
            file = f"real/class_{label}/real_{label + 1:03d}_{number:06d}.jpg"
            _write_image(root / file)
            lists["test" if number < per_class // 6 else "train"].append(f"{file} {label}")
    for part, lines in lists.items():
        (root / f"real_{part}.txt").write_text("\n".join(lines) + "\n")


def write_svhn(root: Path, count: int = 12) -> np.ndarray:
    """Write both files; return the images, (32, 32, 3, count), which are the same in both."""
    from scipy.io import savemat

    pixels = RNG.integers(0, 256, (32, 32, 3, count)).astype(np.uint8)
    labels = np.arange(1, count + 1).reshape(-1, 1) % 10 + 1  # the file says 10 for the digit 0
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(root / name, {"X": pixels, "y": labels.astype(np.uint8)})
    return pixels


def write_stl10(root: Path, train: int = 3, unlabeled: int = 4, test: int = 2) -> Pixels:
    """Write the binary files and the ten folds; return the images, (n, 3, 96, 96)."""
    folder = root / "stl10_binary"
    folder.mkdir()
    pixels = {}
    for name, count in {"train": train, "unlabeled": unlabeled, "test": test}.items():
        pixels[name] = RNG.integers(0, 256, (count, 3, 96, 96)).astype(np.uint8)
        pixels[name].transpose(0, 1, 3, 2).tofile(folder / f"{name}_X.bin")  # column by column
        if name != "unlabeled":
            (np.arange(count, dtype=np.uint8) % 10 + 1).tofile(folder / f"{name}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(f"kind {n}" for n in range(10)))
    fold = " ".join(map(str, range(train)))
    (folder / "fold_indices.txt").write_text(f"{fold}\n" * 10)
    return pixels


def write_eurosat(folder: Path, per_class: int = 10) -> None:
    """Write the folders of the classes."""
    for name in EUROSAT:
        for number in range(1, per_class + 1):
            _write_image(folder / name / f"{name}_{number}.jpg")


def write_tissue_mnist(folder: Path, **changed: np.ndarray) -> Pixels:
    """Write ``tissuemnist.npz``; return its arrays, of which some may be replaced."""
    arrays = {}
    for part, count in {"train": 32, "val": 8, "test": 9}.items():
        arrays[f"{part}_images"] = RNG.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 8).astype(np.uint8).reshape(-1, 1)
    np.savez_compressed(folder / "tissuemnist.npz", **(arrays := arrays | changed))
    return arrays


def write_semi_aves(folder: Path, **changed: list[str]) -> None:
    """Write the lists, of which some may be replaced, and their images: four of each class."""
    lists = {
        "l_train": [f"trainval_images/{n}/{i}.jpg {n}" for n in range(200) for i in (0, 1)],
        "val": [f"trainval_images/{n}/2.jpg {n}" for n in range(200)],
        "u_train_in": [f"u_train_in/{i}.jpg -1" for i in range(30)],
        "test": [f"test/{n}.jpg {n}" for n in range(200)],
    } | changed
    for name, lines in lists.items():
        for line in lines:
            _write_image(folder / line.split(" ")[0], 4)
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _write_image(path: Path, side: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (side, side, 3)).astype(np.uint8)).save(path, "JPEG")
