"""``ssl-toolkit resume``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Go on with a run that was stopped.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where its images are now, if they were moved.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps in all, to train longer than was asked at first.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that share each batch from now on (default: as before).",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MIN",
    help="Minutes after which to save and stop this time (default: as in its configuration).",
)
@click.option("--quiet", is_flag=True, help="Warnings and results only.")
@click.option("--verbose", is_flag=True, help="Every row of metrics.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
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
