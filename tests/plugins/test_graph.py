"""Deep label propagation, SimMatch and CoMatch against plain loops over their formulas."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from plain_losses import log_probs, mean_loss
from ssl_toolkit_graph import CoMatch, DeepLabelPropagation, SimMatch
from ssl_toolkit_graph.diffusion import diffuse
from step_parity import assert_parity, toy_teacher
from torch import Tensor, nn
from toy_context import CLASSES, LABELED, POOL, FakeContext, Net, build, make_batch, toy_images

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


class PropagationLoop:
    """Warm-up of 4 of 100 steps, a propagation every 2."""

    K, GAMMA, ALPHA, ROUNDS = 6, 3, 0.99, 20

    def __init__(self) -> None:
        self.teacher = toy_teacher()
        self.labels, self.certainty = [0] * POOL, [0.0] * POOL
        self.class_weights = [1.0] * CLASSES

    def __call__(
        self, net: Net, batch: Batch, step: int
    ) -> tuple[dict[str, Any], list[bool] | None]:
        labels = batch.labels.tolist()
        if step >= 4 and step % 2 == 0:
            self.propagate()
        weights = [self.class_weights[label] for label in labels]
        supervised = mean_loss(log_probs(net, batch.labeled_weak[0]), labels, weights)
        if step < 4:
            return {"supervised": supervised}, None
        images = batch.unlabeled_indices.tolist()
        hard = [self.labels[image] for image in images]
        weights = [
            self.certainty[image] * self.class_weights[self.labels[image]] for image in images
        ]
        unsupervised = mean_loss(log_probs(net, batch.unlabeled_weak[0]), hard, weights)
        return {"supervised": supervised, "unsupervised": 2 * unsupervised}, [
            self.certainty[image] > 0 for image in images
        ]

    def propagate(self) -> None:
        images, labels, pool = toy_images()
        with torch.no_grad():
            features = self.teacher(torch.cat([images, pool])).features.tolist()
        points = [[v / math.sqrt(dot(row, row)) for v in row] for row in features]
        count = len(points)
        weights = [[0.0] * count for _ in range(count)]
        for i in range(count):
            others = sorted(
                (j for j in range(count) if j != i), key=lambda j: -dot(points[i], points[j])
            )
            for j in others[: self.K]:
                weight = max(dot(points[i], points[j]), 0) ** self.GAMMA
                weights[i][j] += weight
                weights[j][i] += weight
        degrees = [sum(row) for row in weights]
        system = [
            [
                float(i == j) - self.ALPHA * weights[i][j] / math.sqrt(degrees[i] * degrees[j])
                for j in range(count)
            ]
            for i in range(count)
        ]
        known = labels.tolist()
        columns = []
        for c in range(CLASSES):
            sources = [float(label == c) / known.count(c) for label in known] + [0.0] * len(pool)
            columns.append(conjugate_gradients(system, sources, self.ROUNDS))
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


def test_deep_label_propagation_is_the_algorithm_of_its_paper() -> None:
    loop = PropagationLoop()
    options = {"neighbors": 6, "warmup_fraction": 0.04, "scan_interval": 2}
    used = assert_parity(
        DeepLabelPropagation,
        loop,
        loop.state,
        unsupervised_weight=2.0,
        unlabeled_ratio=3,
        **options,
    )
    assert used[4] > 0
    assert len({*loop.labels}) > 1
    assert len({*loop.class_weights}) > 1
    assert min(loop.certainty) < 0.5


def test_labels_diffuse_along_two_separate_arcs() -> None:
    angles = torch.cat([torch.linspace(0, 1.4, 30), torch.linspace(3.2, 4.6, 30)]).double()
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    order = torch.cat([torch.tensor([0, 30]), torch.arange(1, 30), torch.arange(31, 60)])
    z = diffuse(points[order], torch.eye(2).double(), 4, 3, 0.99, 20)
    truth = (order >= 30).long()
    assert torch.equal(z.argmax(dim=1), truth)
    assert (z[torch.arange(60), 1 - truth] == 0).all()


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


class Embedding:
    """What the references of SimMatch and CoMatch share."""

    def __init__(self, size: int) -> None:
        self.head = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.1), nn.Linear(8, size))
        self.means: list[list[float]] = []

    def embed(self, net: Net, views: Tensor, head: nn.Module | None = None) -> list[Tensor]:
        rows = [(head or self.head)(net(view[None]).features)[0] for view in views]
        return [row / row.square().sum().sqrt() for row in rows]

    def aligned(self, net: Net, views: Tensor) -> list[list[float]]:
        """Divide predictions by their mean over the last 32 batches."""
        with torch.no_grad():
            rows = [row.exp().tolist() for row in log_probs(net, views)]
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
    total = torch.zeros((), dtype=torch.float64)
    for row, target, used in zip(rows, targets, mask, strict=True):
        if used:
            total = total - sum(p * row[c] for c, p in enumerate(target))
    return total / len(rows)


class SimMatchLoop(Embedding):
    def __init__(self, threshold: float, smoothing: float, averaged: bool) -> None:
        super().__init__(5)
        self.threshold, self.smoothing, self.averaged = threshold, smoothing, averaged
        self.first_head: nn.Module | None = None
        self.memory: dict[int, tuple[list[float], int]] = {}

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        labels = batch.labels.tolist()
        self.first_head = self.first_head or copy.deepcopy(self.head)
        # Averages are constant in the toy context.
        weak_net, head = (toy_teacher(), self.first_head) if self.averaged else (net, self.head)
        probs = self.aligned(weak_net, batch.unlabeled_weak[0])
        z_weak = self.embed(weak_net, batch.unlabeled_weak[0], head)
        z_strong = self.embed(net, batch.unlabeled_strong[0])
        entries = list(self.memory.values())
        instance, smoothed = torch.zeros((), dtype=torch.float64), []
        for row, weak, strong in zip(probs, z_weak, z_strong, strict=True):
            if not entries:
                smoothed.append(row)
                continue
            similar = softmax([dot(weak.tolist(), z) / 0.1 for z, _ in entries])
            unfolded = [q * row[label] for q, (_, label) in zip(similar, entries, strict=True)]
            student = torch.stack(
                [(strong * torch.tensor(z, dtype=torch.float64)).sum() / 0.1 for z, _ in entries]
            )
            student = student.log_softmax(dim=0)
            for i, value in enumerate(unfolded):
                instance = instance - value / sum(unfolded) * student[i]
            by_class = [
                sum(q for q, (_, label) in zip(similar, entries, strict=True) if label == c)
                for c in range(CLASSES)
            ]
            a = self.smoothing
            smoothed.append([a * p + (1 - a) * q for p, q in zip(row, by_class, strict=True)])
        mask = [max(row) >= self.threshold for row in smoothed]
        self.remember(batch, self.embed(weak_net, batch.labeled_weak[0], head))
        labeled = log_probs(net, batch.labeled_weak[0])
        return {
            "supervised": mean_loss(labeled, labels, [1.0] * len(labels)),
            "unsupervised": soft_loss(log_probs(net, batch.unlabeled_strong[0]), smoothed, mask),
            "instance": 3 * instance / len(probs),
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
            new = [0.7 * a + 0.3 * b for a, b in zip(old, mean, strict=True)] if old else mean
            length = math.sqrt(dot(new, new))
            self.memory[place] = ([v / length for v in new], label)

    def state(self) -> dict[str, Any]:
        entries = [self.memory.get(i, ([0.0] * 5, 0)) for i in range(LABELED)]
        return {
            "memory": [z for z, _ in entries],
            "memory_labels": [label for _, label in entries],
            "recent_probs": self.recent_probs(),
            "batches": len(self.means),
        }


@pytest.mark.parametrize(
    ("threshold", "smoothing", "averaged"), [(0.7, 0.9, False), (0.4, 0.3, False), (0.7, 0.9, True)]
)
def test_simmatch_is_the_algorithm_of_its_paper(
    threshold: float, smoothing: float, averaged: bool
) -> None:
    loop = SimMatchLoop(threshold, smoothing, averaged)
    options = {"confidence_threshold": threshold, "smoothing": smoothing, "embedding_size": 5}
    used = assert_parity(
        SimMatch,
        loop,
        loop.state,
        scale=40,
        head=loop.head,
        instance_weight=3.0,
        averaged_labels=averaged,
        **options,
    )
    assert len({*used}) > 3
    assert len(loop.memory) == LABELED


class CoMatchLoop(Embedding):
    SIZE = 70  # of the memory: not a multiple of the 32 images of a step

    def __init__(self, threshold: float, graph_threshold: float) -> None:
        super().__init__(5)
        self.threshold, self.graph_threshold = threshold, graph_threshold
        self.memory: list[tuple[list[float], list[float]]] = []
        self.edges = set[int]()

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        labels = batch.labels.tolist()
        aligned = self.aligned(net, batch.unlabeled_weak[0])
        z_weak = [row.tolist() for row in self.embed(net, batch.unlabeled_weak[0])]
        probs = aligned
        if len(self.memory) == self.SIZE:
            probs = []
            for row, weak in zip(aligned, z_weak, strict=True):
                attention = softmax([dot(weak, z) / 0.2 for z, _ in self.memory])
                mean = [
                    sum(a * p[c] for a, (_, p) in zip(attention, self.memory, strict=True))
                    for c in range(CLASSES)
                ]
                probs.append([0.9 * p + 0.1 * q for p, q in zip(row, mean, strict=True)])
        mask = [max(row) >= self.threshold for row in probs]
        z_labeled = [row.tolist() for row in self.embed(net, batch.labeled_weak[0])]
        one_hot = [[float(label == c) for c in range(CLASSES)] for label in labels]
        self.memory += [*zip(z_weak, aligned, strict=True), *zip(z_labeled, one_hot, strict=True)]
        self.memory = self.memory[-self.SIZE :]

        first, second = (self.embed(net, view) for view in batch.unlabeled_strong)
        contrast = torch.zeros((), dtype=torch.float64)
        for i, one in enumerate(probs):
            edges = [1.0 if i == j else dot(one, other) for j, other in enumerate(probs)]
            edges = [edge if edge >= self.graph_threshold else 0.0 for edge in edges]
            self.edges.add(sum(edge > 0 for edge in edges))
            similar = torch.stack([(first[i] * z).sum() / 0.2 for z in second]).log_softmax(dim=0)
            for j, edge in enumerate(edges):
                contrast = contrast - edge / sum(edges) * similar[j]
        labeled = log_probs(net, batch.labeled_weak[0])
        return {
            "supervised": mean_loss(labeled, labels, [1.0] * len(labels)),
            "unsupervised": soft_loss(log_probs(net, batch.unlabeled_strong[0]), probs, mask),
            "contrast": 2 * contrast / len(probs),
        }, mask

    def state(self) -> dict[str, Any]:
        empty = [([0.0] * 5, [0.0] * CLASSES)] * (self.SIZE - len(self.memory))
        memory = empty + self.memory
        return {
            "memory": [z for z, _ in memory],
            "memory_probs": [p for _, p in memory],
            "recent_probs": self.recent_probs(),
            "batches": len(self.means),
        }


def test_comatch_is_the_algorithm_of_its_paper() -> None:
    loop = CoMatchLoop(0.8, 0.5)
    options = {"confidence_threshold": 0.8, "graph_threshold": 0.5, "memory_size": loop.SIZE}
    used = assert_parity(
        CoMatch,
        loop,
        loop.state,
        scale=40,
        head=loop.head,
        embedding_size=5,
        contrast_weight=2.0,
        **options,
    )
    assert len({*used}) > 3
    assert len(loop.edges) > 3
