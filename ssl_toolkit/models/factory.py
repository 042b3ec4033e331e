"""Build a classifier with initial weights from the name of a backbone."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ssl_toolkit import registry
from ssl_toolkit.config.images import RGB8, Size, parse_size, sides, size_text
from ssl_toolkit.config.sections import Auto, LoraSettings
from ssl_toolkit.errors import ConfigError, ModelError, PluginError, ToolkitError, one_line
from ssl_toolkit.interfaces import Backbone, ChannelStatistics
from ssl_toolkit.models.classifier import Classifier, in_eval_mode, set_batchnorm_momentum
from ssl_toolkit.models.feature_input import FeatureInput, feature_length
from ssl_toolkit.models.stage_statistics import append_stages
from ssl_toolkit.models.weights import load_weights


def find_backbone(name: str) -> tuple[type[Backbone], str]:
    """Return the class of a backbone by name, and the name to pass to its `build`.

    Registered names take precedence over timm's; ``timm:NAME`` selects timm explicitly, and
    ``distribution:NAME`` one of several distributions; ``features_N`` is for data that are
    features of length N already. ``hf-hub:ORGANIZATION/NAME`` and ``local-dir:PATH`` are models of
    timm, as in timm. Does not import timm.

    Raises:
        PluginError: a broken plugin, or an unknown name with a distribution.
    """
    if feature_length(name) is not None:
        return FeatureInput, name
    if name.startswith(("timm:", "hf-hub:", "local-dir:")) or not (
        ":" in name or registry.has("backbones", name)
    ):
        from ssl_toolkit.models.timm_backbone import TimmBackbone

        return TimmBackbone, name.removeprefix("timm:")
    found: type[Backbone] = registry.load("backbones", name)
    return found, name.rpartition(":")[2]


SMALLEST_FROZEN, SMALLEST_TRAINED = 128, 64
"""Minimum sizes in pixels: frozen features of small images improve up to 128, while a backbone
that is trained adapts to 64."""


def size_for(name: str, side: int, *, trained: bool) -> int | None:
    """Return the best image size in pixels of a pre-trained backbone.

    This is its own size, or for smaller images twice their shorter side, rounded up to a multiple
    of 32: more adds cost but no detail. Backbones for a single size keep it.

    Args:
        name: Name for `find_backbone`.
        side: Shorter side of a typical image in pixels.
        trained: True if the backbone is trained, not frozen.

    Raises:
        PluginError: The backbone is unknown or broken.
    """
    plugin, bare = find_backbone(name)
    own = plugin.own_image_size(bare)
    if own is None or not plugin.takes_other_sizes(bare):
        return own
    least = SMALLEST_TRAINED if trained else SMALLEST_FROZEN
    return min(own, max(least, 32 * math.ceil(2 * side / 32)))


def own_image_size(name: str) -> int | None:
    """Return the image size in pixels of a backbone without building it; None for any size.

    Raises:
        PluginError: the backbone is unknown or broken.
    """
    plugin, name = find_backbone(name)
    return plugin.own_image_size(name)


def build_classifier(
    backbone_name: str,
    num_classes: int,
    *,
    image_size: Size | None,
    dataset_mean: ChannelStatistics,
    dataset_std: ChannelStatistics,
    seed: int,
    pretrained: bool = False,
    weights: Path | None = None,
    batchnorm_momentum: float | None = None,
    channels_last: bool = False,
    classes: Sequence[str] | None = None,
    stages: int | Auto = 0,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[Classifier, list[str]]:
    """Build a classifier on the CPU, in train mode; its initial weights depend only on the seed.

    Images are normalized by the statistics in the weights file, if it has some, as the checkpoint
    of a run does; else by those of a backbone that starts from weights of as many channels; else by
    those of the data set. torch's global generators keep their state.

    Args:
        backbone_name: Name for `find_backbone`.
        num_classes: Number of classes C, at least 1.
        image_size: Size of the images in pixels; None for the backbone's own.
        dataset_mean: Means of the channels of the training images in [0, 1], as many as the images
            have channels.
        dataset_std: Standard deviations of the channels, each above 0.
        seed: Seed of the random weights.
        pretrained: True to load the published weights, unless `weights` is set.
        weights: Path to a file for `load_weights`.
        batchnorm_momentum: Momentum in (0, 1] of all BatchNorm layers; None for the backbone's own.
        channels_last: True for 4-d weights in channels-last memory order, faster on recent GPUs.
        classes: Names of the classes in order; the head of a file with other names is skipped.
        stages: Number of last stages whose means are appended to the features; see
            `append_stages`.
        arguments: Arguments of the model (``model.args``), for timm and other backbones whose
            `build` has a parameter of this name.

    Returns:
        The classifier and messages for the user.

    Raises:
        PluginError: The backbone is unknown or its code fails.
        ModelError: The size or the weights don't fit.
        ConfigError: The model doesn't take the arguments.
    """
    plugin, name = find_backbone(backbone_name)
    options: dict[str, Any] = {"arguments": arguments} if arguments else {}
    if options and "arguments" not in inspect.signature(plugin.build).parameters:
        raise ConfigError(
            f"model.args: backbone {backbone_name!r} takes no arguments; leave it out"
        )
    if image_size is not None and min(sides(image_size)) < 1:
        size = size_text(image_size)
        raise ModelError(f"backbone {name!r} can't take image size {size}: at least 1")
    if (channels := len(dataset_mean)) != RGB8.channels:
        if "channels" not in inspect.signature(plugin.build).parameters:
            raise ConfigError(
                f"--channels {channels}: backbone {backbone_name!r} takes images with 3 channels"
            )
        options["channels"] = channels
    notes: list[str] = []
    fetch = pretrained and weights is None
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would also seed the generators of the GPUs.
        torch.default_generator.manual_seed(seed)
        try:
            backbone = plugin.build(name, image_size=image_size, pretrained=fetch, **options)
            if isinstance(image_size, tuple):
                _check_rectangle(backbone, backbone_name, image_size, channels)
            shape = channels, *sides(image_size or backbone.default_image_size or 32)
            blocks = append_stages(backbone, backbone_name, stages, torch.zeros(1, *shape))
            statistics = (dataset_mean, dataset_std)
            mean, std = backbone.mean, backbone.std
            if (fetch or weights is not None) and mean and std and len(mean) == channels:
                statistics = (mean, std)
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


def _check_rectangle(backbone: Backbone, name: str, size: Size, channels: int) -> None:
    """Raise if a backbone fails for images that are not square."""
    try:
        with torch.no_grad(), in_eval_mode(backbone):
            backbone(torch.zeros(1, channels, *sides(size)))
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")[:160]
        raise ModelError(
            f"backbone {name!r} can't take image size {size_text(size)} ({reason}); use a square "
            "one, or another backbone"
        ) from error


DESCRIBED = ("backbone", "channels", "task", "arguments", "stages", "lora", "classes", "image_size")
"""Keys that `rebuild` takes."""


def describe(classifier: Classifier, name: str) -> dict[str, Any]:
    """Return ``backbone``, ``channels``, ``task``, ``arguments``, ``stages``, ``lora``.

    They need neither the repository nor the folder that a name of a backbone may contain.

    Args:
        classifier: Classifier that was built.
        name: Name for `find_backbone`.
    """
    backbone, lora = classifier.backbone, classifier.lora
    saved = getattr(backbone, "saved", {}) | ({"lora": lora} if lora else {})
    if classifier.task != "multiclass":
        saved |= {"task": classifier.task}
    stages, channels = len(classifier.blocks) - 1, classifier.channels
    return {"backbone": name, "channels": channels, "arguments": {}, "stages": stages} | saved


def rebuild(
    description: Mapping[str, Any],
    mean: ChannelStatistics | None = None,
    std: ChannelStatistics | None = None,
    weights: Path | None = None,
) -> tuple[Classifier, list[str]]:
    """Build the network of a description that is stored with its weights.

    Args:
        description: Result of `describe`, and the keys ``classes`` and ``image_size``.
        mean: Channel means; None for zeros.
        std: Channel standard deviations; None for ones.
        weights: Path to a file for `load_weights`; None for weights that the caller loads.

    Returns:
        The classifier on the CPU, and messages for the user.
    """
    classes, channels = description["classes"], description.get("channels", RGB8.channels)
    size = parse_size(description["image_size"])
    classifier, notes = build_classifier(
        description["backbone"],
        len(classes),
        image_size=size,
        dataset_mean=mean or (0.0,) * channels,
        dataset_std=std or (1.0,) * channels,
        seed=0,
        weights=weights,
        classes=classes,
        stages=description.get("stages", 0),
        arguments=description.get("arguments"),
    )
    classifier.task = description.get("task", "multiclass")
    if lora := description.get("lora"):
        from ssl_toolkit.models.adapters import add_adapters

        add_adapters(classifier, LoraSettings(**lora), size, seed=0)
    return classifier, notes
