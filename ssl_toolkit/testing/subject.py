"""The plugin that is checked."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ssl_toolkit import registry
from ssl_toolkit.config.options import Options
from ssl_toolkit.data.cache.image_files import open_files
from ssl_toolkit.engine.devices import choose_device
from ssl_toolkit.errors import DataError, PluginError
from ssl_toolkit.interfaces import (
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
    for kind in (Algorithm, Augmenter, Backbone, Dataset, Launcher, Logger)
}
"""The interface of each kind."""


@dataclass(frozen=True)
class Subject:
    """A plugin and how to make it."""

    kind: str
    """Singular: ``algorithm``."""
    plugin: Any
    name: str
    """Registered, or that of the class."""
    config: Options | None = None
    """Options in place of the defaults."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    root: Path | None = None
    """Folder with the files of a data set."""

    @property
    def contract(self) -> str:
        """Whose rules it has to keep: its kind's, or ``feature_algorithm``'s."""
        fitted = self.kind == "algorithm" and issubclass(self.plugin, FeatureAlgorithm)
        return "feature_algorithm" if fitted else self.kind

    def options(self, **changes: Any) -> Options:
        """The options to check with, some of them changed; validated."""
        config = self.plugin.Config() if self.config is None else self.config
        made: Options = type(config)(**{**config.model_dump(), **changes}) if changes else config
        return made

    @cached_property
    def table(self) -> ImageTable:
        """What a data set holds, loaded once."""
        return open_files(self.plugin().load(self.root))

    def prepare(self) -> None:
        """Tell what the user can put right before any rule is checked.

        Raises:
            DataError: the files of a data set are missing.
            PluginError: a logger needs a package that isn't installed, or timm has no such
                backbone.
        """
        if self.kind == "logger":
            for package in self.plugin.packages:
                # What is no name of a module is a fault of the plugin, which a rule tells.
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
                return  # a fault of the plugin, which the rules will tell


def find_subject(
    plugin: type | str,
    kind: str | None = None,
    *,
    config: Options | None = None,
    device: str = "cpu",
    root: Path | None = None,
) -> Subject:
    """The plugin that a class or a name means.

    Args:
        plugin: a class, or a name of the registry (or of timm, for backbones).
        kind: of plugin; None for that of the class, or the only one that has the name.
        config: options to check with; None for the defaults.
        device: to check on, as ``--device`` takes it.
        root: folder with the files of a data set.

    Raises:
        PluginError: the name is unknown or ambiguous, or the class can't be made.
        ModelError: the device isn't there.
    """
    name = plugin if isinstance(plugin, str) else ""
    kind = kind or (_only_kind(name) if name else getattr(plugin, "plugin_kind", "")[:-1])
    if kind not in INTERFACES:
        raise PluginError(f"{plugin!r} is no plugin; derive it from one of {_words(INTERFACES)}")
    if not isinstance(plugin, str):
        found: Any = plugin
        name = _registered_name(plugin, f"{kind}s") or plugin.__name__
    elif kind == "backbone":
        found, name = find_backbone(plugin)
    else:
        found = registry.load(f"{kind}s", plugin)
    interface = INTERFACES[kind]
    if not issubclass(found, interface):
        raise PluginError(f"{found!r} is not a subclass of ssl_toolkit.{interface.__name__}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PluginError(f"{kind} {name!r}: {found.__name__} does not implement {missing}")
    expected = getattr(found, "Config", Options)
    if config is not None and not isinstance(config, expected):
        raise PluginError(f"{kind} {name!r}: config is no {expected.__qualname__}: {config!r}")
    return Subject(kind, found, name, config, choose_device(device), root)


def _only_kind(name: str) -> str:
    kinds = [kind for kind in INTERFACES if registry.has(f"{kind}s", name)]
    if len(kinds) > 1:
        raise PluginError(f"{name!r} is the name of {_words(kinds)}; say which with --kind")
    if not kinds:
        names = {entry.name for group in registry.GROUPS for entry in registry.entries(group)}
        raise PluginError(
            f"nothing registered is called {name!r}{registry.did_you_mean(name, names)}; "
            "`ssl-toolkit list` shows all names, and those of timm need --kind backbone"
        )
    return kinds[0]


def _registered_name(plugin: type, group: str) -> str:
    """The first name under which a class is registered; empty for none."""
    value = f"{plugin.__module__}:{plugin.__qualname__}"
    entries = registry.entries(group)
    named = [e.name for e in entries if e.target is plugin or e.value == value]
    if not named and not plugin.__module__.startswith("ssl_toolkit."):
        # An entry point may name the class where its package exports it.
        named = [
            e.name
            for e in entries
            if e.value.split(":")[0] == plugin.__module__.partition(".")[0]
            and registry.attempt(e)[0] is plugin
        ]
    return named[0] if named else ""


def _words(kinds: Any) -> str:
    return " and ".join(", ".join(f"{kind}s" for kind in kinds).rsplit(", ", 1))
