"""Normalization, backbone and head in one module, and BatchNorm settings for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from ssl_toolkit.interfaces import Backbone, ChannelStatistics, ForwardOutput, Task
from ssl_toolkit.interfaces.results import check_tensor
from ssl_toolkit.models.heads import head_for
from ssl_toolkit.ops import at_least_float32
from ssl_toolkit.torch_workarounds import BatchNorm


class Classifier(nn.Module):
    """Images in [0, 1] to features and logits.

    The channel statistics are buffers, so saved weights contain the normalization of their
    training. The state dict has the keys ``mean``, ``std``, ``backbone.…``, ``head.…``.

    The head is the backbone's own (`Backbone.classifier`), otherwise one linear layer with
    torch's default initialization, U(-1/sqrt(D), 1/sqrt(D)) for D features.

    Args:
        backbone: Backbone that maps normalized images to features.
        num_classes: Number of classes C, at least 1.
        mean: Means of the C channels of images in [0, 1]; three for RGB.
        std: Standard deviations of the channels, each above 0.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        mean: ChannelStatistics = (0.0, 0.0, 0.0),
        std: ChannelStatistics = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__()
        self.backbone = backbone
        own = backbone.classifier(num_classes)
        self.head: nn.Module = nn.Linear(backbone.feature_dim, num_classes) if own is None else own
        self.num_classes = num_classes
        self.blocks: tuple[int, ...] = (backbone.feature_dim,)
        """Sizes of the blocks of a feature vector; see `append_stages`."""
        self.task: Task = "multiclass"
        """How logits become probabilities."""
        self.frozen: list[nn.Module] = []
        """Modules that stay in eval mode and get no gradient; see `ssl_toolkit.models.freezing`."""
        self.lora: dict[str, Any] = {}
        """Settings of the adapters of the backbone; empty without adapters."""
        self.register_buffer("mean", torch.empty(1, len(mean), 1, 1))
        self.register_buffer("std", torch.empty(1, len(mean), 1, 1))
        self.set_statistics(mean, std)

    @property
    def channels(self) -> int:
        """Number of channels of the images."""
        return self.mean.numel()

    def set_statistics(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Replace the channel statistics of the normalization.

        Raises:
            ValueError: A standard deviation is not above 0.
        """
        if min(std) <= 0:
            raise ValueError(f"channel standard deviations must be above 0, got {tuple(std)}")
        with torch.no_grad():
            self.mean.copy_(torch.tensor(mean, dtype=torch.float64).view(1, -1, 1, 1))
            self.std.copy_(torch.tensor(std, dtype=torch.float64).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> ForwardOutput:
        """Return features and logits.

        Args:
            images: (N, 3, H, W) float in [0, 1], not normalized; or (N, feature_dim) features of
                the backbone, which are passed to the head.

        Returns:
            Features (N, feature_dim) and logits (N, C), both with gradient.

        Raises:
            PluginError: The backbone returned something else.
        """
        features = images if images.ndim == 2 else self.backbone((images - self.mean) / self.std)
        if not torch.compiler.is_compiling():
            of = f"forward of backbone {type(self.backbone).__name__}"
            check_tensor(features, (len(images), self.backbone.feature_dim), of, what="features")
        return ForwardOutput(features, self.head(features))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return (N, C) float32 probabilities: softmax, or sigmoid under ``multilabel``.

        Args:
            logits: (N, C).
        """
        logits = logits.float()
        return logits.sigmoid() if self.task == "multilabel" else logits.softmax(dim=-1)

    def stranger_scores(self, output: ForwardOutput) -> Tensor:
        """Return scores (N,), large for images of no class: the `energy` of the logits.

        Args:
            output: What `forward` returned.
        """
        return energy(output.logits)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules but the frozen ones, which stay in eval mode."""
        super().train(mode)
        for module in self.frozen:
            module.eval()
        return self

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights; replace the head if they contain one of another form."""
        head = {k.removeprefix("head."): v for k, v in state_dict.items() if k.startswith("head.")}
        if head.keys() != self.head.state_dict().keys() or any(
            value.shape != head[key].shape for key, value in self.head.state_dict().items()
        ):
            new_head = head_for(head)
            if new_head is not None:
                self.head = new_head.to(self.mean.device)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)


def energy(logits: Tensor) -> Tensor:
    """Return -log sum_c exp(logit_c): the larger, the less an image belongs to any of the classes.

    Unlike the largest probability, it depends on the size of the logits.

    Args:
        logits: (..., C).

    Returns:
        (...,) float32, or float64 of such logits.

    Source: Liu, Wang, Owens and Li, Energy-based Out-of-distribution Detection (NeurIPS 2020,
    arXiv:2010.03759), eq. 4 with T = 1.
    """
    return -at_least_float32(logits).logsumexp(dim=-1)


def set_batchnorm_momentum(module: nn.Module, momentum: float) -> None:
    """Set the share of the new batch in the running statistics of every BatchNorm layer.

    Args:
        module: Module, changed in place with all its submodules.
        momentum: Momentum in (0, 1], in torch's convention:
            running <- (1 - momentum) running + momentum batch.
    """
    for layer in module.modules():
        if isinstance(layer, BatchNorm):
            layer.momentum = momentum


@contextmanager
def in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Set a module to train or eval mode, and restore the mode of each submodule."""
    modes = [(part, part.training) for part in module.modules()]
    if module.training != training:
        module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def in_eval_mode(module: nn.Module) -> AbstractContextManager[None]:
    """Set a module to eval mode, and restore the mode of each submodule."""
    return in_mode(module, training=False)


@contextmanager
def hold_statistics(module: nn.Module) -> Iterator[None]:
    """Let BatchNorm layers in train mode normalize by the batch without updating running values.

    Layers in eval mode still use their running statistics. Not thread-safe on one
    module.
    """
    # With track_running_stats False a layer in train mode neither reads nor writes its buffers.
    held = [
        layer
        for layer in module.modules()
        if isinstance(layer, BatchNorm) and layer.training and layer.track_running_stats
    ]
    for layer in held:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in held:
            layer.track_running_stats = True
