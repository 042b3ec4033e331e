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

    A finished run is left unchanged, unless --steps is larger than before.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.runs.resume import resume

    outcome = resume(run, console=Console(quiet=quiet, verbose=verbose), **changes)
    return STATUS.get(outcome.signal, 0)
