"""FixMatch with adaptive thresholds against plain loops over the formulas of the papers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_losses import fixmatch_losses, log_probs, mean_loss, pseudo_labels
from ssl_toolkit_adaptive import (
    AdaMatch,
    Dash,
    DebiasPL,
    DeFixMatch,
    FlexMatch,
    FreeMatch,
    SoftMatch,
)
from step_parity import assert_parity, toy_teacher
from torch import Tensor
from toy_context import (
    CLASSES,
    POOL,
    FakeContext,
    Net,
    build,
    make_batch,
    objective,
    toy_images,
)

from ssl_toolkit import Batch, Loss, PseudoLabels, StepOutput
from ssl_toolkit.engine.step_metrics import StepRecorder

MAPPINGS = {
    "convex": lambda x: x / (2 - x),
    "linear": lambda x: x,
    "concave": lambda x: math.log(1 + x) / math.log(2),
}


def moved(old: float, new: float, momentum: float) -> float:
    return momentum * old + (1 - momentum) * new


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
        self.threshold = moved(self.threshold, sum(confidences) / count, self.momentum)
        for c in range(CLASSES):
            self.mean[c] = moved(self.mean[c], sum(row[c] for row in probs) / count, self.momentum)
            self.histogram[c] = moved(self.histogram[c], labels.count(c) / count, self.momentum)
        mask = [
            confidence >= self.threshold * self.mean[label] / max(self.mean)
            for confidence, label in zip(confidences, labels, strict=True)
        ]
        losses = fixmatch_losses(net, batch, labels, mask)
        losses["fairness"] = self.weight * self.fairness(net, batch, mask)
        return losses, mask

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


class SoftMatchLoop:
    def __init__(self, momentum: float, sigmas: float, aligned: bool) -> None:
        self.momentum, self.sigmas, self.aligned = momentum, sigmas, aligned
        self.mean, self.variance = 1 / CLASSES, 1.0
        self.mean_probs: list[float] = []

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        confidences, labels = pseudo_labels(net, batch)
        if self.aligned:
            confidences = self.confidences(net, batch)
        count = len(labels)
        mean = sum(confidences) / count
        variance = sum((value - mean) ** 2 for value in confidences) / (count - 1)
        self.mean = moved(self.mean, mean, self.momentum)
        self.variance = moved(self.variance, variance, self.momentum)
        weights = [
            1.0
            if value >= self.mean
            else math.exp(-((value - self.mean) ** 2) / (2 * self.variance / self.sigmas**2))
            for value in confidences
        ]
        self.smallest = min(weights)
        return fixmatch_losses(net, batch, labels, weights), [True] * count

    def confidences(self, net: Net, batch: Batch) -> list[float]:
        with torch.no_grad():
            rows = [row.exp().tolist() for row in log_probs(net, batch.unlabeled_weak[0])]
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


@pytest.mark.parametrize("aligned", [True, False])
def test_softmatch_is_the_algorithm_of_its_paper(aligned: bool) -> None:
    loop = SoftMatchLoop(0.9, 3.0, aligned)
    options = {"momentum": 0.9, "num_sigmas": 3.0, "uniform_alignment": aligned}
    assert_parity(SoftMatch, loop, loop.state, **options)
    assert loop.smallest < 0.9


def test_weights_of_pseudo_labels_weight_their_metrics() -> None:
    recorder = StepRecorder((2,) * CLASSES)
    probs = torch.eye(CLASSES)[[0, 0, 1]]
    weights = torch.tensor([1.0, 0.5, 0.25])
    output = StepOutput(
        {"supervised": Loss(torch.zeros(()))},
        PseudoLabels(probs, torch.tensor([True, True, False]), weights),
    )
    recorder.add(1, torch.zeros(()), output, torch.tensor([0, 1, 1]))
    row = recorder.flush()
    assert row["train.coverage"] == pytest.approx(0.5)
    assert row["train.pseudo_label_accuracy"] == pytest.approx(1 / 1.5)


class DebiasPLLoop:
    def __init__(self, threshold: float, factor: float, momentum: float) -> None:
        self.threshold, self.factor, self.momentum = threshold, factor, momentum
        self.mean = [1 / CLASSES] * CLASSES

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        with torch.no_grad():
            rows = [row.exp().tolist() for row in log_probs(net, batch.unlabeled_weak[0])]
        for c in range(CLASSES):
            mean = sum(row[c] for row in rows) / len(rows)
            self.mean[c] = moved(self.mean[c], mean, self.momentum)
        labels, mask = [], []
        for row in rows:
            debiased = [p / mean**self.factor for p, mean in zip(row, self.mean, strict=True)]
            labels.append(debiased.index(max(debiased)))
            mask.append(max(debiased) / sum(debiased) >= self.threshold)
        losses = fixmatch_losses(net, batch, labels, mask)
        margins = torch.tensor(self.mean, dtype=torch.float64).log() * self.factor
        strong = [
            (net(view[None]).logits[0] + margins).log_softmax(dim=0)
            for view in batch.unlabeled_strong[0]
        ]
        return losses | {"unsupervised": mean_loss(strong, labels, mask)}, mask

    def state(self) -> dict[str, Any]:
        return {"mean_probs": self.mean}


def test_debiaspl_is_the_algorithm_of_its_paper() -> None:
    loop = DebiasPLLoop(0.8, 0.7, 0.9)
    options = {"confidence_threshold": 0.8, "debias_factor": 0.7, "momentum": 0.9}
    assert len({*assert_parity(DebiasPL, loop, loop.state, **options)}) > 3


class AdaMatchLoop:
    def __init__(self, threshold: float, hard: bool) -> None:
        self.threshold, self.hard = threshold, hard
        self.labeled = [1 / CLASSES] * CLASSES
        self.unlabeled = [1 / CLASSES] * CLASSES

    def __call__(self, net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        # Without BatchNorm, labeled images have the same logits alone as with the unlabeled ones.
        labels, ones = batch.labels.tolist(), [1.0] * len(batch.labels)
        views = [batch.labeled_weak[0], batch.labeled_strong[0]]
        source = [mean_loss(log_probs(net, view), labels, ones) for view in views]
        with torch.no_grad():
            weak = [row.exp().tolist() for row in log_probs(net, views[0])]
            rows = [row.exp().tolist() for row in log_probs(net, batch.unlabeled_weak[0])]
        for c in range(CLASSES):
            mean = sum(row[c] for row in weak) / len(weak)
            self.labeled[c] = moved(self.labeled[c], mean, 0.9)
            mean = sum(row[c] for row in rows) / len(rows)
            self.unlabeled[c] = moved(self.unlabeled[c], mean, 0.8)
        threshold = self.threshold * sum(max(row) for row in weak) / len(weak)

        total, mask = torch.zeros((), dtype=torch.float64), []
        for row, strong in zip(rows, log_probs(net, batch.unlabeled_strong[0]), strict=True):
            scaled = [p * a / b for p, a, b in zip(row, self.labeled, self.unlabeled, strict=True)]
            target = [p / sum(scaled) for p in scaled]
            mask.append(max(target) >= threshold)
            if self.hard:
                target = [float(p == max(target)) for p in target]
            if mask[-1]:
                total = total - sum(p * strong[c] for c, p in enumerate(target))
        warmup = 0.5 - math.cos(min(math.pi, 2 * math.pi * step / 100)) / 2
        return {
            "supervised": (source[0] + source[1]) / 2,
            "unsupervised": warmup * total / len(rows),
        }, mask

    def state(self) -> dict[str, Any]:
        return {"labeled_probs": self.labeled, "unlabeled_probs": self.unlabeled}


@pytest.mark.parametrize("hard", [True, False])
def test_adamatch_is_the_algorithm_of_its_paper(hard: bool) -> None:
    loop = AdaMatchLoop(0.95, hard)
    momenta = {"labeled_momentum": 0.9, "unlabeled_momentum": 0.8}
    options = {"relative_threshold": 0.95, "hard_labels": hard} | momenta
    assert len({*assert_parity(AdaMatch, loop, loop.state, scale=40, **options)}) > 3


def test_adamatch_interpolates_logits_of_two_forwards() -> None:
    """With BatchNorm, the labeled images have other logits alone than with the unlabeled ones."""
    algorithm, ctx = build(AdaMatch), FakeContext()
    batch = make_batch(algorithm)
    labeled = torch.cat([batch.labeled_weak[0], batch.labeled_strong[0]])
    lam = torch.rand(2, 4, CLASSES, generator=torch.Generator().manual_seed(3)).flatten(0, 1)
    everything = torch.cat([labeled, batch.unlabeled_weak[0], batch.unlabeled_strong[0]])
    alone, joint = ctx.live(labeled).logits, ctx.live(everything).logits[: len(labeled)]
    assert (alone - joint).abs().max() > 0.01
    output = algorithm.step(batch, ctx)
    expected = torch.nn.functional.cross_entropy(
        lam * joint + (1 - lam) * alone, batch.labels.repeat(2)
    )
    torch.testing.assert_close(output.losses["supervised"].value, expected)
    count = len(everything)
    assert ctx.calls == [("forward", count, True), ("forward", len(labeled), False)]


class DashLoop:
    """Warm-up of 4 of 100 steps, and a reduction every 2."""

    def __init__(self, smallest: float, selected: bool) -> None:
        self.smallest, self.selected = smallest, selected
        self.teacher = toy_teacher()
        self.first, self.kinds = 0.0, set[bool]()

    def __call__(
        self, net: Net, batch: Batch, step: int
    ) -> tuple[dict[str, Any], list[bool] | None]:
        labeled = log_probs(net, batch.labeled_weak[0])
        supervised = mean_loss(labeled, batch.labels.tolist(), [1.0] * len(labeled))
        if step < 4:
            return {"supervised": supervised}, None
        if step == 4:
            images, labels, _ = toy_images()
            rows = log_probs(self.teacher, images)
            self.first = float(mean_loss(rows, labels.tolist(), [1.0] * len(rows)))
        threshold = 0.05 * self.first
        for _ in range((step - 4) // 2):
            threshold = threshold / 1.27
        hard = threshold <= self.smallest
        threshold = max(threshold, self.smallest)
        self.kinds.add(hard)

        total, mask = torch.zeros((), dtype=torch.float64), []
        with torch.no_grad():
            weak = [row.exp().tolist() for row in log_probs(net, batch.unlabeled_weak[0])]
        for row, strong in zip(weak, log_probs(net, batch.unlabeled_strong[0]), strict=True):
            mask.append(-math.log(max(row)) <= threshold)
            powers = [float(p == max(row)) if hard else p**2 for p in row]
            if mask[-1]:
                total = total - sum(p * strong[c] for c, p in enumerate(powers)) / sum(powers)
        count = max(sum(mask), 1) if self.selected else len(mask)
        return {"supervised": supervised, "unsupervised": 2 * total / count}, mask

    def state(self) -> dict[str, Any]:
        return {"first_threshold": self.first}


@pytest.mark.parametrize("selected", [True, False])
def test_dash_is_the_algorithm_of_its_paper(selected: bool) -> None:
    loop = DashLoop(0.1, selected)
    options = {
        "threshold_factor": 0.05,
        "minimum_threshold": 0.1,
        "mean_over_selected": selected,
        "warmup_fraction": 0.04,
        "decay_fraction": 0.02,
        "unsupervised_weight": 2.0,
    }
    used = assert_parity(Dash, loop, loop.state, scale=60, **options)
    assert len({*used}) > 3
    assert loop.kinds == {True, False}


def test_dash_without_a_warmup_measures_its_first_threshold_at_the_start() -> None:
    algorithm = build(Dash, warmup_fraction=0)
    assert algorithm.scan_every == algorithm.task.max_steps
    ctx, (images, labels, _) = FakeContext(step=0), toy_images()
    algorithm.scan(iter([(torch.arange(8), images.float(), labels)]), iter([]), ctx)
    assert algorithm.first_threshold > 0.1
    assert "unsupervised" in algorithm.step(make_batch(algorithm), ctx).losses


def test_defixmatch_is_the_algorithm_of_its_paper() -> None:
    def reference(net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        def consistency(weak: Tensor, strong: Tensor) -> tuple[Tensor, list[bool]]:
            with torch.no_grad():
                rows = [row.exp().tolist() for row in log_probs(net, weak)]
            mask = [max(row) >= 0.9 for row in rows]
            labels = [row.index(max(row)) for row in rows]
            return mean_loss(log_probs(net, strong), labels, mask), mask

        labels, ones = batch.labels.tolist(), [1.0] * len(batch.labels)
        weak, strong = batch.labeled_weak[0], batch.labeled_strong[0]
        unlabeled, mask = consistency(batch.unlabeled_weak[0], batch.unlabeled_strong[0])
        labeled, labeled_mask = consistency(weak, strong)
        used_labeled.append(sum(labeled_mask))
        supervised = [mean_loss(log_probs(net, view), labels, ones) for view in (weak, strong)]
        return {
            "supervised": (supervised[0] + supervised[1]) / 2,
            "unsupervised": 0.5 * (unlabeled - labeled),
        }, mask

    used_labeled: list[int] = []
    used = assert_parity(DeFixMatch, reference, dict, confidence_threshold=0.9)
    assert len({*used}) > 3
    assert len({*used_labeled}) > 1


def test_the_loss_of_defixmatch_vanishes_if_labeled_and_unlabeled_images_are_the_same() -> None:
    algorithm = build(DeFixMatch, unlabeled_ratio=1, confidence_threshold=0.3)
    batch = make_batch(algorithm)
    batch = replace(batch, unlabeled_weak=batch.labeled_weak, unlabeled_strong=batch.labeled_strong)
    losses = algorithm.step(batch, FakeContext(normalized=False)).losses
    assert losses["unsupervised"].value.detach().abs() < 1e-6
