"""Algorithms, and what their steps return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ssl_toolkit.config.options import Options
from ssl_toolkit.interfaces.augmenters import Augmenter
from ssl_toolkit.interfaces.context import Context, ForwardOutput
from ssl_toolkit.interfaces.metrics import Metric
from ssl_toolkit.interfaces.tasks import TaskInfo
from ssl_toolkit.interfaces.views import Batch, Views


class Loss(NamedTuple):
    """One named term of the objective."""

    value: Tensor
    """0-dim, float32 or wider."""
    weight: float = 1.0
    """Finite weight >= 0, with any ramp-up; the objective is the sum of weight · value."""


@dataclass(frozen=True)
class TrainingFeatures:
    """Features of n labeled and m unlabeled images from a frozen backbone; float32 on the CPU.

    The first dimension is the view: view 0 is the image without augmentation, the others are
    `FeatureAlgorithm.augmented_views` weak views.
    """

    labeled: Tensor
    """(1 + views, n, D)."""
    labels: Tensor
    """(n,) int64; (n, C) float32 in {0, 1} under ``multilabel``."""
    unlabeled: Tensor
    """(1 + views, m, D); at most `FeatureAlgorithm.most_unlabeled` images of the pool."""
    blocks: tuple[int, ...]
    """Dimensions of the parts of a feature vector: the final features, then those of each stage."""


@dataclass(frozen=True)
class PseudoLabels:
    """Pseudo labels of the unlabeled images of a batch, for the metrics."""

    probs: Tensor
    """(U, C) probabilities, without gradient."""
    mask: Tensor
    """(U,) bool: True for images whose pseudo label is used by the loss; under ``multilabel`` (U,
    C), True for each class whose pseudo label (probability above 0.5 or not) is used."""
    weights: Tensor | None = None
    """As `mask`, in [0, 1], without gradient: weights in the loss; None for 1. Coverage,
    accuracy and class shares of the pseudo labels are weighted by it."""

    @classmethod
    def weighted(cls, probs: Tensor, weights: Tensor) -> PseudoLabels:
        """Return pseudo labels with the result of `Context.weigh`.

        Args:
            probs: (U, C) probabilities.
            weights: (U,) bool, or weights of at least 0; those above 1 count as 1.
        """
        if weights.dtype == torch.bool:
            return cls(probs, weights)
        weights = weights.detach()
        return cls(probs, weights > 0, weights.clamp(0, 1))


@dataclass(frozen=True)
class StepOutput:
    """The result of `Algorithm.step`."""

    losses: Mapping[str, Loss]
    """At least one term by name (lower-case letters, digits, underscores); the labeled loss is
    ``supervised``. Names may differ between steps, such as after a warm-up, but not between
    processes. The log averages each term over the steps that have it."""
    pseudo_labels: PseudoLabels | None = None
    pairs: Mapping[str, Tensor] = field(default_factory=dict)
    """(U, U) bool by the name of a criterion: True if the algorithm considers images i != j to be
    of the same class. The engine logs the fraction of false pairs."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached 0-dim tensors to log, by names like those of losses, except names that the engine
    logs itself (``coverage``). A value that is not finite, such as a mean of no images, is ignored.
    `Algorithm.metrics` declares them."""


class Algorithm(nn.Module, ABC):
    """Base class of semi-supervised algorithms.

    Don't subclass another algorithm; share code through functions. Parameters are optimized with
    the model, and parameters and buffers are saved in checkpoints. Save any other state with
    torch's ``get_extra_state`` and ``set_extra_state``. A nan in a buffer ends the run. The
    statistics of BatchNorm layers are averaged over the processes of a run.

    The engine calls ``__init__`` and `views` once, `step` for each batch, and `scan` before the
    first step and every `scan_every` steps if that is not 0.

    Args:
        config: Options, an instance of the class's ``Config``.
        task: Properties of the task.
    """

    plugin_kind: ClassVar[str] = "algorithms"
    Config: ClassVar[type[Options]] = Options
    family: ClassVar[str] = ""
    """The basis of the method in a word: ``thresholds``, ``consistency``, ``mixing``, ``pairs``,
    ``self-training``, ``graph``, ``probe`` or ``supervised``. ``list --verbose`` shows it."""
    uses_hidden_labels: ClassVar[bool] = False
    """True if batches contain the hidden labels of unlabeled images, for an upper bound."""
    tasks: ClassVar[frozenset[str]] = frozenset({"multiclass"})
    """The tasks (`TaskInfo.kind`) that the algorithm supports; a run of another one is refused."""
    is_baseline: ClassVar[bool] = False
    """True if comparisons use this algorithm as the baseline by default."""
    auto_rank: ClassVar[int] = 0
    """Rank for ``--algo auto`` with a pre-trained backbone: the highest is tried first, those for
    frozen features before the others; 0 to exclude the algorithm."""
    auto_rank_from_scratch: ClassVar[int] = 0
    """Rank for ``--algo auto`` without pre-trained weights; 0 to exclude the algorithm."""
    auto_options: ClassVar[Mapping[str, Any]] = {}
    """Options that ``--algo auto`` sets if it trains a pre-trained backbone."""
    run_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of ``augment``, ``ema``, ``lr``, ``optimizer``, ``sampler``, ``schedule`` that the
    method needs, such as ``{"augment": {"strong": "fixed"}}``. Users and the defaults of
    pre-trained runs replace them; tables of comparisons mark them."""
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """By profile (``reference``, ``original``), the settings of a released code of the method:
    those that `run_defaults` may contain, ``labeled_in_pool``, and its own under ``options``."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Titles, definitions and reductions of `StepOutput.metrics`; an undeclared metric is averaged
    over processes. ``loss.<term>`` and ``pair_<criterion>_false`` declare the titles of losses and
    `StepOutput.pairs`."""
    mixes_images: ClassVar[bool] = False
    """True if `step` computes images from its views (MixUp, CutMix, perturbations), so that cached
    features of a frozen backbone can't be used."""
    addon_hooks: ClassVar[frozenset[str]] = frozenset()
    """Methods of the context by which `step` lets add-ons change it: ``refine`` if it passes its
    pseudo labels through `Context.refine`, ``weigh`` if it uses `Context.weigh`, ``weigh_labels``
    if it passes its labeled losses through `Context.weigh_labels`."""
    averaged_modules: ClassVar[tuple[str, ...]] = ()
    """Names of modules that are averaged with the decay of the teacher, for `Context.averaged` and
    `predict`."""
    pool_statistics: ClassVar[tuple[str, ...]] = ()
    """Names of buffers that summarize the unlabeled images of many steps, such as a running mean of
    predictions. They return to their initial values when ``--drop-strangers`` starts to leave
    images out: from then on, the batches have other classes."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__()
        self.config = config
        self.task = task

    @abstractmethod
    def views(self) -> Views:
        """Return the views that every batch contains; constant over the run."""

    def augmenters(self) -> Mapping[str, Augmenter]:
        """Return the augmenters that `View.augmenter` names, other than those of the run.

        Called once. The engine moves them to the device, saves their state, and passes feedback to
        those that want it.
        """
        return {}

    @abstractmethod
    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return the losses of one batch.

        Called once per batch, under autocast, with the model in train mode: several times per
        optimizer step with gradient accumulation. Must not call backward, modify the batch or
        transfer values to the host.

        Args:
            batch: The views that `views` requests.
            ctx: Access to model, teacher and generator.
        """

    def predict(self, output: ForwardOutput) -> Tensor:
        """Return the logits (N, C) that the model predicts; by default, those of its head.

        Evaluation, `Context.teacher`, the saved model and its exports use it. It runs in eval mode
        without gradient, and must be a pure function of the output, the options, the task, and the
        parameters and buffers of the algorithm, which are saved with the model. `averaged_modules`
        are replaced by their averages.

        Args:
            output: Features and head's logits of the teacher.
        """
        return output.logits

    def stranger_scores(self, output: ForwardOutput) -> Tensor | None:
        """Return scores (N,), the larger, the less images belong to any of the classes.

        None, the default, for the energies of the logits. ``predict --reject`` and the estimate of
        the strangers in the pool use them. Called as `predict`, and has to be pure as well.

        Args:
            output: Features of the teacher and the logits of `predict`.
        """
        return None

    @property
    def lr_factors(self) -> Mapping[str, float]:
        """Factors on the learning rate by the first parts of a parameter's name.

        ``{"projector": 10}`` applies to ``projector.weight``; of several, the longest applies.
        """
        return {}

    @property
    def scan_every(self) -> int:
        """Number of steps between two calls of `scan`; 0 to never call it."""
        return 0

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Process all training images without augmentation.

        Args:
            labeled: Yields batches (indices, images, labels) of the labeled images in order.
            unlabeled: Yields batches (indices, images) of the pool in order, without those that
                `Context.pool_mask` leaves out.
            ctx: As for `step`; gradients are disabled.
        """


class FeatureAlgorithm(Algorithm, ABC):
    """Base class of algorithms that fit a head to frozen features, without training steps.

    The engine computes the features once, calls `fit`, and evaluates, saves and exports the
    backbone with the returned head. Number of steps, optimizer and profile have no effect.
    """

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {}, "original": {}}

    @property
    def augmented_views(self) -> int:
        """Number of weak views per training image, in addition to the image itself."""
        return 0

    @property
    def most_unlabeled(self) -> int | None:
        """Maximum number of unlabeled images, drawn with the seed of the run; None for all."""
        return None

    @abstractmethod
    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        """Fit a head.

        Args:
            features: Features of the training images.
            generator: Seeded CPU generator; draw all random numbers from it.

        Returns:
            Module on the CPU that maps features (N, D) to logits (N, C), such as
            `ssl_toolkit.FeatureHead`.
        """

    def views(self) -> Views:
        """Return no views: there are no batches."""
        return Views(labeled_weak=0)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Raise an error: the engine never calls it.

        Args:
            batch: Ignored.
            ctx: Ignored.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{type(self).__name__} fits a head to features and has no steps")
