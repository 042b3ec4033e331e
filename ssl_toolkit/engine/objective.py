"""What a step minimizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.context import EngineContext
from ssl_toolkit.engine.step_checks import check_output
from ssl_toolkit.interfaces import Algorithm, Batch, StepOutput
from ssl_toolkit.models.classifier import Classifier


class Objective(nn.Module):
    """A step as one forward, which is what DistributedDataParallel wraps."""

    def __init__(self, classifier: Classifier, algorithm: Algorithm) -> None:
        super().__init__()
        self.classifier = classifier
        self.algorithm = algorithm

    def forward(self, batch: Batch, context: EngineContext) -> tuple[Tensor, StepOutput]:
        """The objective, and what the algorithm returned."""
        output = self.algorithm.step(batch, context)
        check_output(output, batch, self.classifier.num_classes)
        return objective(output), output


def objective(output: StepOutput) -> Tensor:
    """The sum of weight times value over the losses, in float32 or wider."""
    return torch.stack([loss.weight * loss.value for loss in output.losses.values()]).sum()
