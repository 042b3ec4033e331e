"""ReMixMatch against a plain loop over the formulas of its paper."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from plain_losses import log_probs
from ssl_toolkit_remixmatch import ReMixMatch
from step_parity import assert_parity
from torch import Tensor, nn
from toy_context import CLASSES, FakeContext, Net, build, make_batch

from ssl_toolkit import Batch
from ssl_toolkit.ops import sample_beta

RAMP = 10
"""Steps of the ramp of a toy run of 100."""


class ReMixMatchLoop:
    """Algorithm 1 image by image; draws shares, partners and rotations as the step does."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.recent = [[1 / CLASSES] * CLASSES for _ in range(128)]
        self.rotation = nn.Linear(8, 4)
        self.generator = torch.Generator().manual_seed(3)
        self.targets: list[list[float]] = []
        self.classes: set[int] = set()

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        self.targets = self.pseudo_labels(net, batch)
        images = list(batch.labeled_strong[0])
        labels = [[float(c == label) for c in range(CLASSES)] for label in batch.labels.tolist()]
        count = len(images)
        for view in [*batch.unlabeled_strong, batch.unlabeled_weak[0]]:
            images += list(view)
            labels += self.targets
        draws = sample_beta(0.75, len(images), self.generator)
        shares = torch.maximum(draws, 1 - draws).double().tolist()
        partners = torch.randperm(len(images), generator=self.generator).tolist()
        mixed = []
        for i, (share, j) in enumerate(zip(shares, partners, strict=True)):
            image = share * images[i] + (1 - share) * images[j]
            target = [
                share * a + (1 - share) * b for a, b in zip(labels[i], labels[j], strict=True)
            ]
            mixed.append(self.cross_entropy(net, image, target))

        strong = batch.unlabeled_strong[0]
        before_mixing = [
            self.cross_entropy(net, image, target)
            for image, target in zip(strong, self.targets, strict=True)
        ]
        ramp = min(step / RAMP, 1)
        return {
            "supervised": sum(mixed[:count]) / count,
            "unsupervised": ramp * 1.5 * sum(mixed[count:]) / (len(mixed) - count),
            "strong": ramp * 0.5 * sum(before_mixing) / len(before_mixing),
            "rotation": 0.5 * self.rotation_loss(net, strong),
        }, [True] * len(strong)

    def pseudo_labels(self, net: Net, batch: Batch) -> list[list[float]]:
        with torch.no_grad():
            rows = [row.exp().tolist() for row in log_probs(net, batch.unlabeled_weak[0])]
        means = [sum(column) / 128 for column in zip(*self.recent, strict=True)]
        targets = []
        for row in rows:
            aligned = [p * (2 / 8) / mean for p, mean in zip(row, means, strict=True)]
            powers = [(p / sum(aligned)) ** (1 / self.temperature) for p in aligned]
            targets.append([p / sum(powers) for p in powers])
            self.classes.add(powers.index(max(powers)))
        latest = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        self.recent = [*self.recent[1:], latest]
        return targets

    def cross_entropy(self, net: Net, image: Tensor, target: list[float]) -> Tensor:
        (row,) = log_probs(net, image[None])
        return -sum(p * row[c] for c, p in enumerate(target))

    def rotation_loss(self, net: Net, images: Tensor) -> Tensor:
        turns = torch.randint(4, (len(images),), generator=self.generator).tolist()
        losses = []
        for image, turn in zip(images, turns, strict=True):
            for _ in range(turn):  # a quarter turn counter-clockwise: the last column is on top
                image = torch.stack([image[:, :, -1 - x] for x in range(image.shape[2])], dim=1)
            row = self.rotation(net(image[None]).features[0]).log_softmax(dim=0)
            losses.append(-row[turn])
        return sum(losses) / len(losses)

    def state(self) -> dict[str, Any]:
        return {"recent_probs": self.recent}


@pytest.mark.parametrize(("temperature", "views"), [(0.5, 3), (0.9, 1)])
def test_remixmatch_is_the_algorithm_of_its_paper(temperature: float, views: int) -> None:
    loop = ReMixMatchLoop(temperature)
    assert_parity(
        ReMixMatch,
        loop,
        loop.state,
        scale=40,
        head=loop.rotation,
        temperature=temperature,
        strong_views=views,
        rampup_fraction=RAMP / 100,
    )
    assert len(loop.classes) > 1


def test_the_ramp_is_the_published_share_of_the_run() -> None:
    output = build(ReMixMatch).step(make_batch(build(ReMixMatch)), FakeContext(step=1))
    ramp = 1 / (100 / 64)
    assert output.losses["unsupervised"].weight == pytest.approx(1.5 * ramp)
    assert output.losses["strong"].weight == pytest.approx(0.5 * ramp)
    assert output.losses["rotation"].weight == 0.5
    options = ReMixMatch.Config()
    assert math.isclose(options.rampup_fraction * 2**20, 16384)


def test_one_pass_trains_and_pseudo_labels_change_no_statistics() -> None:
    algorithm, ctx = build(ReMixMatch, strong_views=2), FakeContext()
    algorithm.step(make_batch(algorithm), ctx)
    assert ctx.calls == [("forward", 4, False), ("forward", 4 + 3 * 4 + 4 + 4, True)]
