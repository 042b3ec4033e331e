"""Settings that an algorithm declares: defaults of its runs, and those of its profiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from ssl_toolkit import registry
from ssl_toolkit.config.merging import Tree, deep
from ssl_toolkit.config.settings import Profile, Settings, flatten
from ssl_toolkit.errors import PluginError

ALLOWED = ("augment", "ema", "lr", "optimizer", "sampler", "schedule")
"""Settings that an algorithm may declare: how to train, but not the data, length or device."""


def declared_settings(algo: str, profile: str) -> Tree:
    """Return the profile and the run defaults of an algorithm as plain types, without its options.

    Args:
        algo: name of the algorithm.
        profile: ``paper``, or one that the algorithm states.

    Raises:
        PluginError: it declares another setting or an invalid value.
    """
    plugin = registry.load("algorithms", algo)
    where = f"of algorithm {algo!r}"
    stated = check_run_defaults(getattr(plugin, "run_defaults", {}), f"run_defaults {where}")
    return deep(check_profiles(plugin, f"profiles {where}").get(profile, {}), stated)


def stated_profiles(plugin: type) -> Mapping[str, Mapping[str, Any]]:
    """Return `Algorithm.profiles`; empty for plugins of other kinds."""
    return getattr(plugin, "profiles", {})


def profile_options(plugin: type, profile: str) -> Tree:
    """Return the options of a plugin in a profile; empty if it states none."""
    return dict(stated_profiles(plugin).get(profile, {}).get("options", {}))


def check_profiles(plugin: type, where: str) -> dict[str, Tree]:
    """Return the settings of each profile of an algorithm as plain types, without its options.

    Args:
        plugin: class of the algorithm.
        where: source to name in the error.

    Raises:
        PluginError: a profile has an unknown name, another setting or an invalid value.
    """
    names = get_args(Profile)[1:]
    if others := sorted(stated_profiles(plugin).keys() - {*names}):
        raise PluginError(f"{where}: {others[0]}: must be {' or '.join(names)}")
    return {
        name: _plain(
            {key: value for key, value in stated.items() if key != "options"},
            (*ALLOWED, "labeled_in_pool"),
            f"{where}: {name}",
        )
        for name, stated in stated_profiles(plugin).items()
    }


def check_run_defaults(declared: object, where: str) -> Tree:
    """Return run defaults as plain types.

    Args:
        declared: value of `Algorithm.run_defaults`.
        where: source to name in the error.

    Raises:
        PluginError: they contain another setting or an invalid value.
    """
    tree = _plain(declared, ALLOWED, where)
    if "flip" in tree.get("augment", {}):
        raise PluginError(f"{where}: augment.flip: belongs to the data set; leave it out")
    return tree


def _plain(declared: object, allowed: Collection[str], where: str) -> Tree:
    """Validate declared settings, and return them as plain types."""
    if not isinstance(declared, Mapping):
        raise PluginError(f"{where}: must be a map of settings (given {declared!r})")
    if others := sorted(declared.keys() - {*allowed}):
        raise PluginError(f"{where}: {others[0]}: must be one of {', '.join(allowed)}")
    try:
        settings = Settings.model_validate(dict(declared))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise PluginError(f"{where}: {key}: {first['msg']}") from error
    return settings.model_dump(mode="json", exclude_unset=True)


def without_unused_options(declared: Tree, tree: Tree) -> Tree:
    """Return declared settings without the options of augmenters that the user replaces.

    Args:
        declared: result of `declared_settings`.
        tree: settings of the user.
    """
    augment, replaced = dict(declared.get("augment", {})), tree.get("augment") or {}
    for name in ("weak", "strong"):
        if name in replaced and replaced[name] != augment.get(name):
            augment.pop(f"{name}_options", None)
    return declared | ({"augment": augment} if augment else {})


def applied_run_defaults(algo: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared settings in effect in a configuration, by dotted key.

    Args:
        algo: name of the algorithm.
        tree: validated configuration in plain types.
    """
    values = dict(flatten(tree))
    return {
        key: value
        for key, value in flatten(declared_settings(algo, tree["profile"]))
        if key in values and values[key] == value
    }
