"""Short forms of keys in sections: flags, and scalars in place of a section."""

from __future__ import annotations

from ssl_toolkit.config.merging import Tree, deep, nested
from ssl_toolkit.config.options import declaration_of, fields_of
from ssl_toolkit.config.settings import Settings

SHORTHANDS: dict[str, tuple[str, ...]] = {
    name: field.default.shorthand
    for name, field in Settings.model_fields.items()
    if hasattr(field.default, "shorthand")
}
"""The fields that a scalar in place of a section sets, by section."""

SECTION_FLAGS = {
    key.replace(".", "_"): key
    for key, field in fields_of(Settings)
    if "." in key and declaration_of(field).flag
}
"""The dotted keys of settings in sections that have a flag, by the name of the flag."""


def expanded(tree: Tree) -> tuple[Tree, set[tuple[str, ...]]]:
    """Return a tree with short forms replaced, and the paths that a scalar sets.

    >>> expanded({"imbalance": 50, "imbalance_pool": 10})
    ({'imbalance': {'labels': 50, 'pool': 10}}, {('imbalance', 'labels')})
    """
    tree, by_scalar = dict(tree), set[tuple[str, ...]]()
    for name, fields in SHORTHANDS.items():
        if name in tree and not isinstance(tree[name], dict):
            tree[name] = dict.fromkeys(fields, tree[name])
            by_scalar |= {(name, field) for field in fields}
    for flag, key in SECTION_FLAGS.items():
        if flag in tree:
            tree = deep(tree, nested(key, tree.pop(flag)))
            by_scalar.discard(tuple(key.split(".")))
    return tree, by_scalar
