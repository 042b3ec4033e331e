"""Algorithms that break a rule over several steps, for other sizes, or in their state."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from typing import Any

import torch
from contract_fakes import breaks
from contract_fakes_options import Method
from torch import distributed as dist
from torch.nn import functional as F

from ssl_toolkit import Batch, Context, Loss, Options, StepOutput, TaskInfo


@breaks("reproduces_losses")
class Noisy(Method):
    """Its first step is random."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        value = ctx.model(batch.labeled_weak[0]).float().square().mean()
        chance = secrets.randbelow(2**30) / 2**30
        return self.with_loss(batch, ctx, value, 0.001 * chance if ctx.step == 0 else 0.001)


@breaks("uses_no_global_generator")
class Tossing(Method):
    """It draws with Python's global generator."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        value = ctx.model(batch.labeled_weak[0]).float().square().mean()
        return self.with_loss(batch, ctx, value, 0.001 * random.random())


@breaks("uses_no_global_generator")
class Dropping(Method):
    """It draws with torch's global generator."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        return replace(output, metrics={"dropout": F.dropout(torch.ones(9)).mean()})


@breaks("resumes_exactly")
class Counting(Method):
    """It counts its steps in an attribute."""

    seen = 0

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        self.seen += 1
        value = ctx.model(batch.labeled_weak[0]).float().square().mean()
        weight = 0.0 if self.seen < 3 else 0.001 * self.seen
        return self.with_loss(batch, ctx, value, weight)


@breaks("registers_tensors")
class Keeping(Method):
    """It stores a tensor as a plain attribute."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        self.last = output.losses["supervised"].value.detach()
        return output


@breaks("supports_copy_and_pickle")
class Single(Method):
    """It refuses to be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one")

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("supports_copy_and_pickle")
class WithLambda(Method):
    """It stores a lambda."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.ramp = lambda step: min(step / 10, 1.0)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("scans_without_training")
class Backwards(Method):
    """Its scan_every is -1."""

    @property
    def scan_every(self) -> int:
        return -1

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("supports_other_class_counts")
class ThreeBest(Method):
    """It uses the three most probable classes."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        assert output.pseudo_labels is not None
        return replace(output, metrics={"three": output.pseudo_labels.probs.topk(3).values.sum()})


@breaks("supports_other_class_counts")
class TenClasses(Method):
    """Its number of classes is hard-coded."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        return replace(output, metrics={"first": torch.ones(10)[batch.labels].mean()})


@breaks("supports_declared_tasks")
class OneClassOnly(Method):
    """Its pseudo labels are those of images with one class each."""

    tasks = frozenset({"multiclass", "multilabel"})

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("supports_declared_tasks")
class TaskAsText(Method):
    """Its tasks are a text."""

    tasks = "multiclass"  # type: ignore[assignment]

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("supports_small_batches")
class InFours(Method):
    """It splits labeled images into four equal groups."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        return replace(output, metrics={"fours": batch.labels.view(4, -1).float().mean()})


@breaks("supports_unlabeled_ratios")
class InPairs(Method):
    """It expects two unlabeled images per labeled image."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        pairs = batch.unlabeled_indices.view(2, len(batch.labels))
        return replace(output, metrics={"pairs": pairs.float().mean()})


@breaks("supports_non_square_images")
class Transposing(Method):
    """It adds an image to its transpose."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        images = batch.unlabeled_weak[0]
        return replace(output, metrics={"even": (images + images.transpose(2, 3)).mean()})


@breaks("matches_float32_in_bf16")
class Cancelling(Method):
    """It computes a small difference of large numbers in half precision."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        large = ctx.model(batch.labeled_weak[0]) + 10_000
        return self.with_loss(batch, ctx, (large - 10_000).float().square().mean(), 0.001)


@breaks("handles_extreme_predictions")
class Unguarded(Method):
    """It takes the logarithm of 1 - p, with p = 1 for certain predictions."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        rest = 1 - ctx.teacher(batch.unlabeled_weak[0]).softmax(dim=-1).amax(dim=-1)
        return self.with_loss(batch, ctx, -0.001 * rest.log().mean())


@breaks("handles_extreme_predictions")
class Dividing(Method):
    """It divides by the range of the probabilities."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        probs = ctx.teacher(batch.unlabeled_weak[0]).softmax(dim=-1)
        return self.with_loss(batch, ctx, 0.001 / (probs.amax() - probs.amin()))


@breaks("learns_toy_images")
class Timid(Method):
    """A term that shrinks the logits dominates its supervised loss."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        losses = {name: Loss(v, 1e-6 * w) for name, (v, w) in output.losses.items()}
        flat = ctx.model(batch.labeled_weak[0]).float().square().mean()
        return replace(output, losses={**losses, "flat": Loss(flat)})


@breaks("synchronizes_processes")
class LocalAverage(Method):
    """It averages over the local shard of the batch only."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("confidence", torch.zeros(()))

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        assert output.pseudo_labels is not None
        self.confidence.lerp_(output.pseudo_labels.probs.amax(dim=-1).mean(), 0.1)  # type: ignore[operator]
        return output


@breaks("synchronizes_processes")
class Stuck(Method):
    """Only one process takes part in a sum."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        if dist.is_initialized() and dist.get_rank() == 0:
            ctx.all_reduce_sum(torch.ones(5))
        return output
