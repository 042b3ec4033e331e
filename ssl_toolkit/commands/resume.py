"""``ssl-toolkit resume``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssl_toolkit.commands.options import QUIET, RESUMABLE, RUN, VERBOSE, toolkit_command


@toolkit_command
@RUN
@RESUMABLE
@QUIET
@VERBOSE
def command(run: Path, quiet: bool, verbose: bool, **changes: Any) -> int:
    """Resume the run in the folder RUN; its result is the same as without the interruption.

    A finished run is left unchanged, unless --steps is larger than before. If RUN is the folder of
    stages, resume them.
    """
    from ssl_toolkit.stages import is_stages

    if is_stages(run):
        return _resume_stages(run, [*changes.values()], quiet)
    from ssl_toolkit.console import Console
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.runs.resume import resume

    outcome = resume(run, console=Console(quiet=quiet, verbose=verbose), **changes)
    return STATUS.get(outcome.signal, 0)


def _resume_stages(folder: Path, changes: list[object], quiet: bool) -> int:
    from ssl_toolkit.console import Console
    from ssl_toolkit.errors import ConfigError
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.stages.run import reopen, run_stages

    if any(change is not None for change in changes):
        raise ConfigError(
            "stages are resumed as they are; leave the other options out (if the data was moved, "
            "put a link to it at its old place)"
        )
    result = run_stages(reopen(folder), resumed=True, console=Console(quiet=quiet))
    return STATUS[result.signal] if result.signal else 0
