"""Algorithms whose class, options or losses break one rule each, and a valid one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from contract_fakes import breaks
from pydantic import ConfigDict, field_validator
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    Algorithm,
    AugmentationParams,
    Augmenter,
    Batch,
    Context,
    Loss,
    Options,
    PseudoLabels,
    StepOutput,
    TaskInfo,
    Views,
)
from ssl_toolkit import option as an_option


class Method(Algorithm):
    """Train on labels, and on confident pseudo labels of the teacher."""

    class Config(Options):
        """Options of the method."""

        confidence: float = an_option(0.8, ge=0, le=1, help="minimum confidence of pseudo labels")
        unsupervised_weight: float = an_option(0.5, ge=0, help="weight of the unsupervised loss")
        unlabeled_ratio: int = an_option(2, ge=1, help="unlabeled images per labeled one")

    config: Config

    def views(self) -> Views:
        return Views(unlabeled_weak=2, unlabeled_ratio=self.config.unlabeled_ratio)

    @abstractmethod
    def step(self, batch: Batch, ctx: Context) -> StepOutput: ...

    def plain(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return the output of a step that breaks no rule."""
        first, second = batch.unlabeled_weak
        probs = ctx.teacher(first).softmax(dim=-1)
        logits = ctx.model(torch.cat([batch.labeled_weak[0], second])).float()
        labeled, unlabeled = logits[: len(batch.labels)], logits[len(batch.labels) :]
        used = probs.amax(dim=-1) >= self.config.confidence
        losses = F.cross_entropy(unlabeled, probs.argmax(dim=-1), reduction="none")
        return StepOutput(
            losses={
                "supervised": Loss(F.cross_entropy(labeled, batch.labels)),
                "unsupervised": Loss((losses * used).mean(), self.config.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels(probs, used),
            metrics={"share": used.float().mean()},
            pairs={"both": used[:, None] & used[None, :]},
        )

    def with_loss(self, batch: Batch, ctx: Context, value: Tensor, weight: Any = 1.0) -> StepOutput:
        """Return the output of a plain step with an extra loss."""
        output = self.plain(batch, ctx)
        return replace(output, losses={**output.losses, "extra": Loss(value, weight)})


class Plain(Method):
    """It breaks no rule."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


# --- class and options --------------------------------------------------------------------------


@breaks("has_docstring")
class Silent(Method):
    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("inherits_from_no_plugin")
class Child(Plain):
    """It inherits from a concrete plugin."""


@breaks("has_frozen_config")
class Loose(Method):
    """Its options can be modified."""

    class Config(Method.Config):
        """Options."""

        model_config = ConfigDict(frozen=False)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("rejects_unknown_options")
class Tolerant(Method):
    """It ignores unknown options."""

    class Config(Method.Config):
        """Options."""

        model_config = ConfigDict(extra="ignore")

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("rejects_invalid_options")
class Clamping(Method):
    """It clamps a confidence of 2 to 1."""

    class Config(Method.Config):
        """Options."""

        @field_validator("confidence", mode="before")
        @classmethod
        def clamp(cls, value: Any) -> float:
            return min(max(float(value), 0.0), 1.0)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("has_default_config")
class Demanding(Method):
    """An option has no default."""

    class Config(Method.Config):
        """Options."""

        color: str = an_option(..., help="required")

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("preserves_options_in_yaml")
class Drifting(Method):
    """An option is doubled each time it is read."""

    class Config(Method.Config):
        """Options."""

        delay: float = an_option(1.0, ge=0, help="in steps")

        @field_validator("delay")
        @classmethod
        def double(cls, value: float) -> float:
            return 2 * value

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("documents_options")
class Unbounded(Method):
    """A number has no range."""

    class Config(Method.Config):
        """Options."""

        delay: float = an_option(1.0, help="in steps")

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("has_valid_profiles")
class Renamed(Method):
    """Its reference profile contains the old name of an option."""

    profiles: ClassVar[Mapping[str, Any]] = {"reference": {"options": {"threshold": 0.5}}}

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("has_valid_profiles")
class OutOfRange(Method):
    """Its default for pretrained runs is out of range."""

    class Config(Method.Config):
        """Options."""

        for_pretrained: ClassVar[dict[str, Any]] = {"confidence_threshold": 2.0}

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("initializes_reproducibly")
class NumpyDraws(Method):
    """Its __init__ draws with numpy's global generator."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.start = float(np.random.rand())

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("declares_views")
class Growing(Method):
    """It requests more views on each call."""

    calls = 0

    def views(self) -> Views:
        self.calls += 1
        return Views(unlabeled_weak=1 + self.calls, unlabeled_ratio=self.config.unlabeled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


class Unchanged(Augmenter):
    """Return images unchanged."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {}

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return images


class InTurn(Unchanged):
    """Draw one tensor after the other."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {key: torch.rand(count, generator=generator) for key in ("one", "two")}


class Cropping(Unchanged):
    """Remove a column of pixels."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return images[..., 1:]


class Brightening(Unchanged):
    """Return values above 1."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return images + 1


@breaks("brings_valid_augmenters")
class BringsInTurn(Method):
    """Its augmenter draws one tensor after the other."""

    def augmenters(self) -> dict[str, Augmenter]:
        return {"extra": InTurn()}

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("brings_valid_augmenters")
class BringsCropping(Method):
    """Its augmenter changes the shape."""

    def augmenters(self) -> dict[str, Augmenter]:
        return {"extra": Cropping()}

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("brings_valid_augmenters")
class BringsBrightening(Method):
    """Its augmenter leaves the range [0, 1]."""

    def augmenters(self) -> dict[str, Augmenter]:
        return {"extra": Brightening()}

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("states_valid_run_defaults")
class StatesSteps(Method):
    """Its run defaults contain the number of steps."""

    run_defaults: ClassVar[dict[str, Any]] = {"steps": 5}

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


# --- losses -------------------------------------------------------------------------------------


@breaks("returns_valid_output")
class Renaming(Method):
    """It renames the supervised loss in the middle of the run."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        if ctx.step != 25:
            return output
        names = {"supervised": "labels", "unsupervised": "unsupervised"}
        return replace(output, losses={names[n]: loss for n, loss in output.losses.items()})


@breaks("returns_finite_float32_losses")
class Rough(Method):
    """A loss is in half precision."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        value = ctx.model(batch.labeled_weak[0]).float().square().mean()
        return self.with_loss(batch, ctx, value.to(torch.bfloat16), 0.01)


@breaks("returns_valid_output")
class Repelling(Method):
    """A weight is below 0 late in the run."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        value = ctx.model(batch.labeled_weak[0]).float().square().mean()
        late = 41 < ctx.step < 48
        return self.with_loss(batch, ctx, value, -0.01 if late else 0.01)


@breaks("returns_valid_output")
class Ending(Method):
    """It divides by the number of remaining steps, 0 at the last one."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        value = ctx.model(batch.labeled_weak[0]).float().square().mean()
        return self.with_loss(batch, ctx, value, 0.01 / (ctx.max_steps - 1 - ctx.step))


@breaks("disables_loss_at_zero_weight")
class Loud(Method):
    """A weight of 0 doesn't disable its loss."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        value, weight = output.losses["unsupervised"]
        return replace(output, losses={**output.losses, "unsupervised": Loss(value, weight + 0.1)})


@breaks("uses_labels")
class Clustering(Method):
    """Its supervised loss ignores the labels."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        logits = ctx.model(batch.labeled_weak[0]).float()
        # Equal to the labels of these images, whose classes alternate.
        labels = batch.labeled_indices % self.task.num_classes
        losses = {**output.losses, "supervised": Loss(F.cross_entropy(logits, labels))}
        return replace(output, losses=losses)


@breaks("uses_unlabeled_images")
class Forgetful(Method):
    """It requests unlabeled images and ignores them."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        logits = ctx.model(batch.labeled_weak[0]).float()
        losses = {
            "supervised": Loss(F.cross_entropy(logits, batch.labels)),
            "unsupervised": Loss(logits.square().mean(), 0.01 * self.config.unsupervised_weight),
        }
        return StepOutput(losses)
