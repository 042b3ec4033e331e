"""Find the rows that run folders outside a comparison belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ssl_toolkit.comparisons.comparability import own_settings, section, shared_settings
from ssl_toolkit.comparisons.plan_file import Place
from ssl_toolkit.comparisons.types import ComparedRun
from ssl_toolkit.config import yaml
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path, display_text


def loose_places(paths: Iterable[Path]) -> tuple[list[Place], dict[str, str]]:
    """Rows of run folders that belong to no comparison.

    A row is an algorithm with equal settings; runs that differ in their seed alone share one. Its
    name is the algorithm's, and the options in which rows of that algorithm differ.

    Args:
        paths: folders of runs.

    Returns:
        The places, and the algorithm by row.

    Raises:
        ModelError: a folder is not that of a run.
        ConfigError: its configuration is damaged, or two runs are of the same row and seed.
    """
    runs: dict[Path, dict[str, Any]] = {}
    for path in paths:
        folder = RunFolder(path)
        if not folder.summary.exists() or not folder.config.exists():
            raise ModelError(
                f"{display_path(path)}: not the folder of a run or of a comparison "
                f"(no {'summary.json' if folder.config.exists() else 'config.yaml'})"
            )
        runs[path] = _identity(folder)
    found: list[Place] = []
    algorithms = {}
    for path, keys in runs.items():
        same = [other for other in runs.values() if other["algo"] == keys["algo"]]
        messages = [
            f"{key}={value}"
            for key, value in keys.items()
            if key not in ("algo", "seed") and any(other.get(key) != value for other in same)
        ]
        row = display_text(" ".join([keys["algo"], *messages]))
        algorithms[row] = keys["algo"]
        found.append((row, keys["seed"], path))
    order = [*dict.fromkeys(row for row, _, _ in found)]
    found.sort(key=lambda place: (order.index(place[0]), place[1]))
    check_unique(found)
    return found, algorithms


def _identity(folder: RunFolder) -> dict[str, Any]:
    config = yaml.read(folder.config)
    try:
        member = ComparedRun("", int(config["seed"]), folder.path, "running", config=config)
        name = section(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{display_path(folder.config)}: not the configuration of a run"
        ) from error
    identity = {"algo": name, "seed": member.seed} | own_settings(member)
    return identity | shared_settings(member)


def check_unique(places: Sequence[Place]) -> None:
    """Refuse two runs of one row with one seed.

    Raises:
        ConfigError: names both folders.
    """
    taken: dict[tuple[str, int], Path] = {}
    for row, seed, folder in places:
        if (row, seed) in taken:
            raise ConfigError(
                f"{display_path(taken[row, seed])} and {display_path(folder)} are both {row} "
                f"with seed {seed}; "
                "name one of them"
            )
        taken[row, seed] = folder
