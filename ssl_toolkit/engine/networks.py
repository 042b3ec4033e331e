"""Build the network that a run trains, and further ones of the same architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.models.adapters import add_adapters
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.factory import build_classifier
from ssl_toolkit.models.freezing import freeze
from ssl_toolkit.models.weights import load_weights


def build_network(
    settings: ResolvedSettings, classes: tuple[str, ...], seed: int, *, initial: bool
) -> tuple[Classifier, list[str]]:
    """Build a network from the settings of a run; its mean is nan without channel statistics.

    Args:
        settings: settings of the run.
        classes: names of the classes.
        seed: seed of the random weights.
        initial: True to load the weights that the run starts from, including the head.

    Returns:
        The network on the CPU, and messages for the user.
    """
    momentum = settings.model.batchnorm_momentum
    classifier, notes = build_classifier(
        settings.backbone,
        len(classes),
        image_size=settings.image_size,
        dataset_mean=(math.nan,) * settings.pixels.channels,
        dataset_std=(1.0,) * settings.pixels.channels,
        seed=seed,
        pretrained=settings.pretrained and initial,
        weights=Path(settings.weights) if settings.weights is not None and initial else None,
        batchnorm_momentum=momentum if isinstance(momentum, float) else None,
        channels_last=settings.model.channels_last is True,
        classes=classes,
        stages=settings.model.stages,
        arguments=settings.model.args,
    )
    classifier.task = settings.task
    return classifier, notes


@dataclass(frozen=True)
class ModelFactory:
    """Builds further networks of a run, as `TaskInfo.new_model`; can be pickled."""

    settings: ResolvedSettings
    classes: tuple[str, ...]

    def __call__(self, pretrained: bool) -> Classifier:
        """Return a network whose weights depend on torch's global generator."""
        settings = self.settings
        seed = int(torch.randint(2**62, ()).item())
        initial = pretrained or settings.model.freeze != "none" or settings.lora.rank > 0
        from_file = initial and settings.weights is not None
        network, _ = build_network(settings, self.classes, seed, initial=initial and not from_file)
        if from_file:
            load_weights(network, Path(settings.weights or ""), with_head=False)
        if settings.model.sync_batchnorm:
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        freeze(network, settings.model.freeze)
        add_adapters(network, settings.lora, settings.image_size, seed)
        return network


def share_statistics(network: Classifier, module: nn.Module) -> None:
    """Copy the channel statistics of a network to all networks inside a module."""
    for other in module.modules():
        if isinstance(other, Classifier):
            other.mean.copy_(network.mean)
            other.std.copy_(network.std)
