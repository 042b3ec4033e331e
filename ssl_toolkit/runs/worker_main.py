"""One of several processes of a run: ``python -m ssl_toolkit.runs.worker_main ORDER``.

Started by `ssl_toolkit.runs.spawn`; the order is a JSON file beside which the first
process leaves its answer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.console import Console
from ssl_toolkit.errors import ToolkitError, one_line
from ssl_toolkit.files import write_json
from ssl_toolkit.interrupts import STATUS, end_soon, exit_status
from ssl_toolkit.runs.spawn import ANSWER
from ssl_toolkit.runs.train import resume, train
from ssl_toolkit.stdio import protect


def main(order: Path) -> int:
    """Carry the order out; returns the exit status."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    leads = os.environ["RANK"] == "0"
    asked: dict[str, Any] = json.loads(order.read_text(encoding="utf-8"))
    console = Console(quiet=asked["quiet"], verbose=asked["verbose"], silent=asked["silent"])
    try:
        if "config" in asked:
            config = validate([Layer("configuration", asked["config"])])
            keys = {key: asked[key] for key in ("overwrite", "proceed")}
            outcome = train(config, console=console, **keys)
        else:
            data = asked["data"]
            outcome = resume(
                Path(asked["resume"]),
                data=None if data is None else Path(data),
                steps=asked["steps"],
                time_limit=asked["time_limit"],
                console=console,
            )
    except ToolkitError as error:
        if leads:
            content = {"messages": list(error.messages), "status": error.exit_status}
            write_json(order.with_name(ANSWER), content)
        elif not error.already_reported:
            print(f"process {os.environ['RANK']}: {one_line(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt as error:
        return exit_status(error)
    if leads:
        content = {"folder": str(outcome.folder), "summary": outcome.summary.tree()}
        write_json(order.with_name(ANSWER), content | {"signal": outcome.signal})
    return STATUS.get(outcome.signal, 0)


if __name__ == "__main__":
    protect()
    status = main(Path(sys.argv[1]))
    end_soon(status)
    sys.exit(status)
