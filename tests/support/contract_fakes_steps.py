"""Algorithms that break a rule in a single step."""

from __future__ import annotations

from dataclasses import replace

import torch
from contract_fakes import breaks
from contract_fakes_options import Method
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit import (
    Batch,
    Context,
    ForwardOutput,
    Loss,
    Metric,
    Options,
    PseudoLabels,
    StepOutput,
    TaskInfo,
)

# --- gradients and modifications ----------------------------------------------------------------


@breaks("trains_all_model_parameters")
class HeadOnly(Method):
    """It only trains the head."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        head = ctx._classifier.head  # type: ignore[attr-defined]
        logits = head(ctx.features(batch.labeled_weak[0]).detach()).float()
        more = head(ctx.features(batch.unlabeled_weak[1]).detach()).float()
        losses = {
            "supervised": Loss(F.cross_entropy(logits, batch.labels)),
            "unsupervised": Loss(more.square().mean(), 0.01 * self.config.unsupervised_weight),
        }
        return replace(output, losses=losses)


@breaks("trains_its_parameters")
class Idle(Method):
    """It has a head that no loss uses."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.head = nn.Linear(task.feature_dim, 2)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("does_not_train_teacher")
class TwoStudents(Method):
    """It trains the teacher."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        teacher = ctx._teacher.requires_grad_()  # type: ignore[attr-defined]
        value = teacher(batch.unlabeled_weak[0]).logits.float().square().mean()
        return self.with_loss(batch, ctx, value, 0.01)


@breaks("does_not_modify_model")
class Writing(Method):
    """It sets a bias of the model."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        with torch.no_grad():
            ctx._classifier.backbone.norm.bias.fill_(0.01)  # type: ignore[attr-defined]
        return self.plain(batch, ctx)


@breaks("does_not_modify_batch")
class Scribbling(Method):
    """It writes into the batch."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        batch.unlabeled_weak.clamp_(0.01, 0.99)
        return self.plain(batch, ctx)


# --- reported tensors ---------------------------------------------------------------------------


@breaks("returns_probabilities")
class Unnormalized(Method):
    """It sharpens without normalization."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        assert output.pseudo_labels is not None
        return replace(
            output,
            pseudo_labels=PseudoLabels(output.pseudo_labels.probs**2, output.pseudo_labels.mask),
        )


@breaks("detaches_reported_tensors")
class Trailing(Method):
    """Its pseudo labels carry a gradient."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        assert output.pseudo_labels is not None
        probs = ctx.model(batch.unlabeled_weak[0]).float().softmax(dim=-1)
        return replace(output, pseudo_labels=PseudoLabels(probs, output.pseudo_labels.mask))


@breaks("detaches_reported_tensors")
class Attached(Method):
    """A metric carries a gradient."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        return replace(output, metrics={"labels": output.losses["supervised"].value})


@breaks("returns_valid_output")
class Doubled(Method):
    """Late in the run, a metric has the name of a metric of the engine."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        name = "coverage" if 41 < ctx.step < 48 else "share"
        return replace(output, metrics={name: output.metrics["share"]})


@breaks("declares_metrics")
class DeclaredTwice(Method):
    """It declares a metric twice."""

    metrics = (Metric("share"), Metric("share"))

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("avoids_host_sync")
class Branching(Method):
    """It branches on an empty mask."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        assert output.pseudo_labels is not None
        if not output.pseudo_labels.mask.any():
            losses = {**output.losses}
            losses["unsupervised"] = Loss(0 * losses["unsupervised"].value, 0.0)
            return replace(output, losses=losses)
        return output


@breaks("avoids_host_sync")
class Reading(Method):
    """It reads the value of a loss."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        str(output.losses["supervised"].value.detach().tolist())
        return output


@breaks("avoids_host_sync")
class Masking(Method):
    """It indexes with the mask of pseudo labels."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        assert output.pseudo_labels is not None
        passed = output.pseudo_labels.probs[output.pseudo_labels.mask]
        return replace(output, metrics={"total": passed.sum()})


# --- modules of the algorithm, and predictions --------------------------------------------------


class Headed(Method):
    """It trains an extra head; the fakes below predict with it."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.extra = nn.Linear(task.feature_dim, task.num_classes)
        self.extra.weight.data.zero_()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def with_extra_loss(self, batch: Batch, ctx: Context) -> StepOutput:
        logits = self.extra(ctx.features(batch.labeled_weak[0]).float())
        return self.with_loss(batch, ctx, F.cross_entropy(logits, batch.labels))


class Predicting(Headed):
    """It breaks no rule."""

    averaged_modules = ("extra",)

    @property
    def lr_factors(self) -> dict[str, float]:
        return {"extra": 2.0}

    def predict(self, output: ForwardOutput) -> Tensor:
        return output.logits + self.drop(self.extra(output.features))

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("declares_own_modules")
class Misspelled(Headed):
    """It averages an unknown module."""

    averaged_modules = ("extras",)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("declares_own_modules")
class Misfitted(Headed):
    """Its learning rate is for an incomplete name of a module."""

    @property
    def lr_factors(self) -> dict[str, float]:
        return {"ext": 2.0}

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("predicts_purely")
class Counting(Headed):
    """It counts its predictions."""

    def predict(self, output: ForwardOutput) -> Tensor:
        self.calls += 1
        return output.logits

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("predicts_purely")
class Alternating(Headed):
    """Its predictions depend on earlier ones."""

    sign = 1.0

    def predict(self, output: ForwardOutput) -> Tensor:
        self.sign *= 1.01
        return self.sign * output.logits

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("predicts_purely")
class Balancing(Headed):
    """It divides by the mean prediction of the batch."""

    def predict(self, output: ForwardOutput) -> Tensor:
        return output.logits - output.logits.softmax(dim=-1).mean(dim=0).log()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("predicts_purely")
class Unsaved(Headed):
    """Its predictions use state that is not a buffer."""

    steps = 0

    def get_extra_state(self) -> int:
        return self.steps

    def set_extra_state(self, state: int) -> None:
        self.steps = state

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        self.steps += 1
        return self.with_extra_loss(batch, ctx)

    def predict(self, output: ForwardOutput) -> Tensor:
        return output.logits * (1 + self.steps / 1000)


@breaks("predicts_purely")
class Infinite(Headed):
    """It excludes a class by an infinite logit."""

    def predict(self, output: ForwardOutput) -> Tensor:
        first = torch.arange(output.logits.shape[1], device=output.logits.device) == 0
        return output.logits.masked_fill(first, -torch.inf)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("predicts_purely")
class Ranking(Headed):
    """Its stranger scores are ranks within the batch."""

    def stranger_scores(self, output: ForwardOutput) -> Tensor:
        return output.logits.amax(dim=1).argsort().argsort().float()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.with_extra_loss(batch, ctx)


@breaks("calls_addon_hooks")
class Deaf(Method):
    """It declares a hook that it doesn't call."""

    addon_hooks = frozenset({"refine"})

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        return self.plain(batch, ctx)


@breaks("calls_addon_hooks")
class Ignoring(Method):
    """It ignores the weights of add-ons."""

    addon_hooks = frozenset({"weigh"})

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        probs = ctx.teacher(batch.unlabeled_weak[0]).softmax(dim=-1)
        mask = torch.ones(len(probs), dtype=torch.bool, device=probs.device)
        ctx.weigh(probs, mask)
        return replace(output, pseudo_labels=PseudoLabels(probs, mask))


@breaks("calls_addon_hooks")
class Unweighted(Method):
    """It ignores the weights of labels."""

    addon_hooks = frozenset({"weigh_labels"})

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        ctx.weigh_labels(torch.ones(len(batch.labels)))
        return self.plain(batch, ctx)
