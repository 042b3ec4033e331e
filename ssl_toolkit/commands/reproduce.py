"""``ssl-toolkit reproduce``."""

from __future__ import annotations

from typing import Any

import click

from ssl_toolkit.commands.compare import comparison_flags, comparison_options
from ssl_toolkit.commands.options import JSON, toolkit_command
from ssl_toolkit.commands.screen import echo, echo_json, warn_of_clashes
from ssl_toolkit.errors import ConfigError


@toolkit_command
@click.argument("table", required=False)
@click.option(
    "--row",
    "ids",
    multiple=True,
    metavar="ID",
    help="ID of a row to run, or all for every row of the table. Repeatable.",
)
@click.option(
    "--output",
    metavar="DIR",
    help="Path to the output folder (default: runs/reproduce-<table>, with -scale-F if scaled).",
)
@comparison_options(without=("algo", "seed", "recipe", "algos", "sweep", "probe", "output"))
@JSON
def command(
    table: str | None,
    ids: tuple[str, ...],
    files: tuple[str, ...],
    sets: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """List published tables, list the rows of a TABLE, or run its rows.

    Without --row, list the rows with their published numbers, deviations and data, and measure what
    they cost on this device. With --row, run them through `compare`, and set the measured numbers
    beside the published ones in report.md. Run the same command again to resume. Other options
    apply to all rows; --root is the folder of a data set, or holds a folder for each by its name.
    --json prints the content of report.json.
    """
    from ssl_toolkit.config.yaml import find_config
    from ssl_toolkit.reproduction.tables import find_rows, list_tables

    if as_json and (not ids or dry_run):
        raise ConfigError(
            "--json prints the report of rows that are run; give --row, or leave it out"
        )
    if table is None:
        for line in list_tables():
            echo(line)
        return 0
    recipes, paths = find_rows(table, ids), [find_config(name) for name in files]

    from ssl_toolkit.console import Console
    from ssl_toolkit.reproduction.listing import list_rows
    from ssl_toolkit.reproduction.rows import default_folder, group_rows, load_rows
    from ssl_toolkit.reproduction.run import check_groups, reproduce_groups

    comparison, rows = load_rows(recipes, paths, comparison_flags(flags), sets)
    warn_of_clashes(*(row.config.settings for row in rows))
    folder = default_folder(table, comparison)
    groups = group_rows(rows, comparison, folder)
    if ids and not dry_run:
        console = Console(silent=True) if as_json else Console(quiet=quiet)
        result = reproduce_groups(table, groups, folder, overwrite=overwrite, console=console)
        if as_json:
            echo_json(result.report.tree())
        return result.status
    for line in list_rows(rows):
        echo(line)
    if ids:
        check_groups(groups, Console(quiet=True), overwrite=overwrite)
    return 0
