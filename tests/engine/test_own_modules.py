"""Modules of an algorithm: averages, learning rates, weight decay, and what resumes with them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import projected
import pytest
import torch
from projected import Projected
from torch import nn
from torch.nn import functional as F

import ssl_toolkit
from ssl_toolkit import Algorithm, Batch, Context, Loss, PluginError, StepOutput, TaskInfo, Views
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.optimization import parameter_groups
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.testing import check_plugin

SHORT: dict[str, Any] = {
    "backbone": "plain",
    "steps": 6,
    "eval_every": 3,
    "save_every": 2,
    "log_every": 1,
    "batch_size": 8,
    "device": "cpu",
    "lr": 0.05,
}


def trainer(**keys: Any) -> Trainer:
    return prepare(validate([Layer("test", SHORT | {"algo": "projected"} | keys)])).trainer


def checkpoint(folder: Path, name: str = "last") -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoints" / f"{name}.pt", weights_only=True)
    return state


def test_the_kit_accepts_it() -> None:
    check_plugin(Projected)


def test_the_average_follows_the_formula() -> None:
    run = trainer(ema={"decay": 0.8, "warmup": False})
    algorithm = run.algorithm
    expected = {k: v.clone() for k, v in algorithm.state_dict().items() if k != "mean"}
    run.stop = lambda: "enough"
    for _ in range(3):
        run.fit()
        live = algorithm.state_dict()
        expected = {k: 0.8 * value + 0.2 * live[k] for k, value in expected.items()}
    averages = run.predictor.averages.state_dict()
    assert averages.keys() == expected.keys()
    for name, value in averages.items():
        torch.testing.assert_close(value, expected[name])
        assert not torch.equal(value, algorithm.state_dict()[name])


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(12, 3), nn.Dropout(0.5)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dropout(self.linear(features))
        return result


@pytest.mark.parametrize("ema", [False, {"decay": 0.8}])
def test_a_module_of_the_context_is_in_eval_mode_without_gradient(ema: Any) -> None:
    run = trainer(ema=ema)
    module = run.predictor.averages.projector
    assert (module is run.algorithm.projector) == (ema is False)
    run.predictor.averages.projector = dropping = Dropping().train(ema is False)
    context = run._context(0)
    features = torch.rand(4, 12, requires_grad=True)
    one, other = (context.averaged("projector")(features) for _ in range(2))
    assert torch.equal(one, dropping.linear(features))
    assert torch.equal(one, other)
    assert not one.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert context.averaged("projector")(features).dtype == torch.float32
    assert dropping.dropout.training == (ema is False)
    with pytest.raises(ValueError, match="'head' is not in averaged_modules \\(second, projector"):
        context.averaged("head")


@pytest.mark.parametrize("decay_on", ["all", "kernels"])
def test_own_parameters_have_groups_by_rate_and_decay(decay_on: Any) -> None:
    task = TaskInfo(3, 12, (1, 1, 1), 5, 10)
    algorithm = Projected(Projected.Config(), task)
    algorithm.second.weight.requires_grad_(False)
    classifier = Classifier(trainer().classifier.backbone, 3)
    groups = parameter_groups(classifier, algorithm, 0.1, 0.01, 0.02, decay_on)
    own = {g["name"]: g for g in groups if g["name"].startswith("algorithm")}
    undecayed = 0.02 if decay_on == "all" else 0.0
    of = {id(parameter): group for group in own.values() for parameter in group["params"]}
    found = {
        name: (of[id(p)]["lr"], of[id(p)]["weight_decay"])
        for name, p in algorithm.named_parameters()
        if id(p) in of
    }
    assert found == {
        "second.bias": (0.1, undecayed),
        "projector.0.weight": (0.05, 0.02),
        "projector.0.bias": (0.05, undecayed),
        "projector.3.weight": (0.2, 0.02),
        "projector.3.bias": (0.2, undecayed),
    }
    assert len(own) == (3 if decay_on == "all" else 5)


def test_a_factor_scales_the_updates() -> None:
    def moved(rate: float) -> torch.Tensor:
        run = trainer(projected={"rate": rate}, steps=1, eval_every=1, optimizer={"name": "sgd"})
        before = run.algorithm.projector[0].weight.detach().clone()  # type: ignore[index]
        run.fit()
        return (run.algorithm.projector[0].weight - before).detach()  # type: ignore[index]

    torch.testing.assert_close(moved(1.0), 10 * moved(0.1), rtol=1e-3, atol=1e-6)
    assert moved(0.0).abs().max() == 0


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"averaged_modules": ("projecter",)},
            "averaged_modules contains 'projecter', which is not one of its modules (second, proj",
        ),
        ({"averaged_modules": ["second"]}, "averaged_modules is ['second'], not a tuple of names"),
        ({"averaged_modules": ("mean",)}, "'mean', which is not one of its modules"),
        ({"pool_statistics": ("means",)}, "'means', which is not one of its buffers (mean"),
        (
            {"lr_factors": {"proj": 1.0}},
            "lr_factors contains 'proj', which fits none of its parameters (second.weight, ",
        ),
        ({"lr_factors": {"second": -1}}, "lr_factors['second'] is -1, not a finite number of at"),
        ({"lr_factors": {"second": float("nan")}}, "lr_factors['second'] is nan, not a finite"),
    ],
)
def test_wrong_names_are_refused_before_training(
    attributes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in attributes.items():
        monkeypatch.setattr(Projected, name, value)
    output = tmp_path / "run"
    with pytest.raises(PluginError) as caught:
        ssl_toolkit.train(SHORT | {"algo": "projected", "output": str(output)})
    assert str(caught.value).startswith("algorithm 'projected': ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(output.glob("checkpoints/*"))


# --- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ema", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_run_resumes_bit_for_bit(ema: bool, tmp_path: Path) -> None:
    def call(*arguments: object) -> int:
        command = [sys.executable, projected.__file__, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, timeout=120).returncode

    for name, kill in (("through", ()), ("killed", (5,))):
        config = SHORT | {"algo": "projected", "output": str(tmp_path / name), "seed": 2}
        config |= {} if ema else {"ema": False}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        assert call(path, *kill) == (-9 if kill else 0)
    assert checkpoint(tmp_path / "killed")["step"] == 4
    assert call("--resume", tmp_path / "killed") == 0
    states = []
    for name in ("through", "killed"):
        state = checkpoint(tmp_path / name)
        assert (state["averaged"] is not None) == ema
        states.append({key: state[key] for key in ("model", "ema", "averaged", "algorithm_state")})
        best = checkpoint(tmp_path / name, "best")
        states[-1] |= {"best": (best["weights"], best["algorithm_state"])}
    assert_equal(*states)


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, tuple):
        for part, another in zip(one, other, strict=True):
            assert_equal(part, another)
    else:
        assert one == other


# --- what the context returns --------------------------------------------------------------------


@ssl_toolkit.register_backbone("normalized")
class Normalized(ssl_toolkit.Backbone):
    """BatchNorm and dropout, which know the mode."""

    feature_dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.dropout(self.norm(self.conv(images)).relu().mean(dim=(2, 3)))
        return features


def test_the_head_alone_gives_the_logits_with_gradient() -> None:
    run = trainer()
    context = run._context(0)
    images = torch.rand(3, 3, 8, 8)
    features = context.features(images)
    assert torch.equal(context.head(features), context.model(images))
    context.head(features).sum().backward()
    assert run.classifier.head.weight.grad is not None  # type: ignore[union-attr]
    assert next(run.classifier.backbone.parameters()).grad is not None
    assert context.processes == 1


def test_a_forward_in_eval_mode_has_a_gradient_and_changes_nothing() -> None:
    run = trainer(backbone="normalized")
    classifier = run.classifier.train()
    context = run._context(0)
    images = torch.rand(4, 3, 8, 8)
    for _ in range(3):
        context.forward(images)
    before = copy.deepcopy(classifier.state_dict())
    expected = copy.deepcopy(classifier).eval()
    output = context.forward(images, eval_mode=True)
    assert_equal(dict(before), dict(classifier.state_dict()))
    assert all(part.training for part in classifier.modules())
    assert torch.equal(output.logits, expected(images).logits)
    # Statistics that a later forward updates do not change the gradient.
    context.forward(3 * images)
    output.logits.square().sum().backward()
    expected(images).logits.square().sum().backward()
    for parameter, other in zip(classifier.parameters(), expected.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, other.grad)


@pytest.mark.parametrize("ema", [False, {"decay": 0.8}])
def test_a_teacher_in_train_mode_normalizes_by_the_batch_and_changes_nothing(ema: Any) -> None:
    run = trainer(backbone="normalized", ema=ema)
    context = run._context(0)
    images = torch.rand(4, 3, 8, 8)
    teacher = run.eval_model
    before, modes = copy.deepcopy(teacher.state_dict()), [m.training for m in teacher.modules()]
    torch.manual_seed(3)  # of the dropout
    logits = context.teacher_forward(images, train_mode=True).logits
    predicted = context.teacher(images, train_mode=True)
    assert_equal(dict(before), dict(teacher.state_dict()))
    assert [m.training for m in teacher.modules()] == modes
    torch.manual_seed(3)
    assert torch.equal(logits, copy.deepcopy(teacher).train()(images).logits)
    assert not torch.equal(predicted, context.teacher(images))
    assert not any(value.requires_grad for value in (logits, predicted))


class Adjusted(Algorithm):
    """It predicts by logits without the first class."""

    def views(self) -> Views:
        return Views()

    def predict(self, output: ssl_toolkit.ForwardOutput) -> torch.Tensor:
        return output.logits - 9 * F.one_hot(torch.tensor(0), self.task.num_classes)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        loss = F.cross_entropy(ctx.model(batch.labeled_weak[0]), batch.labels)
        return StepOutput({"supervised": Loss(loss)})


ssl_toolkit.register_algorithm("adjusted")(Adjusted)


@pytest.mark.parametrize("ema", [False, {"decay": 0.8}])
def test_the_teacher_predicts_and_its_forward_returns_the_head(ema: Any) -> None:
    run = trainer(algo="adjusted", ema=ema)
    context = run._context(0)
    images = torch.rand(3, 3, 8, 8)
    raw = context.teacher_forward(images).logits
    assert torch.equal(raw, run.eval_model.eval()(images).logits)
    shift = torch.tensor([9.0] + [0.0] * 9)
    torch.testing.assert_close(raw - context.teacher(images), shift.expand(3, 10))
    views = context.view_logits(images[None])
    torch.testing.assert_close(raw[None] - views, shift.expand(1, 3, 10))
    torch.testing.assert_close(context.model(images), run.classifier(images).logits)
