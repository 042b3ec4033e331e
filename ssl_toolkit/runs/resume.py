"""Going on with a run that was stopped, or with one that shall become longer."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparability import flatten
from ssl_toolkit.config.loading import ResolvedConfig
from ssl_toolkit.config.roles import FREE_ON_RESUME, MOVED_ON_RESUME, RECORDED_ON_RESUME
from ssl_toolkit.console import Console
from ssl_toolkit.engine.checkpoints import kept_checkpoints, load_newest
from ssl_toolkit.engine.devices import describe
from ssl_toolkit.engine.distributed import ProcessGroup, init_process_group, under_launcher
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import at_home, drop_partial
from ssl_toolkit.interrupts import Interrupts, handled
from ssl_toolkit.locking import hold
from ssl_toolkit.runs.data_check import check_data, find_data
from ssl_toolkit.runs.execute import finish
from ssl_toolkit.runs.folder import RunFolder, check_classes
from ssl_toolkit.runs.metrics_log import truncate_metrics
from ssl_toolkit.runs.record import Change
from ssl_toolkit.runs.spawn import launch
from ssl_toolkit.runs.summary import RunResult, RunSummary, summary_of
from ssl_toolkit.runs.workers import prepare_all, shared
from ssl_toolkit.text import display_path

State = dict[str, Any]


def resume(
    run: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    devices: int | None = None,
    time_limit: float | None = None,
    console: Console | None = None,
) -> RunResult:
    """Resume an interrupted run from its last checkpoint, to the same result.

    A finished run is left as it is, unless `steps` asks for more.

    Args:
        run: folder of the run.
        data: where its images are now, if they were moved; the same ones as before.
        steps: steps in all, to train longer than was asked at first. The configuration and the
            record say so from then on. Values that were chosen by the number of steps at the
            start stay (decay of the average, BatchNorm's momentum, when is evaluated and saved);
            schedules and ramps that are shares of the steps follow the new number from here on.
        devices: processes that share each batch from now on; None for as many as before. The record
            says so; another number of parts changes the order of sums, and what BatchNorm sees.
        time_limit: minutes after which to save and stop this time; None for that of the
            configuration, which stays as it is.
        console: as for `train`.

    Raises:
        ModelError: the folder is not that of a run, another process uses it, or none of its
            checkpoints can be used.
        ConfigError: its configuration was changed, or it has done as many steps already.
        UserError: its data is not there any more, or not the same.
        TrainingError: as `train`.
    """
    console = console or Console(quiet=True)
    path, moved = at_home(run), None if data is None else at_home(data)
    if under_launcher():
        with init_process_group() as processes:
            return shared(
                processes,
                lambda: lead_on(path, processes, moved, steps, time_limit, console=console),
            )
    folder = RunFolder(path)
    if outcome := _over(folder, moved, steps, console):
        return outcome
    count = devices or folder.read_config().settings.devices
    if count > 1:
        order = {"resume": str(path), "data": None if moved is None else str(moved)}
        asked = {"steps": steps, "time_limit": time_limit}
        return launch(order | asked | console.kind(), count, str(path))
    return lead_on(path, ProcessGroup(), moved, steps, time_limit, console=console)


def lead_on(
    path: Path,
    processes: ProcessGroup,
    data: Path | None = None,
    steps: int | None = None,
    time_limit: float | None = None,
    *,
    console: Console,
) -> RunResult:
    """`resume` in the first process of a run; the arguments and errors are the same."""
    folder = RunFolder(path)
    with handled() as interrupts:
        if outcome := _over(folder, data, steps, console):
            return outcome
        with hold(path):
            # Another process may have ended it before this one had the lock.
            if outcome := _over(folder, data, steps, console):
                return outcome
            drop_partial(path)
            return _go_on(folder, processes, data, steps, time_limit, console, interrupts)


def _over(
    folder: RunFolder, data: Path | None, steps: int | None, console: Console
) -> RunResult | None:
    """How the run ended, if nothing is left to do."""
    summary, path = folder.read_summary(), folder.path
    more = steps not in (None, summary.steps) and not summary.fitted
    if summary.status != "completed" or more:
        return None
    if data is not None:
        check_data(folder, find_data(folder, data), data)
    console.say(f"{path}: finished already; nothing to do", important=True)
    return RunResult(path, summary)


def _go_on(
    folder: RunFolder,
    processes: ProcessGroup,
    data: Path | None,
    steps: int | None,
    time_limit: float | None,
    console: Console,
    interrupts: Interrupts,
) -> RunResult:
    summary, config = folder.read_summary(), folder.read_config()
    state, used, warning = _newest(folder, summary)
    asked = {} if steps is None else {"steps": steps}
    if processes.size != config.settings.devices:
        asked["devices"] = processes.size
    config, changes = _checked(folder, config, state, asked)
    reopened = folder.reopen(data)
    reopened = replace(reopened, settings=reopened.settings.model_copy(update=asked))
    # The folder keeps the configuration of its start, whatever the data was opened with.
    experiment = replace(
        prepare_all(reopened, processes, console), config=_limited(config, time_limit)
    )
    check_classes(experiment.classes, summary.classes, folder.path, data or config.settings.data)
    if state is not None:
        _take_up(experiment.trainer, state, used)
    if used != folder.last and state is not None:
        os.replace(used, folder.last)  # else the damaged one would become the one before
    truncate_metrics(folder.metrics, experiment.trainer.step)
    console.log_to(folder.log)
    if warning:
        console.warn(warning)
    if moved := _moved(folder, experiment):
        changes += moved
        console.warn("this run computes otherwise from here on; its result will differ a little")
    if changes:
        _record(folder, config, changes)
    for change in changes:
        console.say(f"{change.key}: {change.after} instead of {change.before}", important=True)
    progress = f"{experiment.trainer.step} of {config.settings.steps}"
    console.say(f"resuming after step {progress}", important=True)
    folder.predictions.unlink(missing_ok=True)  # of the weights it was stopped with
    summary_of(experiment, "running").write(folder.summary)
    processes.broadcast({"state": state})
    return finish(experiment, folder, console, interrupts)


def _limited(config: ResolvedConfig, minutes: float | None) -> ResolvedConfig:
    """The configuration for this time, with another time limit if one was given."""
    if minutes is None:
        return config
    return replace(config, settings=config.settings.model_copy(update={"time_limit": minutes}))


def _newest(folder: RunFolder, summary: RunSummary) -> tuple[State | None, Path, str]:
    """Return the state to resume from, its file and a warning; no state if nothing was trained."""
    trained = summary.steps or (folder.metrics.exists() and folder.metrics.stat().st_size > 0)
    again = (
        f"to start again: `ssl-toolkit run --config {display_path(folder.config)} --output "
        f"{display_path(folder.path)} --overwrite`"
    )
    if not kept_checkpoints(folder.last):
        if trained:
            raise ModelError(f"{display_path(folder.last)}: its checkpoints are gone; {again}")
        return None, folder.last, ""
    try:
        return load_newest(folder.last)
    except ModelError as error:
        raise ModelError(f"{error}; {again}") from error


def _checked(
    folder: RunFolder, config: ResolvedConfig, state: State | None, asked: dict[str, int]
) -> tuple[ResolvedConfig, list[Change]]:
    """The configuration to go on with, and the changes that were asked for.

    Args:
        folder: of the run.
        config: that is in it.
        state: of the last checkpoint.
        asked: keys that shall have another value from now on.

    Raises:
        ConfigError: names the keys that were changed otherwise.
    """
    done = 0 if state is None else state["step"]
    started = config.tree() if state is None else state.get("config", config.tree())
    was = dict(flatten(started))
    steps = asked.get("steps")
    if steps is not None and steps < max(done, 1):
        raise ConfigError(
            f"--steps {steps}: {display_path(folder.path)} has done {done} steps already; give more"
        )
    now = dict(flatten(config.tree()))
    agreed = {
        change.key: change.after
        for change in folder.read_record().changes
        if change.key in RECORDED_ON_RESUME
    }
    agreed |= {key: now[key] for key in asked}
    changes = [
        Change(key=key, before=now[key], after=value, after_step=done)
        for key, value in asked.items()
        if now[key] != value
    ]
    messages = [
        f"{key} is {now.get(key)!r}, was {was.get(key)!r}"
        for key in sorted(was.keys() | now.keys())
        if key not in FREE_ON_RESUME | MOVED_ON_RESUME  # images may move; what they hold is checked
        and now.get(key) not in (was.get(key), agreed.get(key, was.get(key)))
    ]
    if messages:
        raise ConfigError(
            f"{display_path(folder.config)} was changed since the run started: "
            f"{'; '.join(messages)}; restore it, or start a new run with `ssl-toolkit run --config "
            f"{display_path(folder.config)} "
            "--output NEW` (more steps alone: resume --steps N)"
        )
    return replace(config, settings=config.settings.model_copy(update=asked)), changes


def _moved(folder: RunFolder, experiment: Experiment) -> list[Change]:
    """Return the changes of device and precision since the run was last started or resumed."""
    made, step = folder.read_record(), experiment.trainer.step
    was = {"device": made.device, "precision": made.precision}
    was |= {change.key: change.after for change in made.changes}
    now = {"device": describe(experiment.device), "precision": experiment.trainer.precision}
    return [
        Change(key=key, before=was[key], after=value, after_step=step)
        for key, value in now.items()
        if _unnumbered(was[key]) != _unnumbered(value)
    ]


def _unnumbered(device: str) -> str:
    """Another GPU of the same name is no change."""
    return re.sub(r"^cuda:\d+", "cuda", device)


def _record(folder: RunFolder, config: ResolvedConfig, changes: list[Change]) -> None:
    """Write changes down; killed in between, the same command does it again."""
    made = folder.read_record()
    yaml.write(folder.config, config.tree())
    update = {"fingerprint": config.fingerprint(), "changes": (*made.changes, *changes)}
    made.model_copy(update=update).write(folder.record)


def _take_up(trainer: Trainer, state: State, path: Path) -> None:
    try:
        trainer.load_state_dict(state)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(f"{display_path(path)}: does not fit this run ({reason})") from error
