"""Rules for backbones."""

from __future__ import annotations

import inspect
import socket
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.devices import make_autocast
from ssl_toolkit.errors import ToolkitError
from ssl_toolkit.interfaces import Backbone
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.stage_statistics import append_stages
from ssl_toolkit.testing.assertions import (
    differing,
    listed,
    no_global_draws,
    replicas,
    require_gradients,
    require_statistics,
    unmodified,
)
from ssl_toolkit.testing.rules import RuleViolationError, error_line, require
from ssl_toolkit.testing.subject import Subject

SIDE = 32
"""Height and width of the images if the backbone has no fixed image size."""


def returns_features(subject: Subject) -> None:
    """Images (N, 3, H, W) become finite features (N, feature_dim).

    Why: heads are built with feature_dim inputs.
    Cause: feature maps without pooling, or a feature_dim that doesn't match the last layer.
    """
    backbone = _build(subject)
    features = backbone(_images(subject))
    shape = (2, backbone.feature_dim)
    require(tuple(features.shape) == shape, f"features are {tuple(features.shape)}, not {shape}")
    require(features.isfinite().all(), "features are inf or nan")


def returns_outputs_of_stages(subject: Subject) -> None:
    """In a forward, each of `stage_modules` returns maps (N, C, H, W) or tokens (N, L, C) once.

    Why: ``model.stages`` appends their means to the features, and ``--drop-strangers`` compares
    images by them.
    Cause: a ModuleList, which has no forward, a module that forward doesn't call, or a `classifier`
    that ignores feature_dim, which the means increase.
    """
    backbone = _build(subject).eval()
    modules = [*backbone.stage_modules()]
    calls: list[list[Any]] = [[] for _ in modules]
    for module, outputs in zip(modules, calls, strict=True):
        module.register_forward_hook(lambda _module, _inputs, output, to=outputs: to.append(output))
    backbone(_images(subject))
    for place, outputs in enumerate(calls):
        require(len(outputs) == 1, f"forward calls stage {place} (from 0) {len(outputs)} times")
        output = outputs[0]
        valid = isinstance(output, Tensor) and output.ndim in (3, 4) and len(output) == 2
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        require(valid, f"stage {place} (from 0) returns {found} for 2 images")
    append_stages(backbone, subject.name, len(modules), _images(subject))
    Classifier(backbone, 2).to(subject.device).head(backbone(_images(subject)))


def initializes_reproducibly(subject: Subject) -> None:
    """Built twice with one torch seed, it has equal weights; it draws from no other generator.

    Why: all runs of a comparison must start from equal weights.
    Cause: weights drawn from numpy or from a separate generator.
    """
    with no_global_draws("build", ("python", "numpy")):
        first, second = _build(subject), _build(subject)
    wrong = differing(first.state_dict(), second.state_dict())
    require(not wrong, f"{listed(wrong[:3])} differ for one seed")


def downloads_nothing(subject: Subject) -> None:
    """`build` with `pretrained=False` opens no connection.

    Why: runs without a network must start, and pretrained weights must be requested.
    Cause: pretrained weights that are loaded by default.
    """
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        if self.family != getattr(socket, "AF_UNIX", None):
            raise RuleViolationError(f"build connects to {address}")
        connect(self, address)

    with patch.object(socket.socket, "connect", refuse):
        _build(subject)


def trains_all_parameters(subject: Subject) -> None:
    """In train mode, every trainable parameter gets a finite gradient.

    Why: a parameter without a gradient keeps its initial value.
    Cause: a layer that forward doesn't use, or a detach().
    """
    backbone = _build(subject).train()
    features = backbone(_images(subject))
    (features * torch.randn_like(features)).sum().backward()
    require_gradients(backbone)


def evaluates_deterministically(subject: Subject) -> None:
    """In eval mode, the features of an image depend neither on the batch nor on the call.

    Why: scores must not depend on the batch size.
    Cause: dropout or batch statistics that ignore eval mode.
    """
    backbone = _build(subject).eval()
    images = _images(subject, 3)
    with torch.no_grad():
        first, second = backbone(images), backbone(images)
        alone = backbone(images[:1])
    require(torch.equal(first, second), "features differ between two calls")
    close = torch.allclose(alone, first[:1], rtol=1e-3, atol=1e-4)
    require(close, "features of a single image differ from those in a batch")


def restores_state(subject: Subject) -> None:
    """Restored from its state dict, copied or unpickled, it returns the same features.

    Why: checkpoints and weight averages only contain the state dict.
    Cause: a tensor that is not a buffer, or a lambda.
    """
    backbone = _build(subject, seed=1).eval()
    images = _images(subject)
    with torch.no_grad():
        expected = backbone(images)
        for origin, replica in replicas(backbone, lambda: _build(subject, seed=2)).items():
            equal = torch.equal(replica.eval()(images), expected)
            require(equal, f"{origin}, it returns other features")


def does_not_modify_images(subject: Subject) -> None:
    """`forward` does not modify the images.

    Why: several forwards of a step use the same views.
    Cause: inplace=True in the first layer.
    """
    backbone, images = _build(subject).train(), _images(subject)
    with unmodified({"images": images}):
        backbone(images)


def declares_valid_statistics(subject: Subject) -> None:
    """`mean` and `std` are both None, or three numbers each in [0, 1] and (0, 1].

    Why: images are normalized with them, and wrong ones reduce the accuracy silently.
    Cause: statistics of levels from 0 to 255 instead of 0 to 1.
    """
    backbone = _build(subject)
    require_statistics(backbone.mean, backbone.std)


def supports_any_class_count(subject: Subject) -> None:
    """Its head, linear by default, returns logits (N, C) for 2 and for 7 classes.

    Why: data sets have different numbers of classes.
    Cause: classifier() ignores the number of classes or expects other features.
    """
    for classes in (2, 7):
        backbone = _build(subject)
        head = backbone.classifier(classes)
        valid = head is None or isinstance(head, nn.Module)
        require(valid, f"classifier({classes}) is {head!r}, not a module")
        head = Classifier(backbone, classes).to(subject.device).head
        logits = head(backbone(_images(subject)))
        require(tuple(logits.shape) == (2, classes), f"logits are {tuple(logits.shape)}")


def stays_finite_in_bf16(subject: Subject) -> None:
    """Features in bf16 are finite.

    Why: training on GPUs usually runs in bf16.
    Cause: an operation that overflows, or a tensor of a fixed dtype.
    """
    backbone = _build(subject).eval()
    with torch.no_grad(), make_autocast("bf16", subject.device)():
        features = backbone(_images(subject))
    require(features.isfinite().all(), "features are inf or nan")


def supports_or_rejects_image_size(subject: Subject) -> None:
    """Any image size either works, or `build` rejects it with an error of one line.

    Why: users try different sizes, and a traceback from a layer doesn't help them.
    Cause: build doesn't validate image_size; raise ModelError.
    """
    for size in (8, 40, 64):
        try:
            backbone = _build(subject, size=size)
        except ToolkitError as error:
            require("\n" not in str(error), f"the error for size {size} has several lines: {error}")
            continue
        try:
            backbone.eval()(torch.rand(1, 3, size, size, device=subject.device))
        except Exception as error:
            raise RuleViolationError(
                f"build accepts image_size={size}, but forward fails: {error_line(error)}"
            ) from error


def uses_or_rejects_channels(subject: Subject) -> None:
    """Any number of channels is used by the features, or `build` rejects it with a one-line error.

    Why: a channel that the network drops is lost without a message.
    Cause: build accepts `channels`, but the first layer doesn't get it.
    """
    if "channels" not in inspect.signature(subject.plugin.build).parameters:
        return  # the toolkit then refuses --channels
    for channels in (1, 2, 4):
        try:
            backbone = _build(subject, channels=channels).eval()
        except ToolkitError as error:
            one_line = "\n" not in str(error)
            require(one_line, f"the error for {channels} channels has several lines: {error}")
            continue
        images = _images(subject, channels=channels)
        try:
            with torch.no_grad():
                features = backbone(images)
                others = [backbone(_without(images, place)) for place in range(channels)]
        except Exception as error:
            raise RuleViolationError(
                f"build accepts channels={channels}, but forward fails: {error_line(error)}"
            ) from error
        unused = [place for place, other in enumerate(others) if torch.equal(other, features)]
        require(not unused, f"of {channels} channels, {unused} (from 0) don't change the features")


def _build(subject: Subject, seed: int = 0, size: int | None = None, channels: int = 3) -> Backbone:
    torch.manual_seed(seed)
    options = {} if channels == 3 else {"channels": channels}
    backbone: Backbone = subject.plugin.build(
        subject.name, image_size=size, pretrained=False, **options
    )
    return backbone.to(subject.device)


def _images(subject: Subject, count: int = 2, channels: int = 3) -> Tensor:
    side = subject.plugin.own_image_size(subject.name) or SIDE
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, channels, side, side, generator=generator).to(subject.device)


def _without(images: Tensor, channel: int) -> Tensor:
    """Return the images with zeros in a channel."""
    changed = images.clone()
    changed[:, channel] = 0
    return changed
