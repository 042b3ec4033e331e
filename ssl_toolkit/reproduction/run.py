"""Run rows of a published table, comparison by comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssl_toolkit.comparisons.schema import ComparedRun
from ssl_toolkit.config.loading import plain_tree
from ssl_toolkit.console import Console
from ssl_toolkit.errors import ConfigError, ToolkitError, UserError
from ssl_toolkit.multirun.compare import check, compare
from ssl_toolkit.reproduction.page import show_results, write_results
from ssl_toolkit.reproduction.results import Reproduction, collect
from ssl_toolkit.reproduction.rows import Group, TableRow, default_folder, group_rows, load_rows
from ssl_toolkit.reproduction.tables import find_rows
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


@dataclass(frozen=True)
class ReproductionResult:
    """The result of `reproduce`."""

    folder: Path
    """Path to the output folder."""
    report: Reproduction
    """Content of ``report.json``: a `RowResult` for each row of the table."""
    status: int
    """Exit status: 0 if every run is completed, 1 if one is not, 130 or 143 after a signal."""


def reproduce(
    table: str,
    rows: Sequence[str],
    config: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> ReproductionResult:
    """Do what ``ssl-toolkit reproduce TABLE --row ID`` does.

    Args:
        table: Name of the table.
        rows: IDs of its rows, with or without the table; ``["all"]`` for every row.
        config: Settings of all rows and of their comparisons, such as ``seeds`` and ``output``.
        overwrite: True to replace existing comparisons.
        console: Shows the progress; None shows warnings and results only.

    Returns:
        The folder, measured and published numbers, and the exit status.

    Raises:
        UserError: Before any training.
    """
    if isinstance(rows, str) or not rows:
        raise ConfigError(f"rows is a list of IDs, such as ['all'], got {rows!r}")
    comparison, loaded = load_rows(find_rows(table, rows), flags=plain_tree(config or {}))
    folder = default_folder(table, comparison)
    groups = group_rows(loaded, comparison, folder)
    return reproduce_groups(table, groups, folder, overwrite=overwrite, console=console)


def reproduce_groups(
    table: str,
    groups: Sequence[Group],
    folder: Path,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> ReproductionResult:
    """Run comparisons that are not completed, then write the table of all runs in the folder.

    A comparison that fails does not affect the others, except those that start from its weights.

    Args:
        table: Name of the table.
        groups: Its rows, grouped; those that make weights first.
        folder: Path to the output folder, with the folders of the groups.
        overwrite: True to replace existing comparisons.
        console: Shows the progress; only warnings and results if None.

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
    return ReproductionResult(folder, results, status)


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
