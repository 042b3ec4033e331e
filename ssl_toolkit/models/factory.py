"""From the name of a backbone to a classifier with its first weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError, PluginError, ToolkitError
from ssl_toolkit.interfaces import Backbone, ChannelStatistics
from ssl_toolkit.models.classifier import Classifier, set_batchnorm_momentum
from ssl_toolkit.models.feature_input import FeatureInput, feature_length
from ssl_toolkit.models.weights import load_weights


def find_backbone(name: str) -> tuple[type[Backbone], str]:
    """The class that a backbone's name means, and the name that its `build` gets.

    A registered name comes first, then timm's; ``timm:NAME`` says timm outright, and
    ``distribution:NAME`` picks one of several distributions; ``features_N`` is for data that are
    features of length N already. Does not import timm.

    Raises:
        PluginError: a broken plugin, or an unknown name with a distribution.
    """
    if feature_length(name) is not None:
        return FeatureInput, name
    if name.startswith("timm:") or not (":" in name or registry.has("backbones", name)):
        from ssl_toolkit.models.timm_backbone import TimmBackbone

        return TimmBackbone, name.removeprefix("timm:")
    found: type[Backbone] = registry.load("backbones", name)
    return found, name.rpartition(":")[2]


SMALLEST_FROZEN, SMALLEST_TRAINED = 128, 64
"""Least sizes in pixels: frozen features of small images gain up to 128, while a backbone that is
trained gets used to 64, at a quarter of the time (docs/results.md)."""


def size_for(name: str, side: int, *, trained: bool) -> int | None:
    """The size in pixels at which a pre-trained backbone serves images of a shorter side best.

    Its own, or for smaller images twice their shorter side, rounded up to a multiple of 32: more
    adds cost but no detail. Backbones for one size alone keep it.

    Args:
        name: see `find_backbone`.
        side: shorter side of a typical image in pixels.
        trained: whether the backbone is trained.

    Raises:
        PluginError: the backbone is unknown or broken.
    """
    plugin, bare = find_backbone(name)
    own = plugin.own_image_size(bare)
    if own is None or not plugin.takes_other_sizes(bare):
        return own
    least = SMALLEST_TRAINED if trained else SMALLEST_FROZEN
    return min(own, max(least, 32 * math.ceil(2 * side / 32)))


def own_image_size(name: str) -> int | None:
    """The side in pixels that a backbone was made for, without building it; None for any.

    Raises:
        PluginError: the backbone is unknown or broken.
    """
    plugin, name = find_backbone(name)
    return plugin.own_image_size(name)


def build_classifier(
    backbone_name: str,
    num_classes: int,
    *,
    image_size: int | None,
    dataset_mean: ChannelStatistics,
    dataset_std: ChannelStatistics,
    seed: int,
    pretrained: bool = False,
    weights: Path | None = None,
    batchnorm_momentum: float | None = None,
    channels_last: bool = False,
    classes: Sequence[str] | None = None,
    stages: int = 0,
) -> tuple[Classifier, list[str]]:
    """Build a classifier on the CPU, in train mode, its first weights set by the seed alone.

    Normalization: the backbone's own statistics where it has some and starts from weights
    (published ones or a file), otherwise those of the data set; a file that carries statistics,
    such as the checkpoint of a run, has the last word. torch's global generators are left as
    they were.

    Args:
        backbone_name: see `find_backbone`.
        num_classes: C, at least 1.
        image_size: side of the square images in pixels; None for the backbone's own.
        dataset_mean: channel means (RGB) of the training images in [0, 1].
        dataset_std: channel standard deviations (RGB), each above 0.
        seed: of the random weights.
        pretrained: whether to load the published weights; not looked for when `weights` is given.
        weights: a file for `load_weights`.
        batchnorm_momentum: in (0, 1], for every BatchNorm layer; None for the backbone's own.
        channels_last: keep 4-d weights in channels-last memory order, faster on recent GPUs.
        classes: names of the classes in order; a file that names others gives no head.
        stages: last stages whose means are appended to the features, where the backbone has some.

    Returns:
        The classifier and lines that the user should see.

    Raises:
        PluginError: the backbone is unknown or its code fails.
        ModelError: the size or the weights don't fit.
    """
    plugin, name = find_backbone(backbone_name)
    if image_size is not None and image_size < 1:
        raise ModelError(f"backbone {name!r} can't take image size {image_size}: at least 1")
    notes: list[str] = []
    fetch = pretrained and weights is None
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would also seed the generators of the GPUs.
        torch.default_generator.manual_seed(seed)
        try:
            backbone = plugin.build(name, image_size=image_size, pretrained=fetch)
            blocks = backbone.use_stages(stages)
            statistics = (dataset_mean, dataset_std)
            if (fetch or weights is not None) and backbone.mean and backbone.std:
                statistics = (backbone.mean, backbone.std)
            classifier = Classifier(backbone, num_classes, *statistics)
            classifier.blocks = blocks
        except ToolkitError:
            raise
        except Exception as error:
            raise PluginError(
                f"backbone {backbone_name!r} ({plugin.__module__}.{plugin.__qualname__}) "
                f"could not be built: {type(error).__name__}: {error}"
            ) from error
    if source := getattr(backbone, "weights_source", None):
        notes.append(f"published weights of {name}: {source}")
    if weights is not None:
        notes += load_weights(classifier, weights, backbone_name=backbone_name, classes=classes)
    if batchnorm_momentum is not None:
        set_batchnorm_momentum(classifier, batchnorm_momentum)
    if channels_last:
        classifier.to(memory_format=torch.channels_last)
    return classifier, notes
