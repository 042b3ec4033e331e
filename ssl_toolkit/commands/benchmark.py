"""``ssl-toolkit benchmark``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.options import (
    PATH,
    QUIET,
    Decorator,
    options,
    setting_option,
    toolkit_command,
)
from ssl_toolkit.commands.screen import echo, warn_of_clashes
from ssl_toolkit.config.comparison import ComparisonSettings
from ssl_toolkit.config.options import Names, Options, option
from ssl_toolkit.config.seeds import Seeds
from ssl_toolkit.errors import ConfigError

_SETTABLE = "launcher_options."


class _Given(Options):
    """Lists on the command line; empty for none."""

    algo: Names = option([], help="algorithms")
    seeds: Seeds = option([], help="seeds")


def _launching() -> Decorator:
    """Return the options that say where the runs happen, which change no result."""
    fields = ComparisonSettings.model_fields
    return options(
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="Maximum number of concurrent runs.",
        ),
        *(
            click.option(f"--{name}", metavar=metavar, help=f"{fields[name].description}.")
            for name, metavar in (("launcher", "NAME"), ("threads", "N"))
        ),
        setting_option("device", default="by the suite"),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="launcher_options.KEY=VALUE",
            help="Option of the launcher. Repeatable.",
        ),
    )


@toolkit_command
@click.argument("name", required=False)
@click.option(
    "--algo",
    metavar="A,B",
    help="Algorithms in place of the suite's; its baseline and upper bound are always run.",
)
@click.option("--seeds", metavar="0,1,5-9", help="Seeds in place of the suite's.")
@click.option(
    "--data-root", metavar="DIR", help="Path to the folder with the data sets made by scripts."
)
@click.option(
    "--output",
    type=PATH,
    metavar="DIR",
    help="Path to the output folder (default: runs/benchmark-<name>).",
)
@click.option("--resume", is_flag=True, help="Finish the suite in --output as it was started.")
@_launching()
@click.option("--overwrite", is_flag=True, help="Replace existing comparisons in --output.")
@click.option(
    "--dry-run", is_flag=True, help="Print members, rows, seeds and estimated time, and stop."
)
@QUIET
def command(
    name: str | None,
    algo: str | None,
    seeds: str | None,
    data_root: str | None,
    output: Path | None,
    resume: bool,
    jobs: int | None,
    sets: tuple[str, ...],
    overwrite: bool,
    dry_run: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """List benchmark suites, or run the one with this NAME or file.

    A suite compares algorithms on several data sets, with fixed settings; --algo adds those of
    installed plugins. Results are in benchmark.json, benchmark.csv and benchmark.html. Run the same
    command again to resume: completed runs are kept, other algorithms and seeds are added. Members
    whose data is missing are named and left out.
    """
    from ssl_toolkit.suites.schema import find_suite, list_suites

    if name is None and not resume:
        for line in list_suites():
            echo(line)
        return 0
    _check_sets(sets)
    given = _given(algo, seeds)
    from ssl_toolkit.console import Console
    from ssl_toolkit.suites.run import default_folder, describe, plan_suite, run_suite, suite_of

    if resume:
        if name is None and output is None:
            raise ConfigError("--resume: which folder? Give --output DIR or the suite's name")
        folder = output or default_folder(str(name))
        suite = suite_of(folder)
        if suite is None:
            raise ConfigError(f"--resume: {folder}: no suite was run there; leave --resume out")
    else:
        suite = find_suite(str(name))
        folder = output or default_folder(suite.name)
    folder = folder.expanduser().absolute()
    suite = suite.changed(algos=given.algo, seeds=given.seeds, data_root=data_root)
    flags["launcher_options"] = None if jobs is None else {"jobs": jobs}
    suite, members = plan_suite(suite, folder, flags, sets, overwrite=overwrite)
    warn_of_clashes(*(row.config.settings for row in members[0].comparison.rows))
    if not dry_run:
        console = Console(quiet=quiet)
        return run_suite(suite, members, folder, overwrite=overwrite, console=console)
    for line in describe(suite, members, jobs or 1):
        echo(line)
    return 0


def _check_sets(sets: tuple[str, ...]) -> None:
    for text in sets:
        if not text.startswith(_SETTABLE):
            key = text.partition("=")[0]
            raise ConfigError(
                f"--set {key}: a suite fixes the settings of its runs, and only {_SETTABLE}KEY can "
                "be set; copy its file to change them"
            )


def _given(algo: str | None, seeds: str | None) -> _Given:
    from ssl_toolkit.config.faults import FLAGS, Faults

    values = {key: text for key, text in (("algo", algo), ("seeds", seeds)) if text is not None}
    faults = Faults({(key,): FLAGS for key in values}, "")
    given = faults.validate(_Given, values)
    faults.stop()
    assert given is not None
    return given
