"""The metrics that the engine logs itself, each declared once, and those of algorithms."""

from __future__ import annotations

from collections.abc import Iterable

from ssl_toolkit.interfaces import Algorithm, Metric

TRAIN = "train."
"""Prefix of what is computed from training batches."""
LOSS_TERM: str = f"{TRAIN}loss."
WEIGHTED_TERM: str = f"{TRAIN}weighted."

VALIDATION_ACCURACY: Metric = Metric(
    "validation.accuracy", "Validation accuracy", "of the averaged weights where they exist"
)
VALIDATION_LOSS: Metric = Metric("validation.loss", "Validation loss", "cross-entropy in nats")
LABELED_ACCURACY: Metric = Metric(
    f"{TRAIN}labeled.accuracy",
    "Accuracy on the labeled training images",
    "logged where there is no validation split",
)
LABELED_LOSS: Metric = Metric(
    f"{TRAIN}labeled.loss",
    "Loss on the labeled training images",
    "cross-entropy in nats, logged where there is no validation split",
)
VALIDATION_MAP: Metric = Metric(
    "validation.map",
    "Mean average precision on the validation images",
    "under --task multilabel; of the averaged weights where they exist",
)
LABELED_MAP: Metric = Metric(
    f"{TRAIN}labeled.map",
    "Mean average precision on the labeled training images",
    "under --task multilabel, logged where there is no validation split",
)
LOSS: Metric = Metric(f"{TRAIN}loss", "Training loss", "weighted sum of the loss terms")
COVERAGE: Metric = Metric(
    f"{TRAIN}coverage",
    "Coverage by pseudo labels",
    "share of the unlabeled images that passed the threshold and were used",
)
PSEUDO_LABEL_ACCURACY: Metric = Metric(
    f"{TRAIN}pseudo_label_accuracy",
    "Accuracy of the used pseudo labels",
    "against the hidden labels, where they exist",
)
LARGEST_CLASS_SHARE: Metric = Metric(
    f"{TRAIN}largest_class_share",
    "Share of the most frequent pseudo label",
    "among the used ones; near 1, one class takes them all",
)
SHIFT: Metric = Metric(
    f"{TRAIN}pseudo_label_shift",
    "Shift of the pseudo labels",
    "total variation distance between the class shares of the used pseudo labels and those of the "
    "pool, where labels or validation images show them; 0 is the same distribution",
)
ESTIMATED_SHIFT: Metric = Metric(
    f"{TRAIN}pseudo_label_shift_estimated",
    "Shift of the pseudo labels, by an estimate",
    "the same from the shares that the probe estimates, where nothing else shows them",
)
IMAGES_PER_SECOND: Metric = Metric("images_per_second", "Images per second")

ENGINE_METRICS = {
    metric.name: metric
    for metric in (
        *(VALIDATION_ACCURACY, VALIDATION_LOSS, LABELED_ACCURACY, LABELED_LOSS, LOSS),
        *(VALIDATION_MAP, LABELED_MAP),
        *(COVERAGE, PSEUDO_LABEL_ACCURACY, LARGEST_CLASS_SHARE, SHIFT, ESTIMATED_SHIFT),
        IMAGES_PER_SECOND,
    )
}


def loss_term(name: str) -> Metric:
    """Declare the value of a term of the objective."""
    return Metric(f"{LOSS_TERM}{name}", f"Loss term “{name}”", "before its weight")


def weighted_term(name: str) -> Metric:
    """Declare the value of a term of the objective times its weight."""
    return Metric(f"{WEIGHTED_TERM}{name}", f"Weighted loss term “{name}”")


def false_pairs(name: str) -> Metric:
    """Declare the share of false pairs among those that pass a criterion of `StepOutput.pairs`."""
    return Metric(
        f"{TRAIN}pair_{name}_false",
        f"False pairs by the criterion “{name}”",
        "share of the pairs that pass it whose hidden labels differ",
    )


def declared(algorithms: Iterable[type[Algorithm]]) -> dict[str, Metric]:
    """Return the metrics of algorithms by their key in ``metrics.jsonl``."""
    return {f"{TRAIN}{metric.name}": metric for own in algorithms for metric in own.metrics}
