"""FixMatch (Sohn et al., NeurIPS 2020, arXiv:2001.07685)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
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
from ssl_toolkit.ops import align_distribution, at_least_float32, interleave_rows

MEMORY = 128
"""Number of batches over which predictions are averaged for `align_exponent`, as in ReMixMatch."""


class FixMatch(Algorithm):
    """Train strong views on the hard labels of confident weak views of the same images.

    Labeled, weak and strong images share one forward pass in train mode, so BatchNorm sees all of
    them; pseudo labels come from the live model, not the teacher. `forward` has cheaper forms, with
    which the weak images have a forward pass of their own, in train mode and without gradient.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})
    auto_rank: ClassVar[int] = 60
    auto_rank_from_scratch: ClassVar[int] = 50

    class Config(Options):
        """Options of FixMatch."""

        # docs/results/pretrained.md: a calibrated head seldom exceeds this confidence on an unseen
        # image, and seven unlabeled images per labeled one take longer without a gain.
        for_pretrained: ClassVar[dict[str, Any]] = {
            "confidence_threshold": 0.8,
            "unlabeled_ratio": 1,
        }

        confidence_threshold: float = option(
            0.95, ge=0, le=1, help="minimum confidence of a pseudo label", source="paper, sec. 4"
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="paper, sec. 4"
        )
        interleaved: bool = option(
            False,
            help="deal the images out before the joint forward; matters where devices share it",
            source="False: the order changes nothing on one device; well-known port: True",
        )
        forward: Literal["joint", "separate", "selective"] = option(
            "joint",
            help="joint: weak and strong views share a forward pass; separate: the weak ones have "
            "one before, without gradient, by BatchNorm statistics of their own, not kept; "
            "selective: the same, and strong views whose pseudo label has no weight have none",
            source="joint: FixMatch's code; the others are faster",
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="paper, sec. 4"
        )
        align_exponent: float = option(
            0.0,
            ge=0,
            le=1,
            help="how far predictions are moved toward the expected class shares; 0 for not at all",
            source="0: FixMatch's code; 1: ReMixMatch, sec. 3.1",
        )
        align_temperature: float = option(
            1.0,
            ge=0,
            le=1,
            help="exponent t of the expected class shares: 1 for the shares, 0 for even ones",
            source="1: ReMixMatch; CReST+, sec. 3.3: from 1 to 0.5 over its generations",
        )

        @model_validator(mode="after")
        def _check_forms(self) -> Self:
            if self.interleaved and self.forward == "selective":
                raise ValueError("forward=selective can't be interleaved; leave one of them out")
            return self

    profiles: ClassVar[Mapping[str, Any]] = {
        "reference": {**GOOGLE_SETTINGS, "labeled_in_pool": True, "options": {"interleaved": True}}
    }
    config: Config
    mean_probs: Tensor
    mean_weight: Tensor

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        if self.config.align_exponent:
            self.register_buffer("mean_probs", torch.zeros(task.num_classes))
            self.register_buffer("mean_weight", torch.zeros(()))

    def views(self) -> Views:
        """Return one weak labeled view, one weak and one strong unlabeled view."""
        return Views(
            unlabeled_weak=1,
            unlabeled_strong=1,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return l_s + lambda_u · l_u, eqs. 3-4."""
        c = self.config
        labeled_images, strong_images = batch.labeled_weak[0], batch.unlabeled_strong[0]
        if c.forward == "joint":
            labeled, weak, strong = self._logits(
                ctx, labeled_images, batch.unlabeled_weak[0], strong_images
            )
        else:
            weak = ctx.view_logits(batch.unlabeled_weak, by="model")[0]
        probs = at_least_float32(weak.detach()).softmax(dim=-1)
        if c.align_exponent:
            probs = self._align(probs, ctx).log().softmax(dim=-1)
        probs = ctx.refine(probs)
        confidence, pseudo_labels = probs.max(dim=-1)
        weights = ctx.weigh(probs, confidence >= c.confidence_threshold)

        used = weights.nonzero()[:, 0] if c.forward == "selective" else slice(None)
        if c.forward != "joint":
            labeled, strong = self._logits(ctx, labeled_images, strong_images[used])
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = F.cross_entropy(strong, pseudo_labels[used], reduction="none") * weights[used]
        unsupervised = losses.sum() / len(weights)  # eq. 4: all rows are in the divisor
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),  # eq. 3
                "unsupervised": Loss(unsupervised, c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
        )

    def _align(self, probs: Tensor, ctx: Context) -> Tensor:
        """Move predictions toward `Context.class_shares`, as even as the temperature makes them."""
        mean = ctx.all_reduce_sum(probs.sum(dim=0)) / ctx.all_reduce_sum(
            probs.new_full((), len(probs))
        )
        self.mean_probs.lerp_(mean, 1 / MEMORY)
        # Both start at 0, so that their ratio is a weighted mean of the batches seen so far.
        self.mean_weight.lerp_(torch.ones_like(self.mean_weight), 1 / MEMORY)
        mean = self.mean_probs / self.mean_weight
        shares = ctx.class_shares**self.config.align_temperature
        shares = shares / shares.sum()
        return align_distribution(probs, shares, mean, self.config.align_exponent)

    def _logits(self, ctx: Context, *groups: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of groups of images by a joint forward pass."""
        images, sizes = torch.cat(groups), [len(group) for group in groups]
        if self.config.interleaved:
            logits = ctx.model(interleave_rows(images, len(images) // sizes[0]))
            logits = interleave_rows(logits, sizes[0])
        else:
            logits = ctx.model(images)
        return torch.split(at_least_float32(logits), sizes)
