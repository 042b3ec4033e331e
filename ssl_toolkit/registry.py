"""Names to plugins: entry points of installed distributions, and explicit decorators.

Listing reads metadata only. A plugin is imported when it is asked for, behind a fence: whatever
its import does, the worst outcome is a `PluginError` that names the distribution and the reason.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import importlib_metadata

from ssl_toolkit.api import api_mismatch, signature_mismatch, this_api
from ssl_toolkit.config.defaults import AUTO
from ssl_toolkit.config.plugin_names import bare, class_of, kind_of, parts_of
from ssl_toolkit.errors import PluginError, one_line
from ssl_toolkit.text import display_path

GROUPS = ("algorithms", "addons", "augmenters", "backbones", "datasets", "loggers", "launchers")
WEIGHTS = "weights"
"""Group of functions that return the weights of a timm model, by the model's name."""
BUILT_IN = "ssl-toolkit"
NOTEBOOK = "(this session)"

T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Entry:
    """One name that one distribution offers in one group."""

    group: str
    name: str
    distribution: str
    version: str
    value: str
    """Path to the object, ``module:attribute``."""
    target: type | None = None
    """The object itself, for what a decorator registered."""

    @property
    def built_in(self) -> bool:
        """True if ssl-toolkit itself offers it."""
        return self.distribution == BUILT_IN


_registered: dict[tuple[str, str], Entry] = {}


def entries(group: str) -> list[Entry]:
    """Return every entry of a group, sorted by name, built-ins first; imports no plugin.

    A distribution that is found twice (an editable install beside a second path) counts once,
    and one whose metadata can't be read is passed over, as is a name with ``+``, which would mean
    an algorithm with an add-on.
    """
    by_owner: dict[tuple[str, str], Entry] = {}
    for name, version, points in _declared():
        for point in points.select(group=f"ssl_toolkit.{group}"):
            if "+" in point.name:
                continue
            by_owner[name, point.name] = Entry(group, point.name, name, version, point.value)
    by_owner |= {(NOTEBOOK, name): entry for (g, name), entry in _registered.items() if g == group}
    return sorted(by_owner.values(), key=lambda e: (e.name, not e.built_in, e.distribution))


def unknown_groups() -> list[str]:
    """Return a line for each group of entry points for this package that is never read."""
    known = [f"ssl_toolkit.{group}" for group in (*GROUPS, WEIGHTS)]
    lines = []
    for name, _, points in _declared():
        groups = {point.group for point in points if _OURS.match(point.group)}
        for group in sorted(groups.difference(known)):
            last = group.rpartition(".")[2]
            near = [f"ssl_toolkit.{n}" for n in near_names(last, GROUPS, most=1)]
            way_out = f" (did you mean {near[0]!r}?)" if near else f"; known: {', '.join(known)}"
            lines.append(f"{name} declares entry points in the unknown group {group!r}{way_out}")
    return lines


_OURS = re.compile(r"^\[?\s*ssl[-_.]?toolkit(?=[.\s\]]|$)", re.IGNORECASE | re.MULTILINE)
"""Start of a group that is meant for this package, its name alone or as the head of a section."""


def _declared() -> tuple[tuple[str, str, Any], ...]:
    """Return name, version and entry points of each distribution that may offer plugins."""
    return _declared_in(tuple((path, _modified(path)) for path in sys.path))


def _modified(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


@cache
def _declared_in(paths: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str, Any], ...]:
    """Return the distributions in folders; those times change with an installation."""
    declared: dict[str, tuple[str, str, Any]] = {}
    for distribution in importlib_metadata.distributions(path=[path for path, _ in paths]):
        try:
            # The raw text first: parsing the metadata of every distribution takes 0.1 s.
            if _OURS.search(distribution.read_text("entry_points.txt") or ""):
                name = _normalized(distribution.metadata["Name"])
                facts = name, distribution.version, distribution.entry_points
                declared.setdefault(name, facts)
        except Exception:  # foreign metadata may be damaged in any way
            continue
    return tuple(declared.values())


def clashes(group: str) -> dict[str, list[Entry]]:
    """Return the names of a group that more than one distribution offers."""
    by_name: dict[str, list[Entry]] = {}
    for entry in entries(group):
        by_name.setdefault(entry.name, []).append(entry)
    return {name: found for name, found in by_name.items() if len(found) > 1}


def find(group: str, name: str) -> Entry:
    """Return the entry that a name means; ``distribution:name`` picks one distribution outright.

    ``fixmatch+abc`` is one entry, of the distributions of the algorithm and of its add-ons.

    Raises:
        PluginError: Nothing has that name (near matches are named), or two foreign distributions
            claim it. A built-in wins over foreign claims.
    """
    if len(parts := _parts(group, name)) > 1:
        return _joined([find(*part) for part in parts])
    known = entries(group)
    matches = [entry for entry in known if _means(name, entry)]
    kind = kind_of(group)
    if not matches:
        names = {entry.name for entry in known}
        raise PluginError(
            f"unknown {kind} {name!r}{did_you_mean(name.rpartition(':')[2], names)}; "
            f"known: {', '.join(sorted(names)) or 'none'}"
        )
    if len(matches) > 1 and not matches[0].built_in:
        claims = " and ".join(entry.distribution for entry in matches)
        picks = " or ".join(f"{entry.distribution}:{entry.name}" for entry in matches)
        raise PluginError(f"{kind} {name!r} is offered by {claims}; write {picks}")
    return matches[0]


def _parts(group: str, name: str) -> list[tuple[str, str]]:
    """Return the parts of a name; refuse add-ons of ``auto``, which is no algorithm."""
    parts = parts_of(group, name)
    if len(parts) > 1 and parts[0][1] == AUTO:
        raise PluginError(
            f"--algo {name}: {AUTO} chooses among algorithms without add-ons; name the "
            f"algorithm, such as --algo fixmatch{name.removeprefix(AUTO)}"
        )
    return parts


def _joined(found: list[Entry]) -> Entry:
    """Return the entry of an algorithm with add-ons; the distributions are those to install."""
    others = {entry.distribution: entry.version for entry in found if not entry.built_in}
    return Entry(
        found[0].group,
        "+".join(entry.name for entry in found),
        " ".join(others) or found[0].distribution,
        " ".join(others.values()) or found[0].version,
        " + ".join(entry.value for entry in found),
    )


def has(group: str, name: str) -> bool:
    """Return True if `find` knows the name (a clash counts as known)."""
    return all(
        any(_means(part, entry) for entry in entries(kind)) for kind, part in parts_of(group, name)
    )


def _means(name: str, entry: Entry) -> bool:
    distribution = name.removesuffix(f":{entry.name}")
    return name == entry.name or (
        distribution != name and _normalized(distribution) == entry.distribution
    )


def load(group: str, name: str) -> Any:
    """Return the plugin class that a name means; for ``fixmatch+abc``, a generated one.

    Raises:
        PluginError: As `find`, or the plugin is broken or made for another API; says its
            distribution and the reason; or an add-on doesn't fit the algorithm.
    """
    if len(parts := _parts(group, name)) > 1:
        plugin, *addons = (load(*part) for part in parts)
        for addon, (_, full_name) in zip(addons, parts[1:], strict=True):
            plugin = addon.applied_to(plugin, bare(full_name))
        return plugin
    entry = find(group, name)
    plugin, reason = attempt(entry)
    if reason:
        kind = kind_of(group)
        owner = f"{entry.distribution} {entry.version}".rstrip()
        raise PluginError(f"{kind} {entry.name!r} of {owner} can't be used: {reason}")
    return plugin


def attempt(entry: Entry) -> tuple[type | None, str]:
    """Import what an entry points to.

    Returns:
        The class and an empty reason, or None and the reason in one line.
    """
    if entry.target is not None:
        return entry.target, ""
    if "+" in entry.name:
        try:
            return load(entry.group, entry.name), ""
        except PluginError as error:
            return None, one_line(error.messages[0])
    point = importlib_metadata.EntryPoint(entry.name, entry.value, f"ssl_toolkit.{entry.group}")
    try:
        plugin = point.load()
        reason = _unusable(entry.group, plugin)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import may even call sys.exit, a class refuse its repr
        reason = _described(error)
        if isinstance(error, ImportError) and str(error.name).split(".")[0] == "ssl_toolkit":
            reason = f"made for another plugin API, {this_api()}: {reason}"
        reason += _location(error, entry.value.partition(":")[0])
    return (None, one_line(reason)) if reason else (plugin, "")


def require_packages(group: str, name: str) -> None:
    """Refuse a plugin whose ``packages`` are not installed, without importing them.

    Raises:
        PluginError: As `load`, or a package is missing; says how to install it.
    """
    entry, plugin = find(group, name), load(group, name)
    for package in plugin.packages:
        if importlib.util.find_spec(package) is None:
            install = f"'ssl-toolkit[{entry.name}]'" if entry.built_in else package
            raise PluginError(
                f"{kind_of(group)} {entry.name!r} needs the package {package}, which is "
                f"not installed: pip install {install}"
            )


def _unusable(group: str, plugin: object) -> str:
    # Judged by what the interfaces and Options declare, not by importing them (and torch) here.
    if reason := api_mismatch(plugin):
        return reason
    if not isinstance(plugin, type) or getattr(plugin, "plugin_kind", None) != group:
        return f"{plugin!r} is not a subclass of ssl_toolkit.{class_of(group)}"
    config = getattr(plugin, "Config", None)
    if config is not None and not hasattr(config, "for_pretrained"):
        return f"{plugin!r}: its Config is not a subclass of ssl_toolkit.Options"
    if inspect.isabstract(plugin):
        missing = ", ".join(sorted(getattr(plugin, "__abstractmethods__", ())))
        return f"{plugin.__name__} is abstract, it does not implement {missing}"
    return signature_mismatch(plugin)


class _Registrar(Protocol):
    def __call__(self, name: str) -> Callable[[T], T]:
        """Return a class decorator."""


def _registrar(group: str) -> _Registrar:
    def register(name: str) -> Callable[[T], T]:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise PluginError(f"name {name!r}: use lower-case letters, digits and underscores")
        if any(entry.name == name and entry.built_in for entry in entries(group)):
            raise PluginError(f"{kind_of(group)} {name!r} is built in; choose another name")

        def decorate(plugin: T) -> T:
            if reason := _unusable(group, plugin):
                raise PluginError(reason)
            value = f"{plugin.__module__}:{plugin.__qualname__}"
            _registered[group, name] = Entry(group, name, NOTEBOOK, "", value, plugin)
            return plugin

        return decorate

    register.__doc__ = f"""Class decorator: register one of the {group} for this process.

    For notebooks and scripts; a package declares the entry point ``ssl_toolkit.{group}``.
    Registering a name again replaces what this process registered before.

    Raises:
        PluginError: the name is malformed or built in, or the class is of the wrong kind.
    """
    return register


register_addon: _Registrar = _registrar("addons")
register_algorithm: _Registrar = _registrar("algorithms")
register_augmenter: _Registrar = _registrar("augmenters")
register_backbone: _Registrar = _registrar("backbones")
register_dataset: _Registrar = _registrar("datasets")
register_launcher: _Registrar = _registrar("launchers")
register_logger: _Registrar = _registrar("loggers")


def near_names(word: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return known names like a word, the nearest first; case, dashes and underscores don't count.

    Where a name differs in nothing else, it is the only answer.

    Args:
        word: As it was written.
        known: Names that are right.
        most: Names at most.
        cutoff: Least likeness, as for `difflib.get_close_matches`.
    """
    plain: dict[str, list[str]] = {}
    for name in sorted(known):
        plain.setdefault(_bare(name), []).append(name)
    if same := plain.get(_bare(word)):
        return same[:most]
    near = difflib.get_close_matches(_bare(word), plain, n=most, cutoff=cutoff)
    return [name for form in near for name in plain[form]][:most]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x' or 'y'?)`` for similar names, an empty text if there are none.

    Args:
        word: The unknown name.
        known: The valid names.
    """
    *others, last = [repr(name) for name in near_names(word, known)] or [""]
    listed = f"{', '.join(others)} or {last}" if others else last
    return f" (did you mean {listed}?)" if listed else ""


def _bare(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _location(error: BaseException, module: str) -> str:
    """Return the innermost line of the module's package in the traceback, in parentheses."""
    package = module.partition(".")[0]
    lines = [
        f" ({display_path(Path(frame.f_code.co_filename))}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package
    ]
    return lines[-1] if lines else ""


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its text is made by code of the plugin
        return f"{type(error).__name__}, which can't say why"
