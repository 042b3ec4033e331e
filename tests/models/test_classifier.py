from __future__ import annotations

import copy

import pytest
import torch
from ssl_toolkit_wide_resnet import WideResNet
from torch import Tensor, nn

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError, PluginError
from ssl_toolkit.interfaces import Backbone
from ssl_toolkit.models.classifier import (
    Classifier,
    hold_statistics,
    set_batchnorm_momentum,
)
from ssl_toolkit.models.factory import build_classifier, find_backbone
from ssl_toolkit.models.timm_backbone import TimmBackbone

DATASET = {"dataset_mean": (0.1, 0.2, 0.3), "dataset_std": (0.4, 0.5, 0.6)}


class Pool(Backbone):
    feature_dim = 3

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


def statistics(classifier: Classifier) -> tuple[list[float], list[float]]:
    return classifier.mean.flatten().tolist(), classifier.std.flatten().tolist()


def test_images_are_normalized_inside() -> None:
    classifier = Classifier(Pool(), 4, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0))
    images = torch.full((2, 3, 5, 7), 0.5)
    before = images.clone()
    features, logits = classifier(images)
    assert features.tolist() == [[0.0, 1.0, 0.25]] * 2
    torch.testing.assert_close(logits, classifier.head(features))
    assert torch.equal(images, before)
    assert {"mean", "std"} <= set(classifier.state_dict())


def test_a_backbone_can_have_its_own_head() -> None:
    class Own(Pool):
        def classifier(self, num_classes: int) -> nn.Module:
            return nn.Sequential(nn.ReLU(), nn.Linear(3, num_classes))

    assert isinstance(Classifier(Own(), 4).head, nn.Sequential)
    with pytest.raises(ValueError, match="above 0"):
        Classifier(Pool(), 4, std=(1.0, 0.0, 1.0))


@pytest.mark.parametrize("name", ["wrn_10_1", "test_resnet"])
def test_forwards_without_update_use_batch_statistics_and_keep_running_ones(name: str) -> None:
    classifier, _ = build_classifier(name, 3, image_size=32, seed=0, **DATASET)
    classifier.double()
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    reference = copy.deepcopy(classifier)
    expected = reference(images).logits
    assert any(
        not torch.equal(a, b)
        for a, b in zip(reference.buffers(), classifier.buffers(), strict=True)
    )
    before = copy.deepcopy(classifier.state_dict())
    with hold_statistics(classifier):
        logits = classifier(images).logits
    torch.testing.assert_close(logits, expected)
    after = classifier.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    # Afterwards all is as it was, and in eval mode it has no effect.
    classifier(images)
    assert all(
        torch.equal(a, b) for a, b in zip(reference.buffers(), classifier.buffers(), strict=True)
    )
    classifier.eval()
    expected = classifier(images).logits
    with hold_statistics(classifier):
        assert torch.equal(classifier(images).logits, expected)


def test_the_initial_weights_depend_only_on_the_seed() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, notes = build_classifier("wrn_10_1", 3, image_size=8, seed=1, **DATASET)
    assert notes == []
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    same, _ = build_classifier("wrn_10_1", 3, image_size=8, seed=1, **DATASET)
    other, _ = build_classifier("wrn_10_1", 3, image_size=8, seed=2, **DATASET)
    assert all(torch.equal(v, same.state_dict()[k]) for k, v in one.state_dict().items())
    assert not torch.equal(one.backbone.conv.weight, other.backbone.conv.weight)
    assert not torch.equal(one.head.weight, other.head.weight)


def test_statistics_are_the_data_sets_without_weights() -> None:
    for name in ("wrn_10_1", "test_resnet"):
        classifier, _ = build_classifier(name, 3, image_size=32, seed=0, **DATASET)
        mean, std = statistics(classifier)
        assert mean == pytest.approx(DATASET["dataset_mean"])
        assert std == pytest.approx(DATASET["dataset_std"])


def test_batchnorm_momentum_and_memory_order() -> None:
    def momenta(classifier: Classifier) -> set[float | None]:
        return {m.momentum for m in classifier.modules() if isinstance(m, nn.BatchNorm2d)}

    own, _ = build_classifier("test_resnet", 3, image_size=32, seed=0, **DATASET)
    assert momenta(own) == {0.1}
    changed, _ = build_classifier(
        "test_resnet", 3, image_size=32, seed=0, batchnorm_momentum=0.02, **DATASET
    )
    assert momenta(changed) == {0.02}
    set_batchnorm_momentum(changed, 0.5)
    assert momenta(changed) == {0.5}

    last, _ = build_classifier("wrn_10_1", 3, image_size=8, seed=0, channels_last=True, **DATASET)
    weight = last.backbone.stages[1][0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    plain, _ = build_classifier("wrn_10_1", 3, image_size=8, seed=0, **DATASET)
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(last(images).logits, plain(images).logits)


def test_names_are_registered_ones_first_then_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_backbone("wrn_28_2") == (WideResNet, "wrn_28_2")
    assert find_backbone("ssl-toolkit:wrn_28_2") == (WideResNet, "wrn_28_2")
    assert find_backbone("test_vit") == (TimmBackbone, "test_vit")
    monkeypatch.setattr(registry, "_registered", {})
    registry.register_backbone("test_vit")(Pool)
    assert find_backbone("test_vit") == (Pool, "test_vit")
    assert find_backbone("timm:test_vit") == (TimmBackbone, "test_vit")
    assert isinstance(
        build_classifier("test_vit", 3, image_size=8, seed=0, **DATASET)[0].backbone, Pool
    )


def test_unknown_names_get_close_matches() -> None:
    with pytest.raises(PluginError, match=r"'resnet5o' \(did you mean 'resnet50'"):
        build_classifier("resnet5o", 3, image_size=32, seed=0, **DATASET)
    with pytest.raises(PluginError, match=r"did you mean .*'wrn_28_2'"):
        build_classifier("wrn_28_1", 3, image_size=32, seed=0, **DATASET)
    with pytest.raises(PluginError, match=r"'resnet50.bogus'"):
        build_classifier("resnet50.bogus", 3, image_size=32, seed=0, **DATASET)
    with pytest.raises(PluginError, match="nowhere:wrn_28_2"):
        build_classifier("nowhere:wrn_28_2", 3, image_size=32, seed=0, **DATASET)


def test_a_backbone_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Pool):
        def __init__(self) -> None:
            raise RuntimeError("out of luck")

    monkeypatch.setattr(registry, "_registered", {})
    registry.register_backbone("broken")(Broken)
    with pytest.raises(PluginError, match=r"'broken' .*Broken.* RuntimeError: out of luck"):
        build_classifier("broken", 3, image_size=8, seed=0, **DATASET)


@pytest.mark.parametrize("size", [32, 160])
def test_models_with_a_position_table_take_other_sizes(size: int) -> None:
    classifier, _ = build_classifier("test_vit", 3, image_size=size, seed=0, **DATASET)
    assert classifier(torch.rand(2, 3, size, size)).logits.shape == (2, 3)
    assert classifier.training
    assert classifier.backbone.default_image_size == 160


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("test_vit", 161, "multiple of 16; its own is 160"),
        ("test_vit", 0, "at least 1"),
        ("test_resnet", 0, "at least 1"),
        ("test_convnext", 8, "its own is 160"),
    ],
)
def test_impossible_sizes_name_model_given_and_allowed_size(
    name: str, size: int, words: str
) -> None:
    with pytest.raises(ModelError) as caught:
        build_classifier(name, 3, image_size=size, seed=0, **DATASET)
    message = str(caught.value)
    assert f"'{name}' can't take image size {size}" in message
    assert words in message
    assert "\n" not in message
    with pytest.raises(ModelError, match=words):
        TimmBackbone.build(name, image_size=size)


def test_small_convolutional_sizes_work() -> None:
    classifier, _ = build_classifier("test_resnet", 3, image_size=8, seed=0, **DATASET)
    assert classifier(torch.rand(2, 3, 8, 8)).features.shape == (2, classifier.backbone.feature_dim)
