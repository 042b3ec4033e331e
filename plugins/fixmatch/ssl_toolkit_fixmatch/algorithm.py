"""FixMatch (Sohn et al., NeurIPS 2020, arXiv:2001.07685)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
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
from ssl_toolkit.ops import align_distribution, interleave_rows

MEMORY = 128
"""Batches over which predictions are averaged for `align_exponent`, as in ReMixMatch."""


class FixMatch(Algorithm):
    """Train strong views on the hard labels of confident weak views of the same images.

    Labeled, weak and strong images share one forward in train mode, so BatchNorm sees all of
    them; the live model guesses, not the teacher. Without `weak_in_graph` the weak images have a
    forward of their own, in train mode and without gradient.
    """

    auto_rank: ClassVar[int] = 60
    auto_rank_from_scratch: ClassVar[int] = 50

    class Config(Options):
        """Options of FixMatch."""

        reference: ClassVar[dict[str, Any]] = {"interleaved": True}
        # docs/results.md: a calibrated head is seldom surer of an image that it has not seen, and
        # seven unlabeled images for each labeled one take longer without bringing more.
        for_pretrained: ClassVar[dict[str, Any]] = {
            "confidence_threshold": 0.8,
            "unlabeled_ratio": 1,
        }

        confidence_threshold: float = option(
            0.95, ge=0, le=1, help="a pseudo label counts from here on", source="paper, sec. 4"
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="paper, sec. 4"
        )
        interleaved: bool = option(
            False,
            help="deal the images out before the joint forward; matters where devices share it",
            source="False: the order changes nothing on one device; well-known port: True",
        )
        weak_in_graph: bool = option(
            True,
            help="guess in the forward that trains; false: in one of its own, a third faster, by "
            "the BatchNorm statistics of the weak images alone, which leave no trace",
            source="True: FixMatch's code",
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="paper, sec. 4"
        )
        align_exponent: float = option(
            0.0,
            ge=0,
            le=1,
            help="how far guesses are moved toward the expected class shares; 0 for not at all",
            source="0: FixMatch's code; 1: ReMixMatch, sec. 3.1",
        )

    config: Config
    guessed: Tensor
    guessed_weight: Tensor

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        if self.config.align_exponent:
            self.register_buffer("guessed", torch.zeros(task.num_classes))
            self.register_buffer("guessed_weight", torch.zeros(()))

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1,
            unlabeled_strong=1,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """l_s + lambda_u · l_u, eqs. 3-4."""
        c = self.config
        labeled, weak, strong = self._logits(batch, ctx)
        if c.align_exponent:
            weak = self._aligned(weak, ctx)

        supervised = F.cross_entropy(labeled.float(), batch.labels)  # eq. 3
        unsupervised, _ = fixmatch_loss(weak, strong, c.confidence_threshold)  # eq. 4

        guess = weak.detach().float().softmax(dim=-1)
        return StepOutput(
            losses={
                "supervised": Loss(supervised),
                "unsupervised": Loss(unsupervised, c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels(guess, guess.amax(dim=-1) >= c.confidence_threshold),
        )

    def _aligned(self, weak: Tensor, ctx: Context) -> Tensor:
        """Logits of guesses that have been moved toward `Context.class_shares`."""
        probs = weak.detach().float().softmax(dim=-1)
        mean = ctx.all_reduce_sum(probs.sum(dim=0)) / ctx.all_reduce_sum(
            probs.new_full((), len(probs))
        )
        self.guessed.lerp_(mean, 1 / MEMORY)
        # Both start at 0, so that their ratio is a weighted mean of the batches seen so far.
        self.guessed_weight.lerp_(torch.ones_like(self.guessed_weight), 1 / MEMORY)
        mean = self.guessed / self.guessed_weight
        return align_distribution(probs, ctx.class_shares, mean, self.config.align_exponent).log()

    def _logits(self, batch: Batch, ctx: Context) -> tuple[Tensor, ...]:
        """Of the labeled, the weak and the strong views."""
        labeled, weak = batch.labeled_weak[0], batch.unlabeled_weak[0]
        trained = [labeled, batch.unlabeled_strong[0]]
        if self.config.weak_in_graph:
            trained.insert(1, weak)
            logits = self._forward(torch.cat(trained), len(labeled), ctx)
            return torch.split(logits, [len(images) for images in trained])
        with torch.no_grad():
            guessed = ctx.forward(weak, update_statistics=False).logits
        logits = self._forward(torch.cat(trained), len(labeled), ctx)
        return logits[: len(labeled)], guessed, logits[len(labeled) :]

    def _forward(self, images: Tensor, batch_size: int, ctx: Context) -> Tensor:
        if not self.config.interleaved:
            return ctx.model(images)
        logits = ctx.model(interleave_rows(images, len(images) // batch_size))
        return interleave_rows(logits, batch_size)


def fixmatch_loss(
    weak_logits: Tensor, strong_logits: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of strong views against the confident hard labels of weak views.

    1/N · sum over all N rows of 1(max p_weak >= threshold) · H(argmax p_weak, p_strong): rows
    below the threshold count 0 and stay in the divisor. A tie is the lowest class.

    Args:
        weak_logits: (N, C); no gradient flows into them.
        strong_logits: (N, C); carries the gradient.
        threshold: in [0, 1]; compared in float32, or in float64 for such logits.

    Returns:
        The loss and the share of rows that count, both 0-dim.

    Source: FixMatch, eq. 4.

    >>> fixmatch_loss(torch.tensor([[9.0, 0.0]]), torch.zeros(1, 2), 0.95)
    (tensor(0.6931), tensor(1.))
    """
    weak, strong = (
        t if t.dtype == torch.float64 else t.float() for t in (weak_logits, strong_logits)
    )
    probs = weak.detach().softmax(dim=-1)
    mask = (probs.amax(dim=-1) >= threshold).to(strong)
    losses = F.cross_entropy(strong, probs.argmax(dim=-1), reduction="none")
    count = max(len(losses), 1)
    return (losses * mask).sum() / count, mask.sum() / count
