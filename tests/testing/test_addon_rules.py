"""Each rule for the methods of add-ons is broken by a fake; the others check it on an algorithm."""

from __future__ import annotations

import pytest
import torch
from nudge import Nudge
from torch import Tensor

from ssl_toolkit import AddOn, Batch, Context, Loss, StepOutput, TaskInfo, registry
from ssl_toolkit.config.options import Options
from ssl_toolkit.testing import check_plugin


class Centers(AddOn):
    """It adjusts logits by the mean of the batch."""

    def adjust(self, logits: Tensor, ctx: Context) -> Tensor:
        return logits - logits.mean(dim=0)


class Scores(AddOn):
    """It returns logarithms as pseudo labels."""

    def refine(self, probs: Tensor, batch: Batch, ctx: Context) -> Tensor:
        return probs.clamp_min(1e-6).log()


class Negates(AddOn):
    """It returns negative weights."""

    def weigh(self, probs: Tensor, mask: Tensor, batch: Batch, ctx: Context) -> Tensor:
        return -1.0 * mask


class Averages(AddOn):
    """It returns the mean loss."""

    def weigh_labels(self, losses: Tensor, batch: Batch, ctx: Context) -> Tensor:
        return losses.mean()


class Forgets(AddOn):
    """It counts steps in an attribute, which no checkpoint contains."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.steps = 0

    def losses(self, batch: Batch, ctx: Context, output: StepOutput) -> dict[str, Loss]:
        self.steps += 1
        return {"count": Loss(ctx.model(batch.labeled_weak[0]).square().mean() * self.steps)}


@pytest.mark.parametrize(
    ("rule", "fake"),
    [
        ("adjusts_logits_by_row", Centers),
        ("refines_to_probabilities", Scores),
        ("weighs_by_finite_numbers", Negates),
        ("weighs_labels_with_gradient", Averages),
        ("resumes_exactly", Forgets),
    ],
)
def test_a_fake_breaks_its_rule(rule: str, fake: type[AddOn]) -> None:
    failed = [r.rule.name for r in check_plugin(fake, on_fail=None) if not r.passed]
    assert rule in failed


def test_the_toy_add_on_passes() -> None:
    names = [result.rule.name for result in check_plugin(Nudge)]
    assert {"has_docstring", "adjusts_logits_by_row", "synchronizes_processes"} <= {*names}


def test_an_add_on_with_another_one_passes() -> None:
    registry.register_addon("nudge")(Nudge)
    try:
        check_plugin("fixmatch+nudge+logit_adjustment", kind="algorithm")
    finally:
        del registry._registered["addons", "nudge"]


def test_the_options_of_an_add_on_are_checked() -> None:
    config = Nudge.Config(shift=torch.tensor(2.0).item())
    assert all(result.passed for result in check_plugin(Nudge, config=config))
