"""A run in several processes: the first one leads, with the files, and the others follow it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ssl_toolkit.config.loading import Layer, RunConfig, validate
from ssl_toolkit.console import Console
from ssl_toolkit.engine.compiling import compile_forwards
from ssl_toolkit.engine.distributed import Message, ProcessGroup
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.plugin_faults import plugin_faults
from ssl_toolkit.errors import TrainingError
from ssl_toolkit.interrupts import handled
from ssl_toolkit.runs.execute import predict_best
from ssl_toolkit.runs.summary import RunResult, RunSummary


def shared(processes: ProcessGroup, lead: Callable[[], RunResult]) -> RunResult:
    """The outcome of a run that the first process carries out, and all others with it.

    Args:
        processes: the processes, all of which call this.
        lead: carries the run out in the first one, by `prepare_all` and `finish`.

    Raises:
        ToolkitError: of the first process, in all of them.
    """
    if not processes.is_main:
        with processes.peer_failures():
            return _follow(processes)
    with processes.main_process_section():
        outcome = lead()
        if processes.peers_waiting:
            processes.broadcast(
                {
                    "folder": str(outcome.folder),
                    "summary": outcome.summary.model_dump_json(),
                    "signal": outcome.signal,
                }
            )
        return outcome


def prepare_all(config: RunConfig, processes: ProcessGroup, console: Console) -> Experiment:
    """`prepare` in all processes; called by the first one."""
    processes.broadcast({"config": config.tree()})
    return processes.run_on_all(
        lambda: prepare(config, progress=console.reading, processes=processes)
    )


def _follow(processes: ProcessGroup) -> RunResult:
    with handled() as interrupts:
        message = processes.receive()
        if "folder" in message:  # nothing was left to do
            return _outcome(message)
        config = validate([Layer("configuration of the first process", message["config"])])
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
        return _outcome(processes.receive())


def _outcome(message: Message) -> RunResult:
    return RunResult(
        Path(message["folder"]),
        RunSummary.model_validate_json(message["summary"]),
        message["signal"],
    )
