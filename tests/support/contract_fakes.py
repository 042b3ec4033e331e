"""Registry of plugins that break one rule of their contract each; other modules define them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=type)

FAKES: dict[str, list[type]] = {}
"""Classes, by the name of the only rule that they break."""


def breaks(rule: str) -> Callable[[T], T]:
    """Return a class decorator that registers a fake for the rule that it breaks."""

    def register(fake: T) -> T:
        FAKES.setdefault(rule, []).append(fake)
        return fake

    return register
