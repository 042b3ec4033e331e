"""Diffusion over the neighbor graph, and deep label propagation at its limits."""

from __future__ import annotations

from typing import Any

import torch
from ssl_toolkit_graph import DeepLabelPropagation
from ssl_toolkit_graph.diffusion import diffuse
from torch import Tensor
from toy_context import CLASSES, LABELED, POOL, FakeContext, build, make_batch


def test_labels_diffuse_along_two_separate_arcs() -> None:
    angles = torch.cat([torch.linspace(0, 1.4, 30), torch.linspace(3.2, 4.6, 30)]).double()
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    order = torch.cat([torch.tensor([0, 30]), torch.arange(1, 30), torch.arange(31, 60)])
    z = diffuse(points[order], torch.eye(2).double(), 4, 3, 0.99, 20)
    truth = (order >= 30).long()
    assert torch.equal(z.argmax(dim=1), truth)
    assert (z[torch.arange(60), 1 - truth] == 0).all()


def test_images_that_are_not_drawn_are_not_in_the_graph() -> None:
    algorithm = build(DeepLabelPropagation, warmup_fraction=0)
    algorithm.certainty.fill_(0.5)
    images, places = torch.rand(LABELED, 3, 6, 6), torch.arange(POOL // 2, POOL)
    labeled = torch.arange(LABELED), images, torch.arange(LABELED) % CLASSES
    with torch.no_grad():
        pool = torch.rand(len(places), 3, 6, 6)
        algorithm.scan(iter([labeled]), iter([(places, pool)]), FakeContext())
    assert (algorithm.certainty[: POOL // 2] == 0).all()
    assert algorithm.certainty.max() <= 1
    assert (algorithm.certainty[POOL // 2 :] > 0).any()


def test_an_image_that_no_label_reaches_has_no_certainty() -> None:
    algorithm = build(DeepLabelPropagation, neighbors=1, warmup_fraction=0)
    directions = torch.eye(8, dtype=torch.float64)
    images = torch.rand(LABELED, 3, 6, 6)

    class Pairs(FakeContext):
        """Labeled images point in one direction, pairs of unlabeled ones in others."""

        def teacher_forward(self, views: Tensor) -> Any:
            output = super().teacher_forward(views)
            if len(views) == LABELED:
                return output._replace(features=directions[:1].expand(LABELED, 8).float())
            rows = 1 + torch.arange(len(views)) // 2 % 7
            return output._replace(features=directions[rows].float())

    pool = torch.rand(POOL, 3, 6, 6)
    with torch.no_grad():
        algorithm.scan(
            iter([(torch.arange(LABELED), images, torch.arange(LABELED) % CLASSES)]),
            iter([(torch.arange(POOL), pool)]),
            Pairs(),
        )
    assert (algorithm.certainty == 0).all()
    output = algorithm.step(make_batch(algorithm), FakeContext())
    assert output.losses["unsupervised"].value == 0
