"""The optimizers of timm by name, and layer-wise learning rates, against timm's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plain_backbone  # noqa: F401
import pytest
import timm
import torch
from in_process import refusal
from rank_jobs import carry_out, carry_out_shared
from short_runs import configure, stop_after
from ssl_toolkit_wide_resnet import WideResNet

from ssl_toolkit.config.sections import OptimizerSettings
from ssl_toolkit.engine.checkpoints import load_checkpoint, save_checkpoint
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.optimization import check_optimizer, parameter_groups
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.feature_input import FeatureInput
from ssl_toolkit.models.timm_backbone import TimmBackbone

EACH = ["sgd", "adamw", "lamb", "lion", "adafactor", "muon"]


def trainer_of(name: str, **optimizer: Any) -> Trainer:
    optimizer = {"name": name, "accumulation_steps": 2, "clip_norm": 1.0} | optimizer
    return prepare(configure(backbone="wrn_10_1", optimizer=optimizer, lr=0.01)).trainer


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=str)]
    return [t for one in value for t in tensors(one)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize("name", EACH)
def test_a_run_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Weights, averages and state of the optimizer, with accumulation and clipping."""
    whole = trainer_of(name)
    before = [value.clone() for value in whole.classifier.parameters()]
    assert whole.fit() == ""
    after = list(whole.classifier.parameters())
    assert all(value.isfinite().all() for value in after)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    stopped = trainer_of(name)
    stopped.stop = stop_after(3)
    assert stopped.fit() == "SIGTERM"
    save_checkpoint(tmp_path / "last.pt", stopped.state_dict())
    resumed = trainer_of(name)
    resumed.load_state_dict(load_checkpoint(tmp_path / "last.pt"))
    assert resumed.fit() == ""
    first, second = whole.state_dict(), resumed.state_dict()
    for key in ("model", "ema", "optimizer"):
        pairs = list(zip(tensors(first[key]), tensors(second[key]), strict=True))
        assert pairs
        assert all(torch.equal(a, b) for a, b in pairs), key


@pytest.mark.parametrize("name", ["lamb", "lion", "adafactor", "sgdw"])
def test_the_update_is_that_of_timm(name: str) -> None:
    """One step from the same gradients, in the groups of the run."""
    trainer = trainer_of(name, args={"foreach": "false"} if name != "adafactor" else {})
    optimizer = trainer.optimizer
    state = [(p.detach().clone(), torch.randn_like(p)) for p in trainer.classifier.parameters()]
    for parameter, (_, gradient) in zip(trainer.classifier.parameters(), state, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    copies = [torch.nn.Parameter(value.clone()) for value, _ in state]
    for copied, (_, gradient) in zip(copies, state, strict=True):
        copied.grad = gradient.clone()
    theirs = timm.optim.create_optimizer_v2(copies, opt=name, lr=0.01, weight_decay=0.02)
    theirs.step()
    for parameter, copied in zip(trainer.classifier.parameters(), copies, strict=True):
        torch.testing.assert_close(parameter, copied, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"name": "lamp"}, r"optimizer.name: unknown optimizer 'lamp' \(did you mean 'lamb'"),
        ({"name": "adahessian"}, "adahessian needs a closure and gradients of gradients"),
        ({"name": "kron"}, "kron draws random numbers"),
        ({"name": "bnbadamw8bit"}, "bnbadamw8bit needs the package bitsandbytes and a GPU"),
        ({"name": "fusedlamb"}, "fusedlamb needs the package apex and a GPU"),
        ({"name": "lookahead_adam"}, "unknown optimizer 'lookahead_adam'"),
        (
            {"name": "lion", "args": {"beta": 1}},
            r"optimizer.args.beta: optimizer lion has no such argument \(did you mean 'betas'",
        ),
        ({"name": "adamw", "args": {"lr": 1}}, "optimizer.args.lr: the toolkit sets this"),
        ({"name": "lion", "args": {"betas": [2, 3]}}, "optimizer.args: lion can't be built"),
        ({"name": "lamb", "args": {"betas": "x"}}, "optimizer.args: lamb can't be built"),
        ({"args": {"betas": [0.9, 2]}}, "optimizer.args: adamw can't be built"),
    ],
)
def test_optimizers_that_do_not_work_are_refused(optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_optimizer(OptimizerSettings(**optimizer))
    assert "\n" not in str(caught.value)


def test_a_wrong_name_is_reported_before_the_data_is_read(tmp_path: Path) -> None:
    message = refusal("run", "--data", tmp_path / "missing", "--set", "optimizer.name=lamp")
    assert "did you mean 'lamb'" in message
    assert message.count("\n") == 1


def test_arguments_of_the_default_optimizer() -> None:
    trainer = trainer_of("adamw", args={"betas": ["0.8", "0.95"]})
    assert all(list(g["betas"]) == [0.8, 0.95] for g in trainer.optimizer.param_groups)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    def job(name: str) -> dict[str, Any]:
        return {
            "algo": "supervised", "dataset": "digits", "backbone": "plain", "steps": 4,
            "batch_size": 8, "device": "cpu", "lr": 0.01, "output": str(tmp_path / name),
            "optimizer": {"name": "lamb", "accumulation_steps": 2},
        }  # fmt: skip

    carry_out([job("one")])
    carry_out_shared([job("two")], 2, tmp_path)
    one, two = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")
    )
    assert one["status"] == two["status"] == "completed"
    states = [load_checkpoint(tmp_path / n / "checkpoints" / "last.pt") for n in ("one", "two")]
    for a, b in zip(*(tensors(state["model"]) for state in states), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


# --- rates by layer -----------------------------------------------------------------------------


def by_name(model: torch.nn.Module, groups: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in groups
        for parameter in group["params"]
        if id(parameter) in names
    }


@pytest.mark.parametrize(
    "name", ["test_vit", "test_resnet", "test_efficientnet", "test_convnext", "test_nfnet"]
)
def test_the_rates_by_layer_are_those_of_timm(name: str) -> None:
    classifier = Classifier(TimmBackbone(name, image_size=160), 5)
    groups = parameter_groups(classifier, None, 0.1, None, 0.02, "timm", layer_decay=0.7)
    ours = by_name(classifier.backbone.model, groups)
    model = timm.create_model(name, num_classes=5)
    optimizer = timm.optim.create_optimizer_v2(
        model, "sgd", lr=0.1, weight_decay=0.02, layer_decay=0.7
    )
    theirs = {
        key: (0.1 * group["lr_scale"], group["weight_decay"])
        for group in optimizer.param_groups
        for key, one in model.named_parameters()
        if any(one is parameter for parameter in group["params"])
    }
    assert len(ours) > 5
    for key, value in ours.items():
        assert value == pytest.approx(theirs[key]), key
    head = {g["lr"] for g in groups if g["name"].startswith("classifier")}
    assert head == {0.1}
    lowest = min(rate for rate, _ in ours.values())
    assert lowest == pytest.approx(min(rate for rate, _ in theirs.values()))


def test_rates_by_layer_with_a_rate_of_the_backbone_and_frozen_parts() -> None:
    classifier = Classifier(TimmBackbone("test_vit", image_size=160), 5)
    model: Any = classifier.backbone.model
    model.blocks[0].requires_grad_(False)
    groups = parameter_groups(classifier, None, 0.1, 0.01, 0.02, "all", layer_decay=0.5)
    rates = by_name(model, groups)
    assert not any(name.startswith("blocks.0.") for name in rates)
    depth = len(model.blocks)
    # the head is the top layer; the norm belongs to the last block
    for name in ("norm.weight", f"blocks.{depth - 1}.mlp.fc1.bias"):
        assert rates[name] == pytest.approx((0.01 * 0.5, 0.02))
    assert rates["pos_embed"] == pytest.approx((0.01 * 0.5 ** (depth + 1), 0.02))


def test_rates_by_layer_of_a_wide_resnet() -> None:
    backbone = WideResNet(16, 1)
    groups = parameter_groups(Classifier(backbone, 5), None, 1.0, layer_decay=0.5)
    rates = {name: rate for name, (rate, _) in by_name(backbone, groups).items()}
    assert rates["norm.weight"] == 0.5
    assert rates["stages.2.1.conv1.weight"] == 0.5
    assert rates["stages.2.0.conv1.weight"] == 0.25
    assert rates["conv.weight"] == 0.5**7


def test_a_run_trains_by_layer() -> None:
    trainer = prepare(configure(backbone="wrn_10_1", optimizer={"layer_decay": 0.5})).trainer
    assert trainer.fit() == ""
    rates = {group["base_lr"] for group in trainer.optimizer.param_groups}
    assert len(rates) == 5
    assert max(rates) == 0.002


def test_a_backbone_without_layers_is_refused() -> None:
    classifier = Classifier(FeatureInput.build("features_4"), 3)
    with pytest.raises(ConfigError, match=r"optimizer.layer_decay: backbone FeatureInput has no"):
        parameter_groups(classifier, None, 0.1, layer_decay=0.5)


def test_a_frozen_backbone_has_no_rates_by_layer(tmp_path: Path) -> None:
    output = tmp_path / "run"
    line = refusal(
        "run", "--set", "model.freeze=backbone", "--set", "optimizer.layer_decay=0.5",
        "--output", output,
    )  # fmt: skip
    assert "optimizer.layer_decay: the backbone is frozen; train it with model.freeze=none" in line
    assert not output.exists()
