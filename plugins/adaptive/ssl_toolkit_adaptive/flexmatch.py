"""FlexMatch (Zhang et al., NeurIPS 2021, arXiv:2110.08263)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    USB_SETTINGS,
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
from ssl_toolkit_adaptive.joint_forward import joint_logits

_MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "convex": lambda status: status / (2 - status),
    "linear": lambda status: status,
    "concave": lambda status: (1 + status).log2(),
}


class FlexMatch(Algorithm):
    """FixMatch with a lower threshold for the classes that the model has learned less well.

    The learning status of a class is the number of unlabeled images whose latest confident
    prediction was this class, relative to the largest such number.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of FlexMatch."""

        confidence_threshold: float = option(
            0.95, ge=0, le=1, help="threshold of the best-learned class", source="USB's code"
        )
        threshold_warmup: bool = option(
            True,
            help="keep all thresholds low until most unlabeled images were predicted confidently",
            source="paper; USB's code: True",
        )
        threshold_mapping: Literal["convex", "linear", "concave"] = option(
            "convex",
            help="function of the learning status that multiplies the threshold",
            source="paper",
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="USB's code"
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="USB's settings: 7"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("mean_threshold", "Mean threshold", "Mean of the thresholds of all classes."),
    )
    config: Config
    learned: Tensor
    """(unlabeled images + 1,) the class last predicted confidently; C for none yet. The last
    entry is scratch space."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("learned", torch.full((task.unlabeled_count + 1,), task.num_classes))

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_s + lambda · L_u."""
        c = self.config
        labeled, weak, strong = joint_logits(batch, ctx)
        probs = ctx.refine(weak.detach().softmax(dim=-1))
        confidence, pseudo_labels = probs.max(dim=-1)

        status = _MAPPINGS[c.threshold_mapping](self._learning_status(ctx.pool_mask))
        thresholds = c.confidence_threshold * status
        weights = ctx.weigh(probs, confidence >= thresholds[pseudo_labels])
        self._record(batch.unlabeled_indices, pseudo_labels, confidence, ctx)

        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = F.cross_entropy(strong, pseudo_labels, reduction="none")
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss((losses * weights).mean(), c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
            metrics={"mean_threshold": thresholds.mean()},
        )

    def _learning_status(self, mask: Tensor) -> Tensor:
        """Return the learning status beta of each class, (C,) in [0, 1].

        Images that are not drawn do not count: they would seem not to be learned forever.
        """
        learned = self.learned[:-1]
        counts = torch.zeros(self.task.num_classes + 1, device=learned.device)
        # A sum of ones is exact in any order; bincount would wait for the GPU.
        counts.index_add_(0, learned, mask.to(counts))
        classes = counts[:-1]  # the last count is of images without a confident prediction
        largest = counts.max() if self.config.threshold_warmup else classes.max()
        return classes / largest.clamp_min(1)

    def _record(
        self, indices: Tensor, pseudo_labels: Tensor, confidence: Tensor, ctx: Context
    ) -> None:
        """Store the confident predictions of the whole batch."""
        confident = confidence >= self.config.confidence_threshold
        # Without a host transfer nothing can be selected: the others go to the scratch entry.
        targets = torch.where(confident, indices, len(self.learned) - 1)
        self.learned[ctx.all_gather(targets)] = ctx.all_gather(pseudo_labels)
