"""Compile forward passes; without a compiler, training is only slower."""

from __future__ import annotations

import torch
from torch import Tensor

from ssl_toolkit.engine.trainer import Trainer


def compile_forwards(trainer: Trainer) -> str:
    """Compile the forward and backward passes of a step.

    Results change only by rounding. Names of weights stay the same. Forward passes of an
    evaluation, whose last batch has another size, are not compiled.

    Args:
        trainer: ready to train; its models are changed in place.

    Returns:
        The reason why nothing was compiled, in one line; empty if it was.
    """
    device = trainer.classifier.mean.device
    try:  # a missing C++ compiler, say, is found by the first call only
        torch.compile(_probe)(torch.zeros(2, device=device))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return f"--compile: torch can't compile here, continuing without it ({reason})"
    for model in {id(m): m for m in (trainer.classifier, trainer.eval_model)}.values():
        model.compile(dynamic=False)
    return ""


def _probe(x: Tensor) -> Tensor:
    return x.sin() + 1
