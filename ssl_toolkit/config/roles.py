"""Settings that comparing and resuming keep equal, derived from their declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from ssl_toolkit.config.declaration import Declaration, declaration_of, fields_of
from ssl_toolkit.config.settings import Settings

Consequence = Literal["classes", "split", "initial weights", "draws"]

_CAUSES = {
    "classes": {"data"},
    "split": {"data", "split"},
    "initial weights": {"data", "weights"},
    "draws": {"data", "split", "draws"},
}


def _keys(holds: Callable[[Declaration], bool]) -> tuple[str, ...]:
    return tuple(key for key, field in fields_of(Settings) if holds(declaration_of(field)))


OPEN_VALUES: dict[str, Any] = {
    key: value
    for key, field in fields_of(Settings)
    if (value := declaration_of(field).when_open) is not None
}
"""Values of settings that are left open, where they are the same for all runs."""

NOT_COMPARED = frozenset(_keys(lambda d: not d.compared))
"""Settings in which the rows of a comparison may differ."""

FOLLOW_STEPS = _keys(lambda d: d.follows_steps)
"""Settings that differ between rows where a budget chooses the steps of each row."""

FREE_ON_RESUME = frozenset(_keys(lambda d: d.resume == "free"))
"""Settings that may be changed in a run's folder: no result depends on them."""

MOVED_ON_RESUME = frozenset(_keys(lambda d: d.resume == "moved"))
"""Settings that may be changed if the content that they name is the same."""

RECORDED_ON_RESUME = frozenset(_keys(lambda d: d.resume == "recorded"))
"""Settings that flags of `resume` change; record.json notes it."""


def keys_behind(consequence: Consequence) -> tuple[str, ...]:
    """Return the settings that something follows from, by their dotted keys."""
    return _keys(lambda d: not _CAUSES[consequence].isdisjoint(d.affects))


def shared_keys(tree: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the settings that rows must share, by dotted key: all but `NOT_COMPARED` and options.

    Args:
        tree: a configuration in plain types.
        section: the key of the algorithm's options.
    """
    left_out = {*NOT_COMPARED, section}
    return dict(flatten({key: value for key, value in tree.items() if key not in left_out}))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the dotted keys and values of a tree; an empty mapping has none."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
