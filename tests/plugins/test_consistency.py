"""BatchNorm in Mean Teacher and VAT."""

from __future__ import annotations

import copy

import torch
from ssl_toolkit_consistency import VAT, MeanTeacher
from toy_context import FakeContext, run


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


def test_vat_measures_no_divergence_of_an_image_without_perturbation() -> None:
    ctx = FakeContext()
    output, batch = run(VAT, ctx, rampup_fraction=0.0, epsilon=1e-12)
    assert output.losses["unsupervised"].value.abs() < 1e-7
    moved, _ = run(VAT, FakeContext(), rampup_fraction=0.0)
    assert moved.losses["unsupervised"].value > 1e-4
    # Only the labeled images update the running statistics.
    alone = FakeContext().live
    alone(batch.labeled_weak[0])
    torch.testing.assert_close(ctx.live.norm.running_mean, alone.norm.running_mean)
