"""OpenMatch (Saito, Kim and Saenko, NeurIPS 2021, arXiv:2105.14148)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit import (
    Algorithm,
    Batch,
    Context,
    ForwardOutput,
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


class OpenMatch(Algorithm):
    """FixMatch on the unlabeled images that one-vs-all classifiers accept as images of a class.

    A second head has a binary classifier for each class: is the image of this class, or not? It
    learns from the labels, from its entropy on unlabeled images, and from the agreement of two weak
    views. `scan` selects the images of the pool that the classifier of their predicted class
    accepts: the inliers.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of OpenMatch."""

        confidence_threshold: float = option(
            0.95,
            ge=0,
            le=1,
            help="minimum confidence of a pseudo label",
            source="FixMatch's paper: 0.95; authors' code: 0",
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the loss of FixMatch; 0 for none", source="paper, eq. 6: 1"
        )
        entropy_weight: float = option(
            0.1,
            ge=0,
            help="weight of the entropy of the one-vs-all classifiers (lambda_em)",
            source="paper, sec. 4: 0.1",
        )
        consistency_weight: float = option(
            0.5,
            ge=0,
            help="weight of their agreement between two weak views (lambda_oc)",
            source="authors' code: 0.5 on CIFAR-10 and ImageNet, 1 on CIFAR-100",
        )
        warmup_fraction: float = option(
            0.1,
            ge=0,
            le=1,
            help="share of the run without pseudo labels",
            source="this project, for short runs; authors' code: 10 of 512 epochs",
        )
        scan_interval: int = option(
            50,
            ge=1,
            help="number of steps between two selections of the inliers",
            source="this project, for short runs; paper: an epoch of 1,024 steps",
            in_steps=True,
        )
        unlabeled_ratio: int = option(
            2, ge=1, help="unlabeled images for each labeled one", source="authors' code: 2"
        )

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("inliers", "Inliers", "Share of the unlabeled images that are selected."),
        Metric("loss.one_vs_all", "One-vs-all", "Loss of the one-vs-all classifiers on labels."),
        Metric("loss.open_entropy", "Open-set entropy", "Entropy of the one-vs-all classifiers."),
        Metric(
            "loss.open_consistency",
            "Open-set consistency",
            "Squared difference of the one-vs-all classifiers between two weak views.",
        ),
    )
    averaged_modules: ClassVar[tuple[str, ...]] = ("open_head",)
    config: Config
    inliers: Tensor
    """(unlabeled images,) bool; all False before the first selection."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.open_head = nn.Linear(task.feature_dim, 2 * task.num_classes, bias=False)
        self.register_buffer("inliers", torch.zeros(task.unlabeled_count, dtype=torch.bool))

    def views(self) -> Views:
        """Return one weak labeled view, two weak and one strong unlabeled view."""
        return Views(
            unlabeled_weak=2, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    @property
    def warmup_steps(self) -> int:
        """Number of steps without pseudo labels."""
        return round(self.config.warmup_fraction * self.task.max_steps)

    @property
    def scan_every(self) -> int:
        """Return the interval: `scan_interval`, or the warm-up if it is shorter."""
        return min(self.config.scan_interval, max(1, self.warmup_steps))

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Select the inliers among the unlabeled images (n, 3, H, W) by the averaged weights."""
        if ctx.step < self.warmup_steps:
            return
        head = ctx.averaged("open_head")
        self.inliers.zero_()  # images that are left out are none until they are scanned again
        for indices, images in unlabeled:
            output = ctx.teacher_forward(images)
            scores = outlier_scores(output.logits, head(output.features))
            self.inliers[indices] = scores < 0.5

    def stranger_scores(self, output: ForwardOutput) -> Tensor:
        """Return the log-odds (N,) that images are not of their predicted class.

        Probabilities would saturate after long training, and their quantiles with them.
        """
        return outlier_log_odds(output.logits, self.open_head(output.features))

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return L_cls + L_ova + lambda_em · L_em + lambda_oc · L_oc + L_fm, eqs. 1-6."""
        c, weak, strong = self.config, batch.unlabeled_weak, batch.unlabeled_strong[0]
        groups = [batch.labeled_weak[0], weak[0], weak[1], strong]
        output = ctx.forward(torch.cat(groups))
        sizes = [len(group) for group in groups]
        labeled, first, _, strong_logits = torch.split(at_least_float32(output.logits), sizes)
        open_logits = at_least_float32(self.open_head(output.features))
        known, one, two, _ = torch.split(inlier_log_odds(open_logits), sizes)
        entropy = (binary_entropy(one).mean() + binary_entropy(two).mean()) / 2
        # Both probabilities of a classifier differ by the same amount.
        apart = 2 * (one.sigmoid() - two.sigmoid()).square().sum(dim=-1).mean()
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = {
            "supervised": Loss(ctx.weigh_labels(supervised).mean()),
            "one_vs_all": Loss(one_vs_all_loss(known, batch.labels)),
            "open_entropy": Loss(entropy, c.entropy_weight),
            "open_consistency": Loss(apart, c.consistency_weight),
        }
        if ctx.step < self.warmup_steps:
            return StepOutput(losses)

        inliers = self.inliers[batch.unlabeled_indices]
        probs = ctx.refine(first.detach().softmax(dim=-1))
        confidence, hard = probs.max(dim=-1)
        weights = ctx.weigh(probs, inliers & (confidence >= c.confidence_threshold))
        unlabeled = F.cross_entropy(strong_logits, hard, reduction="none") * weights
        # Gathered: the divisor is the number of inliers in the whole batch.
        count = ctx.all_gather(inliers).sum().clamp_min(1)
        unsupervised = ctx.all_gather(unlabeled).sum() / count
        losses["unsupervised"] = Loss(unsupervised, c.unsupervised_weight)
        return StepOutput(
            losses=losses,
            pseudo_labels=PseudoLabels.weighted(probs, weights),
            metrics={"inliers": inliers.to(probs).mean()},
        )


def inlier_log_odds(open_logits: Tensor) -> Tensor:
    """Return the log-odds (N, C) that images are of each class, from the logits (N, 2 · C)."""
    outlier, inlier = open_logits.chunk(2, dim=-1)
    return inlier - outlier


def outlier_log_odds(logits: Tensor, open_logits: Tensor) -> Tensor:
    """Return the log-odds (N,) that images are not of the class of the largest logit (N, C)."""
    predicted = logits.argmax(dim=-1, keepdim=True)
    log_odds = inlier_log_odds(at_least_float32(open_logits)).gather(-1, predicted)
    return -log_odds.squeeze(-1)


def outlier_scores(logits: Tensor, open_logits: Tensor) -> Tensor:
    """Return the probabilities (N,) of `outlier_log_odds`."""
    return outlier_log_odds(logits, open_logits).sigmoid()


def one_vs_all_loss(log_odds: Tensor, labels: Tensor) -> Tensor:
    """Return eq. 1: of the labeled class, and of the other class that accepts the image most."""
    own = log_odds.gather(-1, labels[:, None]).squeeze(-1)
    others = log_odds.scatter(-1, labels[:, None], -torch.inf).amax(dim=-1)
    return (F.softplus(-own) + F.softplus(others)).mean()


def binary_entropy(log_odds: Tensor) -> Tensor:
    """Return the entropy in nats of binary classifiers with these log-odds."""
    return F.softplus(log_odds) - log_odds.sigmoid() * log_odds
