"""Return probabilities of stored images, in eval mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.multilabel import binary_cross_entropy, mean_average_precision
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.errors import TrainingError
from ssl_toolkit.interfaces import ForwardOutput
from ssl_toolkit.models.classifier import Classifier, in_eval_mode
from ssl_toolkit.models.predictor import Predictor


@dataclass
class Best:
    """The best validation so far."""

    step: int
    accuracy: float
    """Of the validation images; the mean average precision under ``--task multilabel``."""
    weights: dict[str, Tensor]
    algorithm_state: dict[str, Tensor] = field(default_factory=dict)
    """Result of `Predictor.algorithm_state`."""

    @classmethod
    def of(cls, predictor: Predictor, step: int, accuracy: float) -> Best:
        """Return the best validation with copies of the weights on the CPU."""
        states = predictor.classifier.state_dict(), predictor.algorithm_state()
        copies = ({k: v.detach().cpu().clone() for k, v in state.items()} for state in states)
        return cls(step, accuracy, *copies)


@torch.no_grad()
def predict(
    classifier: Classifier | Predictor,
    source: ImageSource,
    indices: Tensor,
    batch_size: int,
    processes: ProcessGroup | None = None,
    convert: Callable[[ForwardOutput], Tensor] | None = None,
) -> Tensor:
    """Return probabilities of stored images, without augmentation, in float32.

    Args:
        classifier: put into eval mode for the call and back afterwards.
        source: images, or their features.
        indices: (N,) int64 indices of the source.
        batch_size: images in a forward; changes speed and memory, not the result.
        processes: share the images; each gets the predictions of all. None for this one alone.
        convert: computes the (n, …) result of features and logits; None for probabilities.

    Returns:
        (N, C) float32 on the CPU; rows sum to 1, but not under ``--task multilabel``.
    """
    if processes is not None and processes.size > 1 and len(indices):
        # All parts are of one size: the last row fills the last ones, and is cut off again.
        count = -(-len(indices) // processes.size)
        places = torch.arange(
            processes.rank * count, (processes.rank + 1) * count, device=indices.device
        )
        part = indices[places.clamp(max=len(indices) - 1)]
        return processes.all_gather(predict(classifier, source, part, batch_size, convert=convert))[
            : len(indices)
        ]
    convert = convert or (lambda output: classifier.probabilities(output.logits))
    with in_eval_mode(classifier):
        parts = [
            # Not compiled, even if the steps are: the last chunk would be a compilation of its own.
            convert(classifier.forward(source.gather(chunk)))
            for chunk in torch.split(indices, batch_size)
            if len(chunk)
        ]
    return torch.cat(parts).cpu() if parts else torch.empty(0, classifier.num_classes)


@torch.no_grad()
def predict_batch(classifier: Classifier, images: Tensor) -> Tensor:
    """Return probabilities (n, C) of images (n, C, H, W) in eval mode, in float32."""
    with in_eval_mode(classifier):
        logits = classifier(images).logits
    probs: Tensor = logits.float().softmax(dim=-1)
    return probs


def evaluation(
    probs: Tensor, labels: Tensor, split: str, step: int
) -> tuple[float, dict[str, float]]:
    """Return the score that chooses weights, and the row of metrics of an evaluation.

    Args:
        probs: (N, C) probabilities on the CPU.
        labels: (N,) classes, or (N, C) in {0, 1} under ``--task multilabel``, on the CPU.
        split: start of the names of the metrics.
        step: number of completed steps.

    Raises:
        TrainingError: a probability is not finite; names the step.
    """
    if not probs.isfinite().all():
        raise TrainingError(
            f"predictions are not finite after step {step}; the last finite checkpoint is kept; "
            "try a lower --lr or --set optimizer.clip_norm=5"
        )
    if labels.ndim == 2:
        score = mean_average_precision(probs, labels)
        return score, {f"{split}.map": score, f"{split}.loss": binary_cross_entropy(probs, labels)}
    right = probs.argmax(dim=-1) == labels
    truth = probs[torch.arange(len(probs)), labels].double()
    accuracy = right.sum().item() / len(right)
    loss = -truth.clamp_min(torch.finfo(torch.float32).tiny).log().mean().item()
    return accuracy, {f"{split}.accuracy": accuracy, f"{split}.loss": loss}
