"""FixMatch and its forms with adaptive thresholds, weights and logits, as plain loops."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from plain_losses import (
    LENGTH,
    Loop,
    Losses,
    constant_probs,
    fixmatch_losses,
    log_probs,
    mean_loss,
    pseudo_labels,
    supervised,
    zero,
)
from torch import Tensor
from toy_context import CLASSES, POOL, toy_images

from ssl_toolkit import Batch

MAPPINGS = {
    "convex": lambda x: x / (2 - x),
    "linear": lambda x: x,
    "concave": lambda x: math.log(1 + x) / math.log(2),
}


def moved(old: float, new: float, momentum: float) -> float:
    return momentum * old + (1 - momentum) * new


class FixMatchLoop(Loop):
    def __call__(self, run: Any, batch: Batch) -> Losses:
        confidences, labels = pseudo_labels(run.net, batch)
        mask = [confidence >= self.options.confidence_threshold for confidence in confidences]
        losses = fixmatch_losses(run.net, batch, labels, mask)
        return losses | {
            "unsupervised": self.options.unsupervised_weight * losses["unsupervised"]
        }, mask

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3


class FlexMatchLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.learned: dict[int, int] = {}

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        counts = Counter(self.learned.values())
        largest = max(counts.values(), default=0)
        if o.threshold_warmup:
            largest = max(largest, POOL - len(self.learned))
        status = [counts[c] / max(largest, 1) for c in range(CLASSES)]
        confidences, labels = pseudo_labels(net, batch)
        mask = [
            confidence >= o.confidence_threshold * MAPPINGS[o.threshold_mapping](status[label])
            for confidence, label in zip(confidences, labels, strict=True)
        ]
        indices = batch.unlabeled_indices.tolist()
        for image, confidence, label in zip(indices, confidences, labels, strict=True):
            if confidence >= o.confidence_threshold:
                self.learned[image] = label
        return fixmatch_losses(net, batch, labels, mask), mask

    def state(self) -> dict[str, Any]:
        return {"learned": [self.learned.get(image, CLASSES) for image in range(POOL)]}

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3  # the thresholds move
        assert len({*self.learned.values()}) > 1


class FreeMatchLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.momentum = options.momentum
        self.threshold = 1 / CLASSES
        self.mean = [1 / CLASSES] * CLASSES
        self.histogram = [1 / CLASSES] * CLASSES

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        probs = constant_probs(net, batch.unlabeled_weak[0])
        confidences, labels = pseudo_labels(net, batch)
        count = len(labels)
        self.threshold = moved(self.threshold, sum(confidences) / count, self.momentum)
        for c in range(CLASSES):
            self.mean[c] = moved(self.mean[c], sum(row[c] for row in probs) / count, self.momentum)
            self.histogram[c] = moved(self.histogram[c], labels.count(c) / count, self.momentum)
        mask = [
            confidence >= self.threshold * self.mean[label] / max(self.mean)
            for confidence, label in zip(confidences, labels, strict=True)
        ]
        losses = fixmatch_losses(net, batch, labels, mask)
        losses["fairness"] = o.fairness_weight * self.fairness(net, batch, mask)
        return losses, mask

    def fairness(self, net: Any, batch: Batch, mask: list[bool]) -> Tensor:
        rows = [
            row.exp()
            for row, used in zip(log_probs(net, batch.unlabeled_strong[0]), mask, strict=True)
            if used
        ]
        if not rows:
            return zero()
        target = [mean / share for mean, share in zip(self.mean, self.histogram, strict=True)]
        predicted = Counter(int(row.argmax()) for row in rows)
        output = [
            sum(row[c] for row in rows) / len(rows) / (predicted[c] / len(rows))
            if predicted[c]
            else zero()
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

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3


class SoftMatchLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.momentum = options.momentum
        self.mean, self.variance = 1 / CLASSES, 1.0
        self.mean_probs: list[float] = []

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        confidences, labels = pseudo_labels(net, batch)
        if o.uniform_alignment:
            confidences = self.confidences(net, batch)
        count = len(labels)
        mean = sum(confidences) / count
        variance = sum((value - mean) ** 2 for value in confidences) / (count - 1)
        self.mean = moved(self.mean, mean, self.momentum)
        self.variance = moved(self.variance, variance, self.momentum)
        weights = [
            1.0
            if value >= self.mean
            else math.exp(-((value - self.mean) ** 2) / (2 * self.variance / o.num_sigmas**2))
            for value in confidences
        ]
        self.smallest = min(weights)
        return fixmatch_losses(net, batch, labels, weights), [True] * count

    def confidences(self, net: Any, batch: Batch) -> list[float]:
        rows = constant_probs(net, batch.unlabeled_weak[0])
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        old = self.mean_probs or means
        self.mean_probs = [moved(a, b, self.momentum) for a, b in zip(old, means, strict=True)]
        confidences = []
        for row in rows:
            aligned = [p / CLASSES / mean for p, mean in zip(row, self.mean_probs, strict=True)]
            confidences.append(max(aligned) / sum(aligned))
        return confidences

    def state(self) -> dict[str, Any]:
        probs = self.mean_probs or [0.0] * CLASSES
        return {"mean": self.mean, "variance": self.variance, "mean_probs": probs}

    def check(self, used: list[int]) -> None:
        assert self.smallest < 0.9


class DebiasPLLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.momentum, self.factor = options.momentum, options.debias_factor
        self.mean = [1 / CLASSES] * CLASSES

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        rows = constant_probs(net, batch.unlabeled_weak[0])
        for c in range(CLASSES):
            mean = sum(row[c] for row in rows) / len(rows)
            self.mean[c] = moved(self.mean[c], mean, self.momentum)
        labels, mask = [], []
        for row in rows:
            debiased = [p / mean**self.factor for p, mean in zip(row, self.mean, strict=True)]
            labels.append(debiased.index(max(debiased)))
            mask.append(max(debiased) / sum(debiased) >= o.confidence_threshold)
        losses = fixmatch_losses(net, batch, labels, mask)
        margins = torch.tensor(self.mean, dtype=torch.float64).log() * self.factor
        strong = [
            (net(view[None]).logits[0] + margins).log_softmax(dim=0)
            for view in batch.unlabeled_strong[0]
        ]
        return losses | {"unsupervised": mean_loss(strong, labels, mask)}, mask

    def state(self) -> dict[str, Any]:
        return {"mean_probs": self.mean}

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3


class AdaMatchLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.labeled = [1 / CLASSES] * CLASSES
        self.unlabeled = [1 / CLASSES] * CLASSES

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        # Without BatchNorm, labeled images have the same logits alone as with the unlabeled ones.
        labels, ones = batch.labels.tolist(), [1.0] * len(batch.labels)
        views = [batch.labeled_weak[0], batch.labeled_strong[0]]
        source = [mean_loss(log_probs(net, view), labels, ones) for view in views]
        weak = constant_probs(net, views[0])
        rows = constant_probs(net, batch.unlabeled_weak[0])
        for c in range(CLASSES):
            mean = sum(row[c] for row in weak) / len(weak)
            self.labeled[c] = moved(self.labeled[c], mean, o.labeled_momentum)
            mean = sum(row[c] for row in rows) / len(rows)
            self.unlabeled[c] = moved(self.unlabeled[c], mean, o.unlabeled_momentum)
        threshold = o.relative_threshold * sum(max(row) for row in weak) / len(weak)

        total, mask = zero(), []
        for row, strong in zip(rows, log_probs(net, batch.unlabeled_strong[0]), strict=True):
            scaled = [p * a / b for p, a, b in zip(row, self.labeled, self.unlabeled, strict=True)]
            target = [p / sum(scaled) for p in scaled]
            mask.append(max(target) >= threshold)
            if o.hard_labels:
                target = [float(p == max(target)) for p in target]
            if mask[-1]:
                total = total - sum(p * strong[c] for c, p in enumerate(target))
        warmup = 0.5 - math.cos(min(math.pi, 2 * math.pi * run.step / LENGTH)) / 2
        return {
            "supervised": (source[0] + source[1]) / 2,
            "unsupervised": o.unsupervised_weight * warmup * total / len(rows),
        }, mask

    def state(self) -> dict[str, Any]:
        return {"labeled_probs": self.labeled, "unlabeled_probs": self.unlabeled}

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3


class DashLoop(Loop):
    """The warm-up and the reductions last as many steps as the options say."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.warmup = round(options.warmup_fraction * LENGTH)
        self.interval = max(1, round(options.decay_fraction * LENGTH))
        self.first, self.kinds = 0.0, set[bool]()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        labeled = supervised(net, batch)
        if run.step < self.warmup:
            return {"supervised": labeled}, None
        if run.step == self.warmup:
            images, labels, _ = toy_images()
            with torch.no_grad():
                rows = log_probs(run.teacher, images)
            self.first = float(mean_loss(rows, labels.tolist(), [1.0] * len(rows)))
        threshold = o.threshold_factor * self.first
        for _ in range((run.step - self.warmup) // self.interval):
            threshold = threshold / o.gamma
        hard = threshold <= o.minimum_threshold
        threshold = max(threshold, o.minimum_threshold)
        self.kinds.add(hard)

        total, mask = zero(), []
        weak = constant_probs(net, batch.unlabeled_weak[0])
        for row, strong in zip(weak, log_probs(net, batch.unlabeled_strong[0]), strict=True):
            mask.append(-math.log(max(row)) <= threshold)
            powers = [float(p == max(row)) if hard else p ** (1 / o.temperature) for p in row]
            if mask[-1]:
                total = total - sum(p * strong[c] for c, p in enumerate(powers)) / sum(powers)
        count = max(sum(mask), 1) if o.mean_over_selected else len(mask)
        unsupervised = o.unsupervised_weight * total / count
        return {"supervised": labeled, "unsupervised": unsupervised}, mask

    def state(self) -> dict[str, Any]:
        return {"first_threshold": self.first}

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3
        assert self.kinds == {True, False}


class DeFixMatchLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.used_labeled = set[int]()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        net, labels = run.net, batch.labels.tolist()
        weak, strong = batch.labeled_weak[0], batch.labeled_strong[0]
        unlabeled, mask = self.consistency(net, batch.unlabeled_weak[0], batch.unlabeled_strong[0])
        labeled, labeled_mask = self.consistency(net, weak, strong)
        self.used_labeled.add(sum(labeled_mask))
        ones = [1.0] * len(labels)
        first, second = (mean_loss(log_probs(net, view), labels, ones) for view in (weak, strong))
        return {
            "supervised": (first + second) / 2,
            "unsupervised": self.options.unsupervised_weight * (unlabeled - labeled),
        }, mask

    def consistency(self, net: Any, weak: Tensor, strong: Tensor) -> tuple[Tensor, list[bool]]:
        rows = constant_probs(net, weak)
        mask = [max(row) >= self.options.confidence_threshold for row in rows]
        labels = [row.index(max(row)) for row in rows]
        return mean_loss(log_probs(net, strong), labels, mask), mask

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3
        assert len(self.used_labeled) > 1
