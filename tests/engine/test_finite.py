"""Numbers that are not finite end a run by name; overflow under fp16 does not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ssl_toolkit import (
    Algorithm,
    Batch,
    Context,
    Loss,
    StepOutput,
    TrainingError,
    Views,
    register_algorithm,
)
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.runs.train import train


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf


@register_algorithm("bad_gradient")
class BadGradient(Algorithm):
    """Finite losses; from the fifth step on their gradient is not."""

    def views(self) -> Views:
        return Views()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        loss = nn.functional.cross_entropy(ctx.model(batch.labeled_weak[0]), batch.labels)
        return StepOutput({"supervised": Loss(_BadGradient.apply(loss) if ctx.step > 3 else loss)})


@register_algorithm("steep")
class Steep(Algorithm):
    """Large gradients of a loss that is finite."""

    def views(self) -> Views:
        return Views()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        loss = nn.functional.cross_entropy(ctx.model(batch.labeled_weak[0]), batch.labels)
        return StepOutput({"supervised": Loss(loss, 1e6)})


def configure(algo: str, **keys: Any) -> Any:
    base = {"algo": algo, "steps": 8, "eval_every": 4, "batch_size": 8, "device": "cpu"}
    return validate([Layer("test", base | keys)])


@pytest.mark.parametrize("clip_norm", [None, 5.0])
def test_a_gradient_that_is_not_finite(clip_norm: float | None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = configure(
        "bad_gradient",
        output=str(folder),
        optimizer={"clip_norm": clip_norm},
        eval_every=3,
        log_every=2,
    )
    with pytest.raises(TrainingError, match="a gradient is not finite at step 5"):
        train(config)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("failed", 3)
    state = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    assert state["step"] == 3
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_predictions_that_are_not_finite(tmp_path: Path) -> None:
    """The loss of a step can be finite, and the weights after it not."""
    folder = tmp_path / "run"
    config = configure("supervised", lr=1e30, output=str(folder), steps=2, eval_every=1)
    with pytest.raises(TrainingError, match="predictions are not finite after step 1; the last"):
        train(config)
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"


def test_overflow_with_a_scaler_is_not_an_error(tmp_path: Path) -> None:
    trainer = prepare(configure("steep")).trainer
    # So large that the scaled loss overflows, as fp16's does on a GPU; it halves until it fits.
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**110)
    before = {name: tensor.clone() for name, tensor in trainer.classifier.named_parameters()}
    trainer._forward_backward(0, 1)
    assert not all(
        p.grad.isfinite().all() for p in trainer.classifier.parameters() if p.grad is not None
    )
    trainer._update()
    for name, tensor in trainer.classifier.named_parameters():
        assert torch.equal(tensor, before[name]), name
    trainer.fit()
    assert trainer.scaler.get_scale() < 2.0**110
    assert any(not torch.equal(t, before[n]) for n, t in trainer.classifier.named_parameters())
    assert all(t.isfinite().all() for t in trainer.classifier.state_dict().values())


def test_overflow_at_every_step_is_reported() -> None:
    trainer = prepare(configure("bad_gradient", steps=40, eval_every=40, save_every=20)).trainer
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-6)
    with pytest.raises(TrainingError, match="gradients overflow fp16 at every step"):
        trainer.fit()


@register_algorithm("greedy")
class Greedy(Algorithm):
    """Meets what torch raises where a GPU is full."""

    def views(self) -> Views:
        return Views()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        if ctx.step == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        loss = nn.functional.cross_entropy(ctx.model(batch.labeled_weak[0]), batch.labels)
        return StepOutput({"supervised": Loss(loss)})


def test_cuda_out_of_memory_is_reported_with_advice(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="CUDA out of memory at step 6; restart with a"):
        train(configure("greedy", output=str(tmp_path / "run")))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "optimizer.accumulation_steps" in summary["reason"]
