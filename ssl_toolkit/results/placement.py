"""Which runs a comparison consists of and where they lie: by its plan, or as they were named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.data.pictures import shown, text_of
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.results.comparable import own_settings, section, shared_settings
from ssl_toolkit.results.comparison import Member
from ssl_toolkit.results.folder import RunFolder

Place = tuple[str, int, Path]
"""Row, seed, and the folder of that run."""

PLAN = "plan.json"
FAILURES = "failures.json"
MEASURING = "measuring"
"""The folder in that of a comparison where the speed of its rows is measured; removed after."""


@dataclass(frozen=True)
class Plan:
    """What a comparison consists of, finished or not: its ``plan.json``."""

    name: str
    baseline: str | None
    allow: tuple[str, ...]
    algorithms: Mapping[str, str]
    """By row."""
    places: tuple[Place, ...]
    budget: str = "steps"
    """What is equal for all rows."""


def read_plan(folder: Path) -> Plan:
    """The plan of a comparison folder.

    Raises:
        ConfigError: it is missing or damaged.
    """
    path = folder / PLAN
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        rows, seeds = tree["rows"], [int(seed) for seed in tree["seeds"]]
        return Plan(
            str(tree["name"]),
            None if tree["baseline"] is None else str(tree["baseline"]),
            tuple(map(str, tree["allow"])),
            {str(row["name"]): str(row["algorithm"]) for row in rows},
            tuple(
                (str(row["name"]), seed, folder / row["folder"] / f"s{seed}")
                for row in rows
                for seed in seeds
            ),
            str(tree.get("budget", "steps")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{shown(path)}: missing or damaged ({type(error).__name__}: {error}); the same "
            "`ssl-toolkit compare` command writes it anew"
        ) from error


def places(folder: Path) -> list[Place]:
    """Where the runs of a comparison folder are, or will be.

    Raises:
        ConfigError: as `read_plan`.
    """
    return [*read_plan(folder).places]


def read_failures(folder: Path) -> dict[tuple[str, int], str]:
    """Why runs failed that could not say so in their own folders, by row and seed.

    Args:
        folder: of a comparison; without a readable ``failures.json`` there are none.
    """
    try:
        told = json.loads((folder / FAILURES).read_text(encoding="utf-8"))
        return {(str(one["row"]), int(one["seed"])): str(one["reason"]) for one in told}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


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
                f"{shown(path)}: not the folder of a run or of a comparison "
                f"(no {'summary.json' if folder.config.exists() else 'config.yaml'})"
            )
        runs[path] = _identity(folder)
    found: list[Place] = []
    algorithms = {}
    for path, keys in runs.items():
        same = [other for other in runs.values() if other["algo"] == keys["algo"]]
        told = [
            f"{key}={value}"
            for key, value in keys.items()
            if key not in ("algo", "seed") and any(other.get(key) != value for other in same)
        ]
        row = text_of(" ".join([keys["algo"], *told]))
        algorithms[row] = keys["algo"]
        found.append((row, keys["seed"], path))
    order = [*dict.fromkeys(row for row, _, _ in found)]
    found.sort(key=lambda place: (order.index(place[0]), place[1]))
    check_unique(found)
    return found, algorithms


def _identity(folder: RunFolder) -> dict[str, Any]:
    config = yaml.read(folder.config)
    try:
        member = Member("", int(config["seed"]), folder.path, "running", config=config)
        name = section(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{shown(folder.config)}: not the configuration of a run") from error
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
                f"{shown(taken[row, seed])} and {shown(folder)} are both {row} with seed {seed}; "
                "name one of them"
            )
        taken[row, seed] = folder
