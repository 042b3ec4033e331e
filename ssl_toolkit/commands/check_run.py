"""``ssl-toolkit check-run``."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit.commands.options import JSON, RUN, toolkit_command
from ssl_toolkit.commands.screen import echo, echo_json


@toolkit_command
@RUN
@JSON
def command(run: Path, as_json: bool) -> int:
    """Check that the folder RUN is complete: files, checksums, and consistency between files.

    If its data is available, compare the content of the images too. For the folder of stages, check
    each run and its pseudo labels. The exit status is 0 if all checks pass, and 1 with a line for
    each fault otherwise.
    """
    from ssl_toolkit.runs.check import check_run
    from ssl_toolkit.stages import is_stages
    from ssl_toolkit.text import display_path

    if is_stages(run):
        from ssl_toolkit.stages.check import check_folder

        check = check_folder(run)
    else:
        check = check_run(run)
    if as_json:
        content = {
            "run": str(run),
            "status": check.status,
            "faults": check.faults,
            "checked": check.checked,
            "data_not_compared": check.data or None,
        }
        echo_json(content)
    else:
        for fault in check.faults:
            echo(f"error: {fault}", err=True)
        if not check.faults:
            data = f"; its data was not compared: {check.data}" if check.data else ", and its data"
            count = f"{len(check.checked)} files checked"
            echo(f"{display_path(run)}: {check.status}, whole ({count}{data})")
            if check.status == "running":
                echo(f"if it was killed, continue with `ssl-toolkit resume {display_path(run)}`")
    return 1 if check.faults else 0
