"""Merge files, flags and ``--set`` into one validated configuration; report all faults at once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from ssl_toolkit import registry
from ssl_toolkit.config import yaml
from ssl_toolkit.config.defaults import AUTO, FINE_TUNING
from ssl_toolkit.config.faults import FLAGS, Faults, Path_
from ssl_toolkit.config.merging import Tree, deep, nested, paths
from ssl_toolkit.config.options import Options
from ssl_toolkit.config.plugin_names import section_of
from ssl_toolkit.config.pretrained import pretrained_defaults, with_transfer_recipe
from ssl_toolkit.config.released_code import WHOLE_NETWORK
from ssl_toolkit.config.run_defaults import (
    applied_run_defaults,
    declared_settings,
    profile_options,
    stated_profiles,
    without_unused_options,
)
from ssl_toolkit.config.settings import NOT_COMPARED, ResolvedSettings, Settings
from ssl_toolkit.config.shorthands import expanded
from ssl_toolkit.errors import ConfigError, PluginError
from ssl_toolkit.recipes import find_recipe
from ssl_toolkit.recipes.apply import automatic_recipe, scaled, settings_under


@dataclass(frozen=True)
class Layer:
    """One source of settings."""

    origin: str
    """A file, or ``command line``: how messages name it."""
    tree: Tree

    def only(self, keys: Collection[str]) -> Layer:
        """Return the layer with these keys alone."""
        return Layer(self.origin, {k: v for k, v in self.tree.items() if k in keys})

    def without(self, keys: Collection[str]) -> Layer:
        """Return the layer without these keys."""
        return self.only(self.tree.keys() - keys)


Chosen = TypeVar("Chosen", bound=Settings, covariant=True, default=Settings)


@dataclass(frozen=True)
class RunConfig(Generic[Chosen]):
    """A validated configuration; a `ResolvedConfig` once no setting is open."""

    settings: Chosen
    algorithm: Options
    weak: Options
    strong: Options

    @property
    def section(self) -> str:
        """The key of the algorithm's own section."""
        return section_of(self.settings.algo)

    def with_settings(self, **values: Any) -> Self:
        """Return the configuration with other values of some settings, which are not validated."""
        return replace(self, settings=self.settings.model_copy(update=values))

    def tree(self) -> Tree:
        """Plain types; read as a ``--config`` file they give this configuration back."""
        tree = self.settings.model_dump(mode="json")
        tree["augment"]["weak_options"] = self.weak.model_dump(mode="json")
        tree["augment"]["strong_options"] = self.strong.model_dump(mode="json")
        tree[self.section] = self.algorithm.model_dump(mode="json")
        return tree

    @property
    def declaring(self) -> str:
        """The algorithm that declares `run_defaults`, and its profile, for messages."""
        profile = self.settings.profile
        return self.settings.algo + ("" if profile == "paper" else f" --profile {profile}")

    def run_defaults(self) -> dict[str, Any]:
        """Return the settings in effect that the algorithm declares, by dotted key.

        They are those of its `run_defaults`, and of its profile.
        """
        algo = self.settings.algo
        return {} if algo == AUTO else applied_run_defaults(algo, self.tree())

    def fingerprint(self) -> str:
        """Hash of what a comparison holds equal: all but the algorithm's section and the seed."""
        return fingerprint_of(self.tree())


ResolvedConfig = RunConfig[ResolvedSettings]


def filled(config: RunConfig, values: Tree, origin: str = "") -> ResolvedConfig:
    """Return a configuration with values for the settings that it leaves open.

    Args:
        config: validated.
        values: of settings by name; they win over those of `config`.
        origin: names the configuration in the error.

    Raises:
        ConfigError: a setting that training needs is still open.
    """
    settings = dict(config.settings) | values
    if open_ := [name for name in ResolvedSettings.__annotations__ if settings[name] is None]:
        raise ConfigError(f"{origin}: {open_[0]}: must not be null in a resolved configuration")
    keys = config.settings.model_fields_set | values.keys()
    return RunConfig(
        ResolvedSettings.model_construct(keys, **settings),
        config.algorithm,
        config.weak,
        config.strong,
    )


def fingerprint_of(tree: Mapping[str, Any]) -> str:
    """`RunConfig.fingerprint` of the tree of a resolved configuration; needs no plugin."""
    left_out = {*NOT_COMPARED, section_of(str(tree["algo"]))}
    shared = {key: value for key, value in tree.items() if key not in left_out}
    text = json.dumps(shared, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain_tree(keys: Mapping[str, Any]) -> Tree:
    """Return keys that are set in Python, with paths as text."""
    return {key: str(v) if isinstance(v, os.PathLike) else v for key, v in keys.items()}


def load_config(
    files: Sequence[Path] = (), flags: Mapping[str, Any] | None = None, sets: Sequence[str] = ()
) -> RunConfig:
    """Layer: defaults < profile < run defaults < recipe < files < flags < ``--set``; validate.

    Args:
        files: YAML files; later ones win.
        flags: top-level keys; None where the user gave none.
        sets: ``key.path=value``, the value as YAML.

    Raises:
        ConfigError: every fault found, each with its source, key, value and a near name.
        PluginError: the algorithm or an augmenter is unknown or broken (when nothing else is
            wrong).
    """
    return validate(with_automatic_recipe(read_layers(files, flags or {}, sets)))


def read_layers(
    files: Sequence[Path], flags: Mapping[str, Any], sets: Sequence[str]
) -> list[Layer]:
    """Return the layers of files, of the flags that the user set, and of ``--set``."""
    layers = [Layer(str(path), yaml.read(path)) for path in files]
    layers.append(Layer(FLAGS, {key: value for key, value in flags.items() if value is not None}))
    return layers + [parse_set(text) for text in sets]


def with_automatic_recipe(layers: Sequence[Layer]) -> list[Layer]:
    """Return layers with the recipe that their settings choose, unless they set or exclude one."""
    tree, _ = merge(layers)
    recipe = None if "recipe" in tree else automatic_recipe(tree)
    return [*layers, Layer(recipe.origin, {"recipe": recipe.id})] if recipe else [*layers]


def check_options(model: type[Options], given: Tree, section: str) -> Options:
    """Return the options of a plugin that is not part of the configuration of a run.

    Args:
        model: its ``Config``.
        given: what the user set.
        section: the key under which it was set.

    Raises:
        ConfigError: every fault found.
    """
    faults = Faults({}, section)
    options = faults.validate(model, given, (section,))
    faults.stop()
    assert options is not None
    return options


def validate(layers: Sequence[Layer]) -> RunConfig:
    """Merge layers, later ones winning, and validate the whole.

    Args:
        layers: trees of keys with their origins.

    Raises:
        UserError: lists every fault, as `load_config` does.
    """
    row = _last(layers, "recipe")
    if row not in (None, "none"):
        recipe = find_recipe(str(row))
        layers = [Layer(recipe.origin, settings_under(recipe, merge(layers)[0])), *layers]
    algo = str(_last(layers, "algo") or Settings.model_fields["algo"].default)
    section = section_of(algo)
    tree, origins = merge([_without_alias(layer, section) for layer in layers])
    faults = Faults(origins, section)

    if section in Settings.model_fields:
        entry = registry.find("algorithms", algo)
        raise PluginError(
            f"algorithm {section!r} of {entry.distribution} can't be used: its name is a key of "
            "every configuration"
        )
    section_tree = _section(tree, section, faults)
    others = {entry.name for entry in registry.entries("algorithms")}
    others -= {section, *Settings.model_fields}
    for name in sorted(others & tree.keys()):
        options = tree.pop(name)
        for key in options if isinstance(options, dict) and options else [None]:
            path = (name, key) if key else (name,)
            faults.add(path, f"is an option of {name!r}, but this run uses {algo!r}; leave it out")

    settings = faults.validate(Settings, tree)
    if settings is None and not section_tree:
        raise ConfigError(faults.messages)  # early: reporting these needs no plugin, so no torch
    under = {} if settings is None else pretrained_defaults(settings)
    pretrained, profile = bool(under), "paper" if settings is None else settings.profile
    algorithm = (
        faults.validate(Options, section_tree, (section,))
        if algo == AUTO
        else _plugin_options(
            "algorithms", algo, section_tree, (section,), faults, profile, pretrained=pretrained
        )
    )
    if settings is None:
        raise ConfigError(faults.messages)
    stated = {} if algo == AUTO or algorithm is None else declared_settings(algo, settings.profile)
    if settings.profile != "paper":
        under = WHOLE_NETWORK
    if stated or under:
        stated = without_unused_options(stated, tree)
        settings = _with_defaults(deep(stated, under), settings, tree)
    settings = with_transfer_recipe(settings, trained=under is FINE_TUNING)
    augment = settings.augment
    weak, strong = (
        _plugin_options("augmenters", name, values, ("augment", key), faults, pretrained=pretrained)
        for name, values, key in (
            (augment.weak, augment.weak_options, "weak_options"),
            (augment.strong, augment.strong_options, "strong_options"),
        )
    )
    if settings.scale != 1 and settings.recipe is None:
        faults.add(("scale",), "shortens a recipe; add --recipe ROW, or set --steps")
    faults.stop()
    assert algorithm is not None
    assert weak is not None
    assert strong is not None
    if settings.scale != 1:
        unscaled = {path for path, origin in origins.items() if origin != layers[0].origin}
        settings = scaled(settings, settings.scale, unscaled)
        algorithm = scaled(algorithm, settings.scale, unscaled, (section,))
    return RunConfig(settings, algorithm, weak, strong)


def _last(layers: Sequence[Layer], key: str) -> Any:
    """Return the value of a top-level key that wins; None if no layer sets it."""
    return next((layer.tree[key] for layer in reversed(layers) if layer.tree.get(key)), None)


def _with_defaults(under: Tree, settings: Settings, tree: Tree) -> Settings:
    """Return settings with other defaults; only what the user set counts as set."""
    filled_in = Settings.model_validate(deep(under, tree))
    return filled_in.model_construct(_fields_set=settings.model_fields_set, **dict(filled_in))


def _plugin_options(
    group: str,
    name: str,
    values: Any,
    prefix: Path_,
    faults: Faults,
    profile: str = "paper",
    *,
    pretrained: bool,
) -> Options | None:
    """Return the options of a plugin: what the user set, over those of the profile."""
    try:
        plugin = registry.load(group, name)
    except PluginError as error:
        faults.plugin_messages += error.messages
        return None
    if not isinstance(values, dict):
        faults.add(prefix, f"must be a map of options (given {values!r})")
        return None
    config: type[Options] = plugin.Config
    if profile not in (profiles := ["paper", *stated_profiles(plugin)]):
        known = " or ".join(profiles)
        faults.add(("profile",), f"must be {known} for algorithm {name!r} (given {profile!r})")
    stated = config.for_pretrained if pretrained else profile_options(plugin, profile)
    return faults.validate(config, deep(stated, values), prefix)


def _section(tree: Tree, key: str, faults: Faults) -> Tree:
    section = tree.pop(key, None)
    if section is None:
        return {}
    if not isinstance(section, dict):
        faults.add((key,), f"must be a map of options (given {section!r})")
        return {}
    return section


def parse_set(text: str) -> Layer:
    """Parse one ``key.path=value``; the value is YAML.

    Raises:
        ConfigError: it isn't of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {text}: write --set key=value or --set section.key=value")
    origin = f"--set {text}"
    if not value.strip():
        raise ConfigError(f"{origin}: the value is missing; write --set {key}=VALUE")
    return Layer(origin, nested(key, yaml.parse(value, origin)))


def _without_alias(layer: Layer, section: str) -> Layer:
    """The layer with ``algorithm`` read as the section of the algorithm that runs."""
    alias = layer.tree.get("algorithm")
    if alias is None:
        return layer
    return Layer(layer.origin, deep({section: alias}, layer.without({"algorithm"}).tree))


def merge(layers: Sequence[Layer]) -> tuple[Tree, dict[Path_, str]]:
    """Merge layers, later ones winning; return the tree and the origin of each key.

    Raises:
        ConfigError: nested too deep.
    """
    tree: Tree = {}
    origins: dict[Path_, str] = {}
    for layer in layers:
        try:
            keys, by_scalar = expanded(layer.tree)
            tree = deep(tree, keys)
            origins |= dict.fromkeys(paths(keys), layer.origin)
            for path in by_scalar:  # a message then names the section, as the user wrote it
                del origins[path]
        except RecursionError as error:
            raise ConfigError(f"{layer.origin}: nested too deep") from error
    return tree, origins
