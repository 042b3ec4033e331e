"""From files, flags and ``--set`` to one validated configuration, with every fault told at once."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ssl_toolkit import registry
from ssl_toolkit.config import yaml
from ssl_toolkit.config.options import Options
from ssl_toolkit.config.settings import OTHER_NAMES, SHARED_REFERENCE, Settings
from ssl_toolkit.errors import ConfigError, PluginError

Tree = dict[str, Any]
Path_ = tuple[str, ...]

NOT_COMPARED = frozenset(
    {
        "algo",
        "seed",
        "output",
        "workers",
        "time_limit",
        "log_every",
        "save_every",
        "download",
        "root",
        "split",
    }
)
"""Settings that two rows of one table may differ in."""


@dataclass(frozen=True)
class Layer:
    """One source of settings."""

    origin: str
    """A file, or ``command line``: how messages name it."""
    tree: Tree


@dataclass(frozen=True)
class RunConfig:
    """A validated configuration."""

    settings: Settings
    algorithm: Options
    weak: Options
    strong: Options

    @property
    def section(self) -> str:
        """The key of the algorithm's own section."""
        return self.settings.algo.rpartition(":")[2]

    def tree(self) -> Tree:
        """Plain types; read as a ``--config`` file they give this configuration back."""
        tree = self.settings.model_dump(mode="json")
        tree["augment"]["weak_options"] = self.weak.model_dump(mode="json")
        tree["augment"]["strong_options"] = self.strong.model_dump(mode="json")
        tree[self.section] = self.algorithm.model_dump(mode="json")
        return tree

    def fingerprint(self) -> str:
        """Hash of what a comparison holds equal: all but the algorithm's section and the seed."""
        shared = {k: v for k, v in self.tree().items() if k not in {*NOT_COMPARED, self.section}}
        text = json.dumps(shared, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_config(
    files: Sequence[Path] = (), flags: Mapping[str, Any] | None = None, sets: Sequence[str] = ()
) -> RunConfig:
    """Layer and validate: defaults < profile < files in order < flags < ``--set``.

    Args:
        files: YAML files; later ones win.
        flags: top-level keys; None where the user gave none.
        sets: ``key.path=value``, the value as YAML.

    Raises:
        ConfigError: every fault found, each with its source, key, value and a near name.
        PluginError: the algorithm or an augmenter is unknown or broken (when nothing else is
            wrong).
    """
    layers = [Layer(str(path), yaml.read(path)) for path in files]
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    layers.append(Layer("command line", given))
    layers += [_parse_set(text) for text in sets]
    return validate(layers)


def validate(layers: Sequence[Layer]) -> RunConfig:
    """Merge layers, later ones winning, and validate the whole (see `load_config`)."""
    tree, origins = _merge(layers)
    algo = str(tree.get("algo") or Settings.model_fields["algo"].default)
    section = _bare(algo)
    reference = tree.get("profile") == "reference"
    faults = _Faults(origins, section)

    own = _section(tree, "algorithm", faults) | _section(tree, section, faults)
    others = {entry.name for entry in registry.entries("algorithms")} - {section}
    for name in sorted(others & tree.keys()):
        options = tree.pop(name)
        for key in options if isinstance(options, dict) and options else [None]:
            path = (name, key) if key else (name,)
            faults.add(path, f"is an option of {name!r}, but this run uses {algo!r}; leave it out")

    shared = _deep(SHARED_REFERENCE if reference else {}, tree)
    settings: Settings | None = faults.check(Settings, shared, ())
    if settings is None and not own:
        raise ConfigError(faults.messages)  # at once: telling these needs no plugin, so no torch
    algorithm = _plugin_options("algorithms", algo, own, (section,), reference, faults)
    if settings is None:
        raise ConfigError(faults.messages)
    settings = _with_transfer_recipe(settings)
    augment = settings.augment
    weak, strong = (
        _plugin_options("augmenters", name, given, ("augment", key), reference, faults)
        for name, given, key in (
            (augment.weak, augment.weak_options, "weak_options"),
            (augment.strong, augment.strong_options, "strong_options"),
        )
    )
    faults.stop()
    assert algorithm is not None
    assert weak is not None
    assert strong is not None
    return RunConfig(settings, algorithm, weak, strong)


def _with_transfer_recipe(settings: Settings) -> Settings:
    """Fill what is ``auto`` by whether the backbone is pre-trained."""
    augment, optimizer = settings.augment, settings.optimizer
    if augment.strong == "auto":
        strong = "fixed" if settings.pretrained and settings.data else "randaugment"
        augment = augment.model_copy(update={"strong": strong})
    if optimizer.feature_lr == "auto":
        feature_lr = 2e-5 if settings.pretrained else None
        optimizer = optimizer.model_copy(update={"feature_lr": feature_lr})
    return settings.model_copy(update={"augment": augment, "optimizer": optimizer})


class _Faults:
    """Collects faults with where each value came from."""

    def __init__(self, origins: Mapping[Path_, str], section: str) -> None:
        self.messages: list[str] = []
        self.plugin_messages: list[str] = []
        self._origins = origins
        self._section = section

    def add(self, path: Path_, message: str) -> None:
        origin = next(
            (self._origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._origins),
            "",
        )
        self.messages.append(f"{origin}: {'.'.join(path)}: {message}".removeprefix(": "))

    def unknown(self, path: Path_, siblings: Sequence[str]) -> None:
        self.add(path, f"unknown key{_suggest(path, siblings, self._section)}")

    def check(self, model: type[BaseModel], values: Any, prefix: Path_) -> Any:
        """An instance, or None after adding every fault."""
        try:
            return model.model_validate(values)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                path = prefix + tuple(str(part) for part in fault["loc"] if not _is_union_tag(part))
                if fault["type"] == "extra_forbidden":
                    self.unknown(path, _siblings(model, path[len(prefix) : -1]))
                else:
                    given = (
                        "" if isinstance(fault["input"], dict) else f" (given {fault['input']!r})"
                    )
                    self.add(path, fault["msg"][:1].lower() + fault["msg"][1:] + given)
            return None

    def stop(self) -> None:
        """Raise what was found."""
        messages = list(dict.fromkeys(self.messages))
        if messages:
            raise ConfigError(messages + self.plugin_messages)
        if self.plugin_messages:
            raise PluginError(self.plugin_messages)


def _plugin_options(
    group: str, name: str, given: Any, prefix: Path_, reference: bool, faults: _Faults
) -> Options | None:
    try:
        config: type[Options] = registry.load(group, name).Config
    except PluginError as error:
        faults.plugin_messages += error.messages
        return None
    if not isinstance(given, dict):
        faults.add(prefix, f"should be a map of options (given {given!r})")
        return None
    options: Options | None = faults.check(
        config, (config.reference if reference else {}) | given, prefix
    )
    return options


def _section(tree: Tree, key: str, faults: _Faults) -> Tree:
    section = tree.pop(key, None)
    if section is None:
        return {}
    if not isinstance(section, dict):
        faults.add((key,), f"should be a map of options (given {section!r})")
        return {}
    return section


def _parse_set(text: str) -> Layer:
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {text}: write --set key=value or --set section.key=value")
    origin = f"--set {text}"
    try:
        tree: Any = yaml.parse(value)
    except ConfigError as error:
        raise ConfigError([f"{origin}: {message}" for message in error.messages]) from error
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return Layer(origin, tree)


def _merge(layers: Sequence[Layer]) -> tuple[Tree, dict[Path_, str]]:
    tree: Tree = {}
    origins: dict[Path_, str] = {}
    for layer in layers:
        tree = _deep(tree, layer.tree)
        origins |= dict.fromkeys(_paths(layer.tree), layer.origin)
    return tree, origins


def _deep(under: Tree, over: Tree) -> Tree:
    """A new tree: maps are merged, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            value = _deep(below, value)
        merged[key] = value
    return merged


def _paths(tree: Tree, prefix: Path_ = ()) -> Iterator[Path_]:
    for key, value in tree.items():
        yield (*prefix, str(key))
        if isinstance(value, dict):
            yield from _paths(value, (*prefix, str(key)))


def _siblings(model: type[BaseModel], path: Path_) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        inner = getattr(field, "default", None)
        if not isinstance(inner, BaseModel):
            return []
        model = type(inner)
    return [*model.model_fields]


def _all_keys() -> list[str]:
    keys = []
    for name, field in Settings.model_fields.items():
        keys.append(name)
        if isinstance(field.default, BaseModel):
            keys += [f"{name}.{inner}" for inner in type(field.default).model_fields]
    return keys


def _suggest(path: Path_, siblings: Sequence[str], section: str) -> str:
    """A near name: beside the key, else what another tool's name means, else anywhere."""
    *above, last = path
    prefix = ".".join(above) + "." if above else ""
    anywhere = {key.rpartition(".")[2]: key for key in reversed(_all_keys())}
    if near := difflib.get_close_matches(last, siblings, n=1, cutoff=0.7):
        found = prefix + near[0]
    elif alias := difflib.get_close_matches(last, OTHER_NAMES, n=1, cutoff=0.8):
        ours = OTHER_NAMES[alias[0]]
        known = ours in anywhere.values()
        found = prefix + ours if ours in siblings else ours if known else f"{section}.{ours}"
    elif near := difflib.get_close_matches(last, anywhere, n=1, cutoff=0.7):
        found = anywhere[near[0]]
    elif above and siblings:
        return f"; known here: {', '.join(sorted(siblings))}"
    else:
        return "; `ssl-toolkit run --dry-run` shows all keys"
    return f", did you mean {found!r}?"


def _is_union_tag(part: Any) -> bool:
    # pydantic adds the branch of a union ("float", "literal['auto']") to a fault's location.
    branches = ("on", "off", "float", "int", "bool", "str", "constrained-float", "constrained-int")
    return str(part) in branches or "[" in str(part)


def _bare(name: str) -> str:
    return name.rpartition(":")[2]
