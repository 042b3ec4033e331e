"""``ssl-toolkit compare``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from ssl_toolkit.commands.options import (
    JSON,
    QUIET,
    Decorator,
    configuration_options,
    options,
    toolkit_command,
)
from ssl_toolkit.commands.screen import echo, echo_data, echo_json, warn_of_clashes
from ssl_toolkit.config.comparison import ComparisonSettings, load_comparison
from ssl_toolkit.errors import ConfigError


def comparison_options(without: Collection[str]) -> Decorator:
    """Return the options of a command that runs comparisons.

    Args:
        without: Settings that the command doesn't have.
    """
    return options(
        configuration_options(ComparisonSettings, without=without),
        click.option(
            "--jobs",
            metavar="N",
            help="Maximum number of concurrent runs, if the launcher supports it.",
        ),
        click.option(
            "--overwrite", is_flag=True, help="Replace an existing comparison in --output."
        ),
        click.option("--dry-run", is_flag=True, help="Print the rows, check everything, and stop."),
        QUIET,
    )


def comparison_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the values of `comparison_options` by the keys of settings."""
    jobs, allowed = flags.pop("jobs"), flags.pop("allow_different")
    flags["allow_different"] = ",".join(allowed) or None
    flags["launcher_options"] = None if jobs is None else {"jobs": jobs}
    return flags


@toolkit_command
@comparison_options(without=("algo", "seed"))
@JSON
def command(
    sweep: tuple[str, ...],
    files: tuple[str, ...],
    sets: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Run several algorithms on the same split, weights and order of images, and compare them.

    Only the options of the algorithms may differ between rows. After an interruption, run the same
    command again to finish the remaining runs; completed ones are kept. Several numbers of labels,
    as in --labels-per-class 1,2,4, draw a label curve. --json prints the content of
    comparison.json.
    """
    from ssl_toolkit.config.yaml import find_config

    if as_json and dry_run:
        raise ConfigError("--dry-run prints rows as YAML; leave --json out")
    paths = [find_config(name) for name in files]
    comparison = load_comparison(paths, comparison_flags(flags), sets, sweep)
    warn_of_clashes(*(row.config.settings for row in comparison.rows))
    from ssl_toolkit.console import Console
    from ssl_toolkit.multirun.compare import check, compare

    if as_json:
        result = compare(comparison, overwrite=overwrite, console=Console(silent=True))
        echo_json(result.comparison.tree())
        return result.status
    if not dry_run:
        return compare(comparison, overwrite=overwrite, console=Console(quiet=quiet)).status
    from ssl_toolkit.comparisons.schema import describe_left_out
    from ssl_toolkit.config import yaml

    plan, _ = check(comparison, overwrite=overwrite, console=Console(quiet=True))
    echo_data(yaml.dump(comparison.tree))
    for row in plan.comparison.rows:
        echo(f"# row: {row.name}")
    if left_out := plan.comparison.left_out:
        echo(f"# {describe_left_out(left_out)}")
    return 0
