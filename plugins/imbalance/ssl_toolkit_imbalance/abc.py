"""ABC (Lee, Shin and Kim, NeurIPS 2021, arXiv:2110.10368)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit import (
    AddOn,
    Batch,
    Context,
    ForwardOutput,
    Loss,
    Metric,
    Options,
    StepOutput,
    TaskInfo,
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32, soft_cross_entropy

STRONG_VIEWS = 2
"""Maximum number of strong views of an image in the loss, as in the paper."""


class ABC(AddOn):
    """Train a second head on a class-balanced part of each batch, and predict with it.

    Both heads train the backbone. The second one has its own forward pass: labeled weak, unlabeled
    weak and unlabeled strong views together, in train mode, without updating the running statistics
    of BatchNorm. A step takes about twice as long as that of the base.
    """

    class Config(Options):
        """Options of ABC."""

        confidence_threshold: float = option(
            0.95,
            ge=0,
            le=1,
            help="minimum confidence of a pseudo label of the balanced head",
            source="authors' code and USB's code: 0.95",
        )
        weight: float = option(
            1.0, ge=0, help="weight of the loss of the balanced head", source="USB's code: 1"
        )

    averaged_modules: ClassVar[tuple[str, ...]] = ("head",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss.balanced", "Balanced head", "Loss of the balanced head."),
    )
    config: Config
    keep_rates: Tensor
    """(C,), the number of labels of the rarest class divided by that of each class."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.head = nn.Linear(task.feature_dim, task.num_classes)
        counts = torch.tensor(task.label_counts, dtype=torch.float32).clamp_min(1)
        self.register_buffer("keep_rates", counts.min() / counts)

    def views(self, views: Views) -> Views:
        """Return the views of the base, with at least one of each kind that the loss uses."""
        return replace(
            views,
            labeled_weak=max(views.labeled_weak, 1),
            unlabeled_weak=max(views.unlabeled_weak, 1),
            unlabeled_strong=max(views.unlabeled_strong, 1),
        )

    def losses(self, batch: Batch, ctx: Context, output: StepOutput) -> Mapping[str, Loss]:
        """Return the loss of the balanced head: L_cls + L_con."""
        c = self.config
        strong_views = batch.unlabeled_strong[:STRONG_VIEWS]
        groups = [batch.labeled_weak[0], batch.unlabeled_weak[0], *strong_views]
        features = ctx.forward(torch.cat(groups), update_statistics=False).features
        logits = at_least_float32(self.head(features))
        labeled, weak, *strong = torch.split(logits, [len(group) for group in groups])

        kept = self._draw(self.keep_rates[batch.labels], ctx)
        classified = (F.cross_entropy(labeled, batch.labels, reduction="none") * kept).mean()

        probs = weak.detach().softmax(dim=-1)
        confidence, pseudo_labels = probs.max(dim=-1)
        # All classes alike at first, because pseudo labels are few; as the labels at the end.
        rates = 1 - ctx.step / ctx.max_steps * (1 - self.keep_rates)
        mask = (confidence >= c.confidence_threshold) & self._draw(rates[pseudo_labels], ctx)
        consistent = sum((soft_cross_entropy(view, probs) * mask).mean() for view in strong)
        return {"balanced": Loss(classified + consistent, c.weight)}

    def predict(self, output: ForwardOutput, logits: Tensor) -> Tensor:
        """Return the logits of the balanced head."""
        return at_least_float32(self.head(output.features))

    def _draw(self, rates: Tensor, ctx: Context) -> Tensor:
        """Return a mask (n,) that is True with the given probabilities."""
        # The whole batch is drawn in every process, so that their number changes no draw.
        drawn = torch.rand(ctx.processes * len(rates), generator=ctx.generator)
        return ctx.local_shard(drawn.to(rates.device)) < rates
