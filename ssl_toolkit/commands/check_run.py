"""``ssl-toolkit check-run``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.screen import echo, echo_json


@click.command(short_help="Check that a run's folder is complete and consistent.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(run: Path, as_json: bool) -> int:
    """Check that the folder RUN is complete: files, checksums, and consistency between files.

    If its data is available, the images are compared with those of the run, by content. The exit
    status is 0 if everything is in order, and 1 with a line for each fault otherwise.
    """
    from ssl_toolkit.runs.check import check_run
    from ssl_toolkit.text import display_path

    found = check_run(run)
    if as_json:
        content = {
            "run": str(run),
            "status": found.status,
            "faults": found.faults,
            "checked": found.checked,
            "data_not_compared": found.data or None,
        }
        echo_json(content)
    else:
        for fault in found.faults:
            echo(f"error: {fault}", err=True)
        if not found.faults:
            of = f"{len(found.checked)} files checked"
            of += f"; its data was not compared: {found.data}" if found.data else ", and its data"
            echo(f"{display_path(run)}: {found.status}, whole ({of})")
    return 1 if found.faults else 0
