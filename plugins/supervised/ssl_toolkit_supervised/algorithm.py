"""Cross-entropy on the labeled images, or on all images with their true labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    SIMPLE_SETTINGS,
    Algorithm,
    Batch,
    Context,
    Loss,
    Options,
    StepOutput,
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32


class Supervised(Algorithm):
    """Train on the labeled images alone: the baseline of semi-supervised training."""

    family: ClassVar[str] = "supervised"
    tasks: ClassVar[frozenset[str]] = frozenset({"multiclass", "multilabel"})
    is_baseline: ClassVar[bool] = True
    auto_rank: ClassVar[int] = 70
    auto_rank_from_scratch: ClassVar[int] = 10
    auto_options: ClassVar[Mapping[str, Any]] = {"strong": True}

    class Config(Options):
        """Options of supervised training."""

        strong: bool = option(
            False, help="learn from strong views in place of weak ones (docs/results/pretrained.md)"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": SIMPLE_SETTINGS}
    config: Config

    def views(self) -> Views:
        """Return one labeled view and no unlabeled views."""
        strong = int(self.config.strong)
        return Views(labeled_weak=1 - strong, labeled_strong=strong)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return the mean cross-entropy of the B labeled images; binary for several classes."""
        views = batch.labeled_strong if self.config.strong else batch.labeled_weak
        logits = at_least_float32(ctx.model(views[0]))
        return StepOutput({"supervised": Loss(_cross_entropy(logits, batch.labels))})


class FullySupervised(Algorithm):
    """Train on all images with their true labels: an upper bound, not a competitor.

    The only algorithm that receives the hidden labels of the unlabeled images. Its row in a
    comparison estimates the accuracy after labeling all images.
    """

    family: ClassVar[str] = "supervised"
    tasks: ClassVar[frozenset[str]] = frozenset({"multiclass", "multilabel"})
    uses_hidden_labels: ClassVar[bool] = True

    class Config(Options):
        """Options of the fully supervised bound."""

        unlabeled_ratio: int = option(
            1, ge=1, help="images of the unlabeled pool for each labeled one"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": SIMPLE_SETTINGS}
    config: Config

    def views(self) -> Views:
        """Return one weak view of each image, labeled or not."""
        return Views(unlabeled_weak=1, unlabeled_ratio=self.config.unlabeled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return an estimate of the mean cross-entropy over all images, labeled or in the pool.

        The labeled and the unlabeled images of the batch are weighted by the size of the set from
        which they were drawn: a few labeled images must not outweigh the pool.

        Raises:
            ValueError: the batch has no hidden labels.
        """
        if batch.unlabeled_labels is None:
            raise ValueError("fully supervised training needs batch.unlabeled_labels")
        images = torch.cat([batch.labeled_weak[0], batch.unlabeled_weak[0]])
        logits = at_least_float32(ctx.model(images))
        labeled, unlabeled = torch.split(logits, [len(batch.labels), len(batch.unlabeled_labels)])
        sizes = self.task.labeled_count, self.task.unlabeled_count
        loss = sizes[0] * _cross_entropy(labeled, batch.labels)
        loss = loss + sizes[1] * _cross_entropy(unlabeled, batch.unlabeled_labels)
        return StepOutput({"supervised": Loss(loss / sum(sizes))})


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over images, or over images and classes for labels (N, C)."""
    if labels.ndim == 2:
        return F.binary_cross_entropy_with_logits(logits, labels)
    return F.cross_entropy(logits, labels)
