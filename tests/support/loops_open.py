"""OpenMatch as a plain loop."""

from __future__ import annotations

import math
from typing import Any

import torch
from plain_losses import (
    LENGTH,
    Loop,
    Losses,
    log_probs,
    pseudo_labels,
    supervised,
    zero,
)
from torch import Tensor, nn
from toy_context import CLASSES, POOL, toy_images

from ssl_toolkit import Batch


class OpenMatchLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.head = nn.Linear(8, 2 * CLASSES, bias=False)
        self.warmup = round(options.warmup_fraction * LENGTH)
        self.inliers = [False] * POOL
        self.selections: set[tuple[bool, ...]] = set()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        if run.step >= self.warmup and run.step % o.scan_interval == 0:
            self.select(run.teacher, run.teacher_head or self.head)
        losses = {
            "supervised": supervised(net, batch),
            "one_vs_all": self.one_vs_all(net, batch),
            "open_entropy": o.entropy_weight * self.entropy(net, batch),
            "open_consistency": o.consistency_weight * self.consistency(net, batch),
        }
        if run.step < self.warmup:
            return losses, None
        confidences, labels = pseudo_labels(net, batch)
        images = batch.unlabeled_indices.tolist()
        mask = [
            self.inliers[image] and confidence >= o.confidence_threshold
            for image, confidence in zip(images, confidences, strict=True)
        ]
        total = zero()
        rows = log_probs(net, batch.unlabeled_strong[0])
        for row, label, used in zip(rows, labels, mask, strict=True):
            if used:
                total = total - row[label]
        count = sum(self.inliers[image] for image in images)
        losses["unsupervised"] = o.unsupervised_weight * total / max(count, 1)
        return losses, mask

    def binary(self, net: Any, image: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (outlier, inlier) of each class for one image: softmax over two logits."""
        logits = self.head(net(image[None]).features)[0]
        pairs = []
        for c in range(CLASSES):
            outlier, inlier = logits[c].exp(), logits[CLASSES + c].exp()
            pairs.append((outlier / (outlier + inlier), inlier / (outlier + inlier)))
        return pairs

    def one_vs_all(self, net: Any, batch: Batch) -> Tensor:
        total = zero()
        for image, label in zip(batch.labeled_weak[0], batch.labels.tolist(), strict=True):
            pairs = self.binary(net, image)
            others = [-pairs[c][0].log() for c in range(CLASSES) if c != label]
            total = total - pairs[label][1].log() + max(others)
        return total / len(batch.labels)

    def entropy(self, net: Any, batch: Batch) -> Tensor:
        total = zero()
        for view in batch.unlabeled_weak:
            for image in view:
                for outlier, inlier in self.binary(net, image):
                    total = total - outlier * outlier.log() - inlier * inlier.log()
        return total / batch.unlabeled_weak.shape[:2].numel() / CLASSES

    def consistency(self, net: Any, batch: Batch) -> Tensor:
        total = zero()
        for first, second in zip(*batch.unlabeled_weak, strict=True):
            for one, two in zip(self.binary(net, first), self.binary(net, second), strict=True):
                total = total + (one[0] - two[0]) ** 2 + (one[1] - two[1]) ** 2
        return total / len(batch.unlabeled_weak[0])

    def select(self, teacher: Any, head: nn.Module) -> None:
        pool = toy_images()[2]
        for number, image in enumerate(pool):
            with torch.no_grad():
                output = teacher(image[None])
                open_logits = head(output.features)[0].tolist()
            row = output.logits[0].tolist()
            predicted = row.index(max(row))
            outlier = math.exp(open_logits[predicted])
            inlier = math.exp(open_logits[CLASSES + predicted])
            self.inliers[number] = outlier / (outlier + inlier) < 0.5
        self.selections.add(tuple(self.inliers))

    def state(self) -> dict[str, Any]:
        return {"inliers": [float(inlier) for inlier in self.inliers]}

    def check(self, used: list[int]) -> None:
        assert used[self.warmup - 1] == 0
        assert len({*used}) > 2
        assert len(self.selections) > 1  # they change
        assert any(any(chosen) and not all(chosen) for chosen in self.selections)
