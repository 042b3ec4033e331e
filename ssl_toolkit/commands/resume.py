"""``ssl-toolkit resume``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.run import add_options, common_options, resume_options


@click.command(short_help="Go on with a run that was stopped.")
@click.argument("run", type=click.Path(path_type=Path))
@resume_options
@add_options(common_options)
def command(
    run: Path,
    data: Path | None,
    steps: int | None,
    devices: int | None,
    time_limit: float | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Go on with the run in the folder RUN, to the result that it would have had.

    A finished run is left as it is, unless --steps asks for more.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.runs.train import resume

    console = Console(quiet=quiet, verbose=verbose)
    outcome = resume(
        run, data=data, steps=steps, devices=devices, time_limit=time_limit, console=console
    )
    return STATUS.get(outcome.signal, 0)
