"""Arguments of timm models, and models of the hub and of folders, in runs and saved models."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import constants
from in_process import call, refusal
from pretrained_runs import SIZE, config, experiment, flags, make_images

from ssl_toolkit import load_model
from ssl_toolkit.config.options import plain
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.features import FeatureExtractor
from ssl_toolkit.engine.networks import ModelFactory
from ssl_toolkit.errors import ConfigError, ModelError, PluginError
from ssl_toolkit.models.factory import build_classifier
from ssl_toolkit.models.timm_backbone import TimmBackbone

TINY = {"img_size": SIZE, "patch_size": 8, "depth": 2, "drop_path_rate": 0.1}
VIT = "vit_tiny_patch16_224"
STATISTICS: dict[str, Any] = {"dataset_mean": (0.0,) * 3, "dataset_std": (1.0,) * 3, "seed": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("arguments")
    make_images(result / "images", 8)
    return result


def sets(arguments: dict[str, Any]) -> list[str]:
    return [
        part for key, value in arguments.items() for part in ("--set", f"model.args.{key}={value}")
    ]


def from_scratch(folder: Path, backbone: str, **changes: Any) -> dict[str, Any]:
    return {"algo": "supervised", "pretrained": False, "weights": None, **changes}


def test_texts_become_numbers_and_booleans() -> None:
    text = {"a": "0.1", "b": ["8", "x", {"c": "true"}], "d": "1e-3", "e": "none", "f": "inf"}
    assert plain(text) == {"a": 0.1, "b": [8, "x", {"c": True}], "d": 1e-3, "e": None, "f": "inf"}
    assert type(plain("8")) is int


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "timm:vit_tiny_patch16_224"])
def test_a_backbone_is_the_model_that_timm_creates(name: str) -> None:
    built, _ = build_classifier(name, 3, image_size=SIZE, arguments=TINY, **STATISTICS)
    model = timm.create_model(VIT, num_classes=0, **TINY)
    assert {k: v.shape for k, v in built.backbone.model.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    assert built.backbone.model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.1)
    pooled, _ = build_classifier(
        "test_resnet", 3, image_size=SIZE, arguments={"global_pool": "catavgmax"}, **STATISTICS
    )
    plain_one, _ = build_classifier("test_resnet", 3, image_size=SIZE, **STATISTICS)
    assert pooled.backbone.feature_dim == 2 * plain_one.backbone.feature_dim


@pytest.mark.parametrize(
    ("backbone", "arguments", "message"),
    [
        (VIT, {"drop_path": 0.1}, r"model.args.drop_path: .* \(did you mean 'drop_path_rate'"),
        ("test_resnet", {"img_size": 32}, r"model.args.img_size: .* has no such argument"),
        (VIT, {"num_classes": 3}, "model.args.num_classes: the toolkit sets this argument"),
        (VIT, {"checkpoint_path": "x"}, "model.args.checkpoint_path: the toolkit sets this"),
        (VIT, {"img_size": 64}, r"model.args.img_size: 64 is not the image size of the run, 32"),
        (VIT, {"img_size": [32, 48]}, r"model.args.img_size: must be one number"),
        (VIT, {"depth": "deep"}, r"model.args: backbone 'vit_tiny.*' can't be built with"),
        (VIT, {"patch_size": 0}, r"model.args: backbone 'vit_tiny.*' can't be built with"),
        ("wrn_10_1", {"depth": 2}, "model.args: backbone 'wrn_10_1' takes no arguments"),
    ],
)
def test_wrong_arguments_are_refused(
    backbone: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_classifier(backbone, 3, image_size=SIZE, arguments=arguments, **STATISTICS)
    assert len(caught.value.messages) == 1
    assert "\n" not in str(caught.value)


def test_an_unpooled_model_is_refused() -> None:
    with pytest.raises(PluginError, match=r"no feature vector.*global_pool in model.args"):
        build_classifier(
            "test_resnet", 3, image_size=SIZE, arguments={"global_pool": ""}, **STATISTICS
        )


def test_an_error_is_reported_before_training(folder: Path) -> None:
    typed = flags(folder, algo="supervised")
    message = refusal("run", *typed, *sets({"drop_paht_rate": 0.1}))
    assert "model.args.drop_paht_rate: timm model test_resnet has no such argument" in message
    assert "did you mean 'drop_path_rate'" in message
    assert message.count("\n") == 1


def test_the_image_size_follows_img_size(folder: Path) -> None:
    with_size = {"model": {"args": {"img_size": "48"}}}
    assert resolve_config(config(folder, image_size=None, **with_size))[0].settings.image_size == 48
    plain_run = config(folder, "test_resnet")
    other = config(folder, "test_resnet", model={"args": {"drop_path_rate": 0.2}})
    fingerprints = {resolve_config(run)[0].fingerprint() for run in (plain_run, other)}
    assert len(fingerprints) == 2


def test_a_run_and_what_it_saves_have_the_arguments(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    changes = from_scratch(folder, VIT, output=run)
    typed = [
        word
        for key, value in {**flags_of(folder), **changes}.items()
        if value not in (None, False)
        for word in (f"--{key.replace('_', '-')}", str(value))
    ]
    done = call("run", *typed, "--backbone", VIT, *sets(TINY))
    assert done.returncode == 0, done.stderr
    stored = json.loads((run / "model" / "config.json").read_text())
    kept = {key: value for key, value in TINY.items() if key != "img_size"}
    assert stored["arguments"] == kept
    assert stored["model_args"] == TINY

    model = load_model(run)
    images = torch.rand(2, 3, SIZE, SIZE)
    ours = model(images)
    theirs = timm.create_model(f"local-dir:{run / 'model'}", pretrained=True).eval()
    mean, std = (torch.tensor(stored[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = theirs((images - mean) / std).softmax(dim=-1)
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-5)

    shutil.rmtree(run / "model")  # as in an unfinished run
    again = load_model(run)
    assert again(images).shape == ours.shape
    assert len(again.classifier.backbone.model.blocks) == 2


def flags_of(folder: Path) -> dict[str, Any]:
    return {
        "data": folder / "images",
        "image_size": SIZE,
        "labels_per_class": 3,
        "val_fraction": 0.2,
        "test_fraction": 0.2,
        "steps": 2,
        "batch_size": 4,
        "device": "cpu",
    }


def test_further_networks_of_an_algorithm_have_the_arguments(folder: Path) -> None:
    run = experiment(folder, VIT, algo="supervised", **scratch())
    settings = run.config.settings
    network = ModelFactory(settings, run.classes)(pretrained=False)
    assert len(network.backbone.model.blocks) == 2  # type: ignore[arg-type]


def scratch() -> dict[str, Any]:
    return {"pretrained": False, "weights": None, "model": {"args": TINY}}


def test_cached_features_depend_on_the_arguments() -> None:
    """Two poolings of the same weights and layers have different features."""
    digests = set()
    for pool in ("avg", "max"):
        arguments = {"global_pool": pool, "depth": 1, "class_token": True}
        built, _ = build_classifier(
            "test_vit", 3, image_size=SIZE, arguments=arguments, **STATISTICS
        )
        digests.add(FeatureExtractor(built, 4)._model)
    assert len(digests) == 2


# --- repositories and folders -------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as timm's own function writes it, with arguments and another size."""
    path = tmp_path_factory.mktemp("saved") / "model.v1"
    torch.manual_seed(5)
    model = timm.create_model(VIT, num_classes=4, **TINY)
    timm.models.save_for_hf(model, str(path), model_args=TINY, safe_serialization=True)
    return path


def test_a_folder_of_timm_is_a_backbone(saved: Path) -> None:
    name = f"local-dir:{saved}"
    assert TimmBackbone.own_image_size(name) == SIZE
    built, notes = build_classifier(name, 3, image_size=None, pretrained=True, **STATISTICS)
    assert notes == [f"published weights of {name}: {saved / 'model.safetensors'}"]
    stored = safetensors.torch.load_file(saved / "model.safetensors")
    state = built.backbone.model.state_dict()
    assert all(torch.equal(value, stored[key]) for key, value in state.items())
    random, _ = build_classifier(name, 3, image_size=None, **STATISTICS)
    assert not torch.equal(random.backbone.model.pos_embed, stored["pos_embed"])
    larger, _ = build_classifier(name, 3, image_size=64, pretrained=True, **STATISTICS)
    assert larger.backbone.model.pos_embed.shape[1] == 1 + 64


def test_the_saved_model_of_a_run_needs_no_folder(
    folder: Path, saved: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(saved, tmp_path / "source")
    run = tmp_path / "run"
    values = {**flags_of(folder), "backbone": f"local-dir:{moved}", "algo": "supervised"}
    typed = [word for k, v in values.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    done = call("run", *typed, "--pretrained", "--output", run, "--set", "model.freeze=none")
    assert done.returncode == 0, done.stderr
    weights = hashlib.sha256((moved / "model.safetensors").read_bytes()).hexdigest()
    assert json.loads((run / "record.json").read_text())["inputs"]["weights file"] == weights
    shutil.rmtree(moved)
    stored = json.loads((run / "model" / "config.json").read_text())
    assert stored["backbone"] == f"timm:{VIT}"
    images = torch.rand(2, 3, SIZE, SIZE)
    whole = load_model(run)(images)
    assert timm.create_model(f"local-dir:{run / 'model'}", pretrained=True) is not None
    shutil.rmtree(run / "model")
    assert load_model(run)(images).shape == whole.shape


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not found or not the configuration of a timm model"),
        ("[]", "is not found or not the configuration"),
        ('{"architecture": "resnet5o"}', r"unknown backbone 'resnet5o' of 'local-dir"),
        ('{"architecture": "test_resnet", "pretrained_cfg": {"input_size": 3}}', "not the config"),
    ],
)
def test_a_folder_of_another_kind_is_refused(
    content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises((ModelError, PluginError), match=message) as caught:
        build_classifier(f"local-dir:{tmp_path}", 3, image_size=SIZE, **STATISTICS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["local-dir:", "local-dir: ", "hf-hub:"])
def test_a_source_without_a_place_is_refused(name: str, tmp_path: Path) -> None:
    message = refusal(
        "run", "--dataset", "digits", "--backbone", name, "--output", tmp_path / "run"
    )
    assert message.count("\n") == 1
    assert f"backbone {name!r}: nothing follows the colon; give {name.split(':')[0]}:" in message


def test_a_folder_without_weights_is_refused(saved: Path, tmp_path: Path) -> None:
    shutil.copy(saved / "config.json", tmp_path)
    with pytest.raises(ModelError, match=r"contains no weights \(model.safetensors.*--weights"):
        build_classifier(f"local-dir:{tmp_path}", 3, image_size=SIZE, pretrained=True, **STATISTICS)


def test_a_pickle_in_a_folder_runs_no_code(saved: Path, tmp_path: Path) -> None:
    shutil.copy(saved / "config.json", tmp_path)
    torch.save(
        {"state_dict": {"x": torch.ones(1)}, "code": Path("x")}, tmp_path / "pytorch_model.bin"
    )
    with pytest.raises(ModelError, match="was not loaded: it is not plain tensors"):
        build_classifier(f"local-dir:{tmp_path}", 3, image_size=SIZE, pretrained=True, **STATISTICS)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path / "hub"


def test_a_repository_in_the_cache_is_a_backbone(saved: Path, hub: Path) -> None:
    revision = "0" * 40
    snapshot = hub / "models--me--tiny" / "snapshots" / revision
    shutil.copytree(saved, snapshot)
    (hub / "models--me--tiny" / "refs").mkdir()
    (hub / "models--me--tiny" / "refs" / "main").write_text(revision)
    for name in ("hf-hub:me/tiny", f"hf-hub:me/tiny@{revision}"):
        built, _ = build_classifier(name, 3, image_size=None, pretrained=True, **STATISTICS)
        stored = safetensors.torch.load_file(saved / "model.safetensors")
        assert torch.equal(built.backbone.model.pos_embed, stored["pos_embed"])


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("offline", [True, False])
def test_a_missing_repository_is_refused_at_once(
    offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    reason = "downloads are disabled" if offline else "127.0.0.1 does not provide them"
    with pytest.raises(ModelError, match=f"'hf-hub:me/tiny' .*{reason}.*local-dir:PATH") as caught:
        build_classifier("hf-hub:me/tiny", 3, image_size=SIZE, **STATISTICS)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="write hf-hub:ORGANIZATION/NAME"):
        build_classifier("hf-hub:a/b/c", 3, image_size=SIZE, **STATISTICS)
