"""Each rule for algorithms is broken by a fake that breaks no other."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import contract_fakes_runs  # noqa: F401
import pytest
import torch
from contract_fakes import FAKES
from contract_fakes_options import Method, Plain
from contract_fakes_steps import Predicting
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

from ssl_toolkit import Batch, Context, Loss, Options, StepOutput, TaskInfo
from ssl_toolkit.testing import check_plugin, rules
from ssl_toolkit.testing.rules import run_rule
from ssl_toolkit.testing.subject import find_subject

CASES = [
    (rule, fake) for rule, fakes in FAKES.items() for fake in fakes if issubclass(fake, Method)
]
RULES = {rule.name: rule for rule in rules("algorithm")}
SLOW = "synchronizes_processes"


def broken(fake: type[Method], config: Method.Config | None = None) -> set[str]:
    """The rules that a fake breaks; the one on two processes is left to the fakes for it."""
    subject = find_subject(fake, config=config)
    expected = {rule for rule, fakes in FAKES.items() if fake in fakes}
    names = [name for name in RULES if name != SLOW or name in expected or fake is Plain]
    return {name for name in names if not run_rule(RULES[name], subject).passed}


def test_every_rule_has_a_fake() -> None:
    assert len(RULES) >= 20
    assert {rule for rule, _ in CASES} == RULES.keys()


@pytest.mark.parametrize(
    ("rule", "fake"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_fake_breaks_only_its_rule(rule: str, fake: type[Method]) -> None:
    assert not dist.is_initialized()
    config = fake.Config(color="red") if rule == "has_default_config" else None
    assert broken(fake, config) == {rule}


class Remembering(Method):
    """Its step uses what a scan has made."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("means", torch.zeros(task.num_classes, task.feature_dim))

    @property
    def scan_every(self) -> int:
        return 2

    def scan(self, labeled: Any, unlabeled: Any, ctx: Context) -> None:
        for _, images, labels in labeled:
            self.means.index_add_(0, labels, ctx.teacher_forward(images).features)  # type: ignore[operator]

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        features = ctx.features(batch.labeled_weak[0]).float()
        far = (features - F.normalize(self.means)[batch.labels]).square().mean()  # type: ignore[arg-type, index]
        return self.with_loss(batch, ctx, far, 0.001)


class WithExtraState(Method):
    """It keeps more than tensors."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.kept: dict[str, Any] = {"last": [torch.zeros(2)], "steps": 0}

    def get_extra_state(self) -> dict[str, Any]:
        return self.kept

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.kept = state

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        value = ctx.model(batch.labeled_weak[0]).float().square().mean()
        self.kept = {"last": [value.detach().expand(2)], "steps": self.kept["steps"] + 1}
        return self.with_loss(batch, ctx, value, 0.001 * min(self.kept["steps"], 9))


class Penalizing(Method):
    """It takes a gradient inside the step."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        features, logits = ctx.forward(batch.labeled_weak[0])
        loss = F.cross_entropy(logits.float(), batch.labels)
        (gradient,) = torch.autograd.grad(loss, features, create_graph=True)
        return self.with_loss(batch, ctx, gradient.float().square().sum(), 0.01)


class Normalizing(Method):
    """It has BatchNorm in a module of its own."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.head = nn.Sequential(nn.BatchNorm1d(task.feature_dim), nn.Linear(task.feature_dim, 2))

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        value = self.head(ctx.features(batch.labeled_weak[0])).float().square().mean()
        return self.with_loss(batch, ctx, value, 0.01)


class Warming(Method):
    """A loss, a guess and a metric come after a while; the metric may be nan."""

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        output = self.plain(batch, ctx)
        if ctx.step < 4:
            return StepOutput({"supervised": output.losses["supervised"]})
        assert output.pseudo_labels is not None
        used = output.pseudo_labels.mask.float()
        return replace(output, metrics={"confidence": used.sum() / used.sum()})


ALLOWED = [Remembering, WithExtraState, Penalizing, Normalizing, Warming, Predicting]


@pytest.mark.parametrize("fake", ALLOWED)
def test_allowed_code_breaks_no_rule(fake: type[Method]) -> None:
    assert [
        result.explain() for result in check_plugin(fake, on_fail=None) if not result.passed
    ] == []


class Returning(Method):
    """It returns a dict."""

    def step(self, batch: Batch, ctx: Context) -> Any:
        return {"supervised": Loss(ctx.model(batch.labeled_weak[0]).mean())}


def test_a_step_that_returns_a_wrong_type_is_reported_as_in_a_run() -> None:
    subject = find_subject(Returning)
    for name in ("returns_valid_output", "uses_labels", "reproduces_losses"):
        message = run_rule(RULES[name], subject).finding
        assert message == "returned a dict instead of a StepOutput"


def test_a_correct_plugin_breaks_no_rule() -> None:
    started = time.process_time()
    results = check_plugin(Plain, on_fail=None)
    assert [result.rule for result in results] == [*RULES.values()]
    assert [result.explain() for result in results if not result.passed] == []
    # Processor time, for the machine may be busy; the two processes are not counted in it.
    assert time.process_time() - started < 10
