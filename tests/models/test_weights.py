from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError
from ssl_toolkit.interfaces import Backbone
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.export import export_model, load_exported
from ssl_toolkit.models.factory import build_classifier
from ssl_toolkit.models.weights import load_weights, read_weights

DATASET = {"dataset_mean": (0.1, 0.2, 0.3), "dataset_std": (0.4, 0.5, 0.6)}


def build(name: str = "wrn_10_1", classes: int = 3, size: int = 32, **options: Any) -> Classifier:
    return build_classifier(name, classes, image_size=size, **({"seed": 0} | DATASET | options))[0]


def trained(name: str = "wrn_10_1", classes: int = 3, size: int = 32) -> Classifier:
    """Other weights than `build` gives, running statistics included."""
    torch.manual_seed(3)
    classifier = build(name, classes, size, seed=7)
    classifier(torch.rand(4, 3, size, size))
    return classifier.eval()


def logits(classifier: nn.Module, size: int = 32) -> Tensor:
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return classifier.eval()(images).logits


WRAPPINGS = {
    "plain": lambda state: state,
    "run": lambda state: {"model": state, "step": 3, "rng": torch.ones(4)},
    "averaged": lambda state: {
        "model": {k: 0 * v for k, v in state.items()},
        "ema": {"module": state, "updates": 5},
    },
    "best of a run": lambda state: {"weights": state, "accuracy": 0.5, "step": 3},
    "ddp": lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}},
    "compiled": lambda state: {f"_orig_mod.{k}": v for k, v in state.items()},
    "both": lambda state: {"model": {f"module._orig_mod.{k}": v for k, v in state.items()}},
    "timm script": lambda s: {"state_dict": s, "args": argparse.Namespace(lr=1.0), "epoch": 1},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("name", ["wrn_10_1", "test_resnet"])
def test_our_own_weights_load_in_any_wrapping(name: str, wrapping: str, tmp_path: Path) -> None:
    source = trained(name)
    path = tmp_path / "weights.pt"
    torch.save(WRAPPINGS[wrapping](source.state_dict()), path)
    target = build(name, dataset_mean=(0, 0, 0), dataset_std=(1, 1, 1))
    notes = load_weights(target, path)
    assert torch.equal(logits(target), logits(source))  # head and channel statistics too
    count = len(source.backbone.state_dict())
    assert notes == [f"{path}: {count} of {count} tensors of the backbone loaded"]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_vit"])
def test_timm_weights_load_and_another_head_is_left_out(
    name: str, suffix: str, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    model = timm.create_model(name, num_classes=11).eval()
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(model.state_dict(), path)
    else:
        safetensors.torch.save_file(model.state_dict(), path)
    images = torch.rand(1, 3, 160, 160)

    same = build(name, 11, 160, weights=path).eval()
    expected = model((images - same.mean) / same.std)
    torch.testing.assert_close(same(images).logits, expected)
    own = timm.data.resolve_model_data_config(model)
    assert same.mean.flatten().tolist() == pytest.approx(own["mean"])

    target = build(name, 3, 160)
    head = copy.deepcopy(target.head.state_dict())
    _, left_out = load_weights(target, path)
    assert left_out == f"{path}: skipped its head of 11 classes; the new head is random"
    assert all(torch.equal(value, head[key]) for key, value in target.head.state_dict().items())
    torch.testing.assert_close(target.eval()(images).features, build_features(same, images, target))


def build_features(source: Classifier, images: Tensor, target: Classifier) -> Tensor:
    """Features of `source` for the normalization of `target`."""
    return source.backbone((images - target.mean) / target.std)


def test_a_position_table_of_another_size_is_resized(tmp_path: Path) -> None:
    path = tmp_path / "vit.safetensors"
    model = timm.create_model("test_vit", num_classes=3)
    safetensors.torch.save_file(model.state_dict(), path)
    target = build("test_vit", 3, 32)
    notes = load_weights(target, path)
    assert len(notes) == 1
    assert torch.equal(
        target.backbone.model.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight
    )
    assert target.backbone.model.pos_embed.shape != model.pos_embed.shape


def test_missing_and_unexpected_tensors_are_counted(tmp_path: Path) -> None:
    state = trained().state_dict()
    path = tmp_path / "weights.pt"
    del state["backbone.conv.weight"], state["backbone.norm.num_batches_tracked"]
    torch.save({**state, "projector.0.weight": torch.ones(3)}, path)
    target = build()
    before = target.backbone.conv.weight.clone()
    count = len(target.backbone.state_dict())
    assert load_weights(target, path) == [
        f"{path}: {count - 2} of {count} tensors of the backbone loaded",
        f"{path}: 1 tensors missing, left as they were: conv.weight",
        f"{path}: 1 unexpected tensors ignored: projector.0.weight",
    ]
    assert torch.equal(target.backbone.conv.weight, before)


def test_a_head_for_other_classes_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    source = trained()
    torch.save({"model": source.state_dict(), "classes": ["a", "b", "c"]}, path)
    same, other, unsaid = build(), build(), build()
    assert len(load_weights(same, path, classes=["a", "b", "c"])) == 1
    assert (
        "head for other classes (a, b, c)" in load_weights(other, path, classes=["a", "b", "d"])[1]
    )
    load_weights(unsaid, path)
    assert torch.equal(same.head.weight, source.head.weight)
    assert torch.equal(unsaid.head.weight, source.head.weight)
    assert torch.equal(other.head.weight, build().head.weight)


def test_weights_of_another_backbone_name_both(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"model": trained("test_resnet").state_dict(), "backbone": "test_resnet"}, path)
    with pytest.raises(ModelError) as caught:
        build("test_byobnet", weights=path)
    assert "'test_resnet'" in str(caught.value)
    assert "'test_byobnet'" in str(caught.value)
    wider = tmp_path / "wider.pt"
    torch.save(trained("wrn_16_2").state_dict(), wider)
    with pytest.raises(ModelError, match=r"wider.pt does not fit backbone 'wrn_10_1': stages.*32"):
        build(weights=wider)
    # All tensors of the small network fit into the deep one, but some of those are missing.
    torch.save({"model": trained("resnet18").state_dict(), "backbone": "resnet18"}, path)
    with pytest.raises(ModelError, match=r"'resnet18'.*'resnet34'.*missing"):
        build("resnet34", weights=path)


def test_files_that_are_not_weights_are_refused(tmp_path: Path) -> None:
    for name, content, words in (
        ("missing.pt", None, "not found"),
        ("empty.pt", b"", "not a readable weights file|damaged"),
        ("text.pt", b"hello, these are no weights", "damaged|not a readable"),
        ("text.safetensors", b"hello, these are no weights", "not a readable safetensors"),
        ("cut.pt", None, "not a readable"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        if name == "cut.pt":
            torch.save(trained().state_dict(), path)
            path.write_bytes(path.read_bytes()[:-1000])
        with pytest.raises(ModelError, match=words) as caught:
            load_weights(build(), path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(ModelError, match="contains no weights"):
        load_weights(build(), tmp_path / "none.pt")
    torch.save({"something.weight": torch.ones(3)}, tmp_path / "other.pt")
    with pytest.raises(ModelError, match=r"nothing in .*other.pt fits backbone .*something.weight"):
        load_weights(build(), tmp_path / "other.pt")


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["zip", "pickle"])
def test_code_in_a_file_never_runs(form: str, tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.pt", tmp_path / "ran"
    content = {"state_dict": trained().state_dict(), "x": Payload(trace)}
    if form == "zip":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(ModelError, match=r"evil.pt was not loaded.*run code"):
        load_weights(build(), path)
    assert not trace.exists()


# --- export -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["wrn_10_1", "test_resnet", "timm:test_vit", "test_convnext", "test_efficientnet"]
)
def test_timm_opens_the_export_with_the_same_logits(name: str, tmp_path: Path) -> None:
    import ssl_toolkit_wide_resnet.timm_registration  # noqa: F401

    classifier = trained(name)
    before = copy.deepcopy(classifier.state_dict())
    classes = ["no", "été", "[red]"]
    classifier.train()
    export_model(classifier, tmp_path, backbone_name=name, classes=classes, image_size=32)
    assert all(part.training for part in classifier.modules())
    assert all(torch.equal(v, before[k]) for k, v in classifier.state_dict().items())

    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    data = timm.data.resolve_model_data_config(model)
    assert list(data["input_size"]) == [3, 32, 32]
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(data[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(model((images - mean) / std), logits(classifier))
    assert model.pretrained_cfg["label_names"] == classes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]

    opened, config = load_exported(tmp_path)
    torch.testing.assert_close(logits(opened), logits(classifier))
    assert not opened.training
    assert (config["classes"], config["backbone"], config["image_size"]) == (classes, name, 32)


class Tiny(Backbone):
    feature_dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).mean(dim=(2, 3))

    def classifier(self, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.ReLU(), nn.Linear(6, num_classes))


def test_other_backbones_export_in_the_native_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register_backbone("tiny")(Tiny)
    classifier = trained("tiny")
    export_model(classifier, tmp_path, backbone_name="tiny", classes="abc", image_size=32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "architecture" not in config
    assert set(read_weights(tmp_path).tensors) == {
        *(f"backbone.conv.{kind}" for kind in ("weight", "bias")),
        *(f"head.1.{kind}" for kind in ("weight", "bias")),
    }
    opened, _ = load_exported(tmp_path)
    torch.testing.assert_close(logits(opened), logits(classifier))
    with pytest.raises(ModelError, match="contains no exported model"):
        load_exported(tmp_path / "elsewhere")


def test_an_export_whose_head_has_other_classes_is_refused(tmp_path: Path) -> None:
    export_model(trained(), tmp_path, backbone_name="wrn_10_1", classes="abc", image_size=32)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"classes": [*"abcd"]}))
    with pytest.raises(ModelError, match=r"head in .* does not match config"):
        load_exported(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("image_size", "x", "a side in pixels, or HEIGHTxWIDTH"), ("fit", "cut", "one of crop, pad")],
)
def test_an_invalid_description_says_what_is_expected(
    key: str, value: str, expected: str, tmp_path: Path
) -> None:
    export_model(trained(), tmp_path, backbone_name="wrn_10_1", classes="abc", image_size=32)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ModelError, match=f"invalid {key} '{value}': expected {expected}"):
        load_exported(tmp_path)


def test_a_failed_export_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"backbone_name": "wrn_10_1", "classes": "abc", "image_size": 32}
    export_model(trained(), tmp_path, **options)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        export_model(build(), tmp_path, **options)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
