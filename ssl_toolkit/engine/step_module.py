"""The forward pass of a training step, and the total loss it minimizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.context import EngineContext
from ssl_toolkit.engine.step_checks import check_output
from ssl_toolkit.interfaces import Algorithm, Batch, StepOutput
from ssl_toolkit.models.classifier import Classifier


class StepModule(nn.Module):
    """One step as a module, for DistributedDataParallel to wrap."""

    def __init__(self, classifier: Classifier, algorithm: Algorithm) -> None:
        super().__init__()
        self.classifier = classifier
        self.algorithm = algorithm

    def forward(self, batch: Batch, context: EngineContext) -> tuple[Tensor, StepOutput]:
        """Return the total loss and the output of the algorithm."""
        output = self.algorithm.step(batch, context)
        check_output(output, batch, self.classifier.num_classes)
        return total_loss(output), output


def total_loss(output: StepOutput) -> Tensor:
    """Return the sum of weight times value over the losses, in float32 or wider."""
    return torch.stack([loss.weight * loss.value for loss in output.losses.values()]).sum()
