"""Rules on what a step reports beside its losses, and on its waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from ssl_toolkit.engine.step_checks import is_engine_metric, is_name
from ssl_toolkit.interfaces import Metric
from ssl_toolkit.testing import host_sync
from ssl_toolkit.testing.rules import require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import LATE, MIDDLE, Trial, listed, tensors_of


@rule(
    "algorithms",
    why="pseudo labels are judged by them; rows that don't sum to 1 are no probabilities.",
    cause="a sharpening without normalization, or logits in place of probabilities",
)
def pseudo_labels_are_distributions(subject: Subject) -> None:
    """The rows of `pseudo_labels.probs` are at least 0 and sum to 1."""
    guess = Trial(subject).output().pseudo_labels
    if guess is None:
        return
    probs = guess.probs.detach().float()
    require(bool((probs >= 0).all()), f"the least entry is {probs.amin().item():g}")
    sums = probs.sum(dim=-1)
    furthest = float(sums[(sums - 1).abs().argmax()])
    require(abs(furthest - 1) < 1e-3, f"a row sums to {furthest:g}")


@rule(
    "algorithms",
    why="the engine compares them with the hidden labels of the same images, without gradient.",
    cause="rows for each view, a mask of floats, or a missing detach()",
)
def pseudo_labels_fit_the_batch(subject: Subject) -> None:
    """`pseudo_labels` holds (U, C) probabilities without gradient, and (U,) bool."""
    trial = Trial(subject)
    batch = trial.batch()
    guess = trial.output(batch=batch).pseudo_labels
    if guess is None:
        return
    count = len(batch.unlabeled_indices)
    shape = (count, trial.task.num_classes)
    require(tuple(guess.probs.shape) == shape, f"probs is {tuple(guess.probs.shape)}, not {shape}")
    require(tuple(guess.mask.shape) == (count,), f"mask is {tuple(guess.mask.shape)}")
    require(guess.mask.dtype == torch.bool, f"mask is {guess.mask.dtype}, not bool")
    require(not guess.probs.requires_grad, "probs carries a gradient")


@rule(
    "algorithms",
    why="metrics are stacked and fetched once; a graph in them keeps the memory of a step.",
    cause="a missing detach() or mean(), or a number where a tensor is wanted",
)
def metrics_are_scalars(subject: Subject) -> None:
    """Metrics are 0-dim tensors without gradient, pairs (U, U) bool."""
    trial = Trial(subject)
    batch = trial.batch()
    output = trial.output(batch=batch)
    for name, metric in output.metrics.items():
        good = isinstance(metric, Tensor) and metric.ndim == 0
        require(good, f"metric {name!r} is no 0-dim tensor")
        require(not metric.requires_grad, f"metric {name!r} carries a gradient")
    count = len(batch.unlabeled_indices)
    for name, pairs in output.pairs.items():
        good = tuple(pairs.shape) == (count, count) and pairs.dtype == torch.bool
        require(good, f"pairs {name!r} is {tuple(pairs.shape)} {pairs.dtype}")


@rule(
    "algorithms",
    why="names become columns beside the engine's own; the engine refuses others.",
    cause="a metric called `loss` or `coverage`, or a name with capitals, spaces or dots",
)
def metrics_are_named(subject: Subject) -> None:
    """Metrics and pairs have names like losses, and none that the engine uses itself."""
    declared = subject.plugin.metrics
    good = isinstance(declared, tuple) and all(isinstance(metric, Metric) for metric in declared)
    require(good, f"metrics is {declared!r}, not a tuple of Metric")
    names = [metric.name for metric in declared]
    require(len(names) == len(set(names)), f"metrics declares a name twice: {listed(names)}")
    for step in (MIDDLE, LATE):
        output = Trial(subject).output(step)
        wrong = [name for name in (*output.metrics, *output.pairs) if not is_name(name)]
        require(not wrong, f"metrics or pairs are called {listed(wrong)}")
        taken = [name for name in output.metrics if is_engine_metric(name, output)]
        require(not taken, f"the engine has columns {listed(taken)} of its own")


@rule(
    "algorithms",
    why="a GPU idles while the host waits for a value; it is the usual reason of a slow step.",
    cause="item(), float(loss), `if mask.any()`, indexing with a mask; use torch.where",
)
def step_never_waits(subject: Subject) -> None:
    """A step transfers nothing from the device to the host."""
    trial = Trial(subject)
    batch = trial.batch()
    modules = trial.classifier, trial.ema.module, trial.algorithm
    held = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    trial.output()  # what is done once may wait
    around = host_sync.forbidden(subject.device, [*tensors_of(batch).values(), *held])
    trial.output(batch=batch, around=around)
