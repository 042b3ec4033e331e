"""Group run folders outside of a comparison into rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ssl_toolkit.comparisons.schema import ComparedRun, RunLocation
from ssl_toolkit.config import yaml
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path, display_text


def loose_runs(paths: Iterable[Path]) -> list[RunLocation]:
    """Return the rows of run folders that are not part of a comparison.

    A row is an algorithm with equal settings; runs that differ in their seed alone share one. Its
    name is that of the algorithm, and the options in which rows of the algorithm differ.

    Args:
        paths: Paths to run folders.

    Raises:
        ModelError: A folder is not that of a run.
        ConfigError: The configuration of a run is damaged.
    """
    settings = {path: _settings(RunFolder(path)) for path in paths}
    runs = []
    for path, keys in settings.items():
        same = [other for other in settings.values() if other["algo"] == keys["algo"]]
        differing = [
            f"{key}={value}"
            for key, value in keys.items()
            if key not in ("algo", "seed") and any(other.get(key) != value for other in same)
        ]
        row = display_text(" ".join([keys["algo"], *differing]))
        runs.append(RunLocation(row, keys["seed"], path, keys["algo"]))
    order = [*dict.fromkeys(run.row for run in runs)]
    return sorted(runs, key=lambda run: (order.index(run.row), run.seed))


def _settings(folder: RunFolder) -> dict[str, Any]:
    """Return algorithm, seed, options and shared settings of a run."""
    for file in (folder.config, folder.summary):
        if not file.exists():
            raise ModelError(
                f"{display_path(folder.path)}: not the folder of a run or of a comparison "
                f"({file.name} not found)"
            )
    config = yaml.read(folder.config)
    try:
        seed = int(config["seed"])
        run = ComparedRun(row="", seed=seed, folder=folder.path, status="running", config=config)
        return {"algo": run.algorithm, "seed": seed} | run.options | run.shared_settings
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{display_path(folder.config)}: not the configuration of a run"
        ) from error
