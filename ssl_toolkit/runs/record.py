"""The record of a run, ``record.json``: its environment and what it started from."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import importlib_metadata
import torch
from torch import nn

from ssl_toolkit import registry
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.engine.devices import describe
from ssl_toolkit.engine.experiment import Experiment


class Change(Part):
    """Something that is not as it was at the start of the run."""

    key: str
    before: Any
    after: Any
    after_step: int


class RunRecord(Document):
    """What a run is made of: its ``record.json``."""

    versions: dict[str, str]
    """Of Python and of the packages that results depend on."""
    platform: str
    device: str
    precision: str
    torch_threads: int
    plugins: dict[str, str]
    """Distribution of each plugin."""
    uses_hidden_labels: bool
    """True if the algorithm gets the hidden labels: an upper bound."""
    fingerprint: str
    """Hash of the shared configuration."""
    split: str
    """Hash of the split."""
    initial_weights: str
    """Hash of the weights before the first step."""
    draws: dict[str, str]
    """Hashes of the first orders of images and draws of views, by name."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    auto: dict[str, Any] | None = None
    """The choice of ``algo: auto``."""
    minutes: dict[str, Any] | None = None
    """The choices of ``minutes``."""
    changes: tuple[Change, ...] = ()
    """Changes when it was resumed."""


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


def record(experiment: Experiment, **choices: Any) -> RunRecord:
    """Return what a run is made of; taken before its first step.

    Versions, device, the distribution of each plugin, and hashes of the shared configuration, the
    split, the initial weights, and how the orders of images and the draws of the views begin: in a
    comparison those agree for each seed, the last ones by name as far as two rows have them.

    Args:
        experiment: prepared.
        choices: `RunRecord.auto` and `RunRecord.minutes`.
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
    return RunRecord(
        versions=versions(),
        platform=platform.platform(),
        device=describe(experiment.device),
        precision=experiment.trainer.precision,
        torch_threads=torch.get_num_threads(),
        plugins=distributions,
        uses_hidden_labels=experiment.trainer.algorithm.uses_hidden_labels,
        fingerprint=experiment.config.fingerprint(),
        split=experiment.split_hash,
        initial_weights=_weights_hash(experiment.trainer.classifier),
        draws=experiment.trainer.batches.digests(settings.image_size),
        notes=tuple(experiment.notes),
        warnings=tuple(experiment.warnings),
        **choices,
    )
