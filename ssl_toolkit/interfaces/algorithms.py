"""Algorithms, and what the engine gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ssl_toolkit.config.options import Options
from ssl_toolkit.interfaces.metrics import Metric


@dataclass(frozen=True)
class Views:
    """How many differently augmented views of each image an algorithm wants a step.

    `Views()` asks for one weak view of the labeled images.
    """

    labeled_weak: int = 1
    labeled_strong: int = 0
    unlabeled_weak: int = 0
    unlabeled_strong: int = 0
    unlabeled_ratio: int = 1
    """Unlabeled images for each labeled one (the papers' mu).

    With another ratio the labeled part of each batch stays the same, and so do the order of the
    unlabeled images, which is gone through faster, and the draws of a view's first rows.
    """

    @property
    def needs_unlabeled(self) -> bool:
        """True if any view of unlabeled images is requested."""
        return self.unlabeled_weak + self.unlabeled_strong > 0


@dataclass(frozen=True)
class TaskInfo:
    """Facts about the run, for the constructor of an algorithm."""

    num_classes: int
    feature_dim: int
    """Length of the backbone's feature vector, for heads of the algorithm's own."""
    label_counts: tuple[int, ...]
    """Labeled images of each class, C numbers."""
    unlabeled_count: int
    """Size of the unlabeled pool; unlabeled indices are below it."""
    max_steps: int


@dataclass(frozen=True)
class Batch:
    """The images of one step; all tensors on the device of the run.

    View stacks have the views first: (views, B or U, 3, H, W), float in [0, 1].
    """

    labels: Tensor
    """(B,) int64."""
    labeled_indices: Tensor
    """(B,) int64, positions in the labeled set."""
    labeled_weak: Tensor
    labeled_strong: Tensor
    unlabeled_indices: Tensor
    """(U,) int64, positions in the unlabeled pool."""
    unlabeled_weak: Tensor
    unlabeled_strong: Tensor
    unlabeled_labels: Tensor | None = None
    """(U,) int64 hidden labels: only for an algorithm with ``uses_hidden_labels = True``."""


class ForwardOutput(NamedTuple):
    """The output of one forward pass."""

    features: Tensor
    """(N, feature_dim)."""
    logits: Tensor
    """(N, C)."""


class Context(ABC):
    """The engine, as `Algorithm.step` sees it. Built by the engine, never by a plugin."""

    step: int
    """Optimizer steps already done: 0 at the first call."""
    max_steps: int
    generator: torch.Generator
    """A CPU generator that depends on (seed, step) alone: draw every random number from it."""
    class_shares: Tensor
    """(C,) float32 on the device of the run, summing to 1: what is known of the shares of the
    classes in the unlabeled pool, without its labels. Those of the labeled images where their
    numbers differ by more than one; else, with the probe of a pre-trained backbone, an estimate
    from its predictions; else those of the labeled images, which are then equal by design. The same
    at every step and on every process."""

    @abstractmethod
    def forward(self, images: Tensor, *, update_statistics: bool = True) -> ForwardOutput:
        """Train-mode forward of the model, with gradient.

        Args:
            images: (N, 3, H, W) in [0, 1]; a perturbation may leave the range a little.
            update_statistics: False uses the batch's own BatchNorm statistics and leaves the
                running ones alone.
        """

    def model(self, images: Tensor) -> Tensor:
        """`forward` of images (N, 3, H, W), logits (N, C) only."""
        return self.forward(images).logits

    def features(self, images: Tensor) -> Tensor:
        """`forward` of images (N, 3, H, W), features (N, feature_dim) only."""
        return self.forward(images).features

    @abstractmethod
    def teacher_forward(self, images: Tensor) -> ForwardOutput:
        """Eval-mode forward of the EMA weights (the live ones under ``ema: false``); float32.

        Carries no gradient.

        Args:
            images: (N, 3, H, W) in [0, 1].
        """

    def teacher(self, images: Tensor) -> Tensor:
        """`teacher_forward` of images (N, 3, H, W), logits (N, C) only, as `model` gives them."""
        return self.teacher_forward(images).logits

    def view_logits(self, views: Tensor, by: Literal["teacher", "model"] = "teacher") -> Tensor:
        """Logits of several views of each image, without gradient, to compute pseudo labels from.

        Args:
            views: (K, U, 3, H, W), such as ``batch.unlabeled_weak``.
            by: ``teacher``, one forward of all views in eval mode; or ``model``, in train mode, one
                forward for each view, normalized by the BatchNorm statistics of that view, which
                leave the running statistics alone (as MixMatch does).

        Returns:
            (K, U, C).
        """
        if by == "teacher":
            return self.teacher(views.flatten(0, 1)).reshape(*views.shape[:2], -1)
        with torch.no_grad():
            logits = [self.forward(view, update_statistics=False).logits for view in views]
        return torch.stack(logits)

    @abstractmethod
    def input_gradient(self, images: Tensor, loss: Callable[[ForwardOutput], Tensor]) -> Tensor:
        """Gradient of a scalar with respect to the images (virtual adversarial training).

        The forward is in train mode and float32, leaves BatchNorm's running statistics alone,
        adds nothing to the gradients of the parameters and takes no part in their
        synchronization.

        Args:
            images: (N, 3, H, W); need not require a gradient.
            loss: maps the prediction to a 0-dim tensor.

        Returns:
            (N, 3, H, W) float32, detached.
        """

    @abstractmethod
    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes of the run; the tensor itself when there is one.

        For running counts and thresholds that must agree on every process. No gradient.

        Args:
            value: of the same shape in each process.
        """

    def all_gather(self, value: Tensor, dim: int = 0) -> Tensor:
        """The whole batch of a step that several processes share, each with an equal part of it.

        The generator is the same in every process: what is drawn for the whole batch agrees.

        Args:
            value: (n, ...), this process's part; all parts have one shape.
            dim: the dimension that is shared out.

        Returns:
            (processes · n, ...), in the order that one process would have; `value` itself when
            there is one. Carries gradient: that of a part is the sum over all processes, so a loss
            of the whole batch, which each of them computes, trains as it would in one.
        """
        return value

    def local_shard(self, value: Tensor, dim: int = 0) -> Tensor:
        """This process's part of a tensor that all have; undoes `all_gather`.

        Args:
            value: (processes · n, ...).
            dim: the dimension that is shared out.

        Returns:
            (n, ...); `value` itself when there is one process.
        """
        return value


class Loss(NamedTuple):
    """One named term of the objective."""

    value: Tensor
    """0-dim, float32 or wider."""
    weight: float = 1.0
    """Finite and >= 0, ramp-up included; the objective is the sum of weight · value."""


@dataclass(frozen=True)
class TrainingFeatures:
    """The features of every training image, from a backbone in eval mode; float32 on the CPU.

    Stacks have the views first. View 0 is the image without augmentation; the others are weak
    views, as many as `FeatureAlgorithm.augmented_views` says.
    """

    labeled: Tensor
    """(1 + views, n, D)."""
    labels: Tensor
    """(n,) int64."""
    unlabeled: Tensor
    """(1 + views, m, D), the pool, or `FeatureAlgorithm.most_unlabeled` images of it."""
    blocks: tuple[int, ...]
    """Sizes of the parts of a feature vector: the features proper, then those of each stage."""


@dataclass(frozen=True)
class PseudoLabels:
    """The pseudo labels of the unlabeled images of the step, for the metrics."""

    probs: Tensor
    """(U, C) rows that sum to 1, without gradient."""
    mask: Tensor
    """(U,) bool: which images take part in the loss as pseudo-labeled ones."""


@dataclass(frozen=True)
class StepOutput:
    """The result of `Algorithm.step`."""

    losses: Mapping[str, Loss]
    """At least one term, by name (lower-case letters, digits, underscores); that on the labels is
    ``supervised``. Names may differ from step to step, such as after a warm-up: each mean in the
    log is over the steps that have the name. All processes of a run return the same names."""
    pseudo_labels: PseudoLabels | None = None
    pairs: Mapping[str, Tensor] = field(default_factory=dict)
    """By the name of a criterion, (U, U) bool: whether images i != j of the step pass it as a pair
    of the same class, in the algorithm's belief. The engine reports how often that is false."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """More 0-dim tensors to log, by names like those of losses, none of them one that the engine
    logs itself (``coverage``); no gradient, no host transfer. One that is not finite, such as a
    share of nothing, counts as absent in that step. `Algorithm.metrics` declares them."""


class Algorithm(nn.Module, ABC):
    """A semi-supervised objective. Subclasses are final: share code through functions.

    Buffers are saved with the run and parameters are optimized with the model, for free; what is
    neither goes through torch's ``get_extra_state`` and ``set_extra_state``. A nan in a buffer ends
    the run. BatchNorm in modules of its own is averaged over the processes of a run as the model's
    is.

    The engine calls, in this order: ``__init__`` once, `views` once, then each step `step`; `scan`
    before the first step and every `scan_every` steps when that is not 0.

    Args:
        config: options, an instance of the class's ``Config``.
        task: facts about the run.
    """

    plugin_kind: ClassVar[str] = "algorithms"
    Config: ClassVar[type[Options]] = Options
    uses_hidden_labels: ClassVar[bool] = False
    """True if the algorithm gets the hidden labels of unlabeled images (an upper bound)."""
    is_baseline: ClassVar[bool] = False
    """True if a comparison holds the other algorithms against this one by default."""
    auto_rank: ClassVar[int] = 0
    """Preference of ``--algo auto`` among the algorithms that it tries with a pre-trained backbone,
    the highest first, those for frozen features before those that train it; 0: it is not tried."""
    auto_rank_from_scratch: ClassVar[int] = 0
    """The same without pre-trained weights."""
    auto_options: ClassVar[Mapping[str, Any]] = {}
    """Options of its own that ``--algo auto`` sets where it trains a pre-trained backbone."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Titles, definitions and reductions of what `StepOutput.metrics` returns, for the report; an
    undeclared metric is a mean under its name. A declaration named ``loss.<term>`` or
    ``pair_<criterion>_false`` is the title of what the engine logs of a loss or of `pairs`."""
    mixes_images: ClassVar[bool] = False
    """True if `step` computes new images from its views (MixUp, CutMix, perturbations), so that
    the features of a frozen backbone, computed before, cannot stand in for them."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__()
        self.config = config
        self.task = task

    @abstractmethod
    def views(self) -> Views:
        """The views wanted at every step; constant over the run."""

    @abstractmethod
    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """The losses of one batch.

        Called once per batch under the run's autocast, with the model in train mode; several times
        for one optimizer step under gradient accumulation, so that buffers changed here move with
        every batch. Must not call backward, change the batch, or transfer anything to the host.

        Args:
            batch: the views that `views` asks for.
            ctx: model, teacher and generator.
        """

    @property
    def scan_every(self) -> int:
        """Steps between two calls of `scan`; 0 for never."""
        return 0

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Look at every training image without augmentation.

        Args:
            labeled: yields (indices, images, labels) in order.
            unlabeled: yields (indices, images) in order, the whole pool.
            ctx: as for `step`; gradients are off.
        """


class FeatureAlgorithm(Algorithm, ABC):
    """An algorithm that fits a head to frozen features at once, and takes no steps.

    The engine computes the features once, calls `fit`, and evaluates, saves and exports the
    backbone with the head that it returns. ``steps``, augmentation and the optimizer play no part.
    """

    @property
    def augmented_views(self) -> int:
        """Weak views of each training image that `fit` gets beside the plain one."""
        return 0

    @property
    def most_unlabeled(self) -> int | None:
        """Unlabeled images whose features `fit` gets at most, drawn by the seed; None for all."""
        return None

    @abstractmethod
    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        """Fit a head.

        Args:
            features: of the training images.
            generator: on the CPU, seeded by the run: draw every random number from it.

        Returns:
            A module that maps features (N, D) to logits (N, C), such as
            `ssl_toolkit.FeatureHead`, on the CPU.
        """

    def views(self) -> Views:
        """None: no batch is made."""
        return Views(labeled_weak=0)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Never called.

        Args:
            batch: none is made.
            ctx: likewise.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{type(self).__name__} is fitted to features; it takes no steps")
