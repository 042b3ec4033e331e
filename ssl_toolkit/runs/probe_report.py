"""The linear probe of a pre-trained run: its accuracy, and the gain of training over it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ssl_toolkit.engine.transfer import ProbeResult
from ssl_toolkit.runs.predictions import Predictions
from ssl_toolkit.runs.scoring import are_uneven, paired_balanced_interval, paired_interval
from ssl_toolkit.runs.summary import ProbeScores, ProbeSummary


def probe_line(probe: ProbeResult, validation_accuracy: float | None) -> str:
    """Return the accuracy of the probe before training, in one line."""
    parts = []
    if validation_accuracy is not None:
        parts.append(f"{100 * validation_accuracy:.1f} % of the validation images")
    if probe.cross_validation is not None:
        parts.append(f"{100 * probe.cross_validation:.1f} % of the labels in cross-validation")
    accuracies = " and ".join(parts) or "accuracy unknown, too few labels"
    return f"linear probe (logistic regression on frozen features): {accuracies}"


def compare_with_probe(probe: ProbeResult, predictions: Predictions) -> ProbeSummary:
    """Return the scores of the probe, and the paired difference of the run to them.

    Args:
        probe: of the initial weights.
        predictions: of the run.
    """

    def scores_on(split: str, probe_probs: Tensor) -> ProbeScores | None:
        probs, labels = predictions[split]
        if not len(labels):
            return None
        hits = probs.argmax(axis=1) == labels
        probe_hits = probe_probs.numpy().argmax(axis=1) == labels
        of_classes = [labels == label for label in np.unique(labels)]
        balanced = are_uneven(int(of.sum()) for of in of_classes)
        if balanced:
            accuracy = np.mean([np.mean(probe_hits[of]) for of in of_classes])
            difference, lower, upper = paired_balanced_interval(hits, probe_hits, labels)
        else:
            accuracy = np.mean(probe_hits)
            difference, lower, upper = paired_interval(hits, probe_hits)
        return ProbeScores(
            balanced=balanced,
            accuracy=float(accuracy),
            count=len(labels),
            difference=difference,
            interval=(lower, upper),
        )

    return ProbeSummary(
        strength=probe.strength,
        cross_validation=probe.cross_validation,
        validation=scores_on("validation", probe.validation),
        test=scores_on("test", probe.test),
    )


def verdict(probe: ProbeSummary) -> str:
    """Return a sentence on the gain of training; empty without validation and test images."""
    split = "test" if probe.test is not None else "validation"
    scores = probe.test or probe.validation
    if scores is None:
        return ""
    lower, upper = scores.interval
    if lower > 0:
        answer = "training helped"
    elif upper < 0:
        answer = "training hurt: the linear probe is better (--algo linear_probe)"
    else:
        answer = "these images do not show whether training helped"
    return (
        f"{answer}: {100 * scores.difference:+.1f} points over the linear probe's "
        f"{100 * scores.accuracy:.1f} %{' balanced accuracy' * scores.balanced} on {scores.count} "
        f"{split} images "
        f"(95 % interval {100 * lower:+.1f} to {100 * upper:+.1f}, paired)"
    )
