"""LoRA adapters: trained on a frozen backbone, merged at the end."""

from __future__ import annotations

import builtins
import copy
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from in_process import refusal
from pretrained_runs import CLASSES, SIZE, experiment, flags, keys, make_images
from rank_jobs import carry_out, carry_out_shared
from short_runs import stop_after
from torch import nn

import ssl_toolkit
from ssl_toolkit import load_model
from ssl_toolkit.config.sections import LoraSettings
from ssl_toolkit.engine.checkpoints import load_checkpoint, save_checkpoint
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.networks import ModelFactory
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.inference.export import export
from ssl_toolkit.models.adapters import add_adapters, merge_adapters
from ssl_toolkit.models.factory import build_classifier, describe, rebuild
from ssl_toolkit.torch_workarounds import BatchNorm

peft = pytest.importorskip("peft")

STATISTICS: dict[str, Any] = {"dataset_mean": (0.4,) * 3, "dataset_std": (0.3,) * 3, "seed": 0}
MODELS = ["test_vit", "test_resnet", "wrn_10_1"]
LORA = {"rank": 2, "alpha": 8, "dropout": 0.1}


def adapted(name: str, seed: int = 1, **settings: Any) -> Any:
    classifier, _ = build_classifier(name, 3, image_size=SIZE, **STATISTICS)
    add_adapters(classifier, LoraSettings(**{**LORA, **settings}), SIZE, seed)
    return classifier


def move(classifier: nn.Module) -> None:
    """Give the adapters an effect."""
    for name, parameter in classifier.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_adapters_start_without_effect_and_alone_are_trained(name: str) -> None:
    plain, _ = build_classifier(name, 3, image_size=SIZE, **STATISTICS)
    state = torch.get_rng_state()
    classifier = adapted(name)
    assert torch.equal(torch.get_rng_state(), state)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        assert torch.equal(classifier.eval()(images).logits, plain.eval()(images).logits)
    trained = {n for n, p in classifier.backbone.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert all(p.requires_grad for p in classifier.head.parameters())
    classifier.train()
    layers = [m for m in classifier.modules() if isinstance(m, BatchNorm)]
    assert not any(layer.training for layer in layers)
    assert classifier.backbone.training
    again, other = adapted(name), adapted(name, seed=2)
    states = [c.state_dict() for c in (classifier, again, other)]
    key = next(key for key in states[0] if "lora_A" in key)
    assert torch.equal(states[0][key], states[1][key])
    assert not torch.equal(states[0][key], states[2][key])


@pytest.mark.parametrize("name", MODELS)
def test_the_merged_model_is_plain_and_has_the_same_output(name: str) -> None:
    plain, _ = build_classifier(name, 3, image_size=SIZE, **STATISTICS)
    classifier = adapted(name).eval()
    move(classifier)
    images = torch.rand(4, 3, SIZE, SIZE)
    merged = copy.deepcopy(classifier)
    merge_adapters(merged)
    with torch.no_grad():
        before = classifier(images).logits
        torch.testing.assert_close(merged(images).logits, before, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(plain.eval()(images).logits, before, atol=1e-3)
    assert list(merged.state_dict()) == list(plain.state_dict())
    assert not any("peft" in type(module).__module__ for module in merged.modules())
    assert not merged.lora
    assert classifier.lora["rank"] == 2
    merge_adapters(merged)  # nothing left to merge


def test_the_default_layers_are_those_of_attention() -> None:
    def layers(classifier: nn.Module) -> set[str]:
        names = [name for name, _ in classifier.named_parameters() if "lora_A" in name]
        return {name.partition(".lora_A")[0] for name in names}

    vit = layers(adapted("test_vit"))
    assert vit
    assert all(name.endswith(".attn.qkv") for name in vit)
    both = layers(adapted("test_vit", targets=["qkv", "mlp.fc1"]))
    assert len(both) == 2 * len(vit)
    convolutions = layers(adapted("wrn_10_1"))
    assert {"backbone.conv", "backbone.stages.0.0.conv1"} < convolutions
    settings: Any = config_of(Path(), lora={"rank": 1, "targets": "qkv, proj"}).settings
    assert settings.lora.targets == ["qkv", "proj"]


def config_of(folder: Path, **changes: Any) -> Any:
    from ssl_toolkit.config.loading import Layer, validate

    values = {"backbone": "test_vit", "pretrained": True, "algo": "supervised", **changes}
    return validate([Layer("test", values)])


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("test_vit", ["qvk"], r"no linear layer or convolution 'qvk' \(did you mean 'qkv'"),
        ("test_vit", ["attn"], "no linear layer or convolution 'attn'"),
        ("beit_base_patch16_224", [], "without calling the layer, so an adapter would have no"),
    ],
)
def test_layers_that_can_not_be_adapted_are_refused(
    name: str, targets: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"lora.targets: .*{message}"):
        adapted(name, targets=targets)


def test_settings_of_a_run_with_adapters() -> None:
    settings = config_of(Path(), lora={"rank": 4}).settings
    assert (settings.model.freeze, settings.model.head_init) == ("none", "zero")
    assert (settings.lr, settings.optimizer.backbone_lr, settings.steps) == (5e-3, 1e-3, 300)
    plain = config_of(Path(), model={"freeze": "none"})
    assert plain.fingerprint() != config_of(Path(), lora={"rank": 4}).fingerprint()
    for changes, message in (
        ({"model": {"freeze": "backbone"}}, "lora.rank: .*leave model.freeze=backbone out"),
        ({"algo": "auto"}, "lora.rank: --algo auto"),
        ({"algo": "linear_probe"}, "lora.rank: --algo linear_probe"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_config(config_of(Path(), lora={"rank": 4}, **changes))
    with pytest.raises(ConfigError, match=r"^lora\.alpha, lora\.targets: .* set lora\.rank too$"):
        resolve_config(config_of(Path(), lora={"alpha": 8, "targets": "qkv"}))


def test_a_missing_package_is_reported_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "peft", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"needs the package peft .*'ssl-toolkit\[peft\]'"):
        resolve_config(config_of(Path(), lora={"rank": 4}))


def test_a_description_rebuilds_the_network() -> None:
    classifier = adapted("test_vit")
    move(classifier)
    description = {**describe(classifier, "test_vit"), "classes": list("abc"), "image_size": SIZE}
    again, _ = rebuild(json.loads(json.dumps(description)))
    again.load_state_dict(classifier.state_dict())
    images = torch.rand(2, 3, SIZE, SIZE)
    assert torch.equal(again.eval()(images).logits, classifier.eval()(images).logits)
    merge_adapters(classifier)
    assert "lora" not in describe(classifier, "test_vit")


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("lora")
    make_images(result / "images", 10)
    return result


RUN = {"algo": "fixmatch", "lora": LORA, "steps": 4, "eval_every": 2}


@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet"])
def test_a_run_resumes_bit_for_bit_and_keeps_the_base(
    folder: Path, tmp_path: Path, backbone: str
) -> None:
    whole = experiment(folder, backbone, **RUN).trainer
    before = {name: value.clone() for name, value in whole.classifier.state_dict().items()}
    assert whole.fit() == ""
    after = whole.classifier.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert all("lora_" in name or name.startswith("head.") for name in changed)
    assert any("lora_B" in name for name in changed)

    stopped = experiment(folder, backbone, **RUN).trainer
    stopped.stop = stop_after(2)
    assert stopped.fit() == "SIGTERM"
    save_checkpoint(tmp_path / "last.pt", stopped.state_dict())
    resumed = experiment(folder, backbone, **RUN).trainer
    resumed.load_state_dict(load_checkpoint(tmp_path / "last.pt"))
    assert resumed.fit() == ""
    for a, b in ((whole.classifier, resumed.classifier), (whole.eval_model, resumed.eval_model)):
        pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)


def test_further_networks_have_adapters(folder: Path) -> None:
    run = experiment(folder, "test_vit", **RUN)
    network = ModelFactory(run.config.settings, run.classes)(pretrained=False)
    base = run.trainer.classifier.backbone.state_dict()
    assert network.lora == run.trainer.classifier.lora
    key = next(key for key in base if key.endswith("qkv.base_layer.weight"))
    assert torch.equal(network.backbone.state_dict()[key], base[key])


def test_saved_and_exported_models_are_plain(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    ssl_toolkit.train(keys(folder, "test_vit", **RUN, output=str(run)))
    images = torch.rand(3, 3, SIZE, SIZE)
    monkeypatch.setitem(sys.modules, "peft", None)  # not needed from here on
    stored = json.loads((run / "model" / "config.json").read_text())
    assert "lora" not in stored
    ours = load_model(run)(images).cpu()
    network = timm.create_model(f"local-dir:{run / 'model'}", pretrained=True).eval()
    mean, std = (torch.tensor(stored[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        theirs = network((images - mean) / std).softmax(dim=-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    program = torch.export.load(export(run, "torch-export").path).module()
    torch.testing.assert_close(program(images), ours, rtol=1e-4, atol=1e-5)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["classes"] == list(CLASSES)

    monkeypatch.undo()
    shutil.rmtree(run / "model")  # as in an unfinished run: the checkpoint has the adapters
    unfinished = load_model(run)
    assert not unfinished.classifier.lora
    torch.testing.assert_close(unfinished(images).cpu(), ours, rtol=1e-4, atol=1e-5)


def test_onnx_sees_a_plain_model(folder: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = tmp_path / "run"
    ssl_toolkit.train(keys(folder, "test_vit", **RUN, output=str(run)))
    session = onnxruntime.InferenceSession(str(export(run, "onnx").path))
    images = torch.rand(2, 3, SIZE, SIZE)
    (result,) = session.run(None, {"images": images.numpy()})
    expected = load_model(run)(images).cpu()
    torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_two_processes_equal_one(folder: Path, tmp_path: Path) -> None:
    def job(name: str) -> dict[str, Any]:
        lora = {"rank": 2, "dropout": 0}
        changes = {"algo": "supervised", "lora": lora, "output": str(tmp_path / name)}
        return keys(folder, "test_resnet", **changes)

    carry_out([job("one")])
    carry_out_shared([job("two")], 2, tmp_path)
    one, two = (
        load_checkpoint(tmp_path / name / "checkpoints" / "last.pt")["model"]
        for name in ("one", "two")
    )
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4)


def test_layer_decay_reaches_the_adapters(folder: Path) -> None:
    optimizer = {"layer_decay": 0.5, "backbone_lr": 0.01}
    trainer = experiment(folder, "test_vit", **RUN, optimizer=optimizer).trainer
    depth = len(trainer.classifier.backbone.model.blocks)  # type: ignore[arg-type]
    groups = [group for group in trainer.optimizer.param_groups if "features" in group["name"]]
    rates = {round(group["base_lr"], 9) for group in groups}
    assert rates == {round(0.01 * 0.5**number, 9) for number in range(1, depth + 1)}


def test_an_error_is_reported_before_training(folder: Path) -> None:
    typed = flags(folder, "test_vit", algo="supervised")
    message = refusal("run", *typed, "--set", "lora.rank=2", "--set", "lora.targets=qvk")
    assert message.count("\n") == 1
    assert "did you mean 'qkv'" in message
