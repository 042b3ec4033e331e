"""An algorithm with modules, averages and learning rates of modules, and a `predict`.

``python projected.py CONFIG [STEP]``: train with a JSON configuration, and send SIGKILL at a step.
``python projected.py --resume FOLDER``: resume that run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import plain_backbone  # noqa: F401
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ssl_toolkit
from ssl_toolkit import (
    Algorithm,
    Batch,
    Context,
    ForwardOutput,
    Loss,
    Options,
    StepOutput,
    TaskInfo,
    Views,
    option,
)

KILL_AT: int | None = None


@ssl_toolkit.register_algorithm("projected")
class Projected(Algorithm):
    """Predict with a second head and logit adjustment; train a projector towards its average."""

    class Config(Options):
        """Options of the method."""

        adjustment: float = option(1.0, ge=0, help="exponent of the mean prediction")
        rate: float = option(0.5, ge=0, help="factor on the learning rate of the projector")

    config: Config
    averaged_modules = ("second", "projector")
    mean: Tensor

    def __init__(self, config: Config, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.second = nn.Linear(task.feature_dim, task.num_classes)
        self.projector = nn.Sequential(
            nn.Linear(task.feature_dim, 8), nn.LeakyReLU(0.1), nn.Dropout(0.0), nn.Linear(8, 4)
        )
        self.register_buffer("mean", torch.full((task.num_classes,), 1 / task.num_classes))

    @property
    def lr_factors(self) -> dict[str, float]:
        return {"projector": self.config.rate, "projector.3": 2.0}

    def views(self) -> Views:
        return Views(labeled_weak=1, unlabeled_weak=1, unlabeled_strong=1)

    def predict(self, output: ForwardOutput) -> Tensor:
        logits = self.second(output.features).float()
        return logits - self.config.adjustment * self.mean.log()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        if KILL_AT is not None and ctx.step == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        features, logits = ctx.forward(batch.labeled_weak[0])
        weak = batch.unlabeled_weak[0]
        probs = ctx.teacher(weak).softmax(dim=-1)
        self.mean.lerp_(ctx.all_reduce_sum(probs.mean(dim=0)) / ctx.processes, 0.1)
        target = ctx.averaged("projector")(ctx.teacher_forward(weak).features)
        projected = self.projector(ctx.features(batch.unlabeled_strong[0])).float()
        return StepOutput(
            {
                "supervised": Loss(F.cross_entropy(logits.float(), batch.labels)),
                "second": Loss(F.cross_entropy(self.second(features).float(), batch.labels)),
                "projection": Loss((projected - target).square().mean()),
            }
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--resume":
        ssl_toolkit.resume(sys.argv[2])
    else:
        KILL_AT = int(sys.argv[2]) if sys.argv[2:] else None
        ssl_toolkit.train(json.loads(Path(sys.argv[1]).read_text()))
