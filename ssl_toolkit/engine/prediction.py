"""Probabilities of stored images, in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.models.classifier import Classifier


@dataclass
class Best:
    """The best validation so far."""

    step: int
    accuracy: float
    weights: dict[str, Tensor]


@torch.no_grad()
def predict(
    classifier: Classifier,
    source: ImageSource,
    indices: Tensor,
    batch_size: int,
    processes: ProcessGroup | None = None,
) -> Tensor:
    """Probabilities of stored images, without augmentation, in float32.

    Args:
        classifier: put into eval mode for the call and back afterwards.
        source: images, or their features.
        indices: (N,) int64 indices of the source.
        batch_size: images in a forward; changes speed and memory, not the result.
        processes: share the images; each gets the predictions of all. None for this one alone.

    Returns:
        (N, C) float32 on the CPU; rows sum to 1.
    """
    if processes is not None and processes.size > 1 and len(indices):
        # All parts are of one size: the last row fills the last ones, and is cut off again.
        count = -(-len(indices) // processes.size)
        places = torch.arange(
            processes.rank * count, (processes.rank + 1) * count, device=indices.device
        )
        part = indices[places.clamp(max=len(indices) - 1)]
        return processes.all_gather(predict(classifier, source, part, batch_size))[: len(indices)]
    training = classifier.training
    classifier.eval()
    try:
        parts = [
            # Not compiled, even if the steps are: the last chunk would be a compilation of its own.
            classifier.forward(source.gather(chunk)).logits.float().softmax(dim=-1)
            for chunk in torch.split(indices, batch_size)
            if len(chunk)
        ]
    finally:
        classifier.train(training)
    return torch.cat(parts).cpu() if parts else torch.empty(0, classifier.num_classes)
