"""Cross-entropy on weakly augmented images, with the given labels or with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from ssl_toolkit import Algorithm, Batch, Context, Loss, Options, StepOutput, Views, option


class Supervised(Algorithm):
    """Learn from the labelled images alone: what semi-supervised training has to beat."""

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
        """One labelled view, nothing unlabelled."""
        strong = int(self.config.strong)
        return Views(labelled_weak=1 - strong, labelled_strong=strong)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Mean cross-entropy of the B labelled images."""
        views = batch.labelled_strong if self.config.strong else batch.labelled_weak
        logits = ctx.model(views[0]).float()
        return StepOutput({"supervised": Loss(F.cross_entropy(logits, batch.labels))})


class FullySupervised(Algorithm):
    """Learn from all images with their true labels: a bound, not a competitor.

    The declared oracle: it alone is given the hidden labels of the unlabelled images, which is
    why its row in a comparison says what labelling everything would have brought.
    """

    oracle: ClassVar[bool] = True

    class Config(Options):
        """Options of the fully supervised bound."""

        unlabelled_ratio: int = option(
            1, ge=1, help="images of the unlabelled pool for each labelled one"
        )

    config: Config

    def views(self) -> Views:
        """One weak view of each image, labelled or not."""
        return Views(unlabelled_weak=1, unlabelled_ratio=self.config.unlabelled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Cross-entropy: an estimate of its mean over all images, labelled or in the pool.

        The labelled and the unlabelled half of the batch count by the size of the set that each was
        drawn from: a few labelled images must not outweigh the pool.

        Raises:
            ValueError: the batch holds no hidden labels.
        """
        if batch.unlabelled_labels is None:
            raise ValueError("fully supervised training needs batch.unlabelled_labels")
        logits = ctx.model(torch.cat([batch.labelled_weak[0], batch.unlabelled_weak[0]])).float()
        labelled, unlabelled = torch.split(
            logits, [len(batch.labels), len(batch.unlabelled_labels)]
        )
        sizes = sum(self.task.label_counts), self.task.unlabelled_count
        loss = sizes[0] * F.cross_entropy(labelled, batch.labels)
        loss = loss + sizes[1] * F.cross_entropy(unlabelled, batch.unlabelled_labels)
        return StepOutput({"supervised": Loss(loss / sum(sizes))})
