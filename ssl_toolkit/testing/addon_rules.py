"""Rules for the methods of add-ons; those for steps check an add-on with an algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from ssl_toolkit.interfaces import AddOn
from ssl_toolkit.testing.assertions import unmodified
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import Trial


def adjusts_logits_by_row(subject: Subject) -> None:
    """`adjust` returns finite logits (N, C) of which each row depends on its own row only.

    Why: algorithms forward labeled and unlabeled images together, in any order and number.
    Cause: a mean over the batch, a random number, or a change in place.
    """
    addon, trial = _addon(subject)
    logits = torch.randn(6, trial.task.num_classes, device=subject.device)
    ctx = trial.context()
    with unmodified({"logits": logits}):
        adjusted, again = addon.adjust(logits, ctx), addon.adjust(logits, ctx)
    _require_shape("adjust", adjusted, logits)
    require(adjusted.isfinite().all(), "adjust returned inf or nan")
    require(torch.equal(adjusted, again), "two calls of adjust return different logits")
    alone = addon.adjust(logits[:1], ctx)
    same = torch.allclose(alone.float(), adjusted[:1].float(), rtol=1e-4, atol=1e-5)
    require(same, "the adjusted logits of an image change with the other images")
    leaf = logits.clone().requires_grad_()
    require(addon.adjust(leaf, ctx).requires_grad, "adjust returned logits without gradient")


def refines_to_probabilities(subject: Subject) -> None:
    """`refine` returns probabilities (U, C), whose rows sum to 1.

    Why: thresholds and losses of algorithms expect probabilities.
    Cause: logits or weights in place of probabilities, or a division by 0 for certain predictions.
    """
    addon, trial = _addon(subject)
    batch = trial.batch()
    count, classes = len(batch.unlabeled_indices), trial.task.num_classes
    uniform = torch.full((count, classes), 1 / classes, device=subject.device)
    certain = torch.eye(classes, device=subject.device)[torch.arange(count) % classes]
    for name, probs in (("uniform", uniform), ("certain", certain)):
        with unmodified({"probs": probs}), torch.no_grad():
            refined = addon.refine(probs, batch, trial.context())
        _require_shape("refine", refined, probs)
        sums = refined.float().sum(dim=-1)
        valid = bool((refined >= 0).all()) and torch.allclose(sums, sums.new_ones(()), atol=1e-3)
        require(valid, f"for {name} predictions, refine returned rows that are no probabilities")


def weighs_by_finite_numbers(subject: Subject) -> None:
    """`weigh` returns a weight of at least 0 for each image (U,), for a mask and for weights.

    Why: the losses of the images are multiplied by it.
    Cause: indices in place of a mask, or `&` with weights; multiply instead.
    """
    addon, trial = _addon(subject)
    batch = trial.batch()
    count, classes = len(batch.unlabeled_indices), trial.task.num_classes
    probs = torch.randn(count, classes, device=subject.device).softmax(dim=-1)
    mask = torch.arange(count, device=subject.device) % 2 == 0
    for name, given in (("a mask", mask), ("weights", mask / 2)):
        with unmodified({"probs": probs, "mask": given}), torch.no_grad():
            weights = addon.weigh(probs, given, batch, trial.context())
        _require_shape("weigh", weights, given)
        valid = bool((weights >= 0).all() and weights.float().isfinite().all())
        require(valid, f"for {name}, weigh returned numbers that are negative, inf or nan")


def weighs_labels_with_gradient(subject: Subject) -> None:
    """`weigh_labels` returns finite losses of at least 0 for labeled images (B,), with gradient.

    Why: the labeled loss is their mean.
    Cause: weights in place of weighted losses, or a mean over the batch.
    """
    addon, trial = _addon(subject)
    batch = trial.batch()
    losses = torch.rand(len(batch.labels), device=subject.device).requires_grad_()
    with unmodified({"losses": losses}):
        weighted = addon.weigh_labels(losses, batch, trial.context())
    _require_shape("weigh_labels", weighted, losses)
    valid = bool((weighted >= 0).all() and weighted.isfinite().all())
    require(valid, "weigh_labels returned losses that are negative, inf or nan")
    require(weighted.requires_grad, "weigh_labels returned losses without gradient")


def _addon(subject: Subject) -> tuple[AddOn, Trial]:
    """Return an add-on after a step of the algorithm with it, and its trial."""
    trial = Trial(subject.on_base())
    trial.output()
    addon: AddOn = trial.algorithm.get_submodule("addon")  # type: ignore[assignment]
    return addon, trial


def _require_shape(method: str, value: object, like: Tensor) -> None:
    shape = getattr(value, "shape", None)
    finding = f"{method} returned {type(value).__name__} of shape {shape}, not {tuple(like.shape)}"
    require(shape == like.shape, finding)
