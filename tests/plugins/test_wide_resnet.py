"""The wide ResNets, and the two published backbones, against golden/backbones.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ssl_toolkit_wide_resnet import WideResNet
from torch import nn

from ssl_toolkit.errors import ModelError, PluginError
from ssl_toolkit.interfaces import Backbone
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.factory import find_backbone

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "backbones.json").read_text())
NAMES = {"wrn28-2": "wrn_28_2", "wrn28-8": "wrn_28_8", "resnet18": "resnet18"} | {
    "resnet50": "resnet50"
}


def build(name: str, size: int = 32) -> Backbone:
    plugin, bare = find_backbone(NAMES[name])
    return plugin.build(bare, image_size=size)


@pytest.fixture(scope="module")
def backbones() -> dict[str, Backbone]:
    return {name: build(name) for name in NAMES}


def fractions(tensor: torch.Tensor) -> torch.Tensor:
    t = torch.arange(tensor.numel(), dtype=torch.float64)
    return (((7919 * t + 104729) % 10007) / 10007).reshape(tensor.shape)


def fill(model: nn.Module) -> None:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.weight[0].numel()
                module.weight.copy_((6 / fan_in) ** 0.5 * (2 * fractions(module.weight) - 1))
            elif isinstance(module, nn.BatchNorm2d):
                wave = 2 * fractions(module.weight) - 1
                module.weight.copy_(1 + 0.1 * wave)
                module.bias.copy_(0.1 * wave)
                module.running_mean.copy_(0.05 * wave)
                module.running_var.copy_(1 + 0.5 * fractions(module.weight))
            elif isinstance(module, nn.Linear):
                weight = 2 * fractions(module.weight) - 1
                module.weight.copy_(weight / module.in_features**0.5)
                module.bias.copy_(0.1 * (2 * fractions(module.bias) - 1))


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_parameters_and_batchnorm(name: str, backbones: dict[str, Backbone]) -> None:
    for classes, expected in GOLDEN["params"][name].items():
        model = Classifier(backbones[name], int(classes))
        assert sum(p.numel() for p in model.parameters()) == expected["total"]
        assert model.backbone.feature_dim == expected["feature_dim"]
        assert sum(p.numel() for p in model.head.parameters()) == expected["classifier"]
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert len(norms) == expected["num_batchnorm"]
        assert {m.momentum for m in norms} == {expected["bn_momentum"]}
        assert {m.eps for m in norms} == {expected["bn_eps"]}
        convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        assert len(convolutions) == expected["num_conv"]
        assert all(m.bias is None for m in convolutions)


@pytest.mark.parametrize("size", ["32", "84"])
@pytest.mark.parametrize("name", NAMES)
def test_shapes_of_the_stages(name: str, size: str, backbones: dict[str, Backbone]) -> None:
    backbone = backbones[name].eval()
    if isinstance(backbone, WideResNet):
        watched = [backbone.conv, *backbone.stages]
    else:
        inner = backbone.model
        watched = [inner.conv1, inner.maxpool, inner.layer1, inner.layer2, inner.layer3]
        watched.append(inner.layer4)
    shapes: list[tuple[int, ...]] = []
    hooks = [m.register_forward_hook(lambda *a: shapes.append(tuple(a[2].shape))) for m in watched]
    with torch.no_grad():
        features = backbone(torch.zeros(1, 3, int(size), int(size)))
    for hook in hooks:
        hook.remove()
    stages = GOLDEN["shapes"][name][size]["stages"].values()
    assert shapes == [(1, s["channels"], s["height"], s["width"]) for s in stages]
    assert list(features.shape[1:]) == GOLDEN["shapes"][name][size]["features"]


@pytest.mark.parametrize(
    "check", GOLDEN["forward_checks"], ids=lambda c: f"{c['backbone']}-{c['image_size']}"
)
def test_forward_equals_the_published_code(check: dict) -> None:
    size = check["image_size"]
    model = Classifier(build(check["backbone"], size), check["num_classes"]).double()
    fill(model)
    images = 2 * fractions(torch.empty(check["batch"], 3, size, size)) - 1

    for mode, tolerance in (("eval", 1e-9), ("train", 1e-8)):
        expected = check[mode]
        with torch.no_grad():
            features, logits = model.train(mode == "train")(images)
        close = {"rtol": tolerance, "atol": tolerance}
        wanted = torch.tensor(expected["logits_first10"], dtype=torch.float64)
        torch.testing.assert_close(logits[:, :10], wanted, **close)
        for values, key in ((logits, "logits_sum"), (features, "feature_sum")):
            wanted = torch.tensor(expected[key], dtype=torch.float64)
            torch.testing.assert_close(values.sum(1), wanted, **close)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for name in ("running_mean", "running_var"):
        total = sum(getattr(m, name).sum().item() for m in norms)
        assert total == pytest.approx(check["train"][f"{name}_sum_after"], rel=1e-8)


def test_shortcut_is_activated_in_the_first_block_of_the_first_stage_only() -> None:
    backbone = WideResNet(16, 2)
    activated = [block.activate_shortcut for stage in backbone.stages for block in stage]
    assert activated == [True, False, False, False, False, False]


def test_first_weights() -> None:
    torch.manual_seed(0)
    backbone = WideResNet(28, 2)
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            fan_out = module.kernel_size[0] ** 2 * module.out_channels
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
    head = backbone.classifier(345)
    assert head.weight.std().item() == pytest.approx((2 / (128 + 345)) ** 0.5, rel=0.05)
    assert head.bias.eq(0).all()


def test_small_images_and_small_networks_work() -> None:
    backbone = WideResNet.build("wrn_10_1", image_size=8)
    assert backbone(torch.rand(2, 3, 8, 8)).shape == (2, 64)


def test_impossible_names_sizes_and_weights_are_refused() -> None:
    with pytest.raises(PluginError, match="6n \\+ 4"):
        WideResNet.build("wrn_29_2")
    with pytest.raises(PluginError, match="wrn_<depth>_<width>"):
        WideResNet.build("wrn_big")
    with pytest.raises(ModelError, match="no published weights"):
        WideResNet.build("wrn_28_2", pretrained=True)
    with pytest.raises(ModelError, match="'wrn_28_2' can't take image size 0"):
        WideResNet.build("wrn_28_2", image_size=0)


def test_wide_resnets_need_neither_timm_nor_torchvision() -> None:
    code = (
        "import sys; from ssl_toolkit.models.factory import build_classifier as build; "
        "build('wrn_10_1', 3, image_size=8, dataset_mean=(0,0,0), dataset_std=(1,1,1), seed=0); "
        "sys.exit(','.join({'timm', 'torchvision'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_timm_knows_the_wide_resnets() -> None:
    import ssl_toolkit_wide_resnet.timm_registration  # noqa: F401
    import timm

    model = timm.create_model("wrn_10_1", num_classes=5).eval()
    images = torch.rand(2, 3, 16, 16)
    features = model.forward_features(images)
    assert features.shape == (2, model.num_features) == (2, 64)
    assert torch.equal(model.forward_head(features, pre_logits=True), features)
    assert torch.equal(model(images), model.get_classifier()(features))
    ours = Classifier(WideResNet(10, 1), 5).state_dict()
    assert {"mean", "std", *model.state_dict()} == set(ours)
    model.reset_classifier(7)
    assert model(images).shape == (2, 7)
    assert timm.create_model("wrn_28_2", num_classes=0)(images).shape == (2, 128)
    assert not timm.get_pretrained_cfg("wrn_28_2").has_weights
