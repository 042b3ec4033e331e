"""The metrics of steps: collected on the device, fetched in one transfer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_toolkit.engine import logged_metrics as logged
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.shares import labels_are_informative
from ssl_toolkit.errors import TrainingError
from ssl_toolkit.interfaces import Metric, StepOutput


class _Column(NamedTuple):
    """One number of a batch: a metric, or a count that becomes one."""

    name: str
    reduction: Literal["mean", "sum"] = "mean"
    optional: bool = False
    """True if a value that is not finite counts as absent; else it ends the run."""


class StepRecorder:
    """Collects one vector per batch; no host transfer until `flush`.

    Batches may have different losses, metrics and pseudo labels: each mean is over the batches that
    have the value. A metric that is not finite in a batch counts as absent there.

    Args:
        label_counts: labeled images of each class, C numbers; empty to leave out the distribution
            of the pseudo labels over the classes.
        processes: the processes that share each batch; None for this one.
        validation_counts: validation images of each class, empty without a validation split.
        metrics: declarations of the algorithm.
    """

    def __init__(
        self,
        label_counts: Sequence[int] = (),
        processes: ProcessGroup | None = None,
        validation_counts: Sequence[int] = (),
        metrics: Iterable[Metric] = (),
    ) -> None:
        self._processes = processes or ProcessGroup()
        self._metrics = {metric.name: metric for metric in metrics}
        self._class_counts = [0.0] * len(label_counts)
        known = [label_counts] if label_counts and labels_are_informative(label_counts) else []
        known += [validation_counts] if sum(validation_counts) else []
        self._known = [[count / sum(counts) for count in counts] for counts in known]
        self.estimate: Sequence[float] = ()
        """C class shares of the pool by a probe, empty without one."""
        self._rows: list[tuple[int, tuple[_Column, ...], Tensor]] = []
        self._fetched: list[dict[str, float]] = []
        self._gradients: list[tuple[int, Tensor]] = []

    def add(self, step: int, total: Tensor, output: StepOutput, hidden: Tensor) -> None:
        """Record a batch.

        Args:
            step: the optimizer step of the batch, counted from 1.
            total: the objective.
            output: the return value of the algorithm.
            hidden: (U,) true classes of the unlabeled images, -1 where unknown, `STRANGER` for
                images of no class, whose pseudo labels are all wrong; (U, C) in {0, 1}, nan where
                unknown, under ``--task multilabel``.
        """
        values: dict[_Column, Tensor | float] = {_Column(logged.LOSS.name): total}
        for name, loss in output.losses.items():
            values[_Column(logged.loss_term(name).name)] = loss.value
            values[_Column(logged.weighted_term(name).name)] = loss.value * loss.weight
        for name, metric in output.metrics.items():
            reduction = self._metrics.get(name, Metric(name)).reduction
            values[_Column(f"{logged.TRAIN}{name}", reduction, optional=True)] = metric
        pseudo_labels = output.pseudo_labels
        if pseudo_labels is not None and len(pseudo_labels.mask):
            used = pseudo_labels.mask.float()
            if pseudo_labels.weights is not None:
                used = used * pseudo_labels.weights
            if hidden.ndim == 2:  # --task multilabel: one pseudo label for each class
                predicted = pseudo_labels.probs > 0.5
                known = used * ~hidden.isnan()
                correct = known * (predicted == (hidden > 0.5))
            else:
                predicted = pseudo_labels.probs.argmax(dim=-1)
                known = used * (hidden != _UNKNOWN)
                correct = known * (predicted == hidden)
            values[_Column(logged.COVERAGE.name)] = used.mean()
            values |= {_KNOWN: known.sum(), _CORRECT: correct.sum()}
            values |= _pair_counts(output.pairs, hidden) if hidden.ndim == 1 else {}
        row = [torch.as_tensor(v, device=total.device).detach().float() for v in values.values()]
        vector = torch.stack(row)
        columns = tuple(values)
        if pseudo_labels is not None and len(pseudo_labels.mask):
            if hidden.ndim == 2:
                classes = (used * predicted).sum(dim=0)
            else:
                none = used.new_zeros(pseudo_labels.probs.shape[-1])
                classes = none.index_add_(0, predicted, used)
            vector = torch.cat([vector, classes])
            columns += _class_columns(len(classes))
        self._rows.append((step, columns, vector))

    def add_gradient(self, step: int, norm: Tensor) -> None:
        """Record the norm of a step's gradient, after its batches."""
        self._gradients.append((step, norm))

    def flush(self) -> dict[str, float]:
        """Return the means since the last flush by name; empty if nothing was recorded.

        Raises:
            TrainingError: a loss was not finite; names the term and the step.
        """
        rows = self._fetch()
        self._fetched = []
        columns: dict[str, list[float]] = {}
        for row in rows:
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        known, correct = columns.pop(_KNOWN.name, []), columns.pop(_CORRECT.name, [])
        shares: dict[str, float] = {}
        if sum(known) > 0:
            shares[logged.PSEUDO_LABEL_ACCURACY.name] = sum(correct) / sum(known)
        shares |= self._take_classes(columns) | _false_shares(columns)
        return {name: sum(values) / len(values) for name, values in columns.items()} | shares

    def take_class_counts(self) -> list[int]:
        """Return the used pseudo labels of each class, over all flushes since the last call."""
        counts = [round(count) for count in self._class_counts]
        self._class_counts = [0.0] * len(counts)
        return counts

    def _take_classes(self, columns: dict[str, list[float]]) -> dict[str, float]:
        """Pop the counts by class, and return how the used pseudo labels are distributed."""
        names = [name for name in columns if name.startswith(_CLASS)]
        counts = [sum(columns.pop(name)) for name in names]
        if not self._class_counts or not sum(counts):
            return {}
        for c, count in enumerate(counts):
            self._class_counts[c] += count
        shares = [count / sum(counts) for count in counts]
        spread = {logged.LARGEST_CLASS_SHARE.name: max(shares)}
        if self._known:
            spread[logged.SHIFT.name] = min(_distance(shares, known) for known in self._known)
        elif self.estimate:
            spread[logged.ESTIMATED_SHIFT.name] = _distance(shares, self.estimate)
        return spread

    def check(self) -> None:
        """Fetch what is on the device.

        Raises:
            TrainingError: a loss or a gradient was not finite; names the term and the step.
        """
        self._fetch()

    def state(self) -> dict[str, object]:
        """Fetch and return the values that are not flushed yet, for a checkpoint."""
        return {"rows": self._fetch(), "class_counts": self._class_counts}

    def restore(self, state: dict[str, object]) -> None:
        """Restore what `state` returned."""
        self._rows = []
        self._fetched = [*state["rows"]]  # type: ignore[misc]
        self._class_counts = list(state["class_counts"])  # type: ignore[call-overload]

    def _fetch(self) -> list[dict[str, float]]:
        rows, self._rows = self._rows, []
        if not rows:
            return self._fetched
        columns = [column for _, own, _ in rows for column in own]
        values = self._over_ranks(columns, torch.cat([vector for _, _, vector in rows]))
        numbers = iter(values.tolist())
        bad = self._bad_gradients()
        for step, own, _ in rows:
            # `numbers` continues with the next rows, so the lengths differ.
            row = dict(zip(own, numbers, strict=False))
            if bad and bad[0] < step:
                break
            _refuse_non_finite(step, row)
            finite = {c.name: value for c, value in row.items() if math.isfinite(value)}
            self._fetched.append(finite)
        if bad:
            raise TrainingError(
                f"a gradient is not finite at step {bad[0]} although the loss is; the last "
                "finite checkpoint is kept; try a lower --lr"
            )
        return self._fetched

    def _over_ranks(self, columns: list[_Column], values: Tensor) -> Tensor:
        """Reduce each column over the processes; optional ones where they are finite."""
        if self._processes.size == 1:
            return values
        device = values.device
        optional = torch.tensor([column.optional for column in columns], device=device)
        summed = torch.tensor([column.reduction == "sum" for column in columns], device=device)
        present = values.isfinite() | ~optional
        total, parts = self._processes.all_reduce_sum(
            torch.stack([values.where(present, 0), present.float()])
        )
        # A value that no process has is 0 / 0, thus absent.
        reduced: Tensor = total / parts.where(~summed | (parts == 0), 1)
        return reduced

    def _bad_gradients(self) -> list[int]:
        """Return the steps with a gradient that is not finite."""
        seen, self._gradients = self._gradients, []
        finite = torch.stack([norm for _, norm in seen]).isfinite().tolist() if seen else []
        return [step for (step, _), good in zip(seen, finite, strict=True) if not good]


_UNKNOWN = -1
"""Hidden label of an image whose class is not known."""

_KNOWN, _CORRECT = _Column("known", "sum"), _Column("correct", "sum")
_CLASS, _PAIRS, _FALSE = "class ", "pairs ", "false "
"""Prefixes of the names of counts, which become shares when they are flushed."""


def _distance(shares: Sequence[float], others: Sequence[float]) -> float:
    """Return the total variation distance: 0 for equal distributions, 1 for disjoint ones."""
    return sum(abs(share - other) for share, other in zip(shares, others, strict=True)) / 2


@cache
def _class_columns(count: int) -> tuple[_Column, ...]:
    return tuple(_Column(f"{_CLASS}{c}", "sum") for c in range(count))


def _refuse_non_finite(step: int, row: Mapping[_Column, float]) -> None:
    bad = [c.name for c, value in row.items() if not (c.optional or math.isfinite(value))]
    if bad:
        terms = [n.removeprefix(logged.LOSS_TERM) for n in bad if n.startswith(logged.LOSS_TERM)]
        raise TrainingError(
            f"loss {' and '.join(terms) or bad[0]!r} is not finite at step {step}; the last "
            "finite checkpoint is kept; try a lower --lr or --set optimizer.clip_norm=5"
        )


def _pair_counts(pairs: Mapping[str, Tensor], hidden: Tensor) -> dict[_Column, Tensor]:
    """Count, per criterion, the pairs of known classes that pass it, and the false ones."""
    known, in_class = hidden != _UNKNOWN, hidden >= 0
    # Two strangers may be of the same kind or not.
    known = known[:, None] & known[None, :] & (in_class[:, None] | in_class[None, :])
    false = known & (hidden[:, None] != hidden[None, :])
    counts = {}
    for name, mask in pairs.items():
        counts[_Column(f"{_PAIRS}{name}", "sum")] = (mask & known).sum()
        counts[_Column(f"{_FALSE}{name}", "sum")] = (mask & false).sum()
    return counts


def _false_shares(columns: dict[str, list[float]]) -> dict[str, float]:
    """Pop the counts of pairs, and return the share of false ones among those that pass."""
    shares = {}
    for key in [key for key in columns if key.startswith(_PAIRS)]:
        name = key.removeprefix(_PAIRS)
        passed, false = sum(columns.pop(key)), sum(columns.pop(f"{_FALSE}{name}"))
        if passed > 0:
            shares[logged.false_pairs(name).name] = false / passed
    return shares
