"""Which runs a comparison consists of and where they lie: by its plan, or as they were named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ssl_toolkit.errors import ConfigError
from ssl_toolkit.text import display_path

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
            f"{display_path(path)}: missing or damaged ({type(error).__name__}: {error}); the same "
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
