"""Means of the outputs of the last stages, appended to the features of a backbone."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import call
from pretrained_runs import SIZE, make_images
from torch import Tensor, nn

from ssl_toolkit import Backbone, ConfigError, load_model
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.factory import build_classifier
from ssl_toolkit.models.stage_statistics import append_stages

STATISTICS: dict[str, Any] = {"dataset_mean": (0.4,) * 3, "dataset_std": (0.2,) * 3, "seed": 0}
NAMES = ["wrn_10_1", "test_resnet", "test_vit", "test_efficientnet"]


def build(name: str, stages: int | str) -> Classifier:
    return build_classifier(name, 3, image_size=32, stages=stages, **STATISTICS)[0]


def images(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def features(classifier: Classifier) -> Tensor:
    return classifier.eval()(images()).features


@pytest.mark.parametrize("name", NAMES)
def test_means_of_the_last_stages_are_appended(name: str) -> None:
    plain, both = build(name, 0), build(name, 2)
    assert both.training
    assert list(both.state_dict()) == list(plain.state_dict())
    for key, value in plain.backbone.state_dict().items():
        assert torch.equal(both.backbone.state_dict()[key], value)
    outputs: list[Tensor] = []
    for module in plain.backbone.stage_modules()[-2:]:
        module.register_forward_hook(lambda *args: outputs.append(args[2]))
    own = features(plain)
    means = [output.mean(dim=(2, 3) if output.ndim == 4 else 1) for output in outputs]
    assert both.blocks == (own.shape[1], *(mean.shape[1] for mean in means))
    assert torch.equal(features(both), torch.cat([own, *means], dim=1))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("name", ["wrn_10_1", "test_resnet"])
def test_copies_have_their_own(name: str, copied: Any) -> None:
    one = build(name, 2)
    other = copied(one)
    expected = features(one)
    assert torch.equal(features(other), expected)
    nn.init.zeros_(next(other.backbone.parameters()))
    assert torch.equal(features(one), expected)
    assert not torch.equal(features(other), expected)


def test_a_failed_forward_leaves_nothing() -> None:
    classifier = build("wrn_10_1", 2)
    expected = features(classifier)
    hook = classifier.backbone.norm.register_forward_pre_hook(lambda *_: 1 / 0)  # type: ignore[operator]
    with pytest.raises(ZeroDivisionError):
        features(classifier)
    hook.remove()
    assert torch.equal(features(classifier), expected)


@pytest.mark.parametrize("name", ["wrn_10_1", "test_resnet"])
def test_compiled_and_exported_models_have_them(name: str) -> None:
    classifier = build(name, 2)
    expected = features(classifier)
    program = torch.export.export(classifier, (images(),)).module()
    torch.testing.assert_close(program(images()).features, expected)
    classifier.compile(backend="aot_eager", dynamic=False)
    torch.testing.assert_close(features(classifier), expected)
    first = classifier.train()(images()).features
    first.sum().backward()
    assert all(p.grad is not None for p in classifier.backbone.parameters())


class Tuples(Backbone):
    """Its normalization is that of published weights, and its stage returns no map."""

    feature_dim = 4
    mean, std = (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.conv, self.stage = nn.Conv2d(3, 4, 3), stage

    def stage_modules(self) -> list[nn.Module]:
        return [self.stage]

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.stage(self.conv(images))
        return (outputs[0] if isinstance(outputs, tuple) else outputs).mean(dim=(2, 3))


class Pair(nn.Module):
    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        return maps, maps


def test_auto_takes_what_a_backbone_for_published_weights_has() -> None:
    counts = {"wrn_10_1": 0, "features_8": 0, "test_resnet": 2, "test_vit": 2, "dla46_c": 0}
    assert {name: len(build(name, "auto").blocks) - 1 for name in counts} == counts
    assert append_stages(Tuples(nn.ReLU()), "one", "auto", images()) == (4, 4)
    tuples = Tuples(Pair())
    assert append_stages(tuples, "tuples", "auto", images()) == (4,)
    assert tuples(images()).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "stages", "found"), [("features_8", 2, 0), ("dla46_c", 1, 0), ("wrn_10_1", 4, 3)]
)
def test_more_stages_than_there_are_are_refused(name: str, stages: int, found: int) -> None:
    with pytest.raises(ConfigError) as error:
        build(name, stages)
    assert str(error.value) == f"model.stages={stages}: backbone {name!r} allows at most {found}"


def test_a_wide_resnet_uses_the_stages_of_its_settings(tmp_path: Path) -> None:
    make_images(tmp_path / "images")
    run = tmp_path / "run"
    done = call(
        *("run", "--data", tmp_path / "images", "--algo", "fixmatch", "--backbone", "wrn_10_1"),
        *("--image-size", SIZE, "--labels-per-class", 2, "--steps", 2, "--batch-size", 4),
        *("--test-fraction", 0.2, "--device", "cpu", "--set", "model.stages=2"),
        *("--output", run, "--quiet"),
    )
    assert done.returncode == 0, done.stderr
    exported = json.loads((run / "model" / "config.json").read_text())
    assert (exported["stages"], exported["num_features"]) == (2, 64 + 64 + 32)
    stored = np.load(run / "predictions.npz")["test_probabilities"]
    assert call("evaluate", run).returncode == 0
    assert call("check-run", run).returncode == 0
    predicted = load_model(run).predict(sorted((tmp_path / "images").rglob("*.png")))
    distance = np.abs(predicted[:, None] - stored[None]).max(axis=2).min(axis=0)
    assert distance.max() < 1e-5
    for form in ("torch-export", "onnx"):
        done = call("export", run, "--format", form, "--overwrite")
        assert done.returncode == 0, done.stderr
