"""SimMatch (Zheng et al., CVPR 2022, arXiv:2203.06915)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    USB_SETTINGS,
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


class SimMatch(Algorithm):
    """FixMatch that also matches how similar two views are to each labeled image.

    A memory stores one embedding per labeled image. The similarities to it and the class
    predictions calibrate each other: similarities are multiplied by the predictions of the labeled
    images' classes, and predictions are averaged with the similarities summed by class.
    """

    family: ClassVar[str] = "graph"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of SimMatch."""

        confidence_threshold: float = option(
            0.95, ge=0, le=1, help="minimum confidence of a pseudo label (tau)", source="USB's code"
        )
        temperature: float = option(
            0.1, gt=0, help="temperature of the similarities (t)", source="USB's settings: 0.1"
        )
        smoothing: float = option(
            0.9,
            ge=0,
            le=1,
            help="weight of the prediction in a pseudo label; 1 to ignore the similarities (alpha)",
            source="USB's code: 0.9",
        )
        embedding_size: int = option(
            128, ge=1, help="size of an embedding", source="USB's settings: 128"
        )
        memory_momentum: float = option(
            0.7,
            ge=0,
            lt=1,
            help="decay of the embeddings in the memory; 0 for the latest",
            source="USB's code: 0.7",
        )
        averaged_labels: bool = option(
            False,
            help="predict weak views and their embeddings by the averaged model and its averaged "
            "projection head; with memory_momentum 0, as on ImageNet",
            source="USB's code: False on CIFAR and SVHN; paper: True on ImageNet",
        )
        unsupervised_weight: float = option(
            1.0,
            ge=0,
            help="weight of the unsupervised loss; 0 for none",
            source="USB's settings: 1",
        )
        instance_weight: float = option(
            1.0, ge=0, help="weight of the similarity loss; 0 for none", source="USB's settings: 1"
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="USB's settings: 7"
        )

    averaged_modules: ClassVar[tuple[str, ...]] = ("projection",)
    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    config: Config
    memory: Tensor
    """(labeled images, E), embeddings of unit length; zeros before the first."""
    memory_labels: Tensor
    """(labeled images,) int64, their labels; 0 before the first embedding."""
    recent_probs: Tensor
    """(batches, C), mean predictions of the last batches."""
    batches: Tensor
    """(), number of batches so far."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        size, count = self.config.embedding_size, sum(task.label_counts)
        self.projection = projection_head(task.feature_dim, size)
        self.register_buffer("memory", torch.zeros(count, size))
        self.register_buffer("memory_labels", torch.zeros(count, dtype=torch.int64))
        self.register_buffer("recent_probs", torch.zeros(BATCHES, task.num_classes))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_s + lambda_u · L_u + lambda_in · L_in, sec. 3."""
        c = self.config
        images = [batch.labeled_weak[0], batch.unlabeled_weak[0], batch.unlabeled_strong[0]]
        if c.averaged_labels:
            (_, weak), (z_labeled, z_weak) = split_forward(
                images[:2], ctx.teacher_forward, ctx.averaged("projection")
            )
            (labeled, strong), (_, z_strong) = split_forward(
                images[::2], ctx.forward, self.projection
            )
        else:
            (labeled, weak, strong), (z_labeled, z_weak, z_strong) = split_forward(
                images, ctx.forward, self.projection
            )
        probs = align_to_uniform(weak, self.recent_probs, self.batches, ctx)  # p^w

        memory = self.memory.clone()
        empty = (memory == 0).all(dim=1)
        ready = ~empty.all()  # from the second batch on
        similarity = self._similarity(z_weak.detach(), memory, empty)  # log q^w, up to a constant
        # In logarithms: predictions of all labeled classes in the memory can be tiny.
        log_probs = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
        targets = (similarity + log_probs[:, self.memory_labels]).softmax(dim=-1)
        one_hot = F.one_hot(self.memory_labels, self.task.num_classes)
        aggregated = product(similarity.softmax(dim=-1), one_hot)
        smoothed = c.smoothing * probs + (1 - c.smoothing) * aggregated
        pseudo_labels = ctx.refine(torch.where(ready, smoothed, probs))
        mask = pseudo_labels.amax(dim=-1) >= c.confidence_threshold
        weights = ctx.weigh(pseudo_labels, mask)

        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        unsupervised = (soft_cross_entropy(strong, pseudo_labels) * weights).mean()
        instance = soft_cross_entropy(self._similarity(z_strong, memory, empty), targets).mean()
        self._remember(z_labeled.detach(), batch, ctx)
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss(unsupervised, c.unsupervised_weight),
                "instance": Loss(torch.where(ready, instance, 0 * instance), c.instance_weight),
            },
            pseudo_labels=PseudoLabels.weighted(pseudo_labels, weights),
        )

    def _similarity(self, z: Tensor, memory: Tensor, empty: Tensor) -> Tensor:
        """Return cosines (n, K) over the temperature; about minus infinity for empty entries."""
        return (product(z, memory.T) / self.config.temperature).masked_fill(empty, -1e4)

    def _remember(self, embeddings: Tensor, batch: Batch, ctx: Context) -> None:
        """Move the memory toward the embeddings (B, E) of the labeled images of all processes."""
        indices, labels = ctx.all_gather(batch.labeled_indices), ctx.all_gather(batch.labels)
        embeddings = ctx.all_gather(embeddings).to(self.memory)
        # A batch can contain an image twice: the mean of its views.
        sums = torch.zeros_like(self.memory).index_add_(0, indices, embeddings)
        counts = torch.zeros_like(self.memory[:, 0]).index_add_(
            0, indices, torch.ones_like(embeddings[:, 0])
        )
        means = sums / counts.clamp_min(1)[:, None]
        empty = (self.memory == 0).all(dim=1, keepdim=True)
        moved = torch.where(empty, means, self.memory.lerp(means, 1 - self.config.memory_momentum))
        present = (counts > 0)[:, None]
        self.memory.copy_(torch.where(present, F.normalize(moved), self.memory))
        self.memory_labels[indices] = labels
