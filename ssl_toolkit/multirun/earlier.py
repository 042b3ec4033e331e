"""Compare a call of `compare` with the plan of an earlier one in the same folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ssl_toolkit.comparisons.schema import PlanFile
from ssl_toolkit.config.comparison import ComparisonConfig
from ssl_toolkit.console import Console
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path, summarize


def check_earlier(earlier: PlanFile, folder: Path, comparison: ComparisonConfig) -> None:
    """Refuse other threads or another budget than those of the existing runs.

    Args:
        earlier: Plan of the earlier call.
        folder: Path to the comparison.
        comparison: Configuration of this call.

    Raises:
        ConfigError: One line with the values of both.
    """
    settings = comparison.settings
    messages = [
        f"{key} is {getattr(earlier, key)} there, {value} here"
        for key, value in {"threads": settings.threads, "budget": settings.budget}.items()
        if value not in (None, getattr(earlier, key))
    ]
    if messages:
        raise ConfigError(
            f"{display_path(folder)}: the comparison there has another plan: "
            f"{'; '.join(messages)}; use the same values, or choose another --output "
            "(--overwrite replaces it)"
        )


def warn_of_other_runs(
    earlier: PlanFile, folder: Path, planned: Collection[tuple[str, int]], console: Console
) -> None:
    """Warn that the tables will not have some runs of an earlier call.

    Args:
        earlier: Plan of that call.
        folder: Path to the comparison.
        planned: Row and seed of each run of this call.
        console: Shows the warning.
    """
    others = [
        f"{run.row} (seed {run.seed})"
        for run in earlier.runs(folder)
        if (run.row, run.seed) not in planned and RunFolder(run.folder).summary.exists()
    ]
    if others:
        console.warn(
            f"not in the tables of this call: {summarize(others)}; these runs are kept, name their "
            "rows and seeds as well to have them in the tables"
        )
