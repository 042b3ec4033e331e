"""Deep label propagation, SimMatch and CoMatch as plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from plain_losses import (
    LENGTH,
    Loop,
    Losses,
    constant_probs,
    log_probs,
    mean_loss,
    supervised,
    zero,
)
from torch import Tensor, nn
from toy_context import CLASSES, LABELED, POOL, toy_images

from ssl_toolkit import Batch


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def conjugate_gradients(matrix: list[list[float]], b: list[float], rounds: int) -> list[float]:
    x, residual, direction, old = [0.0] * len(b), list(b), [0.0] * len(b), 0.0
    limit = 1e-6 * math.sqrt(dot(b, b))
    for number in range(rounds):
        if math.sqrt(dot(residual, residual)) < limit:
            break
        new = dot(residual, residual)
        ratio = new / old if number else 0.0
        direction = [r + ratio * d for r, d in zip(residual, direction, strict=True)]
        image = [dot(row, direction) for row in matrix]
        step = new / dot(direction, image)
        x = [v + step * d for v, d in zip(x, direction, strict=True)]
        residual = [r - step * v for r, v in zip(residual, image, strict=True)]
        old = new
    return x


class PropagationLoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.warmup = round(options.warmup_fraction * LENGTH)
        self.labels, self.certainty = [0] * POOL, [0.0] * POOL
        self.class_weights = [1.0] * CLASSES

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        labels = batch.labels.tolist()
        if run.step >= self.warmup and run.step % o.scan_interval == 0:
            self.propagate(run.teacher)
        weights = [self.class_weights[label] for label in labels]
        labeled = mean_loss(log_probs(net, batch.labeled_weak[0]), labels, weights)
        if run.step < self.warmup:
            return {"supervised": labeled}, None
        images = batch.unlabeled_indices.tolist()
        hard = [self.labels[image] for image in images]
        weights = [
            self.certainty[image] * self.class_weights[self.labels[image]] for image in images
        ]
        unsupervised = mean_loss(log_probs(net, batch.unlabeled_weak[0]), hard, weights)
        return {
            "supervised": labeled,
            "unsupervised": o.unsupervised_weight * unsupervised,
        }, [self.certainty[image] > 0 for image in images]

    def propagate(self, teacher: Any) -> None:
        o = self.options
        images, labels, pool = toy_images()
        with torch.no_grad():
            features = teacher(torch.cat([images, pool])).features.tolist()
        points = [[v / math.sqrt(dot(row, row)) for v in row] for row in features]
        count = len(points)
        weights = [[0.0] * count for _ in range(count)]
        for i in range(count):
            others = sorted(
                (j for j in range(count) if j != i), key=lambda j: -dot(points[i], points[j])
            )
            for j in others[: o.neighbors]:
                weight = max(dot(points[i], points[j]), 0) ** o.gamma
                weights[i][j] += weight
                weights[j][i] += weight
        degrees = [sum(row) for row in weights]
        system = [
            [
                float(i == j) - o.alpha * weights[i][j] / math.sqrt(degrees[i] * degrees[j])
                for j in range(count)
            ]
            for i in range(count)
        ]
        known = labels.tolist()
        columns = []
        for c in range(CLASSES):
            sources = [float(label == c) / known.count(c) for label in known] + [0.0] * len(pool)
            columns.append(conjugate_gradients(system, sources, o.max_iterations))
        scores = [[max(column[i], 0.0) for column in columns] for i in range(count)]
        probs = [[v / sum(row) for v in row] for row in scores]
        certainty = [
            1 + sum(p * math.log(p) for p in row if p > 0) / math.log(CLASSES) for row in probs
        ]
        self.certainty = [value / max(certainty) for value in certainty][len(known) :]
        self.labels = [row.index(max(row)) for row in probs][len(known) :]
        counts = [(known + self.labels).count(c) for c in range(CLASSES)]
        self.class_weights = [count / CLASSES / max(n, 1) for n in counts]

    def state(self) -> dict[str, Any]:
        return {
            "propagated": self.labels,
            "certainty": self.certainty,
            "class_weights": self.class_weights,
        }

    def check(self, used: list[int]) -> None:
        assert used[self.warmup] > 0
        assert len({*self.labels}) > 1
        assert len({*self.class_weights}) > 1
        assert min(self.certainty) < 0.5


class Embedding(Loop):
    """What SimMatch and CoMatch share."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.size = options.embedding_size
        self.head = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.1), nn.Linear(8, self.size))
        self.means: list[list[float]] = []

    def embed(self, net: Any, views: Tensor, head: nn.Module | None = None) -> list[Tensor]:
        rows = [(head or self.head)(net(view[None]).features)[0] for view in views]
        return [row / row.square().sum().sqrt() for row in rows]

    def aligned(self, net: Any, views: Tensor) -> list[list[float]]:
        """Divide predictions by their mean over the last 32 batches."""
        rows = constant_probs(net, views)
        self.means.append([sum(column) / len(rows) for column in zip(*rows, strict=True)])
        recent = self.means[-32:]
        mean = [sum(column) / len(recent) for column in zip(*recent, strict=True)]
        scaled = [[p / m for p, m in zip(row, mean, strict=True)] for row in rows]
        return [[p / sum(row) for p in row] for row in scaled]

    def recent_probs(self) -> list[list[float]]:
        return [[0.0] * CLASSES] * (32 - len(self.means)) + self.means


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def soft_loss(rows: list[Tensor], targets: list[list[float]], mask: list[bool]) -> Tensor:
    total = zero()
    for row, target, used in zip(rows, targets, mask, strict=True):
        if used:
            total = total - sum(p * row[c] for c, p in enumerate(target))
    return total / len(rows)


class SimMatchLoop(Embedding):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.memory: dict[int, tuple[list[float], int]] = {}

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        weak_net, head = (run.teacher, run.teacher_head) if o.averaged_labels else (net, self.head)
        probs = self.aligned(weak_net, batch.unlabeled_weak[0])
        z_weak = self.embed(weak_net, batch.unlabeled_weak[0], head)
        z_strong = self.embed(net, batch.unlabeled_strong[0])
        entries = list(self.memory.values())
        instance, smoothed = zero(), []
        for row, weak, strong in zip(probs, z_weak, z_strong, strict=True):
            if not entries:
                smoothed.append(row)
                instance = instance + 0 * strong.sum()  # a gradient of 0, not none: it decays
                continue
            similar = softmax([dot(weak.tolist(), z) / o.temperature for z, _ in entries])
            unfolded = [q * row[label] for q, (_, label) in zip(similar, entries, strict=True)]
            student = torch.stack(
                [
                    (strong * torch.tensor(z, dtype=torch.float64)).sum() / o.temperature
                    for z, _ in entries
                ]
            )
            student = student.log_softmax(dim=0)
            for i, value in enumerate(unfolded):
                instance = instance - value / sum(unfolded) * student[i]
            by_class = [
                sum(q for q, (_, label) in zip(similar, entries, strict=True) if label == c)
                for c in range(CLASSES)
            ]
            a = o.smoothing
            smoothed.append([a * p + (1 - a) * q for p, q in zip(row, by_class, strict=True)])
        mask = [max(row) >= o.confidence_threshold for row in smoothed]
        self.remember(batch, self.embed(weak_net, batch.labeled_weak[0], head))
        return {
            "supervised": supervised(net, batch),
            "unsupervised": soft_loss(log_probs(net, batch.unlabeled_strong[0]), smoothed, mask),
            "instance": o.instance_weight * instance / len(probs),
        }, mask

    def remember(self, batch: Batch, rows: list[Tensor]) -> None:
        views: dict[int, list[list[float]]] = {}
        for place, row, label in zip(
            batch.labeled_indices.tolist(), rows, batch.labels.tolist(), strict=True
        ):
            views.setdefault(place, []).append(row.tolist())
            self.memory.setdefault(place, ([], label))
            self.memory[place] = (self.memory[place][0], label)
        for place, own in views.items():
            mean = [sum(column) / len(own) for column in zip(*own, strict=True)]
            old, label = self.memory[place]
            momentum = self.options.memory_momentum
            new = (
                [momentum * a + (1 - momentum) * b for a, b in zip(old, mean, strict=True)]
                if old
                else mean
            )
            length = math.sqrt(dot(new, new))
            self.memory[place] = ([v / length for v in new], label)

    def state(self) -> dict[str, Any]:
        entries = [self.memory.get(i, ([0.0] * self.size, 0)) for i in range(LABELED)]
        return {
            "memory": [z for z, _ in entries],
            "memory_labels": [label for _, label in entries],
            "recent_probs": self.recent_probs(),
            "batches": len(self.means),
        }

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3
        assert len(self.memory) == LABELED


class CoMatchLoop(Embedding):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.memory: list[tuple[list[float], list[float]]] = []
        self.edges = set[int]()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, net = self.options, run.net
        labels = batch.labels.tolist()
        aligned = self.aligned(net, batch.unlabeled_weak[0])
        z_weak = [row.tolist() for row in self.embed(net, batch.unlabeled_weak[0])]
        probs = aligned
        if len(self.memory) == self.options.memory_size:
            probs = []
            for row, weak in zip(aligned, z_weak, strict=True):
                attention = softmax([dot(weak, z) / o.temperature for z, _ in self.memory])
                mean = [
                    sum(a * p[c] for a, (_, p) in zip(attention, self.memory, strict=True))
                    for c in range(CLASSES)
                ]
                probs.append(
                    [
                        o.smoothing * p + (1 - o.smoothing) * q
                        for p, q in zip(row, mean, strict=True)
                    ]
                )
        mask = [max(row) >= o.confidence_threshold for row in probs]
        z_labeled = [row.tolist() for row in self.embed(net, batch.labeled_weak[0])]
        one_hot = [[float(label == c) for c in range(CLASSES)] for label in labels]
        self.memory += [*zip(z_weak, aligned, strict=True), *zip(z_labeled, one_hot, strict=True)]
        self.memory = self.memory[-self.options.memory_size :]

        first, second = (self.embed(net, view) for view in batch.unlabeled_strong)
        contrast = zero()
        for i, one in enumerate(probs):
            edges = [1.0 if i == j else dot(one, other) for j, other in enumerate(probs)]
            edges = [edge if edge >= o.graph_threshold else 0.0 for edge in edges]
            self.edges.add(sum(edge > 0 for edge in edges))
            similar = torch.stack(
                [(first[i] * z).sum() / o.temperature for z in second]
            ).log_softmax(dim=0)
            for j, edge in enumerate(edges):
                contrast = contrast - edge / sum(edges) * similar[j]
        return {
            "supervised": supervised(net, batch),
            "unsupervised": soft_loss(log_probs(net, batch.unlabeled_strong[0]), probs, mask),
            "contrast": o.contrast_weight * contrast / len(probs),
        }, mask

    def state(self) -> dict[str, Any]:
        empty = [([0.0] * self.size, [0.0] * CLASSES)] * (
            self.options.memory_size - len(self.memory)
        )
        memory = empty + self.memory
        return {
            "memory": [z for z, _ in memory],
            "memory_probs": [p for _, p in memory],
            "recent_probs": self.recent_probs(),
            "batches": len(self.means),
        }

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3
        assert len(self.edges) > 3
