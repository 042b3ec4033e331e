"""Rules on backbones."""

from __future__ import annotations

import copy
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.engine.devices import make_autocast
from ssl_toolkit.errors import ToolkitError
from ssl_toolkit.interfaces import Backbone
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.testing.rules import BrokenRuleError, require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import differing, listed

SIDE = 32
"""Pixels, where the backbone has no size of its own."""


@rule(
    "backbones",
    why="heads are made with feature_dim inputs.",
    cause="feature maps that are not pooled, or a feature_dim that was not changed with a layer",
)
def feature_dim_is_true(subject: Subject) -> None:
    """(N, 3, H, W) images become (N, feature_dim) finite features."""
    backbone = _build(subject)
    features = backbone(_images(subject))
    shape = (2, backbone.feature_dim)
    require(tuple(features.shape) == shape, f"features are {tuple(features.shape)}, not {shape}")
    require(bool(features.isfinite().all()), "features are not finite")


@rule(
    "backbones",
    why="the rows of a comparison start from equal weights.",
    cause="weights drawn with numpy or a generator of its own",
)
def weights_follow_the_seed(subject: Subject) -> None:
    """Built twice under one seed of torch, it has the same weights; other generators are left."""
    before = random_states()
    first, second = _build(subject), _build(subject)
    after = random_states()
    wrong = differing(first.state_dict(), second.state_dict())
    require(not wrong, f"{listed(wrong[:3])} differ under one seed")
    used = [name for name in ("python", "numpy") if before[name] != after[name]]
    require(not used, f"build draws from the global generator of {listed(used)}")


@rule(
    "backbones",
    why="a machine without a network has to start, and no weights may come unasked for.",
    cause="pretrained weights are loaded by default; heed pretrained=False",
)
def nothing_is_downloaded(subject: Subject) -> None:
    """`build` with `pretrained=False` opens no connection."""
    with _no_network():
        _build(subject)


@rule(
    "backbones",
    why="a part without gradient stays as it was drawn.",
    cause="a layer that forward leaves out, or a detach()",
)
def gradient_reaches_every_parameter(subject: Subject) -> None:
    """In train mode every trainable parameter gets a finite gradient."""
    backbone = _build(subject).train()
    features = backbone(_images(subject))
    (features * torch.randn_like(features)).sum().backward()
    for name, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            gradient = parameter.grad
            require(gradient is not None, f"{name} gets no gradient")
            assert gradient is not None
            require(gradient.isfinite().all(), f"the gradient of {name} is not finite")


@rule(
    "backbones",
    why="an evaluation must not depend on the batch size, nor change from call to call.",
    cause="dropout or batch statistics that ignore eval mode",
)
def eval_mode_is_deterministic(subject: Subject) -> None:
    """In eval mode the features of an image are the same alone, in a batch, and the next time."""
    backbone = _build(subject).eval()
    images = _images(subject, 3)
    with torch.no_grad():
        first, second = backbone(images), backbone(images)
        alone = backbone(images[:1])
    require(torch.equal(first, second), "features change from call to call")
    close = torch.allclose(alone, first[:1], rtol=1e-3, atol=1e-4)
    require(close, "features of an image alone differ from those in a batch")


@rule(
    "backbones",
    why="checkpoints, averaged weights and copies carry a backbone's state, and nothing else.",
    cause="a tensor that is no buffer, or a lambda",
)
def state_is_whole(subject: Subject) -> None:
    """Loaded from its state, copied or pickled, it gives the same features."""
    backbone = _build(subject, seed=1).eval()
    loaded = _build(subject, seed=2).eval()
    loaded.load_state_dict(backbone.state_dict())
    twins = {
        "loaded from its state": loaded,
        "copied": copy.deepcopy(backbone),
        "pickled": pickle.loads(pickle.dumps(backbone)),
    }
    images = _images(subject)
    with torch.no_grad():
        expected = backbone(images)
        for what, twin in twins.items():
            require(torch.equal(twin(images), expected), f"{what}, it gives other features")


@rule(
    "backbones",
    why="views are used again, for other forwards of the same step.",
    cause="inplace=True in the first layer",
)
def input_is_left_alone(subject: Subject) -> None:
    """`forward` does not write into the images."""
    backbone, images = _build(subject).train(), _images(subject)
    before = images.clone()
    backbone(images)
    require(torch.equal(images, before) and images._version == 0, "forward writes into the images")


@rule(
    "backbones",
    why="the normalization divides by std, and a wrong one reduces accuracy silently.",
    cause="statistics of levels 0 to 255 in place of 0 to 1",
)
def statistics_are_plausible(subject: Subject) -> None:
    """`mean` and `std` are both None, or three numbers each: in [0, 1], and in (0, 1]."""
    backbone = _build(subject)
    mean, std = backbone.mean, backbone.std
    require((mean is None) == (std is None), f"mean is {mean}, std {std}")
    if mean is None or std is None:
        return
    require(len(mean) == 3 and all(0 <= m <= 1 for m in mean), f"mean is {mean}")
    require(len(std) == 3 and all(0 < s <= 1 for s in std), f"std is {std}")


@rule(
    "backbones",
    why="the head is what the labels train.",
    cause="classifier() ignores the number of classes, or expects other features",
)
def head_fits(subject: Subject) -> None:
    """With its own head or a linear one, (N, C) logits come out, for 2 classes and for 7."""
    for classes in (2, 7):
        backbone = _build(subject)
        own = backbone.classifier(classes)
        good = own is None or isinstance(own, nn.Module)
        require(good, f"classifier({classes}) is {own!r}, no module")
        logits = Classifier(backbone, classes).to(subject.device)(_images(subject)).logits
        require(tuple(logits.shape) == (2, classes), f"logits are {tuple(logits.shape)}")


@rule(
    "backbones",
    why="GPUs are trained in bf16.",
    cause="an operation that overflows, or a tensor of a fixed dtype",
)
def bf16_is_finite(subject: Subject) -> None:
    """Features under bf16 are finite."""
    backbone = _build(subject).eval()
    with torch.no_grad(), make_autocast("bf16", subject.device)():
        features = backbone(_images(subject))
    require(bool(features.isfinite().all()), "features are not finite under bf16")


@rule(
    "backbones",
    why="users try sizes; a traceback from a layer does not help them.",
    cause="build takes image_size and doesn't look at it; raise ModelError",
)
def sizes_work_or_are_refused(subject: Subject) -> None:
    """Any image size either works or is refused by `build` in one line."""
    for size in (8, 40, 64):
        try:
            backbone = _build(subject, size=size)
        except ToolkitError as error:
            require("\n" not in str(error), f"size {size} is refused in several lines: {error}")
            continue
        try:
            backbone.eval()(torch.rand(1, 3, size, size, device=subject.device))
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise BrokenRuleError(
                f"build takes image_size={size}, but forward fails: {message}"
            ) from error


def _build(subject: Subject, seed: int = 0, size: int | None = None) -> Backbone:
    torch.manual_seed(seed)
    backbone: Backbone = subject.plugin.build(subject.name, image_size=size, pretrained=False)
    return backbone.to(subject.device)


def _images(subject: Subject, count: int = 2) -> Tensor:
    side = subject.plugin.own_image_size(subject.name) or SIDE
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, side, side, generator=generator).to(subject.device)


@contextmanager
def _no_network() -> Iterator[None]:
    real = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        if self.family == getattr(socket, "AF_UNIX", None):
            real(self, address)
            return
        raise BrokenRuleError(f"build connects to {address}")

    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        socket.socket.connect = real  # type: ignore[method-assign]
