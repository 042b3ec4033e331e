"""Checks of what a step returns: types, names and shapes, but no value on a device."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.logged_metrics import ENGINE_METRICS, TRAIN, false_pairs
from ssl_toolkit.interfaces import Batch, Loss, PseudoLabels, StepOutput


class WrongOutputError(Exception):
    """Invalid output of a step; the message continues "step of algorithm 'x'"."""


def check_output(output: Any, batch: Batch, num_classes: int) -> None:
    """Reject output that the engine can't train on or would log incorrectly.

    Args:
        output: result of `Algorithm.step`.
        batch: batch that was passed to it.
        num_classes: number of classes C.

    Raises:
        WrongOutputError: one line that describes the first error.
    """
    if not isinstance(output, StepOutput):
        what = "nothing (a missing `return`?)" if output is None else _kind(output)
        raise WrongOutputError(f"returned {what} instead of a StepOutput")
    for field in ("losses", "metrics", "pairs"):
        named = getattr(output, field)
        if not isinstance(named, Mapping):
            raise WrongOutputError(f"returned {field} as {_kind(named)} instead of a dict by name")
        for name in named:
            if not is_name(name):
                raise WrongOutputError(
                    f"returned {name!r} as a name in {field}; names are lower-case letters, "
                    "digits and underscores, and start with a letter"
                )
    if not output.losses:
        raise WrongOutputError("returned no losses")
    for name, loss in output.losses.items():
        _check_loss(f"loss {name!r}", loss)
    for name, metric in output.metrics.items():
        if is_engine_metric(name, output):
            raise WrongOutputError(
                f"returned metric {name!r}, a name reserved by the engine; choose another"
            )
        _check_scalar(f"metric {name!r}", metric)
    _check_pseudo_labels(
        output, len(batch.unlabeled_indices), num_classes, per_class=batch.labels.ndim == 2
    )


def check_gradients(total: Tensor, untouched: Iterable[nn.Parameter]) -> None:
    """Reject an objective without gradient, and gradients from before the backward pass.

    Args:
        total: 0-dim objective of a batch.
        untouched: parameters that must have no gradient yet.

    Raises:
        WrongOutputError: one line that describes the first error.
    """
    if not total.requires_grad:
        raise WrongOutputError("returned losses without a gradient (all detached?)")
    if any(parameter.grad is not None for parameter in untouched):
        raise WrongOutputError("called backward(), which is left to the engine")


def is_engine_metric(name: str, output: StepOutput) -> bool:
    """Return True if the engine itself logs a column under the name of a metric."""
    key = f"{TRAIN}{name}"
    return key in ENGINE_METRICS or any(key == false_pairs(pair).name for pair in output.pairs)


@cache
def is_name(name: object) -> bool:
    """Return True if the name is valid for a loss, a metric or a criterion of pairs."""
    return isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None


def is_weight(weight: object) -> bool:
    """Return True if a number can be the weight of a loss."""
    return isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0


def _check_loss(what: str, loss: Any) -> None:
    if not isinstance(loss, Loss):
        raise WrongOutputError(f"returned {what} as {_kind(loss)} instead of a Loss(value, weight)")
    _check_scalar(what, loss.value)
    if not loss.value.is_floating_point():
        raise WrongOutputError(f"returned {what} as {loss.value.dtype} instead of floating point")
    if not is_weight(loss.weight):
        weight = _kind(loss.weight) if isinstance(loss.weight, Tensor) else repr(loss.weight)
        raise WrongOutputError(
            f"returned {what} with {weight} as its weight; a weight is a finite number >= 0"
        )


def _check_scalar(what: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise WrongOutputError(f"returned {what} as {_kind(value)} instead of a 0-dim tensor")
    if value.ndim:
        raise WrongOutputError(
            f"returned {what} with the shape {tuple(value.shape)} instead of a 0-dim tensor "
            "(a missing mean()?)"
        )


def _check_pseudo_labels(
    output: StepOutput, count: int, num_classes: int, *, per_class: bool
) -> None:
    for name, pairs in output.pairs.items():
        _check_shape(f"pairs {name!r}", pairs, (count, count), torch.bool)
    labels = output.pseudo_labels
    if labels is None:
        return
    if not isinstance(labels, PseudoLabels):
        raise WrongOutputError(f"returned pseudo_labels as {_kind(labels)} instead of PseudoLabels")
    _check_shape("pseudo_labels.probs", labels.probs, (count, num_classes))
    shape = (count, num_classes) if per_class else (count,)
    _check_shape("pseudo_labels.mask", labels.mask, shape, torch.bool)
    if labels.weights is not None:
        _check_shape("pseudo_labels.weights", labels.weights, shape)


def _check_shape(
    what: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> None:
    if not isinstance(value, Tensor):
        raise WrongOutputError(f"returned {what} as {_kind(value)} instead of a tensor")
    if tuple(value.shape) != shape:
        raise WrongOutputError(
            f"returned {what} with the shape {tuple(value.shape)} instead of {shape}: "
            "a row for each unlabeled image of the batch"
        )
    if dtype is not None and value.dtype != dtype:
        raise WrongOutputError(f"returned {what} as {value.dtype} instead of {dtype}")


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
