"""``ssl-toolkit resume``."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit.commands.options import QUIET, RESUMABLE, RUN, VERBOSE, toolkit_command


@toolkit_command
@RUN
@RESUMABLE
@QUIET
@VERBOSE
def command(
    run: Path,
    data: Path | None,
    steps: int | None,
    devices: int | None,
    time_limit: float | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Resume the run in the folder RUN; its result is the same as without the interruption.

    A finished run is left unchanged, unless --steps is larger than before.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.runs.resume import resume

    console = Console(quiet=quiet, verbose=verbose)
    outcome = resume(
        run, data=data, steps=steps, devices=devices, time_limit=time_limit, console=console
    )
    return STATUS.get(outcome.signal, 0)
