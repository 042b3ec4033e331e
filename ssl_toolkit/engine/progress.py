"""What a step leaves behind for the log: gathered on the device, fetched in one transfer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssl_toolkit.errors import TrainingError
from ssl_toolkit.interfaces import StepOutput


class StepRecorder:
    """Collects one vector a batch; no host transfer until `flush`."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._rows: list[tuple[int, Tensor]] = []
        self._fetched: list[tuple[int, list[float]]] = []

    def add(self, step: int, total: Tensor, output: StepOutput, hidden: Tensor) -> None:
        """Record a batch.

        Args:
            step: the optimizer step it belongs to, counted from 1.
            total: the objective.
            output: what the algorithm returned.
            hidden: (U,) true classes of the unlabelled images, -1 where unknown.
        """
        values: dict[str, Tensor | float] = {"train.loss": total}
        for name, loss in output.losses.items():
            values[f"train.loss.{name}"] = loss.value
            values[f"train.weighted.{name}"] = loss.value * loss.weight
        for name, metric in output.metrics.items():
            values[f"train.{name}"] = metric
        if output.guess is not None and len(output.guess.used):
            used = output.guess.used.float()
            known = used * (hidden >= 0)
            right = known * (output.guess.probs.argmax(dim=-1) == hidden)
            values |= {"used": used.mean(), "known": known.sum(), "right": right.sum()}
        self._names = tuple(values)
        row = [torch.as_tensor(v, device=total.device).detach().float() for v in values.values()]
        self._rows.append((step, torch.stack(row)))

    def flush(self) -> dict[str, float]:
        """The means since the last flush, by name; empty when nothing was recorded.

        Raises:
            TrainingError: a loss was not finite; names the term and the step.
        """
        rows = self._fetch()
        if not rows:
            return {}
        self._fetched = []
        columns = dict(zip(self._names, zip(*(row for _, row in rows), strict=True), strict=True))
        known, right = columns.pop("known", ()), columns.pop("right", ())
        means = {name: sum(values) / len(values) for name, values in columns.items()}
        if "used" in means:
            means["train.coverage"] = means.pop("used")
        if sum(known) > 0:
            means["train.pseudo_label_accuracy"] = sum(right) / sum(known)
        return means

    def check(self) -> None:
        """Fetch what is on the device.

        Raises:
            TrainingError: a loss was not finite; names the term and the step.
        """
        self._fetch()

    def state(self) -> dict[str, object]:
        """What is not flushed yet, for a checkpoint (fetches it)."""
        return {"names": list(self._names), "rows": [[s, row] for s, row in self._fetch()]}

    def restore(self, state: dict[str, object]) -> None:
        """Take up what `state` gave."""
        self._names = tuple(state["names"])  # type: ignore[arg-type]
        self._rows = []
        self._fetched = [(step, row) for step, row in state["rows"]]  # type: ignore[attr-defined]

    def _fetch(self) -> list[tuple[int, list[float]]]:
        if self._rows:
            steps = [step for step, _ in self._rows]
            values = torch.stack([row for _, row in self._rows]).tolist()
            self._rows = []
            for step, row in zip(steps, values, strict=True):
                self._refuse_non_finite(step, row)
                self._fetched.append((step, row))
        return self._fetched

    def _refuse_non_finite(self, step: int, row: list[float]) -> None:
        bad = [n for n, v in zip(self._names, row, strict=True) if not math.isfinite(v)]
        if bad:
            terms = [name.removeprefix("train.loss.") for name in bad if "loss." in name]
            raise TrainingError(
                f"loss {' and '.join(terms) or bad[0]!r} is not finite at step {step}; the last "
                "finite checkpoint is kept; try a lower --lr or --set optimizer.clip_norm=5"
            )
