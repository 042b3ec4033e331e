"""Cross-entropy on weakly augmented images, with the given labels or with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from ssl_toolkit import Algorithm, Batch, Context, Loss, Options, StepOutput, Views, option


class Supervised(Algorithm):
    """Learn from the labeled images alone: what semi-supervised training has to beat."""

    is_baseline: ClassVar[bool] = True
    auto_rank: ClassVar[int] = 70
    auto_rank_from_scratch: ClassVar[int] = 10
    auto_options: ClassVar[Mapping[str, Any]] = {"strong": True}

    class Config(Options):
        """Options of supervised training."""

        strong: bool = option(
            False, help="learn from strong views in place of weak ones (docs/results.md)"
        )

    config: Config

    def views(self) -> Views:
        """One labeled view, nothing unlabeled."""
        strong = int(self.config.strong)
        return Views(labeled_weak=1 - strong, labeled_strong=strong)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Mean cross-entropy of the B labeled images."""
        views = batch.labeled_strong if self.config.strong else batch.labeled_weak
        logits = ctx.model(views[0]).float()
        return StepOutput({"supervised": Loss(F.cross_entropy(logits, batch.labels))})


class FullySupervised(Algorithm):
    """Learn from all images with their true labels: a bound, not a competitor.

    The declared oracle: it alone is given the hidden labels of the unlabeled images, which is
    why its row in a comparison says what labeling everything would have brought.
    """

    uses_hidden_labels: ClassVar[bool] = True

    class Config(Options):
        """Options of the fully supervised bound."""

        unlabeled_ratio: int = option(
            1, ge=1, help="images of the unlabeled pool for each labeled one"
        )

    config: Config

    def views(self) -> Views:
        """One weak view of each image, labeled or not."""
        return Views(unlabeled_weak=1, unlabeled_ratio=self.config.unlabeled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Cross-entropy: an estimate of its mean over all images, labeled or in the pool.

        The labeled and the unlabeled half of the batch count by the size of the set that each was
        drawn from: a few labeled images must not outweigh the pool.

        Raises:
            ValueError: the batch holds no hidden labels.
        """
        if batch.unlabeled_labels is None:
            raise ValueError("fully supervised training needs batch.unlabeled_labels")
        logits = ctx.model(torch.cat([batch.labeled_weak[0], batch.unlabeled_weak[0]])).float()
        labeled, unlabeled = torch.split(logits, [len(batch.labels), len(batch.unlabeled_labels)])
        sizes = sum(self.task.label_counts), self.task.unlabeled_count
        loss = sizes[0] * F.cross_entropy(labeled, batch.labels)
        loss = loss + sizes[1] * F.cross_entropy(unlabeled, batch.unlabeled_labels)
        return StepOutput({"supervised": Loss(loss / sum(sizes))})
