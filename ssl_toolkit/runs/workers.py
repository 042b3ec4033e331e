"""Runs in several processes: the main one coordinates and writes files, the others are workers.

``--devices N`` starts all processes on this machine (`start_workers`); torchrun can start them too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import distributed as dist

from ssl_toolkit.config.loading import Layer, RunConfig, validate
from ssl_toolkit.console import Console
from ssl_toolkit.engine.compiling import compile_forwards
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.plugin_faults import plugin_faults
from ssl_toolkit.errors import ToolkitError, TrainingError, UserError
from ssl_toolkit.interrupts import handled
from ssl_toolkit.processes.children import DIE_WITH_PARENT, GRACE, TICK, cores
from ssl_toolkit.runs.execute import predict_best
from ssl_toolkit.runs.summary import RunResult

Process = subprocess.Popen[bytes]

ANSWER = "result.json"
"""File next to the order that contains the result of the main process."""

CAUSE = 5.0
"""Seconds for the other processes to exit by themselves after the first failure."""


def run_with_workers(processes: ProcessGroup, main: Callable[[], RunResult]) -> RunResult:
    """Return the result of a run; called in each of its processes.

    Args:
        processes: processes of the run.
        main: trains, called in the main process only; calls `prepare_all` and `finish`.

    Raises:
        ToolkitError: the error of the main process, raised in each process.
    """
    if not processes.is_main:
        with processes.peer_failures():
            return _follow(processes)
    with processes.main_process_section():
        result = main()
        if processes.peers_waiting:
            processes.broadcast({"result": result.model_dump_json()})
        return result


def prepare_all(config: RunConfig, processes: ProcessGroup, console: Console) -> Experiment:
    """Call `prepare` in all processes; called in the main one."""
    processes.broadcast({"config": config.tree()})
    return processes.run_on_all(
        lambda: prepare(config, progress=console.reading, processes=processes)
    )


def _follow(processes: ProcessGroup) -> RunResult:
    with handled() as interrupts:
        message = processes.receive()
        if "config" in message:  # otherwise the run is finished
            config = validate([Layer("configuration of the main process", message["config"])])
            experiment = processes.run_on_all(lambda: prepare(config, processes=processes))
            trainer = experiment.trainer
            if state := processes.receive()["state"]:
                trainer.load_state_dict(state)
            trainer.stop = lambda: interrupts.signal
            trainer.stepped = interrupts.took
            if trainer.settings.compile:
                compile_forwards(trainer)
            faults = plugin_faults(config.settings, TrainingError)
            with faults, interrupts.patient(), processes.collective_section():
                if not trainer.fit():
                    predict_best(experiment)
            message = processes.receive()
        return RunResult.model_validate_json(message["result"])


def start_workers(
    function: str, options: Mapping[str, Any], console: Console, count: int, resumable: str | None
) -> RunResult:
    """Start the processes of a run on this machine, and wait for the result.

    Ctrl-C and SIGTERM are forwarded to all; if one fails, all are stopped.

    Args:
        function: ``train`` or ``resume``.
        options: its arguments, as types that JSON can represent.
        console: its argument `console`.
        count: number of processes.
        resumable: folder of the run to name in an error, if known.

    Raises:
        ToolkitError: the error of the main process.
        TrainingError: a process was killed.
    """
    with tempfile.TemporaryDirectory() as scratch, handled() as interrupts:
        path = Path(scratch, "order.json")
        order = {"function": function, "options": options, "console": console.kind()}
        path.write_text(json.dumps(order), encoding="utf-8")
        # This process opens the store on a free port, so that two runs never share one.
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
                process.kill()  # no effect if it has ended
                process.wait()
        if killed and not interrupts.signal:
            folder = resumable or "the run's folder"
            raise TrainingError(
                f"{killed}; the last checkpoint is kept, resume with `ssl-toolkit resume {folder}`"
            )
        return _result(path.with_name(ANSWER), interrupts.signal)


def _start(order: Path, rank: int, count: int, port: int) -> Process:
    defaults = {
        "OMP_NUM_THREADS": max(1, cores() // count),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # no warning that all parameters have gradients
    }
    command = [sys.executable, "-m", "ssl_toolkit.runs.worker_main", str(order)]
    if sys.platform == "linux":
        defaults["GLOO_SOCKET_IFNAME"] = "lo"  # the host name may not resolve to this machine
        command = [sys.executable, "-I", "-S", str(DIE_WITH_PARENT), str(os.getpid()), *command]
    rendezvous = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the store exists; workers only connect
        "TORCHELASTIC_RESTART_COUNT": 0,
    }
    environment = {**defaults, **os.environ, **rendezvous}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        env={name: str(value) for name, value in environment.items()},
        start_new_session=True,  # this process forwards the terminal's signals
    )


def _wait(processes: Sequence[Process], timeout: float | None = None) -> str:
    """Wait until all processes end, at most `CAUSE` seconds after the first failure.

    Args:
        processes: processes to wait for.
        timeout: maximum seconds to wait; None waits until one fails.

    Returns:
        A message if a process was killed, else an empty string.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while any(process.poll() is None for process in processes):
        if deadline is None and any(process.returncode for process in processes):
            deadline = time.monotonic() + CAUSE
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(TICK)
    for rank, process in enumerate(processes):
        if process.returncode is not None and process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            return f"process {rank} of {len(processes)} was killed by {name}"
    return ""


def _result(path: Path, name: str) -> RunResult:
    if not path.exists():
        if name:
            raise KeyboardInterrupt(name)
        raise TrainingError("the processes of the run ended without a result; see above")
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    if "messages" in content:
        kind: type[ToolkitError] = UserError if content["status"] == 2 else TrainingError
        raise kind(content["messages"])
    return RunResult.model_validate_json(text)
