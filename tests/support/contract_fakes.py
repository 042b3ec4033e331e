"""Plugins that break one rule of their contract each; the modules beside this one hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=type)

FAKES: dict[str, list[type]] = {}
"""Classes by the name of the only rule that they break."""


def breaks(rule: str) -> Callable[[T], T]:
    """Class decorator: which rule a fake breaks."""

    def register(fake: T) -> T:
        FAKES.setdefault(rule, []).append(fake)
        return fake

    return register
