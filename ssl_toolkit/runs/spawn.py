"""Several processes of one run on this machine: what ``--devices N`` starts and watches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import distributed as dist

from ssl_toolkit.errors import ToolkitError, TrainingError, UserError
from ssl_toolkit.interrupts import handled
from ssl_toolkit.processes.children import DIE_WITH_PARENT, GRACE, TICK, cores
from ssl_toolkit.runs.summary import RunResult, RunSummary

Process = subprocess.Popen[bytes]

ANSWER = "outcome.json"
"""Beside the order: what the first process leaves for the one that has started it."""

CAUSE = 5.0
"""Seconds that the others get to end by themselves once one has ended."""


def launch(order: Mapping[str, Any], count: int, resumable: str | None) -> RunResult:
    """Let several processes carry an order out, and wait for the outcome.

    Ctrl-C and SIGTERM are passed on to all; when one ends before its time, all end.

    Args:
        order: for `ssl_toolkit.runs.worker_main`, in plain types.
        count: of processes.
        resumable: the folder of the run, as far as it is known, for a message.

    Raises:
        ToolkitError: what the first process raised.
        TrainingError: one was killed.
    """
    with tempfile.TemporaryDirectory() as scratch, handled() as interrupts:
        path = Path(scratch, "order.json")
        path.write_text(json.dumps(order), encoding="utf-8")
        # The launcher holds the store on a free port, so that two runs never share one.
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        processes: list[Process] = []
        try:
            processes.extend(_start(path, rank, count, store.port) for rank in range(count))
            killed = _wait(processes)
        except KeyboardInterrupt:
            for process in processes:
                process.send_signal(getattr(signal, interrupts.signal or "SIGINT"))
            killed = _wait(processes, GRACE)
        finally:
            for process in processes:
                _kill(process)
        if killed and not interrupts.signal:
            place = resumable or "the run's folder"
            raise TrainingError(
                f"{killed}; the last checkpoint is kept, resume with `ssl-toolkit resume {place}`"
            )
        return _answer(path.with_name(ANSWER), interrupts.signal)


def _start(order: Path, rank: int, count: int, port: int) -> Process:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    own = {name: str(value) for name, value in places.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there, none of them makes it
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores() // count)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # else it tells that every parameter had a gradient
    }
    if sys.platform == "linux":
        defaults["GLOO_SOCKET_IFNAME"] = "lo"  # the name of the host may not lead here
    tie = [sys.executable, "-I", "-S", str(DIE_WITH_PARENT), str(os.getpid())]
    return subprocess.Popen(
        [
            *(tie if sys.platform == "linux" else ()),
            *(sys.executable, "-m", "ssl_toolkit.runs.worker_main", str(order)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        env={**defaults, **os.environ, **own},
        start_new_session=True,  # signals of the terminal are passed on, once
    )


def _wait(processes: Sequence[Process], patience: float | None = None) -> str:
    """Wait until all have ended, the others soon after the first that ended badly.

    Args:
        processes: to wait for.
        patience: seconds from now on; None until one ends badly.

    Returns:
        Which one was killed from outside, empty for none.
    """
    deadline = None if patience is None else time.monotonic() + patience
    while any(process.poll() is None for process in processes):
        if deadline is None and any(process.returncode for process in processes):
            deadline = time.monotonic() + CAUSE
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(TICK)
    for rank, process in enumerate(processes):
        if process.returncode is not None and process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            return f"process {rank} of {len(processes)} was ended by {name}"
    return ""


def _kill(process: Process) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _answer(path: Path, name: str) -> RunResult:
    if not path.exists():
        if name:
            raise KeyboardInterrupt(name)
        raise TrainingError("the processes of the run ended without a result; see above")
    answer = json.loads(path.read_text(encoding="utf-8"))
    if "messages" in answer:
        kind: type[ToolkitError] = UserError if answer["status"] == 2 else TrainingError
        raise kind(answer["messages"])
    return RunResult(Path(answer["folder"]), RunSummary(**answer["summary"]), answer["signal"])
