"""Statistics of the outputs of several stages of a backbone."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssl_toolkit import Backbone
from ssl_toolkit.models import stage_statistics as statistics
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.factory import find_backbone
from ssl_toolkit.models.stage_statistics import stage_statistics
from ssl_toolkit.models.timm_backbone import TimmBackbone


class Layers(Backbone):
    """Convolutions, each of which is a stage."""

    feature_dim = 4

    def __init__(self, count: int, channels: int = 4) -> None:
        super().__init__()
        widths = [3, *[channels] * (count - 1), 4]
        self.layers = nn.Sequential(*(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths)))

    def stage_modules(self) -> list[nn.Module]:
        return [*self.layers]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images).mean(dim=(2, 3))
        return features


def build(name: str) -> Backbone:
    torch.manual_seed(0)
    kind, name = find_backbone(name)
    return kind.build(name, image_size=32)


def images(count: int = 3) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def read(backbone: Backbone, inputs: Tensor) -> Tensor:
    classifier = Classifier(backbone, 2).eval()
    with stage_statistics(backbone, classifier.blocks[0]) as of:
        first = of(classifier(inputs))
        assert torch.equal(of(classifier(inputs)), first)  # nothing is left of the first forward
    assert not any(module._forward_hooks for module in backbone.modules())
    return first


@torch.no_grad()
def test_they_are_means_and_deviations_over_positions() -> None:
    backbone = Layers(2)
    first = backbone.layers[0](images())
    last = backbone.layers[1](first)
    parts = [f(x.flatten(2)) for x in (first, last) for f in (lambda x: x.mean(2), _deviation)]
    torch.testing.assert_close(read(backbone, images()), torch.cat(parts, dim=1))


def _deviation(x: Tensor) -> Tensor:
    return x.std(dim=2, correction=0)


@torch.no_grad()
def test_stages_and_channels_are_evenly_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "CHANNELS", 2)
    backbone = Layers(5, channels=5)
    outputs = [backbone.layers[: place + 1](images()) for place in range(5)]
    chosen = (outputs[place][:, ::step] for place, step in ((0, 3), (2, 3), (4, 2)))
    means = torch.cat([part.mean(dim=(2, 3)) for part in chosen], dim=1)
    found = read(backbone, images())
    assert found.shape == (3, 12)
    torch.testing.assert_close(found[:, [0, 1, 4, 5, 8, 9]], means)


@pytest.mark.parametrize(
    ("name", "length"), [("wrn_10_1", 2 * 112), ("test_resnet", None), ("test_vit", None)]
)
def test_stages_of_networks(name: str, length: int | None) -> None:
    found = read(build(name), images())
    assert found.shape == (3, length or found.shape[1])
    assert found.shape[1] > 50
    assert found.isfinite().all()
    assert (found.std(dim=0) > 0).float().mean() > 0.5
    alone = read(build(name), images(1))
    assert alone.shape == (1, found.shape[1])


@pytest.mark.parametrize("inputs", [images(), torch.rand(3, 4)])
def test_without_outputs_of_stages_they_are_the_features(inputs: Tensor) -> None:
    backbone: Any = Layers(2)
    if inputs.ndim == 4:
        backbone.stage_modules = list
        expected = backbone(inputs)
    else:
        expected = inputs
    assert torch.equal(read(backbone, inputs), expected)


def test_tokens_are_averaged_over_their_positions() -> None:
    backbone = TimmBackbone.build("test_vit", image_size=32).eval()
    outputs: list[Tensor] = []
    backbone.stage_modules()[-1].register_forward_hook(lambda *args: outputs.append(args[2]))
    found = read_once(backbone)
    (tokens,) = outputs
    torch.testing.assert_close(
        found[:, -2 * tokens.shape[2] : -tokens.shape[2]], tokens.mean(dim=1)
    )


@torch.no_grad()
def read_once(backbone: Backbone) -> Tensor:
    classifier = Classifier(backbone, 2).eval()
    with stage_statistics(backbone, classifier.blocks[0]) as of:
        return of(classifier(images()))


def test_maps_with_channels_last_are_no_stages() -> None:
    layers = {f"layer{number}": nn.Identity() for number in range(1, 5)}
    for more, count in (({}, 4), ({"output_fmt": "NHWC"}, 0)):
        backbone: Any = SimpleNamespace(model=SimpleNamespace(**layers, **more))
        assert len(TimmBackbone.stage_modules(backbone)) == count
