"""SimPLE, MixMatch and its form with strong views, and ReMixMatch as plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from plain_losses import (
    Loop,
    Losses,
    averaged_and_sharpened,
    constant_probs,
    cross_entropy,
    log_probs,
    squared,
    supervised,
    zero,
)
from torch import Tensor, nn
from toy_context import CLASSES

from ssl_toolkit import Batch


class SimPLELoop(Loop):
    """Algorithm 1 of the paper, pair by pair."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.pairs = set[int]()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        guess = averaged_and_sharpened(run.teacher, batch.unlabeled_weak, o.temperature)
        targets = [q for _ in batch.unlabeled_strong for q in guess]
        rows = [row for view in batch.unlabeled_strong for row in log_probs(net, view)]
        confident = [max(q) > o.confidence_threshold for q in targets]
        unsupervised = zero()
        for q, row, used in zip(targets, rows, confident, strict=True):
            if used:
                unsupervised = unsupervised + squared([row], [q]) / len(rows)
        weight = self.ramp(run.step)
        return {
            "supervised": supervised(net, batch),
            "unsupervised": weight * o.unsupervised_weight * unsupervised,
            "pair": weight * self.pair_weight() * self.pair_loss(targets, rows, confident),
        }, confident[: len(guess)]

    def pair_weight(self) -> float:
        o = self.options
        if o.pair_weight is None:
            return o.unsupervised_weight / (2 * CLASSES)
        return o.unsupervised_weight if o.pair_weight == "same" else o.pair_weight

    def pair_loss(
        self, targets: list[list[float]], rows: list[Tensor], confident: list[bool]
    ) -> Tensor:
        """Sum over ordered pairs, divided by the number of unordered ones."""
        total, pairs, count = zero(), 0, len(rows)
        for i in range(count):
            for j in range(count):
                similarity = sum(
                    math.sqrt(a * b) for a, b in zip(targets[i], targets[j], strict=True)
                )
                if i == j or not confident[i] or not similarity > self.options.similarity_threshold:
                    continue
                pairs += 1
                roots = (rows[j] / 2).exp()
                distance = 1 - sum(math.sqrt(q) * roots[c] for c, q in enumerate(targets[i]))
                anchor = max(targets[i]) if self.options.confidence_weighted else 1.0
                total = total + anchor * similarity * distance
        self.pairs.add(pairs)
        return total / (count * (count - 1) / 2)

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 1
        assert len(self.pairs) > 3


def beta(alpha: float, count: int, generator: Any) -> list[float]:
    """Draw shares of mixtures, at least a half, in single precision as a step does."""
    concentration = torch.full((count, 2), alpha, dtype=torch.float64)
    draws = torch._sample_dirichlet(concentration, generator)[:, 0].float()
    return torch.maximum(draws, 1 - draws).tolist()


def mixed(
    images: list[Tensor], targets: list[list[float]], shares: list[float], generator: Any
) -> list[tuple[Tensor, list[float]]]:
    """Mix each image and target with those of a partner."""
    partners = torch.randperm(len(images), generator=generator).tolist()
    result = []
    for i, (share, j) in enumerate(zip(shares, partners, strict=True)):
        image = share * images[i] + (1 - share) * images[j]
        target = [share * a + (1 - share) * b for a, b in zip(targets[i], targets[j], strict=True)]
        result.append((image, target))
    return result


def one_hot(labels: Tensor) -> list[list[float]]:
    return [[float(c == label) for c in range(CLASSES)] for label in labels.tolist()]


class MixMatchLoop(Loop):
    """Algorithm 1 and equations 2 to 5 of the paper."""

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        source = run.teacher if o.pseudo_labels_from == "teacher" else net
        guess = averaged_and_sharpened(source, batch.unlabeled_weak, o.temperature)
        images, targets = list(batch.labeled_weak[0]), one_hot(batch.labels)
        count = len(images)
        for view in self.trained_views(batch):
            images += list(view)
            targets += guess
        each = o.mixup_per == "sample"
        draws = beta(o.alpha, len(images) if each else 1, run.generator)
        rows = mixed(images, targets, draws if each else draws * len(images), run.generator)
        log_rows = [log_probs(net, image[None])[0] for image, _ in rows]
        losses = [
            cross_entropy(row, target)
            for row, (_, target) in zip(log_rows[:count], rows[:count], strict=True)
        ]
        unsupervised = squared(log_rows[count:], [target for _, target in rows[count:]])
        return {
            "supervised": sum(losses, zero()) / count,
            "unsupervised": self.ramp(run.step) * o.unsupervised_weight * unsupervised,
        }, [True] * len(guess)

    def trained_views(self, batch: Batch) -> list[Tensor]:
        return [*batch.unlabeled_weak]


class MixMatchEnhancedLoop(MixMatchLoop):
    def trained_views(self, batch: Batch) -> list[Tensor]:
        weak = [*batch.unlabeled_weak] if self.options.train_on == "both" else []
        return [*weak, *batch.unlabeled_strong]


class ReMixMatchLoop(Loop):
    """Algorithm 1 image by image; draws shares, partners and rotations as the step does."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.recent = [[1 / CLASSES] * CLASSES for _ in range(128)]
        self.head = nn.Linear(8, 4)
        self.classes: set[int] = set()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        targets = self.pseudo_labels(net, batch)
        images, labels = list(batch.labeled_strong[0]), one_hot(batch.labels)
        count = len(images)
        for view in [*batch.unlabeled_strong, batch.unlabeled_weak[0]]:
            images += list(view)
            labels += targets
        draws = beta(o.alpha, len(images), run.generator)
        losses = [
            cross_entropy(log_probs(net, image[None])[0], target)
            for image, target in mixed(images, labels, draws, run.generator)
        ]
        strong = batch.unlabeled_strong[0]
        before_mixing = [
            cross_entropy(row, target)
            for row, target in zip(log_probs(net, strong), targets, strict=True)
        ]
        ramp, after = self.ramp(run.step), losses[count:]
        return {
            "supervised": sum(losses[:count]) / count,
            "unsupervised": ramp * o.unsupervised_weight * sum(after) / len(after),
            "strong": ramp * o.strong_weight * sum(before_mixing) / len(before_mixing),
            "rotation": o.rotation_weight * self.rotation_loss(net, strong, run.generator),
        }, [True] * len(strong)

    def pseudo_labels(self, net: Any, batch: Batch) -> list[list[float]]:
        rows = constant_probs(net, batch.unlabeled_weak[0])
        means = [sum(column) / 128 for column in zip(*self.recent, strict=True)]
        targets = []
        for row in rows:
            aligned = [p * (2 / 8) / mean for p, mean in zip(row, means, strict=True)]
            powers = [(p / sum(aligned)) ** (1 / self.options.temperature) for p in aligned]
            targets.append([p / sum(powers) for p in powers])
            self.classes.add(powers.index(max(powers)))
        latest = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        self.recent = [*self.recent[1:], latest]
        return targets

    def rotation_loss(self, net: Any, images: Tensor, generator: torch.Generator) -> Tensor:
        turns = torch.randint(4, (len(images),), generator=generator).tolist()
        losses = []
        for image, turn in zip(images, turns, strict=True):
            for _ in range(turn):  # a quarter turn counter-clockwise: the last column is on top
                image = torch.stack([image[:, :, -1 - x] for x in range(image.shape[2])], dim=1)
            assert self.head is not None
            row = self.head(net(image[None]).features[0]).log_softmax(dim=0)
            losses.append(-row[turn])
        return sum(losses, zero()) / len(losses)

    def state(self) -> dict[str, Any]:
        return {"recent_probs": self.recent}

    def check(self, used: list[int]) -> None:
        assert len(self.classes) > 1
