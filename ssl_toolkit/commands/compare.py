"""``ssl-toolkit compare``."""

from __future__ import annotations

from typing import Any

import click

from ssl_toolkit.commands.run import configuration_options, tell_clashes
from ssl_toolkit.commands.screen import echo, echo_data


@click.command(short_help="Compare algorithms under identical configurations.")
@click.option("--algos", metavar="A,B,C", help="Algorithms, one row each.")
@click.option(
    "--seeds", metavar="0,1,5-9", help="Seeds, one run of each row per seed (default: 0-2)."
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="KEY=V,V",
    help="Add a row for each value. Repeatable.",
)
@click.option("--baseline", metavar="ROW", help="Row to compare the others with.")
@click.option(
    "--allow-different",
    "allowed",
    multiple=True,
    metavar="KEY",
    help="Shared key in which rows may differ. Repeatable.",
)
@click.option(
    "--budget",
    metavar="steps|images=N|minutes=M",
    help="Budget that all runs share (default: steps).",
)
@click.option(
    "--launcher", metavar="NAME", help="Launcher: local, ray, slurm or a plugin's (default: local)."
)
@click.option(
    "--jobs", metavar="N", help="Maximum number of concurrent runs, if the launcher supports it."
)
@click.option(
    "--threads", metavar="N", help="Number of CPU threads per run (default: cores / jobs)."
)
@click.option(
    "--no-probe", is_flag=True, help="Add no row for the linear probe under --pretrained."
)
@configuration_options(without=("algo", "seed"))
@click.option("--overwrite", is_flag=True, help="Replace an existing comparison in --output.")
@click.option("--dry-run", is_flag=True, help="Print the rows, check everything, and stop.")
@click.option("--quiet", is_flag=True, help="Show only warnings and results.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(
    sweeps: tuple[str, ...],
    allowed: tuple[str, ...],
    jobs: str | None,
    no_probe: bool,
    files: tuple[str, ...],
    sets: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Run several algorithms on the same split, weights and order of images, and compare them.

    Only an algorithm's own section may differ between rows. After an interruption, run the same
    command again to finish the remaining runs; finished ones are kept.
    """
    from ssl_toolkit.config.comparison import load_comparison
    from ssl_toolkit.config.locations import find_config

    if allowed:
        flags["allow_different"] = ",".join(allowed)
    if no_probe:
        flags["probe"] = False
    if jobs is not None:
        flags["launcher_options"] = {"jobs": jobs}
    comparison = load_comparison([find_config(name) for name in files], flags, sets, sweeps)
    tell_clashes(*(row.config.settings.model_dump() for row in comparison.rows))
    if dry_run:
        from ssl_toolkit.config import yaml

        echo_data(yaml.dump(comparison.tree))
        for row in comparison.rows:
            echo(f"# row: {row.name}")

    from ssl_toolkit.console import Console
    from ssl_toolkit.multirun.compare import check, compare

    if dry_run:
        check(comparison, overwrite=overwrite, console=Console(quiet=True))
        return 0
    return compare(comparison, overwrite=overwrite, console=Console(quiet=quiet)).status
