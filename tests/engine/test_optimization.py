"""The groups of parameters that an optimizer gets."""

from __future__ import annotations

import torch
from ssl_toolkit_wide_resnet import WideResNet

from ssl_toolkit.engine.optimization import parameter_groups
from ssl_toolkit.models.classifier import Classifier


def test_parameter_groups_split_features_from_classifier() -> None:
    classifier = Classifier(WideResNet(10, 1), 5)
    one = parameter_groups(classifier, None, 0.1, weight_decay=0.02)
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in one] == [
        ("features", 0.1, 0.02),
        ("classifier", 0.1, 0.02),
    ]
    groups = {
        g["name"]: g
        for g in parameter_groups(classifier, None, 0.1, 0.01, 0.02, decay_on="kernels")
    }
    assert {name: (g["lr"], g["weight_decay"]) for name, g in groups.items()} == {
        "features": (0.01, 0.02),
        "features.undecayed": (0.01, 0.0),
        "classifier": (0.1, 0.02),
        "classifier.undecayed": (0.1, 0.0),
    }
    assert {p.ndim for p in groups["features"]["params"]} == {4}
    assert {p.ndim for p in groups["features.undecayed"]["params"]} == {1}
    assert [p.shape for p in groups["classifier"]["params"]] == [(5, 64)]
    grouped = [id(p) for g in groups.values() for p in g["params"]]
    assert sorted(grouped) == sorted(id(p) for p in classifier.parameters())
    torch.optim.SGD(list(groups.values()))

    classifier.backbone.requires_grad_(False)
    assert [g["name"] for g in parameter_groups(classifier, None, 0.1)] == ["classifier"]
