"""Default settings that an algorithm declares for its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ssl_toolkit import registry
from ssl_toolkit.config.merging import Tree
from ssl_toolkit.config.settings import Settings, flatten
from ssl_toolkit.errors import PluginError

ALLOWED = ("augment", "ema", "lr", "optimizer", "sampler", "schedule")
"""Settings that an algorithm may declare: how to train, but not the data, length or device."""


def run_defaults(algo: str) -> Tree:
    """Return the `Algorithm.run_defaults` of an algorithm as plain types.

    Args:
        algo: name of the algorithm.

    Raises:
        PluginError: it declares another setting or an invalid value.
    """
    declared = getattr(registry.load("algorithms", algo), "run_defaults", {})
    return check_run_defaults(declared, f"run_defaults of algorithm {algo!r}")


def check_run_defaults(declared: object, where: str) -> Tree:
    """Return run defaults as plain types.

    Args:
        declared: value of `Algorithm.run_defaults`.
        where: source to name in the error.

    Raises:
        PluginError: they contain another setting or an invalid value.
    """
    if not isinstance(declared, Mapping):
        raise PluginError(f"{where}: must be a map of settings (given {declared!r})")
    if others := sorted(declared.keys() - {*ALLOWED}):
        raise PluginError(f"{where}: {others[0]}: must be one of {', '.join(ALLOWED)}")
    try:
        settings = Settings.model_validate(dict(declared))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise PluginError(f"{where}: {key}: {first['msg']}") from error
    if settings.augment.flip != "auto":
        raise PluginError(f"{where}: augment.flip: belongs to the data set; leave it out")
    return settings.model_dump(mode="json", exclude_unset=True)


def without_unused_options(declared: Tree, tree: Tree) -> Tree:
    """Return run defaults without the options of augmenters that the user replaces.

    Args:
        declared: result of `run_defaults`.
        tree: settings of the user.
    """
    augment, replaced = dict(declared.get("augment", {})), tree.get("augment") or {}
    for name in ("weak", "strong"):
        if name in replaced and replaced[name] != augment.get(name):
            augment.pop(f"{name}_options", None)
    return declared | ({"augment": augment} if augment else {})


def applied_run_defaults(algo: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run defaults in effect in a configuration, by dotted key.

    Args:
        algo: name of the algorithm.
        tree: validated configuration in plain types.
    """
    values = dict(flatten(tree))
    return {
        key: value
        for key, value in flatten(run_defaults(algo))
        if key in values and values[key] == value
    }
