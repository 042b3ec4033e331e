"""Run rows of a published table, comparison by comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ssl_toolkit.comparisons.schema import ComparedRun
from ssl_toolkit.console import Console
from ssl_toolkit.errors import ConfigError, ToolkitError, UserError
from ssl_toolkit.multirun.compare import check, compare
from ssl_toolkit.reproduction.page import show_results, write_results
from ssl_toolkit.reproduction.results import collect
from ssl_toolkit.reproduction.rows import Group, TableRow
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.time_budget import check_same_config


def check_groups(groups: Sequence[Group], console: Console, *, overwrite: bool) -> None:
    """Check every comparison as far as possible before the first one starts.

    Rows whose initial weights are not trained yet are checked without them.

    Raises:
        ConfigError: Lists the faults of all comparisons.
    """
    messages: dict[str, None] = {}
    for group in groups:
        try:
            if not _has_its_weights(group):
                rows = tuple(_starting(row, groups) or row for row in group.rows)
                comparison = replace(group, rows=rows).comparison
                check(comparison, overwrite=overwrite, console=console)
        except UserError as error:
            messages |= dict.fromkeys(error.messages)
    if messages:
        raise ConfigError([*messages])


def reproduce(
    table: str,
    groups: Sequence[Group],
    folder: Path,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> int:
    """Run comparisons that are not completed, then write the table of all runs in the folder.

    A comparison that fails does not affect the others, except those that start from its weights.

    Args:
        table: Name of the table.
        groups: Its rows, grouped; those that make weights first.
        folder: Path to the output folder, with the folders of the groups.
        overwrite: True to replace existing comparisons.
        console: Shows the progress; only warnings and results if None.

    Returns:
        The exit status: 0 if every run is completed, 1 if one failed, 130 or 143 after a signal.

    Raises:
        UserError: A setting, the data or a folder is invalid; before any training.
    """
    console = console or Console(quiet=True)
    alone = len(groups) == 1
    if not alone:  # `compare` checks the first comparison that it runs
        check_groups(groups, Console(silent=True), overwrite=overwrite)
    status = 0
    for group in groups:
        if _has_its_weights(group):
            continue
        starting = {row.planned.name: _starting(row, groups) for row in group.rows}
        ready = tuple(row for row in starting.values() if row)
        if left_out := [name for name, row in starting.items() if row is None]:
            console.warn(f"{', '.join(left_out)}: not run, because their weights were not made")
            status = 1
        if not ready:
            continue
        try:
            comparison = replace(group, rows=ready).comparison
            result = compare(comparison, overwrite=overwrite, console=console).status
        except ToolkitError as error:
            if alone:
                raise
            console.warn(f"{group.folder.name}: {'; '.join(error.messages)}")
            result = 1
        status = status or result
        if result > 1:  # a signal
            status = result
            break
    results = collect(table, folder)
    page = write_results(results, folder)
    show_results(results, console)
    console.say(f"report: {page}", important=True)
    return status


def _has_its_weights(group: Group) -> bool:
    """Return True if a group is only run for its weights, and they exist."""
    return all(row.only_for_weights and _weights(group, row) for row in group.rows)


def _starting(row: TableRow, groups: Sequence[Group]) -> TableRow | None:
    """Return a row that starts from the weights it needs; None if they don't exist."""
    if not row.needs:
        return row
    makers = ((of, one) for of in groups for one in of.rows if one.recipe.id == row.needs)
    weights = next(filter(None, (_weights(of, one) for of, one in makers)), None)
    return None if weights is None else row.starting_from(weights)


def _weights(group: Group, row: TableRow) -> Path | None:
    """Return the model of the first seed of a row; None if that run is not completed.

    Raises:
        ConfigError: The run there has another configuration.
    """
    seed = row.seeds[0]
    folder = RunFolder(group.run_folder(row, seed))
    if not ComparedRun.read(row.planned.name, seed, folder.path).completed:
        return None
    check_same_config(folder, row.config.with_settings(seed=seed))
    return folder.model
