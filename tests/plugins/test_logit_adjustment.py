"""Add-ons for uneven classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssl_toolkit_imbalance import LogitAdjustment
from torch import Tensor
from torch.nn import functional as F
from toy_context import CLASSES, POOL, FakeContext, make_batch

from ssl_toolkit import Algorithm, ForwardOutput, TaskInfo, registry
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.experiment import prepare

COUNTS = (9, 4, 2, 1)
SHARES = torch.tensor(COUNTS) / 16


def build(algo: str, counts: tuple[int, ...] = COUNTS, **options: Any) -> Algorithm:
    kind = registry.load("algorithms", algo)
    built: Algorithm = kind(kind.Config(**options), TaskInfo(CLASSES, 8, counts, POOL, 100))
    return built


def context() -> FakeContext:
    ctx = FakeContext()
    ctx.class_shares = SHARES.flip(0)
    return ctx


def test_the_shares_of_the_prediction_are_those_of_the_last_step() -> None:
    algorithm = build("fixmatch+logit_adjustment", logit_adjustment={"when": "prediction"})
    output = ForwardOutput(torch.zeros(2, 8), torch.randn(2, CLASSES))
    torch.testing.assert_close(algorithm.predict(output), output.logits - SHARES.log())
    algorithm.step(make_batch(algorithm), context())
    expected = output.logits - SHARES.flip(0).log()
    torch.testing.assert_close(algorithm.predict(output), expected)


def test_the_prediction_leaves_training_unchanged() -> None:
    plain = build("fixmatch")
    algorithm = build("fixmatch+logit_adjustment", logit_adjustment={"when": "prediction"})
    batch = make_batch(plain)
    expected, actual = (a.step(batch, context()).losses for a in (plain, algorithm))
    assert all(torch.equal(loss.value, actual[name].value) for name, loss in expected.items())


def test_a_class_without_a_label_has_a_finite_logit() -> None:
    algorithm = build("fixmatch+logit_adjustment", (8, 8, 0, 0))
    ctx = context()
    ctx.class_shares = torch.tensor([0.5, 0.5, 0, 0])
    losses = algorithm.step(make_batch(algorithm), ctx).losses
    assert all(loss.value.isfinite() for loss in losses.values())
    assert algorithm.addon.adjust(torch.zeros(1, CLASSES), ctx)[0, 3] == pytest.approx(
        torch.tensor(0.5 / (16 + POOL)).log().item()
    )


@pytest.mark.parametrize("tau", [1.0, 0.0])
def test_the_trained_scores_are_those_of_balanced_classes(tau: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 4000 + [1] * 200)
    points = torch.randn(len(labels), 1, generator=generator, dtype=torch.float64)
    points += 2 * labels[:, None]  # the classes meet at 1 if both count the same
    shares = torch.tensor([4000, 200]) / 4200
    addon = LogitAdjustment(LogitAdjustment.Config(tau=tau), TaskInfo(2, 1, (4000, 200), 0, 1))
    ctx = context()
    ctx.class_shares = shares
    model = torch.nn.Linear(1, 2).double()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(addon.adjust(model(points), ctx), labels)
        value.backward()
        return value

    optimizer.step(loss)
    weight, bias = (parameter[1] - parameter[0] for parameter in model.parameters())
    boundary = (-bias / weight).item()
    expected = 1.0 if tau else 1 + torch.tensor(20.0).log().item() / 2
    assert boundary == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("when", ["loss", "prediction"])
def test_a_run_adjusts_by_the_shares_of_its_pool(when: str) -> None:
    keys: dict[str, Any] = {"algo": "simple+logit_adjustment", "steps": 4, "batch_size": 8}
    keys |= {"num_labels": 63, "simple": {"logit_adjustment": {"when": when}}, "device": "cpu"}
    trainer = prepare(validate([Layer("test", keys)])).trainer
    trainer.fit()
    assert torch.equal(trainer.algorithm.addon.shares, trainer._class_shares)
    assert not torch.allclose(trainer._class_shares, torch.full((10,), 0.1))
    output = ForwardOutput(torch.zeros(1, 1), torch.zeros(1, 10))
    moved = trainer.algorithm.predict(output).abs().sum() > 0
    assert moved == (when == "prediction")
