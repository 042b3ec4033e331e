"""Which part of a network is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from in_process import refusal
from pretrained_runs import experiment, flags, make_images
from ssl_toolkit_wide_resnet import WideResNet
from torch import nn

from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.freezing import freeze
from ssl_toolkit.models.timm_backbone import TimmBackbone
from ssl_toolkit.torch_workarounds import BatchNorm


def made(name: str) -> Classifier:
    torch.manual_seed(0)
    plugin = WideResNet if name.startswith("wrn") else TimmBackbone
    return Classifier(plugin.build(name, image_size=32), 3, (0.5,) * 3, (0.5,) * 3)


def trained(classifier: Classifier) -> set[str]:
    """First names of the parts of the backbone that still have a gradient."""
    inner = getattr(classifier.backbone, "model", classifier.backbone)
    return {
        ".".join(name.split(".")[:2]) for name, p in inner.named_parameters() if p.requires_grad
    }


@pytest.mark.parametrize(
    ("backbone", "what", "first", "last"),
    [
        ("test_resnet", "layer2", "conv1.0", "layer3.0"),
        ("test_resnet", "layer4", "layer1.0", None),
        ("test_efficientnet", "blocks.1", "blocks.0", "blocks.2"),
        ("test_efficientnet", "conv_stem", "conv_stem.weight", "blocks.0"),
        ("test_vit", "patch_embed", "patch_embed.proj", "blocks.0"),
        ("test_vit", "blocks.2", "pos_embed", "blocks.3"),
        ("wrn_10_1", "stages.0", "conv.weight", "stages.1"),
    ],
)
def test_all_parts_up_to_the_named_one_are_frozen(
    backbone: str, what: str, first: str, last: str | None
) -> None:
    classifier = made(backbone)
    before = trained(classifier)
    assert first in before
    freeze(classifier, what)
    left = trained(classifier)
    assert not any(name.startswith(first) for name in left)
    assert not any(f"{name}.".startswith(f"{what}.") for name in left)
    assert (last in left) if last else not left & {"layer4.0"}
    assert all(p.requires_grad for p in classifier.head.parameters())


def test_frozen_batchnorm_keeps_its_statistics_in_train_mode() -> None:
    classifier = made("test_resnet")
    freeze(classifier, "bn")
    layers = [m for m in classifier.modules() if isinstance(m, BatchNorm)]
    assert layers
    before = [layer.running_mean.clone() for layer in layers]
    classifier.train()
    classifier(torch.rand(4, 3, 32, 32)).logits.sum().backward()
    assert all(torch.equal(m, layer.running_mean) for m, layer in zip(before, layers, strict=True))
    assert not any(layer.training or layer.weight.requires_grad for layer in layers)
    convolution = next(m for m in classifier.modules() if isinstance(m, nn.Conv2d))
    assert convolution.weight.grad is not None
    assert convolution.training


def test_a_frozen_backbone_is_deterministic_in_train_mode() -> None:
    classifier = made("test_efficientnet")
    classifier.backbone.model.drop_rate = 0.5
    freeze(classifier, "backbone")
    images = torch.rand(4, 3, 32, 32)
    classifier.train()
    assert torch.equal(classifier(images).features, classifier(images).features)
    assert classifier.training
    assert classifier.head.training


def test_copies_and_averages_are_frozen_too() -> None:
    classifier = made("test_resnet")
    freeze(classifier, "layer1")
    copied = EMA(classifier, 0.5).module
    assert len(copied.frozen) == len(classifier.frozen)
    copied.train()
    assert not copied.backbone.model.layer1.training
    assert copied.backbone.model.layer2.training
    assert copied.frozen[0] is not classifier.frozen[0]


def test_unknown_parts_are_refused_with_the_existing_ones() -> None:
    with pytest.raises(ConfigError, match=r"no part 'layer9' in the backbone.*layer1, layer2"):
        freeze(made("test_resnet"), "layer9")
    with pytest.raises(ConfigError, match=r"no part 'x' in layer1; .*: 0"):
        freeze(made("test_resnet"), "layer1.x")


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("freezing")
    make_images(result / "images", 12)
    return result


@pytest.mark.parametrize(
    ("backbone", "what", "moves", "stays"),
    [
        ("test_resnet", "bn", "layer1.0.conv1.weight", "layer1.0.bn1.running_var"),
        ("test_resnet", "layer3", "layer4.0.conv1.weight", "layer3.0.conv1.weight"),
        ("test_vit", "blocks.0", "blocks.1.mlp.fc1.weight", "pos_embed"),
        ("test_vit", "none", "pos_embed", None),
        ("test_vit", "bn", "pos_embed", None),
        ("test_efficientnet", "none", "conv_stem.weight", None),
    ],
)
def test_a_run_trains_the_unfrozen_part(
    folder: Path, backbone: str, what: str, moves: str, stays: str | None
) -> None:
    optimizer = {"backbone_lr": 1e-3}
    run = experiment(folder, backbone, algo="fixmatch", model={"freeze": what}, optimizer=optimizer)
    trainer = run.trainer
    model = trainer.classifier.backbone.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert trainer.fit() == ""
    after = model.state_dict()
    assert not torch.equal(before[moves], after[moves])
    assert all(value.isfinite().all() for value in after.values())
    if stays:
        assert torch.equal(before[stays], after[stays])
    ids = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert ids == {id(p) for p in trainer.classifier.parameters() if p.requires_grad}


def test_a_transformer_has_no_batchnorm_to_freeze(folder: Path) -> None:
    run = experiment(folder, "test_vit", algo="supervised", model={"freeze": "bn"})
    assert "model.freeze=bn: backbone test_vit has no BatchNorm layer" in run.notes
    assert all(parameter.requires_grad for parameter in run.trainer.classifier.parameters())


@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet"])
def test_a_frozen_backbone_keeps_all_values(folder: Path, backbone: str) -> None:
    trainer = experiment(folder, backbone, algo="supervised").trainer
    assert trainer.settings.model.freeze == "backbone"
    before = {k: v.clone() for k, v in trainer.classifier.backbone.state_dict().items()}
    assert trainer.fit() == ""
    after = trainer.classifier.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_recipe_of_the_paper_is_unchanged(folder: Path) -> None:
    run = experiment(folder, algo="simple", profile="reference")
    model = run.config.settings.model
    assert (model.freeze, model.stages, model.head_init) == ("none", 0, "random")
    assert isinstance(run.trainer.classifier.head, nn.Linear)
    assert run.config.settings.optimizer.backbone_lr == 2e-5


def test_an_error_is_reported_before_training(folder: Path) -> None:
    message = refusal("run", *flags(folder, algo="simple"), "--set", "model.freeze=layer9")
    assert message.count("\n") == 1
    assert "model.freeze: no part 'layer9'" in message
