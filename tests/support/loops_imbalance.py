"""Add-ons for uneven classes on top of FixMatch, as plain loops."""

from __future__ import annotations

import math
import zlib
from collections import Counter, deque
from typing import Any

import torch
from loops_adaptive import FixMatchLoop
from plain_losses import (
    LENGTH,
    Losses,
    constant_probs,
    cross_entropy,
    fixmatch_losses,
    log_probs,
    mean_loss,
    zero,
)
from torch import Tensor, nn
from toy_context import CLASSES, LABELED, POOL, toy_images

from ssl_toolkit import Batch

COUNTS = (4, 2, 1, 1)
"""Labels of each class in these runs, which also are the expected shares of the pool."""

Row = list[float]


def entropy(row: Row) -> float:
    return -sum(p * math.log(p) for p in row)


def normalized(row: Row) -> Row:
    return [p / sum(row) for p in row]


def pool_predictions(run: Any) -> list[Row]:
    """Return the predictions of the averaged weights for the pool."""
    return constant_probs(run.teacher, toy_images()[2])


class RefinedLoop(FixMatchLoop):
    """FixMatch with other pseudo labels or another mask."""

    def refine(self, run: Any, batch: Batch, rows: list[Row]) -> list[Row]:
        return rows

    def weigh(self, rows: list[Row]) -> Row:
        return [float(max(row) >= self.options.confidence_threshold) for row in rows]

    def __call__(self, run: Any, batch: Batch) -> Losses:
        rows = constant_probs(run.net, batch.unlabeled_weak[0])
        rows = self.refine(run, batch, rows)
        weights = self.weigh(rows)
        labels = [row.index(max(row)) for row in rows]
        return fixmatch_losses(run.net, batch, labels, weights), [w > 0 for w in weights]


class ABCLoop(FixMatchLoop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.head = nn.Linear(8, CLASSES)
        self.balanced = list[int]()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        losses, mask = super().__call__(run, batch)
        labels = batch.labels.tolist()
        seed = run.generator.initial_seed() ^ zlib.crc32(b"abc")
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(len(labels), generator=generator).tolist()
        total = zero()
        for view, label, draw in zip(batch.labeled_weak[0], labels, draws, strict=True):
            if draw < min(COUNTS) / COUNTS[label]:
                total = total - self.logits(run.net, view).log_softmax(dim=0)[label]
        total = total / len(labels)
        draws = torch.rand(len(batch.unlabeled_indices), generator=generator).tolist()
        total = total + self.unlabeled(run, batch, draws)
        return losses | {"balanced": self.options.abc.weight * total}, mask

    def unlabeled(self, run: Any, batch: Batch, draws: Row) -> Tensor:
        total, used = zero(), 0
        for i, draw in enumerate(draws):
            with torch.no_grad():
                probs = self.logits(run.net, batch.unlabeled_weak[0][i]).softmax(dim=0).tolist()
            rate = min(COUNTS) / COUNTS[probs.index(max(probs))]
            progress = run.step / LENGTH
            if max(probs) < self.options.abc.confidence_threshold:
                continue
            if draw < (1 - progress) + progress * rate:
                used += 1
                for strong in batch.unlabeled_strong[:2]:
                    row = self.logits(run.net, strong[i]).log_softmax(dim=0)
                    total = total + cross_entropy(row, probs)
        self.balanced.append(used)
        return total / len(draws)

    def logits(self, net: Any, view: Tensor) -> Tensor:
        assert self.head is not None
        return self.head(net(view[None]).features[0])

    def check(self, used: list[int]) -> None:
        super().check(used)
        assert len({*self.balanced}) > 3


class DARPLoop(RefinedLoop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.stored: dict[int, Row] = {}
        self.thresholds, self.scales = [0.0] * CLASSES, [1.0] * CLASSES
        self.duals = [0.0] * CLASSES
        self.moved = 0.0

    def refine(self, run: Any, batch: Batch, rows: list[Row]) -> list[Row]:
        o = self.options.darp
        warm = run.step >= round(o.warmup_fraction * LENGTH)
        if warm and run.step % o.interval == 0 and self.stored:
            self.solve([count / LABELED for count in COUNTS])
        for image, row in zip(batch.unlabeled_indices.tolist(), rows, strict=True):
            self.stored[image] = row
        if not warm:
            return rows
        refined = [self.refined(row) for row in rows]
        for before, after in zip(rows, refined, strict=True):
            self.moved = max(self.moved, abs(max(before) - max(after)))
        return refined

    def kept(self, row: Row) -> Row:
        pairs = zip(row, self.thresholds, self.scales, strict=True)
        return normalized([(p * s if p >= t else 0.0) + 1e-6 for p, t, s in pairs])

    def refined(self, row: Row) -> Row:
        kept = self.kept(row)
        h = entropy(kept)
        return normalized([p * math.exp(-h * nu) for p, nu in zip(kept, self.duals, strict=True)])

    def solve(self, shares: Row) -> None:
        o = self.options.darp
        count = len(self.stored)
        targets = [count * share for share in shares]
        for c in range(CLASSES):
            column = sorted((row[c] for row in self.stored.values()), reverse=True)
            place = max(1, min(count, math.ceil(o.kept * targets[c])))
            self.thresholds[c] = column[place - 1]
            self.scales[c] = targets[c] / sum(p for p in column if p >= column[place - 1])
        rows = [self.kept(row) for row in self.stored.values()]
        entropies = [entropy(row) for row in rows]
        for _ in range(o.rounds):
            factors = []
            for row, h in zip(rows, entropies, strict=True):
                values = [p * math.exp(-h * nu) for p, nu in zip(row, self.duals, strict=True)]
                factors.append(1 / sum(values))
            for c in range(CLASSES):
                for _ in range(3):
                    terms = [
                        factor * row[c] * math.exp(-h * self.duals[c])
                        for factor, row, h in zip(factors, rows, entropies, strict=True)
                    ]
                    mean = sum(t * h for t, h in zip(terms, entropies, strict=True)) / sum(terms)
                    self.duals[c] += math.log(sum(terms) / targets[c]) / max(mean, 1e-6)
                    self.duals[c] = max(-100.0, min(100.0, self.duals[c]))

    def state(self) -> dict[str, Any]:
        empty = [0.0] * CLASSES
        return {
            "addon.predictions": [self.stored.get(image, empty) for image in range(POOL)],
            "addon.thresholds": self.thresholds,
            "addon.scales": self.scales,
            "addon.duals": self.duals,
        }

    def check(self, used: list[int]) -> None:
        super().check(used)
        assert self.moved > 0.1


class DASOLoop(RefinedLoop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        size = options.daso.queue_size
        self.queues = [deque[Tensor](maxlen=size) for _ in range(CLASSES)]
        self.counts, self.batches = [0] * CLASSES, 0
        self.shares = [0.0] * CLASSES
        self.blended = set[float]()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o = self.options.daso
        losses, mask = super().__call__(run, batch)
        if run.step >= round(o.warmup_fraction * LENGTH):
            total = zero()
            views = zip(batch.unlabeled_weak[0], batch.unlabeled_strong[0], strict=True)
            for weak, strong in views if all(self.queues) else ():
                target = self.similarity(run.net, weak).softmax(dim=0).tolist()
                total = total + cross_entropy(
                    self.similarity(run.net, strong).log_softmax(dim=0), target
                )
            losses["alignment"] = o.weight * total / len(batch.unlabeled_indices)
        self.batches += 1
        if self.batches == o.window:
            self.shares = [count / sum(self.counts) for count in self.counts]
            self.counts, self.batches = [0] * CLASSES, 0
        for view, label in zip(batch.labeled_weak[0], batch.labels.tolist(), strict=True):
            with torch.no_grad():
                self.queues[label].append(run.teacher(view[None]).features[0])
        return losses, mask

    def refine(self, run: Any, batch: Batch, rows: list[Row]) -> list[Row]:
        o = self.options.daso
        if run.step >= round(o.warmup_fraction * LENGTH) and all(self.queues):
            for i, view in enumerate(batch.unlabeled_weak[0]):
                label = rows[i].index(max(rows[i]))
                share = 0.0
                if any(self.shares):
                    power = 1 / o.distribution_temperature
                    share = (self.shares[label] / max(self.shares)) ** power
                self.blended.add(share)
                with torch.no_grad():
                    semantic = self.similarity(run.net, view).softmax(dim=0).tolist()
                rows[i] = [
                    (1 - share) * p + share * q for p, q in zip(rows[i], semantic, strict=True)
                ]
        for row in rows:
            self.counts[row.index(max(row))] += 1
        return rows

    def similarity(self, net: Any, view: Tensor) -> Tensor:
        feature = net(view[None]).features[0]
        cosines = []
        for queue in self.queues:
            mean = torch.stack([*queue]).mean(dim=0)
            cosines.append(feature @ mean / feature.norm() / mean.norm())
        return torch.stack(cosines) / self.options.daso.temperature

    def state(self) -> dict[str, Any]:
        return {
            "addon.counts": self.counts,
            "addon.shares": self.shares,
            "addon.counted": self.batches,
        }

    def check(self, used: list[int]) -> None:
        super().check(used)
        assert len(self.blended) > 3
        assert {len(queue) for queue in self.queues} == {self.options.daso.queue_size}


class SAWLoop(RefinedLoop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.weights = [1.0] * CLASSES
        of_labels = self.smoothed(dict(enumerate(COUNTS)))
        self.of_labels = torch.tensor(of_labels).tolist()  # stored in float32

    def __call__(self, run: Any, batch: Batch) -> Losses:
        losses, mask = super().__call__(run, batch)
        if self.options.saw.weigh_labels:
            labels = batch.labels.tolist()
            weights = [self.of_labels[label] for label in labels]
            rows = log_probs(run.net, batch.labeled_weak[0])
            losses["supervised"] = mean_loss(rows, labels, weights)
        return losses, mask

    def smoothed(self, counts: dict[int, int]) -> Row:
        beta = self.options.saw.beta
        if beta is None:
            beta = 1 - CLASSES / sum(counts.values())
        numbers = [(1 - beta ** max(counts.get(c, 0), 1)) / (1 - beta) for c in range(CLASSES)]
        inverse = [1 / number for number in numbers]
        return [CLASSES * value / sum(inverse) for value in inverse]

    def refine(self, run: Any, batch: Batch, rows: list[Row]) -> list[Row]:
        if run.step and run.step % (LENGTH // self.options.saw.updates) == 0:
            counts = Counter(row.index(max(row)) for row in pool_predictions(run))
            self.weights = self.smoothed(counts)
        return rows

    def weigh(self, rows: list[Row]) -> Row:
        used = zip(rows, super().weigh(rows), strict=True)
        return [self.weights[row.index(max(row))] * weight for row, weight in used]

    def state(self) -> dict[str, Any]:
        return {"addon.class_weights": self.weights, "addon.label_weights": self.of_labels}

    def check(self, used: list[int]) -> None:
        super().check(used)
        assert max(self.weights) > 1.5 * min(self.weights)


class AdshLoop(RefinedLoop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.thresholds = [options.adsh.confidence_threshold] * CLASSES
        self.other_labels = 0

    def refine(self, run: Any, batch: Batch, rows: list[Row]) -> list[Row]:
        o = self.options.adsh
        if run.step and run.step % (LENGTH // o.updates) == 0:
            self.update(pool_predictions(run))
        self.original = rows
        refined = [
            normalized([p / t for p, t in zip(row, self.thresholds, strict=True)]) for row in rows
        ]
        for a, b in zip(rows, refined, strict=True):
            self.other_labels += a.index(max(a)) != b.index(max(b))
        return refined

    def update(self, rows: list[Row]) -> None:
        largest, tau = 0, self.options.adsh.confidence_threshold
        ranked = [
            sorted((max(row) for row in rows if row.index(max(row)) == c), reverse=True)
            for c in range(CLASSES)
        ]
        of_largest = ranked[largest]
        selected = sum(p >= tau for p in of_largest)
        share = selected / len(of_largest) if selected else 1.0
        for c in range(CLASSES):
            if c != largest and ranked[c]:
                last = max(round(share * len(ranked[c]) - 1), 0)
                self.thresholds[c] = min(tau, ranked[c][last])

    def weigh(self, rows: list[Row]) -> Row:
        return [
            float(any(p >= t for p, t in zip(row, self.thresholds, strict=True)))
            for row in self.original
        ]

    def state(self) -> dict[str, Any]:
        base = self.options.adsh.confidence_threshold
        return {"addon.ratios": [threshold / base for threshold in self.thresholds]}

    def check(self, used: list[int]) -> None:
        super().check(used)
        assert len({*self.thresholds}) > 1
        assert self.other_labels
