"""Find the plugin to check."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ssl_toolkit import registry
from ssl_toolkit.config.options import Options
from ssl_toolkit.data.readers.image_files import open_files
from ssl_toolkit.engine.devices import choose_device
from ssl_toolkit.errors import DataError, PluginError
from ssl_toolkit.interfaces import (
    AddOn,
    Algorithm,
    Augmenter,
    Backbone,
    Dataset,
    FeatureAlgorithm,
    ImageTable,
    Launcher,
    Logger,
)
from ssl_toolkit.models.factory import find_backbone

INTERFACES: dict[str, type] = {
    kind.plugin_kind.removesuffix("s"): kind
    for kind in (AddOn, Algorithm, Augmenter, Backbone, Dataset, Launcher, Logger)
}
"""The interface of each kind of plugin."""


BASE, ADDON = "fixmatch", "addon"
"""The algorithm to which add-ons are applied, and the name of their options."""


@dataclass(frozen=True)
class Subject:
    """A plugin to check, and its settings."""

    kind: str
    """Singular: ``algorithm``."""
    plugin: Any
    name: str
    """Registered name, or name of the class."""
    config: Options | None = None
    """Options to check with; the defaults if None."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    root: Path | None = None
    """Path to the files of a data set."""

    @property
    def contract(self) -> str:
        """Kind of rules that apply: `kind`, or ``feature_algorithm``."""
        return "feature_algorithm" if issubclass(self.plugin, FeatureAlgorithm) else self.kind

    def on_base(self) -> Subject:
        """Return an algorithm with the add-on to check."""
        base = registry.load("algorithms", BASE)
        plugin = self.plugin.applied_to(base, ADDON)
        config = None if self.config is None else plugin.Config(**{ADDON: self.config.model_dump()})
        return replace(self, kind="algorithm", plugin=plugin, config=config)

    def options(self, **changes: Any) -> Options:
        """Return the options to check with, after validated changes."""
        config: Options = self.plugin.Config() if self.config is None else self.config
        return type(config)(**{**config.model_dump(), **changes}) if changes else config

    @cached_property
    def table(self) -> ImageTable:
        """The table of a data set."""
        return open_files(self.plugin().load(self.root))

    def prepare(self) -> None:
        """Raise errors that the plugin does not cause, before any rule is checked.

        Raises:
            DataError: the files of a data set are not found.
            PluginError: a logger needs a package that is not installed, or the name is not one of
                timm's models.
        """
        if self.kind == "logger":
            for package in self.plugin.packages:
                # A rule reports names that are not valid.
                if package.isidentifier() and importlib.util.find_spec(package) is None:
                    raise PluginError(f"logger {self.name!r} needs the package {package}")
        if self.kind == "backbone":
            self.plugin.own_image_size(self.name)
        if self.kind == "dataset":
            try:
                self.table  # noqa: B018
            except DataError:
                raise
            except Exception:
                return  # reported by the rules


def find_subject(
    plugin: type | str,
    kind: str | None = None,
    *,
    config: Options | None = None,
    device: str = "cpu",
    root: Path | None = None,
) -> Subject:
    """Return the plugin with a class or name; arguments as for `check_plugin`.

    Raises:
        PluginError: the name is unknown or ambiguous, or the class is abstract.
        ModelError: the device is not available.
    """
    name = plugin if isinstance(plugin, str) else ""
    kind = kind or (_only_kind(name) if name else getattr(plugin, "plugin_kind", "")[:-1])
    if kind not in INTERFACES:
        interfaces = _join(interface.__name__ for interface in INTERFACES.values())
        raise PluginError(f"{plugin!r} is not a plugin; subclass one of {interfaces}")
    if not isinstance(plugin, str):
        target: Any = plugin
        name = _registered_name(plugin, f"{kind}s") or plugin.__name__
    elif kind == "backbone":
        target, name = find_backbone(plugin)
    else:
        target = registry.load(f"{kind}s", plugin)
    interface = INTERFACES[kind]
    if not issubclass(target, interface):
        raise PluginError(f"{target!r} is not a subclass of ssl_toolkit.{interface.__name__}")
    if inspect.isabstract(target):
        missing = ", ".join(sorted(target.__abstractmethods__))
        raise PluginError(f"{kind} {name!r}: {target.__name__} does not implement {missing}")
    expected = getattr(target, "Config", Options)
    if config is not None and not isinstance(config, expected):
        raise PluginError(f"{kind} {name!r}: config is {config!r}, not a {expected.__qualname__}")
    return Subject(kind, target, name, config, choose_device(device), root)


def _only_kind(name: str) -> str:
    kinds = [kind for kind in INTERFACES if registry.has(f"{kind}s", name)]
    if len(kinds) > 1:
        raise PluginError(f"{name!r} is ambiguous ({_join(kinds)}); choose one with --kind")
    if not kinds:
        names = {entry.name for group in registry.GROUPS for entry in registry.entries(group)}
        raise PluginError(
            f"unknown plugin {name!r}{registry.did_you_mean(name, names)}; `ssl-toolkit list` "
            "shows all names, and those of timm models need --kind backbone"
        )
    return kinds[0]


def _registered_name(plugin: type, group: str) -> str:
    """Return the first name under which a class is registered, or an empty text."""
    value = f"{plugin.__module__}:{plugin.__qualname__}"
    entries = registry.entries(group)
    names = [e.name for e in entries if e.target is plugin or e.value == value]
    if not names and not plugin.__module__.startswith("ssl_toolkit."):
        # An entry point may refer to the package that exports the class.
        names = [
            e.name
            for e in entries
            if e.value.split(":")[0] == plugin.__module__.partition(".")[0]
            and registry.attempt(e)[0] is plugin
        ]
    return names[0] if names else ""


def _join(names: Iterable[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
