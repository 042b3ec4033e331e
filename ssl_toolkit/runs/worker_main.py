"""Run one process of a distributed run: ``python -m ssl_toolkit.runs.worker_main ORDER``.

Started by `start_workers`; ORDER is a JSON file. The main process writes its result next to it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ssl_toolkit.console import Console
from ssl_toolkit.errors import ToolkitError, one_line
from ssl_toolkit.files import write_json, write_text
from ssl_toolkit.interrupts import STATUS, end_soon, exit_status
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.runs.summary import RunResult
from ssl_toolkit.runs.train import train
from ssl_toolkit.runs.workers import ANSWER
from ssl_toolkit.stdio import protect

FUNCTIONS: dict[str, Callable[..., RunResult]] = {"train": train, "resume": resume}


def main(path: Path) -> int:
    """Call the function that an order names, and return the exit status."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    rank = os.environ["RANK"]
    order = json.loads(path.read_text(encoding="utf-8"))
    try:
        function = FUNCTIONS[order["function"]]
        result = function(**order["options"], console=Console(**order["console"]))
    except ToolkitError as error:
        if rank == "0":
            content = {"messages": list(error.messages), "status": error.exit_status}
            write_json(path.with_name(ANSWER), content)
        elif not error.already_reported:
            print(f"process {rank}: {one_line(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt as error:
        return exit_status(error)
    if rank == "0":
        write_text(path.with_name(ANSWER), result.model_dump_json())
    return STATUS.get(result.signal, 0)


if __name__ == "__main__":
    protect()
    status: int = main(Path(sys.argv[1]))
    end_soon(status)
    sys.exit(status)
