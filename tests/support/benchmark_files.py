"""Tiny files of benchmarks in their published form, made of random images."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


def _write_image(path: Path, side: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (side, side, 3)).astype(np.uint8)).save(path, "JPEG")
