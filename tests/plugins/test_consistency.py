"""UDA, Mean Teacher, Pseudo-Label, Pi-Model and VAT against plain loops over their formulas."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from plain_losses import log_probs, mean_loss, pseudo_labels
from ssl_toolkit_consistency import UDA, VAT, MeanTeacher, PiModel, PseudoLabel
from step_parity import assert_parity, toy_teacher
from torch import Tensor
from toy_context import CLASSES, FakeContext, Net, run

from ssl_toolkit import Batch

RAMP = 0.1  # of 100 steps: the ramp ends half way through the 20 steps compared


def ramp(step: int) -> float:
    return min(step / 10, 1.0)


def supervised(net: Net, batch: Batch) -> Tensor:
    rows = log_probs(net, batch.labeled_weak[0])
    return mean_loss(rows, batch.labels.tolist(), [1.0] * len(rows))


def squared(rows: list[Tensor], targets: list[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, target in zip(rows, targets, strict=True):
        for c in range(CLASSES):
            total = total + (row[c].exp() - target[c].exp().detach()) ** 2
    return total / len(rows) / CLASSES


def no_state() -> dict[str, Any]:
    return {}


def test_pi_model_is_its_formula() -> None:
    def reference(net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], None]:
        first, second = (log_probs(net, view) for view in batch.unlabeled_weak)
        return {
            "supervised": supervised(net, batch),
            "unsupervised": 10 * ramp(step) * squared(second, first),
        }, None

    assert_parity(PiModel, reference, no_state, rampup_fraction=RAMP)


def test_mean_teacher_is_its_formula() -> None:
    teacher = toy_teacher()

    def reference(net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        targets = log_probs(teacher, batch.unlabeled_weak[0])
        rows = log_probs(net, batch.unlabeled_weak[1])
        return {
            "supervised": supervised(net, batch),
            "unsupervised": 50 * ramp(step) * squared(rows, targets),
        }, [True] * len(rows)

    assert_parity(MeanTeacher, reference, no_state, rampup_fraction=RAMP)


def test_the_mean_teacher_is_normalized_by_the_batch_as_the_student_is() -> None:
    ctx = FakeContext()
    output, batch = run(MeanTeacher, ctx, rampup_fraction=0.0)
    teacher, student = (copy.deepcopy(net).train() for net in (ctx.teacher_net, ctx.live))
    target = teacher(batch.unlabeled_weak[0]).logits.softmax(dim=-1)
    probs = student(batch.unlabeled_weak[1]).logits.softmax(dim=-1)
    torch.testing.assert_close(
        output.losses["unsupervised"].value, (probs - target).square().mean()
    )
    # Only the labeled images update the running statistics.
    alone = FakeContext().live
    alone(batch.labeled_weak[0])
    torch.testing.assert_close(ctx.live.norm.running_mean, alone.norm.running_mean)
    assert torch.equal(ctx.teacher_net.norm.running_mean, torch.zeros(8))


def test_pseudo_label_is_its_formula() -> None:
    def reference(net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        confidences, labels = pseudo_labels(net, batch)
        mask = [confidence >= 0.9 for confidence in confidences]
        rows = log_probs(net, batch.unlabeled_weak[0])
        return {
            "supervised": supervised(net, batch),
            "unsupervised": 3 * ramp(step) * mean_loss(rows, labels, mask),
        }, mask

    options = {"confidence_threshold": 0.9, "unsupervised_weight": 3.0, "unlabeled_ratio": 3}
    used = assert_parity(PseudoLabel, reference, no_state, rampup_fraction=RAMP, **options)
    assert len({*used}) > 2


@pytest.mark.parametrize("annealing", ["none", "linear", "log", "exp"])
def test_uda_is_its_formula(annealing: str) -> None:
    kept = set()

    def reference(net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], list[bool]]:
        progress = {
            "none": 1.0,
            "linear": step / 100,
            "log": 1 - math.exp(-5 * step / 100),
            "exp": math.exp(5 * step / 100 - 5),
        }[annealing]
        threshold = progress * (1 - 1 / CLASSES) + 1 / CLASSES
        labeled = [
            row[label]
            for row, label in zip(
                log_probs(net, batch.labeled_weak[0]), batch.labels.tolist(), strict=True
            )
        ]
        chosen = [
            row for row in labeled if annealing == "none" or float(row.detach().exp()) <= threshold
        ]
        kept.add(len(chosen))
        divergence, mask = torch.zeros((), dtype=torch.float64), []
        with torch.no_grad():
            weak = [row.exp().tolist() for row in log_probs(net, batch.unlabeled_weak[0])]
        for row, strong in zip(weak, log_probs(net, batch.unlabeled_strong[0]), strict=True):
            mask.append(max(row) >= 0.8)
            powers = [p**2.5 for p in row]
            for c, power in enumerate(powers):
                target = power / sum(powers)
                if mask[-1] and target > 0:
                    divergence = divergence + target * (math.log(target) - strong[c])
        return {
            "supervised": -sum(chosen, torch.zeros((), dtype=torch.float64)) / max(len(chosen), 1),
            "unsupervised": 2 * divergence / len(weak),
        }, mask

    options = {"annealing": annealing, "unsupervised_weight": 2.0}
    assert len({*assert_parity(UDA, reference, no_state, scale=50, **options)}) > 3
    assert annealing == "none" or len(kept) > 1


def test_vat_is_its_formula() -> None:
    def reference(net: Net, batch: Batch, step: int) -> tuple[dict[str, Any], None]:
        images = batch.unlabeled_weak[0]
        generator = torch.Generator().manual_seed(3)
        for _ in range(step + 1):  # the toy context draws from one generator
            noise = torch.randn(images.shape, generator=generator)
        smoothness = entropy = torch.zeros((), dtype=torch.float64)
        for image, direction in zip(images, noise.double(), strict=True):
            clean = net(image[None]).logits[0].log_softmax(dim=0)
            target = clean.detach()
            for _ in range(2):
                direction = direction / direction.square().sum().sqrt()
                point = (image + 0.1 * direction).requires_grad_()
                change = divergence(target, net(point[None]).logits[0])
                (direction,) = torch.autograd.grad(change, point)
            moved = image + 0.5 * direction / direction.square().sum().sqrt()
            smoothness = smoothness + divergence(target, net(moved[None]).logits[0])
            entropy = entropy - sum(clean[c].exp() * clean[c] for c in range(CLASSES))
        return {
            "supervised": supervised(net, batch),
            "unsupervised": 0.3 * ramp(step) * smoothness / len(images),
            "entropy": 0.06 * entropy / len(images),
        }, None

    def divergence(target: Tensor, logits: Tensor) -> Tensor:
        log_probs = logits.log_softmax(dim=0)
        return sum(
            (target[c].exp() * (target[c] - log_probs[c]) for c in range(CLASSES)),
            torch.zeros((), dtype=torch.float64),
        )

    options = {"epsilon": 0.5, "power_iterations": 2, "rampup_fraction": RAMP}
    assert_parity(VAT, reference, no_state, scale=10, **options)
