"""``--task multilabel``: which settings it refuses, and the scores of its evaluations."""

from __future__ import annotations

import torch
from torch import Tensor

from ssl_toolkit import registry
from ssl_toolkit.config.defaults import AUTO
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.engine.own_modules import declaration_fault
from ssl_toolkit.errors import ConfigError, PluginError
from ssl_toolkit.interfaces import Algorithm

MULTILABEL = "multilabel"


def check_task(settings: Settings) -> None:
    """Refuse an algorithm or settings that the task doesn't support.

    Raises:
        PluginError: The algorithm declares invalid tasks, hooks or metrics.
        ConfigError: Names the setting.
    """
    if settings.algo != AUTO:
        plugin: type[Algorithm] = registry.load("algorithms", settings.algo)
        if fault := declaration_fault(plugin):
            raise PluginError(f"algorithm {settings.algo!r}: {fault}")
        if settings.task not in plugin.tasks:
            raise ConfigError(
                f"--task {settings.task}: --algo {settings.algo} supports "
                f"{' and '.join(sorted(plugin.tasks))} only; use {_others(settings.task)}"
            )
    if settings.task != MULTILABEL:
        return
    tails = [part for part, ratio in settings.imbalance if ratio is not None]
    for name, is_set in (
        ("--algo auto", settings.algo == AUTO),
        ("--pseudo-labels", settings.pseudo_labels is not None),
        (f"--algo {settings.algo}: an add-on", "+" in settings.algo),
        (f"--imbalance-{tails[0]}" if len(tails) == 1 else "--imbalance", bool(tails)),
        ("--prior", settings.prior is not None),
        ("--drop-strangers", settings.drop_strangers != "no"),
        ("sampler=balanced", settings.sampler == "balanced"),
        ("model.probe=true", settings.model.probe is True),
        ("model.head_init=probe", settings.model.head_init == "probe"),
        ("augment.weak=ctaugment", settings.augment.weak == "ctaugment"),
        ("augment.strong=ctaugment", settings.augment.strong == "ctaugment"),
    ):
        if is_set:
            raise ConfigError(f"{name} supports --task multiclass only; leave it out")


def _others(task: str) -> str:
    found = ((entry.name, registry.attempt(entry)[0]) for entry in registry.entries("algorithms"))
    return ", ".join(name for name, plugin in found if task in getattr(plugin, "tasks", ()))


def mean_average_precision(probs: Tensor, targets: Tensor) -> float:
    """Return the mean of `average_precisions` over the classes that have an image.

    Args:
        probs: (N, C) probabilities.
        targets: (N, C) in {0, 1}.
    """
    values = average_precisions(probs, targets)
    present = values.isfinite()
    return float(values[present].mean()) if present.any() else 0.0


def average_precisions(probs: Tensor, targets: Tensor) -> Tensor:
    """Return the average precision of each class, nan for one without an image.

    It is the sum over distinct probabilities of the increase of the recall times the precision, as
    ``average_precision_score`` of scikit-learn.

    Args:
        probs: (N, C) probabilities.
        targets: (N, C) in {0, 1}.

    Returns:
        (C,) float64.
    """
    probs, targets = probs.double().cpu(), targets.double().cpu()
    sorted_probs, order = probs.sort(dim=0, descending=True, stable=True)
    hits = targets.gather(0, order).cumsum(dim=0)
    ranks = torch.arange(1, len(probs) + 1, dtype=torch.float64)[:, None]
    # Of equal probabilities only the last rank counts: a threshold can't separate them.
    last = torch.ones_like(sorted_probs, dtype=torch.bool)
    last[:-1] = sorted_probs[1:] != sorted_probs[:-1]
    result = []
    for label in range(probs.shape[1]):
        at = last[:, label]
        hit = hits[at, label]
        precision = hit / ranks[at, 0]
        gain = torch.diff(hit, prepend=hit.new_zeros(1))
        result.append((gain * precision).sum() / hit[-1] if len(hit) else hit.new_tensor(torch.nan))
    return torch.stack(result)


def binary_cross_entropy(probs: Tensor, targets: Tensor) -> float:
    """Return the mean over images and classes, in nats, from probabilities (N, C)."""
    least = torch.finfo(torch.float32).tiny
    right = torch.where(targets.cpu() > 0.5, probs, 1 - probs).double()
    return float(-right.clamp_min(least).log().mean())
