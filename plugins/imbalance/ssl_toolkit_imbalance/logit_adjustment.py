"""Logit adjustment (Menon et al., ICLR 2021, arXiv:2007.07314)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ssl_toolkit import (
    AddOn,
    Batch,
    Context,
    ForwardOutput,
    Loss,
    Options,
    StepOutput,
    TaskInfo,
    option,
)


class LogitAdjustment(AddOn):
    """Train or predict scores in which every class counts the same, however frequent it is.

    In training, the adjusted logits estimate the posterior of a distribution with the class shares
    of the pool. Pseudo labels, by the model or the teacher, and the losses on them therefore use
    adjusted logits: pool and labels share that distribution. Only the prediction leaves the
    adjustment out, and maximizes the balanced accuracy.
    """

    class Config(Options):
        """Options of logit adjustment."""

        tau: float = option(
            1.0, ge=0, help="factor of the logarithm of the class shares", source="paper: 1"
        )
        when: Literal["loss", "prediction"] = option(
            "loss",
            help="add it to the logits in training, or subtract it from those of the prediction",
            source="paper: the loss is more accurate, the prediction needs no other training",
        )

    config: Config
    shares: Tensor
    """(C,), `Context.class_shares` of the last step; those of the labels before."""
    smallest: ClassVar[float] = 0.5
    """Images that a class counts at least, so that the logarithm is finite."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        counts = torch.tensor(task.label_counts, dtype=torch.float32)
        self.register_buffer("shares", counts / counts.sum())

    def adjust(self, logits: Tensor, ctx: Context) -> Tensor:
        """Return f(x) + tau · log pi (N, C), eq. 10."""
        if self.config.when == "prediction":
            return logits
        return logits + self._offset(ctx.class_shares, logits)

    def losses(self, batch: Batch, ctx: Context, output: StepOutput) -> Mapping[str, Loss]:
        """Store the class shares; return no loss."""
        self.shares.copy_(ctx.class_shares)
        return {}

    def predict(self, output: ForwardOutput, logits: Tensor) -> Tensor:
        """Return f(x) (N, C), or with ``when: prediction`` f(x) - tau · log pi, eq. 9."""
        if self.config.when == "loss":
            return logits
        return logits - self._offset(self.shares, logits)

    def _offset(self, shares: Tensor, logits: Tensor) -> Tensor:
        """Return tau · log pi (C,) for logits (N, C), in their type if that is wider."""
        smallest = self.smallest / (sum(self.task.label_counts) + self.task.unlabeled_count)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return self.config.tau * shares.to(logits.device, dtype).clamp_min(smallest).log()
