"""Turn the members of a suite into comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.config.comparison import ALL, ComparisonConfig, load_comparison
from ssl_toolkit.config.merging import Tree, deep
from ssl_toolkit.config.plugin_names import section_of
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.suites.schema import ROOT, Suite
from ssl_toolkit.text import display_path

RATIO = "unlabeled_ratio"
MEMBERS = "members"
"""The subfolder with the comparisons of a suite."""


@dataclass(frozen=True)
class PlannedMember:
    """A member of a suite with its configuration."""

    name: str
    title: str
    comparison: ComparisonConfig
    missing: str
    """The data that it needs and how to get it, in one line; empty if it is there."""

    @property
    def folder(self) -> Path:
        """Path to the folder of its comparison."""
        return Path(str(self.comparison.settings.output))


def plan_members(
    suite: Suite, folder: Path, flags: Mapping[str, Any], sets: Sequence[str] = ()
) -> list[PlannedMember]:
    """Load the configurations of all members; no data is read.

    Args:
        suite: Suite.
        folder: Path to the output folder.
        flags: Keys of a comparison that say where it runs: launcher, threads, device.
        sets: ``launcher_options.KEY=VALUE``.

    Raises:
        ConfigError: A setting of the suite or of the command is invalid.
        PluginError: An algorithm is unknown or broken.
    """
    return [_plan(suite, name, folder, flags, sets) for name in suite.members]


def _plan(
    suite: Suite, name: str, folder: Path, flags: Mapping[str, Any], sets: Sequence[str]
) -> PlannedMember:
    member = suite.members[name]
    algos = suite.algos_of(name)
    settings = _used(deep(suite.settings, member.settings), algos)
    needed = dict.fromkeys(path.split("/")[1] for path in _paths(settings))
    if unknown := [one for one in needed if one not in suite.folders]:
        raise ConfigError(
            f"suite {suite.name}: members.{name}: {ROOT}{unknown[0]} is not among its folders"
        )
    root = Path(suite.data_root) if suite.data_root is not None else None
    tree = _at(settings, root or Path(ROOT)) | {
        "algos": algos,
        "seeds": suite.seeds_of(name),
        "baseline": suite.baseline,
        "name": f"{suite.name} {suite.version}: {name}",
        "output": str(folder / MEMBERS / name),
    }
    tree |= {key: value for key, value in flags.items() if value is not None}
    comparison = load_comparison(flags=tree, sets=sets)
    if suite.unlabeled_ratio is not None:
        of_all = {
            row.config.section: {RATIO: suite.unlabeled_ratio}
            for row in comparison.rows
            if RATIO in type(row.config.algorithm).model_fields
        }
        comparison = load_comparison(flags=deep(of_all, tree), sets=sets)
    missing = [one for one in needed if root is None or not (root / one).is_dir()]
    return PlannedMember(name, member.title, comparison, _hint(missing, suite, root))


def _used(settings: Tree, algos: Sequence[str]) -> Tree:
    """Return the settings without the options of algorithms that are not compared."""
    if ALL in algos:
        return settings
    sections = {section_of(algo) for algo in algos}
    others = {entry.name for entry in registry.entries("algorithms")} - sections
    return {key: value for key, value in settings.items() if key not in others}


def _paths(settings: Tree) -> Iterator[str]:
    """Yield the values that start with `ROOT`."""
    for value in settings.values():
        if isinstance(value, dict):
            yield from _paths(value)
        elif isinstance(value, str) and value.startswith(ROOT):
            yield value


def _at(settings: Tree, root: Path) -> Tree:
    """Return the settings with a folder in place of `ROOT`, without those that are null."""
    result: Tree = {}
    for key, value in settings.items():
        if value is None:  # a member's null undoes the suite's value
            continue
        if isinstance(value, dict):
            value = _at(value, root)
        elif isinstance(value, str) and value.startswith(ROOT):
            value = str(root / value.removeprefix(ROOT))
        result[key] = value
    return result


def _hint(missing: Sequence[str], suite: Suite, root: Path | None) -> str:
    """Return how to get folders, in one line."""
    if not missing:
        return ""
    where = "--data-root DIR" if root is None else f"--data-root {display_path(root)}"
    ways = "; ".join(f"{one}: {suite.folders[one]}" for one in missing)
    return f"needs {', '.join(missing)} below {where} ({ways})".replace(
        ROOT, "DIR/" if root is None else f"{display_path(root)}/"
    )
