"""What a run records about where and how it was made."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import importlib_metadata
import torch
from torch import nn

from ssl_toolkit import registry
from ssl_toolkit.engine.devices import describe
from ssl_toolkit.engine.experiment import Experiment

PACKAGES = ("ssl-toolkit", "torch", "torchvision", "timm", "kornia", "numpy", "pillow")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on; missing ones are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            continue
    return found | {"torch": torch.__version__}  # with its build, such as +cu130


def _weights_hash(module: nn.Module) -> str:
    """Hash over the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(name.encode() + plain.numpy().tobytes())
    return digest.hexdigest()[:16]


def record(experiment: Experiment) -> dict[str, Any]:
    """What a run is made of; taken before its first step.

    Versions, device, the distribution of each plugin, and hashes of the shared configuration, the
    split, the initial weights, and how the orders of images and the draws of the views begin: in a
    comparison those agree for each seed, the last ones by name as far as two rows have them.
    """
    settings = experiment.config.settings
    plugins = {
        "algorithms": settings.algo,
        "augmenters": settings.augment.weak,
        "backbones": settings.backbone or "",
        "datasets": settings.dataset or "",
    }
    chosen = [(group, name) for group, name in plugins.items() if name]
    chosen.append(("augmenters", settings.augment.strong))
    distributions = {}
    for group, name in chosen:
        if registry.has(group, name):
            entry = registry.find(group, name)
            distributions[f"{group}: {entry.name}"] = (
                f"{entry.distribution} {entry.version}".strip()
            )
        else:
            distributions[f"{group}: {name}"] = f"timm {versions().get('timm', '')}".strip()
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "device": describe(experiment.device),
        "precision": experiment.trainer.precision,
        "torch_threads": torch.get_num_threads(),
        "plugins": distributions,
        "uses_hidden_labels": experiment.trainer.algorithm.uses_hidden_labels,
        "fingerprint": experiment.config.fingerprint(),
        "split": experiment.split_hash,
        "initial_weights": _weights_hash(experiment.trainer.classifier),
        "draws": experiment.trainer.batches.digests(settings.image_size),
        "notes": list(experiment.notes),
        "warnings": list(experiment.warnings),
    }
