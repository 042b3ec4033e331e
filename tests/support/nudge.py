"""A toy add-on that uses every method of the interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit import (
    AddOn,
    Batch,
    Context,
    ForwardOutput,
    Loss,
    Metric,
    Options,
    StepOutput,
    TaskInfo,
    Views,
    option,
    register_addon,
)


class Nudge(AddOn):
    """Shift logits, square pseudo labels, halve their weights, and train a second head."""

    class Config(Options):
        """Options of the toy add-on."""

        shift: float = option(0.5, ge=-9, le=9, help="added to the logits of class 0")
        period: int = option(2, ge=1, help="steps between scans", in_steps=True)

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("loss.second", "Second head"),)
    averaged_modules: ClassVar[tuple[str, ...]] = ("head",)
    config: Config
    scans: Tensor

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.head = nn.Linear(task.feature_dim, task.num_classes)
        self.register_buffer("scans", torch.zeros(()))
        self.register_buffer("shift", torch.zeros(task.num_classes))
        self.shift[0] = self.config.shift

    def views(self, views: Views) -> Views:
        return replace(views, labeled_strong=max(views.labeled_strong, 1))

    def adjust(self, logits: Tensor, ctx: Context) -> Tensor:
        return logits + self.shift

    def refine(self, probs: Tensor, batch: Batch, ctx: Context) -> Tensor:
        squared = probs.square()
        return squared / squared.sum(dim=-1, keepdim=True)

    def weigh(self, probs: Tensor, mask: Tensor, batch: Batch, ctx: Context) -> Tensor:
        return mask / 2

    def losses(self, batch: Batch, ctx: Context, output: StepOutput) -> Mapping[str, Loss]:
        images = batch.labeled_strong[0]
        features = ctx.forward(images, update_statistics=False).features
        target = ctx.averaged("head")(features.detach()).softmax(dim=-1)
        noise = torch.rand((), generator=ctx.generator).item()
        value = F.cross_entropy(self.head(features), batch.labels) + target.square().mean() * noise
        return {"second": Loss(value, 0.5)}

    def predict(self, output: ForwardOutput, logits: Tensor) -> Tensor:
        return logits + self.head(output.features)

    @property
    def lr_factors(self) -> Mapping[str, float]:
        return {"head": 2.0}

    @property
    def scan_every(self) -> int:
        return self.config.period

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        self.scans += sum(len(images) for _, images, _ in labeled)


register_addon("nudge")(Nudge)
