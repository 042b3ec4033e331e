"""Merge trees of settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Tree = dict[str, Any]


def deep(under: Tree, over: Tree) -> Tree:
    """Return a new tree: maps are merged, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            value = deep(below, value)
        merged[key] = value
    return merged


def nested(key: str, value: Any) -> Tree:
    """Return the tree with a value under a dotted key."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def paths(tree: Tree, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Iterate over the paths of all keys, those of maps included."""
    for key, value in tree.items():
        yield (*prefix, str(key))
        if isinstance(value, dict):
            yield from paths(value, (*prefix, str(key)))


def without(tree: Tree, path: Sequence[str]) -> Tree:
    """Return a tree without one key, and without the options of the plugin that it names."""
    head, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key not in (head, f"{head}_options")}
    return tree | {head: without(tree[head], rest)} if head in tree else tree
