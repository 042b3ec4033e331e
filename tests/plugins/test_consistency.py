"""BatchNorm in Mean Teacher."""

from __future__ import annotations

import copy

import torch
from ssl_toolkit_consistency import MeanTeacher
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
