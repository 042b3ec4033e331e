"""DARP (Kim et al., NeurIPS 2020, arXiv:2007.08844)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ssl_toolkit import AddOn, Batch, Context, Metric, Options, TaskInfo, option
from ssl_toolkit.ops import at_least_float32

NEWTON_STEPS = 3
"""Newton steps for each class and round; the factors start at those of the last refinement."""
LARGEST_FACTOR = 100.0
SMALL = 1e-6
"""Added to all probabilities before they are normalized, as in the authors' code."""


class Factors(NamedTuple):
    """Parameters of a refinement, by which `refined` changes a prediction; all of length C."""

    thresholds: Tensor
    """Probabilities below these are removed."""
    scales: Tensor
    """Factors of the others."""
    duals: Tensor
    """nu: factors of the entropy of a prediction, by class."""


class DARP(AddOn):
    """Refine pseudo labels so that the shares of the classes in the pool are those expected.

    The predictions of all unlabeled images are stored. Every few steps the class factors are
    computed for which the refined predictions are closest to them in weighted KL divergence, where
    confident predictions weigh more, and sum to `Context.class_shares`. They apply to
    the current predictions; the authors' code uses the stored refined ones until the next
    refinement.
    """

    class Config(Options):
        """Options of DARP."""

        interval: int = option(
            10, ge=1, help="steps between two refinements", source="authors' code: 10"
        )
        warmup_fraction: float = option(
            0.4,
            ge=0,
            le=1,
            help="share of the run before the first refinement",
            source="authors' code: 200 of 500 epochs",
        )
        kept: float = option(
            2.0,
            gt=0,
            help="probabilities to keep for each class, relative to its expected number of images",
            source="authors' code: 2",
        )
        rounds: int = option(
            10, ge=1, help="rounds over the classes in a refinement", source="authors' code: 10"
        )

    metrics: ClassVar[tuple[Metric, ...]] = ()
    config: Config
    predictions: Tensor
    """(unlabeled images, C), the last prediction for each image; zeros before the first."""
    thresholds: Tensor
    scales: Tensor
    duals: Tensor

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        classes = task.num_classes
        self.register_buffer("predictions", torch.zeros(task.unlabeled_count, classes))
        self.register_buffer("thresholds", torch.zeros(classes))
        self.register_buffer("scales", torch.ones(classes))
        self.register_buffer("duals", torch.zeros(classes))

    @property
    def warmup_steps(self) -> int:
        """Number of steps before the first refinement."""
        return round(self.config.warmup_fraction * self.task.max_steps)

    @property
    def scan_every(self) -> int:
        """Return `interval`."""
        return self.config.interval

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Compute the factors from the stored predictions, without the images (n, 3, H, W)."""
        if ctx.step < self.warmup_steps:
            return
        shares = ctx.class_shares.to(self.predictions)
        predictions = self.predictions * ctx.pool_mask[:, None]
        factors = solve(predictions, shares, self.duals, self.config.kept, self.config.rounds)
        for name, value in factors._asdict().items():
            getattr(self, name).copy_(value)

    def refine(self, probs: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return the refined probabilities (U, C); store the predictions."""
        probs = at_least_float32(probs)
        indices = ctx.all_gather(batch.unlabeled_indices)
        self.predictions[indices] = ctx.all_gather(probs).to(self.predictions)
        if ctx.step < self.warmup_steps:
            return probs
        return refined(probs, Factors(self.thresholds, self.scales, self.duals))


def refined(probs: Tensor, factors: Factors) -> Tensor:
    """Return A · exp(-nu H(A)), normalized, where A are the kept probabilities.

    Args:
        probs: (N, C).
        factors: Those of `solve`.
    """
    kept = _kept(probs, factors.thresholds, factors.scales)
    return (kept.log() - _entropy(kept) * factors.duals).softmax(dim=-1)


def solve(probs: Tensor, shares: Tensor, start: Tensor, kept: float, rounds: int) -> Factors:
    """Return the factors with which refined predictions sum to the expected numbers of images.

    In each round, the predictions are normalized by image, then one-dimensional Newton steps solve
    the equation of each class.

    Args:
        probs: (N, C) predictions; images whose row is 0 don't count.
        shares: (C,) expected class shares.
        start: (C,) first values of `Factors.duals`.
        kept: Probabilities to keep for each class, relative to its expected number of images.
        rounds: Number of rounds.
    """
    seen = probs.sum(dim=1, keepdim=True) > 0
    count = seen.sum()
    expected = count * shares
    places = (kept * expected).ceil().long().minimum(count).clamp_min(1) - 1
    thresholds = probs.sort(dim=0, descending=True).values.gather(0, places[None])[0]
    tiny = torch.finfo(probs.dtype).tiny
    sums = (probs * (probs >= thresholds)).sum(dim=0)
    scales = torch.where(sums > 0, expected / sums.clamp_min(tiny), 1)

    rows = _kept(probs, thresholds, scales)
    entropy = _entropy(rows)
    rows = torch.where(seen, rows, 0).log()
    target = expected.clamp_min(tiny).log()
    duals = start.clone()
    for _ in range(rounds):
        by_image = (rows - entropy * duals).logsumexp(dim=1, keepdim=True)
        normalized = torch.where(seen, rows - by_image, rows)
        for _ in range(NEWTON_STEPS):
            terms = normalized - entropy * duals
            error = terms.logsumexp(dim=0) - target
            slope = (terms.softmax(dim=0) * entropy).sum(dim=0)
            duals = duals + error / slope.clamp_min(SMALL)
            duals = duals.clamp(-LARGEST_FACTOR, LARGEST_FACTOR)
    return Factors(thresholds, scales, torch.where(count > 0, duals, start))


def _kept(probs: Tensor, thresholds: Tensor, scales: Tensor) -> Tensor:
    """Return the kept probabilities (N, C), scaled and normalized."""
    kept = torch.where(probs >= thresholds, probs * scales, 0) + SMALL
    return kept / kept.sum(dim=1, keepdim=True)


def _entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.log()).sum(dim=1, keepdim=True)
