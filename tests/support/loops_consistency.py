"""Supervised training, UDA, Mean Teacher, Pseudo-Label, Pi-Model and VAT as plain loops."""

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
    pseudo_labels,
    squared,
    supervised,
    zero,
)
from torch import Tensor
from toy_context import CLASSES, LABELED, POOL

from ssl_toolkit import Batch


class SupervisedLoop(Loop):
    def __call__(self, run: Any, batch: Batch) -> Losses:
        view = (batch.labeled_strong if self.options.strong else batch.labeled_weak)[0]
        labels = batch.labels.tolist()
        return {"supervised": mean_loss(log_probs(run.net, view), labels, [1] * len(labels))}, None


class FullySupervisedLoop(Loop):
    def __call__(self, run: Any, batch: Batch) -> Losses:
        rows = log_probs(run.net, batch.unlabeled_weak[0])
        assert batch.unlabeled_labels is not None
        pool = mean_loss(rows, batch.unlabeled_labels.tolist(), [1] * len(rows))
        total = LABELED * supervised(run.net, batch) + POOL * pool
        return {"supervised": total / (LABELED + POOL)}, None


class PiModelLoop(Loop):
    def __call__(self, run: Any, batch: Batch) -> Losses:
        first = constant_probs(run.net, batch.unlabeled_weak[0])
        second = log_probs(run.net, batch.unlabeled_weak[1])
        weight = self.options.unsupervised_weight * self.ramp(run.step)
        return {
            "supervised": supervised(run.net, batch),
            "unsupervised": weight * squared(second, first),
        }, None


class MeanTeacherLoop(Loop):
    def __call__(self, run: Any, batch: Batch) -> Losses:
        targets = constant_probs(run.teacher, batch.unlabeled_weak[0])
        rows = log_probs(run.net, batch.unlabeled_weak[1])
        weight = self.options.unsupervised_weight * self.ramp(run.step)
        return {
            "supervised": supervised(run.net, batch),
            "unsupervised": weight * squared(rows, targets),
        }, [True] * len(rows)


class PseudoLabelLoop(Loop):
    def __call__(self, run: Any, batch: Batch) -> Losses:
        confidences, labels = pseudo_labels(run.net, batch)
        mask = [confidence >= self.options.confidence_threshold for confidence in confidences]
        rows = log_probs(run.net, batch.unlabeled_weak[0])
        weight = self.options.unsupervised_weight * self.ramp(run.step)
        return {
            "supervised": supervised(run.net, batch),
            "unsupervised": weight * mean_loss(rows, labels, mask),
        }, mask

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 2


class UDALoop(Loop):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.annealed = set[int]()

    def __call__(self, run: Any, batch: Batch) -> Losses:
        o = self.options
        progress = {
            "none": 1.0,
            "linear": run.step / LENGTH,
            "log": 1 - math.exp(-5 * run.step / LENGTH),
            "exp": math.exp(5 * run.step / LENGTH - 5),
        }[o.annealing]
        threshold = progress * (1 - 1 / CLASSES) + 1 / CLASSES
        rows = log_probs(run.net, batch.labeled_weak[0])
        labeled = [row[label] for row, label in zip(rows, batch.labels.tolist(), strict=True)]
        chosen = [
            row
            for row in labeled
            if o.annealing == "none" or float(row.detach().exp()) <= threshold
        ]
        self.annealed.add(len(chosen))
        divergence, mask = zero(), []
        weak = constant_probs(run.net, batch.unlabeled_weak[0])
        for row, strong in zip(weak, log_probs(run.net, batch.unlabeled_strong[0]), strict=True):
            mask.append(max(row) >= o.confidence_threshold)
            powers = [p ** (1 / o.temperature) for p in row]
            for c, power in enumerate(powers):
                target = power / sum(powers)
                if mask[-1] and target > 0:
                    divergence = divergence + target * (math.log(target) - strong[c])
        return {
            "supervised": -sum(chosen, zero()) / max(len(chosen), 1),
            "unsupervised": o.unsupervised_weight * divergence / len(weak),
        }, mask

    def check(self, used: list[int]) -> None:
        assert len({*used}) > 3
        assert self.options.annealing == "none" or len(self.annealed) > 1


class VATLoop(Loop):
    def __call__(self, run: Any, batch: Batch) -> Losses:
        o, images = self.options, batch.unlabeled_weak[0]
        noise = torch.randn(images.shape, generator=run.generator).double()
        smoothness = entropy = zero()
        for image, direction in zip(images, noise, strict=True):
            clean = run.net(image[None]).logits[0].log_softmax(dim=0)
            target = clean.detach()
            for _ in range(o.power_iterations):
                direction = direction / direction.square().sum().sqrt()
                point = (image + o.step_length * direction).requires_grad_()
                change = divergence(target, run.net(point[None]).logits[0])
                (direction,) = torch.autograd.grad(change, point)
            moved = image + o.epsilon * direction / direction.square().sum().sqrt()
            smoothness = smoothness + divergence(target, run.net(moved[None]).logits[0])
            entropy = entropy - sum(clean[c].exp() * clean[c] for c in range(CLASSES))
        weight = o.unsupervised_weight * self.ramp(run.step)
        return {
            "supervised": supervised(run.net, batch),
            "unsupervised": weight * smoothness / len(images),
            "entropy": o.entropy_weight * entropy / len(images),
        }, None


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    rows = logits.log_softmax(dim=0)
    return sum((target[c].exp() * (target[c] - rows[c]) for c in range(CLASSES)), zero())
