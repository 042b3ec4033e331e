"""Rule for an algorithm whose losses and pseudo labels add-ons may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.interfaces import StepOutput
from ssl_toolkit.interfaces.composition import HOOKS
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import Trial


def calls_addon_hooks(subject: Subject) -> None:
    """A step calls the methods of the context in `addon_hooks` once, no other, and uses the result.

    Why: by them, add-ons change its losses and pseudo labels; one that needs another is refused.
    Cause: a hook that is declared, but not called, or whose result is not used.
    """
    hooks = subject.plugin.addon_hooks
    require({*hooks} <= {*HOOKS}, f"addon_hooks is {hooks!r}; it may contain {', '.join(HOOKS)}")
    for name in HOOKS:
        calls, output = _step(subject, name)
        declared = name in hooks
        require(calls == declared, f"a step calls ctx.{name} {calls} times, not {int(declared)}")
        labels = output.pseudo_labels
        if declared and labels is not None and name == "refine":
            ours = bool((labels.probs.argmax(dim=-1) == 0).all())
            require(ours, "the pseudo labels are not those that ctx.refine returned")
        if declared and labels is not None and name == "weigh":
            weights = labels.mask if labels.weights is None else labels.mask * labels.weights
            require(not weights.any(), "pseudo labels that ctx.weigh excludes are in use")
        if declared and name == "weigh_labels" and (loss := output.losses.get("supervised")):
            require(not loss.value.any(), "the supervised loss is not that of ctx.weigh_labels")


def _step(subject: Subject, hook: str) -> tuple[int, StepOutput]:
    """Return the number of calls of a hook in a step, and the output."""
    trial = Trial(subject)
    trial.scan()
    context = trial.context()
    calls: list[str] = []

    def refine(probs: Tensor) -> Tensor:
        calls.append("refine")
        return F.one_hot(probs.argmax(dim=-1) * 0, probs.shape[-1]).to(probs)

    def weigh(probs: Tensor, mask: Tensor) -> Tensor:
        calls.append("weigh")
        return mask * 0 > 0

    def weigh_labels(losses: Tensor) -> Tensor:
        calls.append("weigh_labels")
        return losses * 0

    replaced: dict[str, Callable[..., Any]] = {
        "refine": refine,
        "weigh": weigh,
        "weigh_labels": weigh_labels,
    }
    setattr(context, hook, replaced[hook])
    output = trial.algorithm.step(trial.batch(), context)
    return len(calls), output
