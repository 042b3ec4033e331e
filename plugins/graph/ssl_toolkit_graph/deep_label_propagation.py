"""Deep label propagation (Iscen et al., CVPR 2019, arXiv:1904.04717)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    Algorithm,
    Batch,
    Context,
    Loss,
    Metric,
    Options,
    PseudoLabels,
    StepOutput,
    TaskInfo,
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32
from ssl_toolkit_graph.diffusion import diffuse


class DeepLabelPropagation(Algorithm):
    """Train on labels that are propagated over the neighbor graph of the network's own features.

    After a warm-up on the labeled images alone, the graph of all training images is built again
    every `scan_interval` steps. Each propagated label is weighted by its certainty and its class.
    """

    family: ClassVar[str] = "graph"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"weigh", "weigh_labels"})

    class Config(Options):
        """Options of deep label propagation."""

        warmup_fraction: float = option(
            0.5,
            ge=0,
            le=1,
            help="share of the run on the labeled images alone",
            source="authors' code: 180 of 360 epochs",
        )
        scan_interval: int = option(
            50,
            ge=1,
            help="number of steps between two propagations",
            source="this project, for short runs; authors' code: an epoch of the pool",
            in_steps=True,
        )
        neighbors: int = option(
            50, ge=1, help="number of neighbors of each image (k)", source="authors' code: 50"
        )
        gamma: float = option(
            3.0,
            gt=0,
            help="power of the cosine in the weight of an edge",
            source="authors' code: 3",
        )
        alpha: float = option(
            0.99,
            gt=0,
            lt=1,
            help="share that an image takes from its neighbors in the diffusion",
            source="authors' code: 0.99",
        )
        max_iterations: int = option(
            20,
            ge=1,
            help="maximum number of iterations of conjugate gradients",
            source="authors' code: 20",
        )
        unsupervised_weight: float = option(
            1.0,
            ge=0,
            help="weight of the propagated labels; 0 for none",
            source="authors' code: half of each batch is unlabeled",
        )
        unlabeled_ratio: int = option(
            1,
            ge=1,
            help="unlabeled images for each labeled one",
            source="authors' code: 50 of 100 images, CIFAR-10",
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": {"ema": False}}
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("certainty", "Certainty", "Mean weight of the propagated labels."),
    )
    config: Config
    propagated: Tensor
    """(unlabeled images,) int64, classes of the last propagation."""
    certainty: Tensor
    """(unlabeled images,) in [0, 1], omega; 0 before the first propagation, and for
    images that are left out."""
    class_weights: Tensor
    """(C,), zeta: inverse of the shares of labels and propagated labels."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("propagated", torch.zeros(task.unlabeled_count, dtype=torch.int64))
        self.register_buffer("certainty", torch.zeros(task.unlabeled_count))
        self.register_buffer("class_weights", torch.ones(task.num_classes))

    def views(self) -> Views:
        """One weak view of every image."""
        return Views(unlabeled_weak=1, unlabeled_ratio=self.config.unlabeled_ratio)

    @property
    def warmup_steps(self) -> int:
        """Number of steps on the labeled images alone."""
        return round(self.config.warmup_fraction * self.task.max_steps)

    @property
    def scan_every(self) -> int:
        """Return `scan_interval`."""
        return self.config.scan_interval

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Propagate the labels over the features of the images (n, 3, H, W)."""
        if ctx.step < self.warmup_steps:
            return
        c, classes = self.config, self.task.num_classes
        parts = [(ctx.teacher_forward(images).features, y) for _, images, y in labeled]
        labels = torch.cat([part for _, part in parts]).cpu()
        features = [part for part, _ in parts]
        positions = []
        for part, images in unlabeled:
            positions.append(part)
            features.append(ctx.teacher_forward(images).features)
        points = F.normalize(torch.cat(features).double()).cpu()
        one_hot = F.one_hot(labels, classes).double()
        z = diffuse(points, one_hot, c.neighbors, c.gamma, c.alpha, c.max_iterations)

        probs = z / z.sum(dim=1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
        entropy = -torch.special.xlogy(probs, probs).sum(dim=1)
        certainty = (1 - entropy / math.log(classes)).clamp_min(0)  # omega
        certainty = certainty * (z.sum(dim=1) > 0)  # 0 where no label arrives
        certainty = certainty / certainty.max().clamp_min(torch.finfo(z.dtype).tiny)
        propagated = probs.argmax(dim=1)
        counts = torch.bincount(torch.cat([labels, propagated[len(labels) :]]), minlength=classes)
        pool = torch.cat(positions)
        self.propagated[pool] = propagated[len(labels) :].to(self.propagated)
        self.certainty.zero_()  # no weight for images that are drawn again before the next scan
        self.certainty[pool] = certainty[len(labels) :].to(self.certainty)
        self.class_weights.copy_(len(points) / classes / counts.clamp_min(1).double())

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_w: labels weighted by class, propagated labels by class and certainty."""
        groups = [batch.labeled_weak[0]]
        if ctx.step >= self.warmup_steps:
            groups.append(batch.unlabeled_weak[0])
        logits = at_least_float32(ctx.model(torch.cat(groups)))
        labeled = F.cross_entropy(logits[: len(batch.labels)], batch.labels, reduction="none")
        supervised = ctx.weigh_labels(labeled * self.class_weights[batch.labels]).mean()
        if len(groups) == 1:
            return StepOutput({"supervised": Loss(supervised)})

        hard = self.propagated[batch.unlabeled_indices]
        certainty = self.certainty[batch.unlabeled_indices]
        probs = F.one_hot(hard, self.task.num_classes).to(certainty)
        weights = ctx.weigh(probs, certainty)
        unlabeled = F.cross_entropy(logits[len(batch.labels) :], hard, reduction="none")
        unsupervised = (unlabeled * weights * self.class_weights[hard]).mean()
        return StepOutput(
            losses={
                "supervised": Loss(supervised),
                "unsupervised": Loss(unsupervised, self.config.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
            metrics={"certainty": certainty.mean()},
        )
