"""Probabilities of stored images, in evaluation mode."""

from __future__ import annotations

import torch
from torch import Tensor

from ssl_toolkit.data.store import ImageStore
from ssl_toolkit.models.classifier import Classifier


@torch.no_grad()
def predict(classifier: Classifier, store: ImageStore, rows: Tensor, batch_size: int) -> Tensor:
    """Probabilities of stored images, without augmentation, in float32.

    Args:
        classifier: put into eval mode for the call and back afterwards.
        store: the images.
        rows: (N,) int64 rows of the store.
        batch_size: images in a forward; changes speed and memory, not the result.

    Returns:
        (N, C) float32 on the CPU; rows sum to 1.
    """
    training = classifier.training
    classifier.eval()
    try:
        parts = [
            classifier(store.gather(chunk)).logits.float().softmax(dim=-1)
            for chunk in torch.split(rows, batch_size)
            if len(chunk)
        ]
    finally:
        classifier.train(training)
    return torch.cat(parts).cpu() if parts else torch.empty(0, classifier.num_classes)
