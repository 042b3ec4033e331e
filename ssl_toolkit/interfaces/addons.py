"""Add-ons, which change the pseudo labels, losses and predictions of any algorithm."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import Tensor, nn

from ssl_toolkit.config.options import Options
from ssl_toolkit.interfaces.algorithms import Algorithm, Loss, StepOutput
from ssl_toolkit.interfaces.composition import compose
from ssl_toolkit.interfaces.context import Context, ForwardOutput
from ssl_toolkit.interfaces.metrics import Metric
from ssl_toolkit.interfaces.tasks import TaskInfo
from ssl_toolkit.interfaces.views import Batch, Views


class AddOn(nn.Module, ABC):
    """Base class of add-ons, such as the losses and pseudo labels of methods for uneven classes.

    ``--algo fixmatch+NAME`` applies an add-on to an algorithm, which doesn't know of it. Each
    method changes one thing and by default nothing, so override only those that the method needs.

    Parameters are optimized with the model; parameters and buffers are saved in checkpoints, as for
    an `Algorithm`. The `Context` that an add-on receives is that of the run: `Context.forward` is
    not adjusted, and `Context.teacher` is the prediction of algorithm and add-ons together. Its
    generator differs from that of the algorithm, whose random numbers an add-on doesn't change.

    Args:
        config: Options, an instance of the class's ``Config``.
        task: Properties of the task.
    """

    plugin_kind: ClassVar[str] = "addons"
    Config: ClassVar[type[Options]] = Options
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Titles and definitions of its losses, as in `Algorithm.metrics`: ``loss.<term>``."""
    averaged_modules: ClassVar[tuple[str, ...]] = ()
    """As `Algorithm.averaged_modules`."""
    pool_statistics: ClassVar[tuple[str, ...]] = ()
    """As `Algorithm.pool_statistics`."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__()
        self.config = config
        self.task = task

    @classmethod
    def applied_to(cls, base: type[Algorithm], name: str) -> type[Algorithm]:
        """Return the algorithm with the add-on; the same class for the same arguments.

        Args:
            base: Algorithm, with or without other add-ons.
            name: Name of the add-on, the key of its options among those of the algorithm.

        Raises:
            PluginError: The algorithm does not support what the add-on changes.
        """
        return compose(base, cls, name)

    def views(self, views: Views) -> Views:
        """Return the views of a batch: those of the algorithm, with higher counts or further ones.

        The algorithm receives the views that it requests itself.

        Args:
            views: Views that the algorithm requests.
        """
        return views

    def adjust(self, logits: Tensor, ctx: Context) -> Tensor:
        """Return the logits that the algorithm receives in training in place of the model's.

        Called for every forward of model and teacher by the algorithm. Must be a pure function of
        each row, and keep the shape.

        Args:
            logits: (N, C) of the head.
            ctx: As for `Algorithm.step`.
        """
        return logits

    def refine(self, probs: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return other probabilities for pseudo labels, before a threshold selects some of them.

        Args:
            probs: (U, C) that the algorithm predicts, without gradient.
            batch: The batch of the step.
            ctx: As for `Algorithm.step`.
        """
        return probs

    def weigh(self, probs: Tensor, mask: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return the weights (U,) of the pseudo labels in the loss; bool to select some of them.

        Args:
            probs: (U, C) of the pseudo labels.
            mask: (U,) bool: those that the algorithm uses; its weights if it weights them.
            batch: The batch of the step.
            ctx: As for `Algorithm.step`.
        """
        return mask

    def weigh_labels(self, losses: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return the losses (B,) of the labeled images, multiplied by weights.

        Args:
            losses: (B,) with gradient, in the order of `Batch.labels`.
            batch: The batch of the step.
            ctx: As for `Algorithm.step`.
        """
        return losses

    def losses(self, batch: Batch, ctx: Context, output: StepOutput) -> Mapping[str, Loss]:
        """Return further terms of the objective, by names that the algorithm doesn't use.

        Called once per batch after the step of the algorithm.

        Args:
            batch: The batch, with all views.
            ctx: As for `Algorithm.step`.
            output: What the step of the algorithm returned.
        """
        return {}

    def predict(self, output: ForwardOutput, logits: Tensor) -> Tensor:
        """Return the logits (N, C) that the model predicts, as `Algorithm.predict`.

        Args:
            output: Features (N, feature_dim) and head's logits of the teacher, not adjusted.
            logits: (N, C) that the algorithm predicts for them.
        """
        return logits

    @property
    def lr_factors(self) -> Mapping[str, float]:
        """As `Algorithm.lr_factors`."""
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
        """Process all training images without augmentation, as `Algorithm.scan`.

        Args:
            labeled: Yields batches (indices, images, labels) of the labeled images (n, 3, H, W).
            unlabeled: Yields batches (indices, images) of the pool, without those that
                `Context.pool_mask` leaves out.
            ctx: As for `Algorithm.step`; gradients are disabled.
        """

    @classmethod
    def overrides(cls, method: str) -> bool:
        """Return True if the class implements a method, or inherits one that does."""
        return getattr(cls, method) is not getattr(AddOn, method)
