"""Modules, buffers, parameters and other facts that an algorithm declares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from torch import nn

from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.interfaces import AddOn, Algorithm, Metric, Task
from ssl_toolkit.interfaces.composition import HOOKS, Composition


class AveragedModules:
    """The modules of `Algorithm.averaged_modules` and their averages.

    Args:
        algorithm: its modules are followed.
        ema: the average of the model, with whose settings they are averaged; None for no averages.
    """

    def __init__(self, algorithm: Algorithm, ema: EMA | None) -> None:
        self._live = nn.Module()
        modules = dict(algorithm.named_modules())
        for name in algorithm.averaged_modules:
            if name in modules:
                self._live.add_module(name.replace(".", "/"), modules[name])
        empty = not [*self._live.children()]
        self._ema = None if ema is None or empty else ema.of(self._live)

    @property
    def module(self) -> nn.Module:
        """A module that contains the averages, or the modules if there are none, by name."""
        return self._live if self._ema is None else self._ema.module

    def update(self) -> None:
        """Move the averages toward the modules."""
        if self._ema is not None:
            self._ema.update(self._live)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the averages; None for none."""
        return None if self._ema is None else self._ema.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore a `state` that `state_dict` returned."""
        if self._ema is not None and state is not None:
            self._ema.load_state_dict(state)


def lr_factor(algorithm: Algorithm, parameter: str) -> tuple[str, float]:
    """Return the longest prefix of `Algorithm.lr_factors` that fits a parameter, and its factor.

    Args:
        algorithm: The algorithm.
        parameter: Name of one of its parameters.

    Returns:
        An empty prefix and 1 if none fits.
    """
    factors = algorithm.lr_factors
    prefix = max((p for p in factors if _fits(p, parameter)), key=len, default="")
    return prefix, factors.get(prefix, 1.0)


def own_modules_fault(algorithm: Algorithm) -> str:
    """Return what is wrong with `averaged_modules`, `pool_statistics` or `lr_factors`, or ""."""
    for attribute, kind, named in (
        ("averaged_modules", "modules", algorithm.named_modules()),
        ("pool_statistics", "buffers", algorithm.named_buffers()),
    ):
        parts = dict(named)
        names = getattr(algorithm, attribute)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            return f"{attribute} is {names!r}, not a tuple of names"
        for name in names:
            if name not in parts:
                found = ", ".join(part for part in parts if part and "." not in part) or "none"
                return f"{attribute} contains {name!r}, which is not one of its {kind} ({found})"
    parameters, factors = [name for name, _ in algorithm.named_parameters()], algorithm.lr_factors
    if not isinstance(factors, Mapping):
        return f"lr_factors is {factors!r}, not a dict by the first parts of parameter names"
    for prefix, factor in factors.items():
        if not any(_fits(prefix, name) for name in parameters):
            found = ", ".join(parameters[:4]) or "none"
            return f"lr_factors contains {prefix!r}, which fits none of its parameters ({found})"
        if not isinstance(factor, int | float) or not (math.isfinite(factor) and factor >= 0):
            return f"lr_factors[{prefix!r}] is {factor!r}, not a finite number of at least 0"
    return ""


def interval_fault(part: Algorithm | AddOn) -> str:
    """Return what is wrong with `scan_every` of an algorithm and its add-ons, or ""."""
    if isinstance(part, Composition):
        return interval_fault(part.base) or interval_fault(part.addon)
    interval = part.scan_every
    valid = isinstance(interval, int) and interval >= 0
    return "" if valid else f"scan_every is {interval!r}, not a whole number of at least 0"


def declaration_fault(kind: type[Algorithm]) -> str:
    """Return what is wrong with `tasks`, `addon_hooks` or `metrics` of a class, or ""."""
    for attribute, known in (("tasks", get_args(Task)), ("addon_hooks", HOOKS)):
        names = getattr(kind, attribute)
        if not isinstance(names, frozenset) or not names <= {*known}:
            return f"{attribute} is {names!r}, not a frozenset of {' or '.join(known)}"
    metrics = kind.metrics
    if not isinstance(metrics, tuple) or not all(isinstance(one, Metric) for one in metrics):
        return f"metrics is {metrics!r}, not a tuple of Metric"
    names = [metric.name for metric in metrics]
    if len(names) > len({*names}):
        return f"metrics declares a name twice: {', '.join(names)}"
    return ""


def _fits(prefix: str, name: str) -> bool:
    """Return True if a prefix consists of the first parts of a name, or of all of them."""
    return f"{name}.".startswith(f"{prefix}.")
