"""What a step leaves behind for the log: gathered on the device, fetched in one transfer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.shares import labels_tell
from ssl_toolkit.errors import TrainingError
from ssl_toolkit.interfaces import StepOutput


class StepRecorder:
    """Collects one vector a batch; no host transfer until `flush`.

    Batches may have different losses, metrics and guesses: each mean is over the batches that have
    the value. A metric that is not finite in a batch counts as absent there.

    Args:
        label_counts: labeled images of each class, C numbers; none to leave out how pseudo labels
            are spread over the classes.
        processes: the processes that share each batch; None for this one.
        validation_counts: validation images of each class, none where there are none.
    """

    def __init__(
        self,
        label_counts: Sequence[int] = (),
        processes: ProcessGroup | None = None,
        validation_counts: Sequence[int] = (),
    ) -> None:
        self._processes = processes or ProcessGroup()
        self._class_counts = [0.0] * len(label_counts)
        known = [label_counts] if label_counts and labels_tell(label_counts) else []
        known += [validation_counts] if sum(validation_counts) else []
        self._known = [[count / sum(counts) for count in counts] for counts in known]
        self.estimate: Sequence[float] = ()
        """C class shares of the pool by a probe, none without one."""
        self._rows: list[tuple[int, tuple[str, ...], Tensor]] = []
        self._fetched: list[dict[str, float]] = []
        self._gradients: list[tuple[int, Tensor]] = []

    def add(self, step: int, total: Tensor, output: StepOutput, hidden: Tensor) -> None:
        """Record a batch.

        Args:
            step: the optimizer step it belongs to, counted from 1.
            total: the objective.
            output: what the algorithm returned.
            hidden: (U,) true classes of the unlabeled images, -1 where unknown.
        """
        values: dict[str, Tensor | float] = {"train.loss": total}
        for name, loss in output.losses.items():
            values[f"train.loss.{name}"] = loss.value
            values[f"train.weighted.{name}"] = loss.value * loss.weight
        for name, metric in output.metrics.items():
            values[f"metric {name}"] = metric
        guess = output.pseudo_labels
        if guess is not None and len(guess.mask):
            used = guess.mask.float()
            guessed = guess.probs.argmax(dim=-1)
            known = used * (hidden >= 0)
            right = known * (guessed == hidden)
            values |= {"used": used.mean(), "known": known.sum(), "right": right.sum()}
            values |= _pair_counts(output.pairs, hidden)
        row = [torch.as_tensor(v, device=total.device).detach().float() for v in values.values()]
        vector = torch.stack(row)
        names = tuple(values)
        if guess is not None and len(guess.mask):
            classes = used.new_zeros(guess.probs.shape[-1]).index_add_(0, guessed, used)
            vector = torch.cat([vector, classes])
            names += _class_names(len(classes))
        self._rows.append((step, names, vector))

    def add_gradient(self, step: int, norm: Tensor) -> None:
        """Record the norm of a step's gradient, after its batches."""
        self._gradients.append((step, norm))

    def flush(self) -> dict[str, float]:
        """The means since the last flush, by name; empty when nothing was recorded.

        Raises:
            TrainingError: a loss was not finite; names the term and the step.
        """
        rows = self._fetch()
        self._fetched = []
        columns: dict[str, list[float]] = {}
        for row in rows:
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        known, right = columns.pop("known", []), columns.pop("right", [])
        told: dict[str, float] = {}
        if sum(known) > 0:
            told["train.pseudo_label_accuracy"] = sum(right) / sum(known)
        told |= self._take_classes(columns) | _false_shares(columns)
        means = {
            name.replace("metric ", "train.", 1): sum(values) / len(values)
            for name, values in columns.items()
        }
        if "used" in means:
            means["train.coverage"] = means.pop("used")
        return means | told

    def take_class_counts(self) -> list[int]:
        """Used pseudo labels of each class over all that was flushed since the last call."""
        counts = [round(count) for count in self._class_counts]
        self._class_counts = [0.0] * len(counts)
        return counts

    def _take_classes(self, columns: dict[str, list[float]]) -> dict[str, float]:
        """How the used pseudo labels are spread over the classes; removes their columns."""
        names = [name for name in columns if name.startswith("class ")]
        counts = [sum(columns.pop(name)) for name in names]
        if not self._class_counts or not sum(counts):
            return {}
        for c, count in enumerate(counts):
            self._class_counts[c] += count
        shares = [count / sum(counts) for count in counts]
        told = {"train.largest_class_share": max(shares)}
        if self._known:
            told["train.pseudo_label_shift"] = min(_distance(shares, own) for own in self._known)
        elif self.estimate:
            told["train.pseudo_label_shift_estimated"] = _distance(shares, self.estimate)
        return told

    def check(self) -> None:
        """Fetch what is on the device.

        Raises:
            TrainingError: a loss or a gradient was not finite; names the term and the step.
        """
        self._fetch()

    def state(self) -> dict[str, object]:
        """What is not flushed yet, for a checkpoint (fetches it)."""
        return {"rows": self._fetch(), "class_counts": self._class_counts}

    def restore(self, state: dict[str, object]) -> None:
        """Take up what `state` gave."""
        self._rows = []
        self._fetched = [*state["rows"]]  # type: ignore[misc]
        self._class_counts = list(state["class_counts"])  # type: ignore[call-overload]

    def _fetch(self) -> list[dict[str, float]]:
        rows, self._rows = self._rows, []
        if not rows:
            return self._fetched
        names = [name for _, own, _ in rows for name in own]
        values = self._over_ranks(names, torch.cat([vector for _, _, vector in rows]))
        numbers = iter(values.tolist())
        bad = self._bad_gradients()
        for step, own, _ in rows:
            row = dict(zip(own, numbers, strict=False))  # the numbers of the rows to come are left
            if bad and bad[0] < step:
                break
            _refuse_non_finite(step, row)
            finite = {name: value for name, value in row.items() if math.isfinite(value)}
            self._fetched.append(finite)
        if bad:
            raise TrainingError(
                f"a gradient is not finite at step {bad[0]} although the loss is; the last "
                "finite checkpoint is kept; try a lower --lr"
            )
        return self._fetched

    def _over_ranks(self, names: list[str], values: Tensor) -> Tensor:
        """Counts in all, means over equal parts of the batch; of metrics where they are finite."""
        if self._processes.size == 1:
            return values
        metric = torch.tensor([name.startswith("metric ") for name in names], device=values.device)
        count = torch.tensor([name.startswith(_COUNTS) for name in names], device=values.device)
        taken = values.isfinite() | ~metric
        total, parts = self._processes.all_reduce_sum(
            torch.stack([values.where(taken, 0), taken.float()])
        )
        mean: Tensor = total / parts.where(~count, 1)
        return mean

    def _bad_gradients(self) -> list[int]:
        """The steps with a gradient that is not finite."""
        seen, self._gradients = self._gradients, []
        finite = torch.stack([norm for _, norm in seen]).isfinite().tolist() if seen else []
        return [step for (step, _), good in zip(seen, finite, strict=True) if not good]


_COUNTS = ("known", "right", "class ", "pairs ", "false ")
"""Columns that are summed over the processes; the others are means."""


def _distance(shares: Sequence[float], others: Sequence[float]) -> float:
    """Total variation distance: 0 for equal distributions, 1 for disjoint ones."""
    return sum(abs(share - other) for share, other in zip(shares, others, strict=True)) / 2


@cache
def _class_names(count: int) -> tuple[str, ...]:
    return tuple(f"class {c}" for c in range(count))


def _refuse_non_finite(step: int, row: dict[str, float]) -> None:
    bad = [n for n, v in row.items() if not (math.isfinite(v) or n.startswith("metric "))]
    if bad:
        terms = [name.removeprefix("train.loss.") for name in bad if "loss." in name]
        raise TrainingError(
            f"loss {' and '.join(terms) or bad[0]!r} is not finite at step {step}; the last "
            "finite checkpoint is kept; try a lower --lr or --set optimizer.clip_norm=5"
        )


def _pair_counts(pairs: Mapping[str, Tensor], hidden: Tensor) -> dict[str, Tensor]:
    """For each criterion: pairs of images of known classes that pass it, and the false ones."""
    known = (hidden >= 0)[:, None] & (hidden >= 0)[None, :]
    false = known & (hidden[:, None] != hidden[None, :])
    counts = {}
    for name, mask in pairs.items():
        counts[f"pairs {name}"] = (mask & known).sum()
        counts[f"false {name}"] = (mask & false).sum()
    return counts


def _false_shares(columns: dict[str, list[float]]) -> dict[str, float]:
    """The share of false pairs among those that pass; removes the columns of `_pair_counts`."""
    shares = {}
    for key in [key for key in columns if key.startswith("pairs ")]:
        name = key.removeprefix("pairs ")
        passed, false = sum(columns.pop(key)), sum(columns.pop(f"false {name}"))
        if passed > 0:
            shares[f"train.pair_{name}_false"] = false / passed
    return shares
