"""FlexMatch and FreeMatch against plain loops over the formulas of their papers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from ssl_toolkit_adaptive import FlexMatch, FreeMatch
from step_parity import assert_parity
from torch import Tensor
from toy_context import CLASSES, FakeContext, Net, build, make_batch, objective

from ssl_toolkit import Batch

POOL = 40  # images of the toy task
MAPPINGS = {
    "convex": lambda x: x / (2 - x),
    "linear": lambda x: x,
    "concave": lambda x: math.log(1 + x) / math.log(2),
}


def log_probs(net: Net, views: Tensor) -> list[Tensor]:
    return [net(view[None]).logits[0].log_softmax(dim=0) for view in views]


def pseudo_labels(net: Net, batch: Batch) -> tuple[list[float], list[int]]:
    with torch.no_grad():
        rows = log_probs(net, batch.unlabeled_weak[0])
    return [float(row.exp().max()) for row in rows], [int(row.argmax()) for row in rows]


def fixmatch_losses(net: Net, batch: Batch, labels: list[int], mask: list[bool]) -> dict[str, Any]:
    """The two losses of FixMatch, whatever the mask is."""
    labeled = log_probs(net, batch.labeled_weak[0])
    return {
        "supervised": mean_loss(labeled, batch.labels.tolist(), [True] * len(labeled)),
        "unsupervised": mean_loss(log_probs(net, batch.unlabeled_strong[0]), labels, mask),
    }


def mean_loss(rows: list[Tensor], labels: list[int], mask: list[bool]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, label, used in zip(rows, labels, mask, strict=True):
        if used:
            total = total - row[label]
    return total / len(rows)


class FlexMatchLoop:
    def __init__(self, threshold: float, mapping: str, warmup: bool) -> None:
        self.threshold, self.mapping, self.warmup = threshold, MAPPINGS[mapping], warmup
        self.learned: dict[int, int] = {}

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        counts = Counter(self.learned.values())
        largest = max(counts.values(), default=0)
        if self.warmup:
            largest = max(largest, POOL - len(self.learned))
        status = [counts[c] / max(largest, 1) for c in range(CLASSES)]
        confidences, labels = pseudo_labels(net, batch)
        mask = [
            confidence >= self.threshold * self.mapping(status[label])
            for confidence, label in zip(confidences, labels, strict=True)
        ]
        indices = batch.unlabeled_indices.tolist()
        for image, confidence, label in zip(indices, confidences, labels, strict=True):
            if confidence >= self.threshold:
                self.learned[image] = label
        return fixmatch_losses(net, batch, labels, mask), mask

    def state(self) -> dict[str, Any]:
        return {"learned": [self.learned.get(image, CLASSES) for image in range(POOL)]}


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("warmup", [True, False])
def test_flexmatch_is_the_algorithm_of_its_paper(mapping: str, warmup: bool) -> None:
    loop = FlexMatchLoop(0.8, mapping, warmup)
    options = {"threshold_mapping": mapping, "threshold_warmup": warmup}
    used = assert_parity(FlexMatch, loop, loop.state, confidence_threshold=0.8, **options)
    assert len({*used}) > 3  # the thresholds move
    assert len({*loop.learned.values()}) > 1


class FreeMatchLoop:
    def __init__(self, momentum: float, weight: float) -> None:
        self.momentum, self.weight = momentum, weight
        self.threshold = 1 / CLASSES
        self.mean = [1 / CLASSES] * CLASSES
        self.histogram = [1 / CLASSES] * CLASSES

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        with torch.no_grad():
            probs = [row.exp().tolist() for row in log_probs(net, batch.unlabeled_weak[0])]
        confidences, labels = pseudo_labels(net, batch)
        count = len(labels)
        self.threshold = self.moved(self.threshold, sum(confidences) / count)
        for c in range(CLASSES):
            self.mean[c] = self.moved(self.mean[c], sum(row[c] for row in probs) / count)
            self.histogram[c] = self.moved(self.histogram[c], labels.count(c) / count)
        mask = [
            confidence >= self.threshold * self.mean[label] / max(self.mean)
            for confidence, label in zip(confidences, labels, strict=True)
        ]
        losses = fixmatch_losses(net, batch, labels, mask)
        losses["fairness"] = self.weight * self.fairness(net, batch, mask)
        return losses, mask

    def moved(self, old: float, new: float) -> float:
        return self.momentum * old + (1 - self.momentum) * new

    def fairness(self, net: Net, batch: Batch, mask: list[bool]) -> Tensor:
        rows = [
            row.exp()
            for row, used in zip(log_probs(net, batch.unlabeled_strong[0]), mask, strict=True)
            if used
        ]
        if not rows:
            return torch.zeros((), dtype=torch.float64)
        target = [mean / share for mean, share in zip(self.mean, self.histogram, strict=True)]
        predicted = Counter(int(row.argmax()) for row in rows)
        output = [
            sum(row[c] for row in rows) / len(rows) / (predicted[c] / len(rows))
            if predicted[c]
            else torch.zeros((), dtype=torch.float64)
            for c in range(CLASSES)
        ]
        return sum(
            share / sum(target) * (mean / sum(output) + 1e-12).log()
            for share, mean in zip(target, output, strict=True)
        )

    def state(self) -> dict[str, Any]:
        return {
            "global_threshold": self.threshold,
            "mean_probs": self.mean,
            "histogram": self.histogram,
        }


def test_freematch_is_the_algorithm_of_its_paper() -> None:
    loop = FreeMatchLoop(0.9, 0.2)
    used = assert_parity(FreeMatch, loop, loop.state, momentum=0.9, fairness_weight=0.2)
    assert len({*used}) > 3


def test_freematch_without_a_pseudo_label_has_no_fairness_loss() -> None:
    algorithm = build(FreeMatch)
    batch = make_batch(algorithm)
    ctx = FakeContext()
    algorithm.global_threshold.fill_(2000)
    output = algorithm.step(batch, ctx)
    assert output.pseudo_labels is not None
    assert not output.pseudo_labels.mask.any()
    assert output.losses["fairness"].value == 0
    objective(output).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in ctx.live.parameters())
