"""What a step asks of the engine: logits of model and teacher, and of several views."""

from __future__ import annotations

import torch
from torch import Tensor
from toy_context import CLASSES, SIDE, FakeContext

from ssl_toolkit import ops

VIEWS = torch.rand(3, 5, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_model_and_teacher_give_logits() -> None:
    ctx = FakeContext()
    images = VIEWS[0]
    assert torch.equal(ctx.teacher(images), ctx.teacher_net(images).logits)
    assert torch.equal(ctx.model(images), ctx.live(images).logits)


def test_view_logits_of_the_teacher_come_from_one_forward() -> None:
    ctx = FakeContext()
    logits = ctx.view_logits(VIEWS)
    assert logits.shape == (3, 5, CLASSES)
    assert ctx.calls == [("teacher", 15, False)]
    torch.testing.assert_close(logits[2], ctx.teacher_net(VIEWS[2]).logits)


def test_view_logits_of_the_model_need_one_forward_each_and_keep_its_statistics() -> None:
    ctx = FakeContext()
    before = {name: value.clone() for name, value in ctx.live.state_dict().items()}
    logits = ctx.view_logits(VIEWS, by="model")
    assert ctx.calls == [("forward", 5, False)] * 3
    assert not logits.requires_grad
    assert torch.equal(logits[1], ctx.live(VIEWS[1]).logits)
    ctx.live.load_state_dict(before)
    ctx.view_logits(VIEWS, by="model")
    assert all(torch.equal(before[name], value) for name, value in ctx.live.state_dict().items())


def test_an_interleaved_forward_mixes_batches_and_keeps_the_order() -> None:
    seen: list[list[int]] = []

    def model(batch: Tensor) -> Tensor:
        seen.append(batch.tolist())
        return 10 * batch

    rows = torch.arange(6)
    assert torch.equal(ops.interleaved_forward(model, rows, 2), 10 * rows)
    assert [len(batch) for batch in seen] == [2, 2, 2]
    assert seen != rows.reshape(3, 2).tolist()


def test_a_ramp_in_steps_takes_precedence() -> None:
    assert ops.rampup(5, 100, 0.1) == 0.5
    assert ops.rampup(5, 100, 0.1, 50) == 0.1
    assert ops.rampup(5, 100, 0.1, 0) == 1
    assert ops.rampup(5, 100, 0) == 1
