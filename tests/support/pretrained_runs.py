"""Small pretrained runs: images on disk, random weights, and a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from PIL import Image

from ssl_toolkit.config.loading import Layer, RunConfig, validate
from ssl_toolkit.engine.experiment import Experiment, prepare

CLASSES = "abc"
SIZE = 32


def make_images(folder: Path, per_class: int = 20) -> Path:
    """Write images of noise with a tint and stripes per class."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for index in range(per_class):
            pixels = rng.integers(0, 80, (SIZE, SIZE, 3))
            pixels[:, :, number] += rng.integers(20, 150)
            pixels[:: number + 2] //= 2
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(folder / name / f"{index:02}.png")
    return folder


def make_weights(folder: Path, backbone: str = "test_resnet") -> Path:
    """Write random weights of a timm model to a file."""
    path = folder / f"{backbone}.safetensors"
    if not path.exists():
        torch.manual_seed(0)
        safetensors.torch.save_file(timm.create_model(backbone).state_dict(), path)
    return path


def keys(folder: Path, backbone: str = "test_resnet", **changes: Any) -> dict[str, Any]:
    """Return the keys of a short run, whose images are in the subfolder ``images``."""
    return {
        "data": str(folder / "images"),
        "backbone": backbone,
        "pretrained": True,
        "weights": str(make_weights(folder, backbone)),
        "image_size": SIZE,
        "labels_per_class": 4,
        "val_fraction": 0.1,
        "test_fraction": 0.2,
        "steps": 2,
        "batch_size": 4,
        "seed": 0,
        "device": "cpu",
        **changes,
    }


def flags(folder: Path, backbone: str = "test_resnet", **changes: Any) -> list[str]:
    """Return `keys` as options of the command line."""
    values = keys(folder, backbone, **changes)
    result = []
    for key, value in values.items():
        flag = f"--{key.replace('_', '-')}"
        result += [flag] if value is True else [flag, str(value)]
    return result


def config(folder: Path, backbone: str = "test_resnet", **changes: Any) -> RunConfig:
    """Return the validated configuration of `keys`."""
    return validate([Layer("test", keys(folder, backbone, **changes))])


def experiment(folder: Path, backbone: str = "test_resnet", **changes: Any) -> Experiment:
    """Return a run that is ready to start."""
    return prepare(config(folder, backbone, **changes))
