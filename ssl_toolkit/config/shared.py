"""What the rows of a comparison hold equal, and where they differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ssl_toolkit.config.loading import NOT_COMPARED


def shared_keys(tree: Mapping[str, Any], section: str) -> dict[str, Any]:
    """What a comparison holds equal, by dotted key: all but `NOT_COMPARED` and the own section.

    Args:
        tree: a configuration in plain types.
        section: the key of the algorithm's own section.
    """
    left_out = {*NOT_COMPARED, section}
    return dict(flatten({key: value for key, value in tree.items() if key not in left_out}))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(
    rows: Mapping[str, Mapping[str, Any]], allowed: Collection[str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Where the shared keys of rows differ.

    Args:
        rows: by row name, its `shared_keys`.
        allowed: keys, or sections of keys, that may differ.

    Returns:
        For each row its values of the keys that differ by permission; and a message for each key
        that differs without.
    """
    different: dict[str, dict[str, Any]] = {name: {} for name in rows}
    messages = []
    for key in dict.fromkeys(key for keys in rows.values() for key in keys):
        values = {name: keys.get(key) for name, keys in rows.items()}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            continue
        if any(key == name or key.startswith(f"{name}.") for name in allowed):
            for name, value in values.items():
                different[name][key] = value
        else:
            told = ", ".join(f"{value!r} in {name}" for name, value in values.items())
            messages.append(f"{key} differs between rows that are compared: {told}")
    return different, messages
