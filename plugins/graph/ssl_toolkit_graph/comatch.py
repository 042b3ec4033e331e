"""CoMatch (Li et al., ICCV 2021, arXiv:2011.11183)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    GOOGLE_SETTINGS,
    Algorithm,
    Batch,
    Context,
    Loss,
    Options,
    PseudoLabels,
    StepOutput,
    TaskInfo,
    Views,
    option,
)
from ssl_toolkit.ops import soft_cross_entropy
from ssl_toolkit_graph.projection import (
    BATCHES,
    align_to_uniform,
    product,
    projection_head,
    split_forward,
)


class CoMatch(Algorithm):
    """FixMatch with pseudo labels smoothed over neighbors, and embeddings that follow their graph.

    A memory of recent embeddings and predictions smooths the pseudo labels. Images with similar
    pseudo labels form a graph, which the similarities of two strong views are trained to.
    """

    family: ClassVar[str] = "graph"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of CoMatch."""

        confidence_threshold: float = option(
            0.95,
            ge=0,
            le=1,
            help="minimum confidence of a pseudo label (tau)",
            source="authors' code: 0.95",
        )
        graph_threshold: float = option(
            0.8,
            ge=0,
            le=1,
            help="minimum similarity of two pseudo labels for an edge of the graph (T)",
            source="authors' code: 0.8",
        )
        temperature: float = option(
            0.2, gt=0, help="temperature of the similarities (t)", source="authors' code: 0.2"
        )
        smoothing: float = option(
            0.9,
            ge=0,
            le=1,
            help="weight of the prediction in a pseudo label; 1 to ignore the memory (alpha)",
            source="authors' code: 0.9",
        )
        embedding_size: int = option(
            64, ge=1, help="size of an embedding", source="authors' code: 64"
        )
        memory_size: int = option(
            2560,
            ge=1,
            help="number of images in the memory (K)",
            source="authors' code: 2,560, five batches",
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="authors' code: 1"
        )
        contrast_weight: float = option(
            1.0, ge=0, help="weight of the contrastive loss; 0 for none", source="authors' code: 1"
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="authors' code: 7"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": GOOGLE_SETTINGS}
    config: Config
    memory: Tensor
    """(K, E), embeddings of the last images, the latest last; zeros before the first."""
    memory_probs: Tensor
    """(K, C), their labels, or predictions before smoothing."""
    recent_probs: Tensor
    """(batches, C), mean predictions of the last batches."""
    batches: Tensor
    """(), number of batches so far."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        size, count = self.config.embedding_size, self.config.memory_size
        self.projection = projection_head(task.feature_dim, size)
        self.register_buffer("memory", torch.zeros(count, size))
        self.register_buffer("memory_probs", torch.zeros(count, task.num_classes))
        self.register_buffer("recent_probs", torch.zeros(BATCHES, task.num_classes))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def views(self) -> Views:
        """One weak labeled view, one weak and two strong unlabeled ones."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=2, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_x + lambda_cls · L_cls + lambda_ctr · L_ctr, sec. 3."""
        c = self.config
        groups = [batch.labeled_weak[0], batch.unlabeled_weak[0], *batch.unlabeled_strong]
        (labeled, weak, strong, _), (z_labeled, z_weak, *z_strong) = split_forward(
            groups, ctx.forward, self.projection
        )
        aligned = align_to_uniform(weak, self.recent_probs, self.batches, ctx)
        probs = ctx.refine(self._smooth(aligned, z_weak.detach()))
        weights = ctx.weigh(probs, probs.amax(dim=-1) >= c.confidence_threshold)
        self._remember(z_labeled.detach(), z_weak.detach(), batch.labels, aligned, ctx)
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        unsupervised = (soft_cross_entropy(strong, probs) * weights).mean()
        # The graph is that of the whole batch.
        contrast = self._contrast(
            ctx.all_gather(probs), ctx.all_gather(z_strong[0]), ctx.all_gather(z_strong[1])
        )
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss(unsupervised, c.unsupervised_weight),
                "contrast": Loss(contrast, c.contrast_weight),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
        )

    def _smooth(self, probs: Tensor, z: Tensor) -> Tensor:
        """Average predictions (U, C) with those of similar images, once the memory is full."""
        attention = (product(z, self.memory.T) / self.config.temperature).softmax(dim=-1)
        neighbors = product(attention, self.memory_probs)
        smoothed = self.config.smoothing * probs + (1 - self.config.smoothing) * neighbors
        full = self.memory_probs[0].sum() > 0
        return torch.where(full, smoothed, probs)

    def _contrast(self, probs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the cross-entropy of the similarities of two views and the pseudo-label graph.

        Args:
            probs: (U, C) pseudo labels; no gradient.
            first: (U, E) embeddings of one strong view.
            second: (U, E) embeddings of the other.
        """
        graph = product(probs, probs.T)
        graph = graph.masked_fill(graph < self.config.graph_threshold, 0).fill_diagonal_(1)
        graph = graph / graph.sum(dim=-1, keepdim=True)
        return soft_cross_entropy(product(first, second.T) / self.config.temperature, graph).mean()

    def _remember(
        self, z_labeled: Tensor, z_weak: Tensor, labels: Tensor, probs: Tensor, ctx: Context
    ) -> None:
        """Append the images of the step to the memory, and drop the oldest.

        Args:
            z_labeled: (B, E) embeddings.
            z_weak: (U, E) embeddings.
            labels: (B,) int64.
            probs: (U, C) predictions for the unlabeled images.
            ctx: context of the step.
        """
        one_hot = F.one_hot(labels, self.task.num_classes)
        for memory, groups in (
            (self.memory, (z_weak, z_labeled)),
            (self.memory_probs, (probs, one_hot)),
        ):
            new = [ctx.all_gather(group).to(memory) for group in groups]
            memory.copy_(torch.cat([memory, *new])[-len(memory) :])
