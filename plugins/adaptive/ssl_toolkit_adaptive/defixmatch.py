"""DeFixMatch (Schmutz et al., ICLR 2023, arXiv:2203.07512)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

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
    Views,
    option,
)
from ssl_toolkit_adaptive.joint_forward import split_logits


class DeFixMatch(Algorithm):
    """FixMatch minus the same unsupervised loss on the labeled images.

    Labeled and unlabeled images have one distribution, so the expected value of the difference is
    0, and the objective is an unbiased estimate of the supervised risk whatever the pseudo labels.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of DeFixMatch."""

        confidence_threshold: float = option(
            0.95,
            ge=0,
            le=1,
            help="minimum confidence of a pseudo label (tau)",
            source="authors' code: 0.95",
        )
        unsupervised_weight: float = option(
            0.5,
            ge=0,
            help="weight of the debiased unsupervised loss (lambda); 0 for none; above 0.5, the "
            "loss of confident labeled images can fall without limit",
            source="authors' commands and USB's settings: 0.5",
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one", source="authors' code: 7"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    config: Config

    def views(self) -> Views:
        """One weak and one strong view of every image."""
        return Views(
            labeled_strong=1,
            unlabeled_weak=1,
            unlabeled_strong=1,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_s + lambda · (L_u of the unlabeled images - L_u of the labeled ones)."""
        c = self.config
        groups = [
            batch.labeled_weak[0],
            batch.labeled_strong[0],
            batch.unlabeled_weak[0],
            batch.unlabeled_strong[0],
        ]
        weak, strong, unlabeled_weak, unlabeled_strong = split_logits(groups, ctx)
        # An add-on changes the loss of the unlabeled images alone: the difference is then biased.
        probs = ctx.refine(unlabeled_weak.detach().softmax(dim=-1))
        weights = ctx.weigh(probs, self._confident(probs))
        unlabeled = consistency(probs, unlabeled_strong, weights)
        labeled_probs = weak.detach().softmax(dim=-1)
        labeled = consistency(labeled_probs, strong, self._confident(labeled_probs))
        # The supervised loss has strong views too, as in the paper: at lambda = 0.5, they outweigh
        # the loss that is subtracted.
        supervised = F.cross_entropy(weak, batch.labels, reduction="none")
        supervised = supervised + F.cross_entropy(strong, batch.labels, reduction="none")
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean() / 2),
                "unsupervised": Loss(unlabeled - labeled, c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
            metrics={"labeled_consistency": labeled.detach()},
        )

    def _confident(self, probs: Tensor) -> Tensor:
        """Return True for the rows (n,) of probabilities (n, C) at or above the threshold."""
        return probs.amax(dim=-1) >= self.config.confidence_threshold


def consistency(probs: Tensor, strong: Tensor, weights: Tensor) -> Tensor:
    """Return FixMatch's unsupervised loss ().

    Args:
        probs: (n, C) of the weak views, without gradient.
        strong: (n, C) logits of the strong views.
        weights: (n,) bool or float.
    """
    losses = F.cross_entropy(strong, probs.max(dim=-1).indices, reduction="none")
    return (losses * weights).mean()
