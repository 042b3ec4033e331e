"""Find the settings in which the rows of a comparison differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ssl_toolkit.config.roles import NOT_COMPARED


def shared_keys(tree: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the settings that rows must share, by dotted key: all but `NOT_COMPARED` and options.

    Args:
        tree: a configuration in plain types.
        section: the key of the algorithm's options.
    """
    left_out = {*NOT_COMPARED, section}
    return dict(flatten({key: value for key, value in tree.items() if key not in left_out}))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the dotted keys and values of a tree."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def permitted(key: str, allowed: Collection[str]) -> bool:
    """Return True if a shared key may differ: it, its section or its plugin is allowed to.

    The options of a plugin follow its name: where ``augment.strong`` may differ, so may
    ``augment.strong_options``.
    """
    return any(
        key in (name, f"{name}_options") or key.startswith((f"{name}.", f"{name}_options."))
        for name in allowed
    )


def differences(
    rows: Mapping[str, Mapping[str, Any]], allowed: Collection[str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Find the shared keys in which rows differ.

    Args:
        rows: by row name, its `shared_keys`.
        allowed: keys, or sections of keys, that may differ.

    Returns:
        For each row its values of the keys that differ by permission; and a message for each key
        that differs without, but for options of plugins that differ themselves.
    """
    different: dict[str, dict[str, Any]] = {name: {} for name in rows}
    found: dict[str, str] = {}
    for key in dict.fromkeys(key for keys in rows.values() for key in keys):
        values = {name: keys.get(key) for name, keys in rows.items()}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            continue
        if permitted(key, allowed):
            for name, keys in rows.items():
                if key in keys:
                    different[name][key] = keys[key]
        else:
            found[key] = f"{key} differs between rows that are compared: {_grouped(values)}"
    plugins = {key for key in found if any(other.startswith(f"{key}_options") for other in found)}
    messages = [
        f"{text} (and so do its options)" if key in plugins else text
        for key, text in found.items()
        if not any(key != name and permitted(key, {name}) for name in plugins)
    ]
    return different, messages


def _grouped(values: Mapping[str, Any]) -> str:
    """Each value with the rows that have it, the value of most rows last and without names."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(repr(value), []).append(name)
    *others, most = sorted(groups.items(), key=lambda group: len(group[1]))
    if len(most[1]) == 1:  # no value is that of most rows
        return _few([f"{_short(value)} in {name}" for value, (name,) in groups.items()])
    messages = [f"{_short(value)} in {_few(names)}" for value, names in others]
    return f"{_few(messages)}; {_short(most[0])} in the {len(most[1])} others"


def _few(texts: Sequence[str], most: int = 4) -> str:
    message = ", ".join(texts[:most])
    return message if len(texts) <= most else f"{message} and {len(texts) - most} more"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
