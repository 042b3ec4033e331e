"""Resume a run that was interrupted, or train a finished one longer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import ResolvedConfig
from ssl_toolkit.config.settings import FREE_ON_RESUME, MOVED_ON_RESUME, RECORDED_ON_RESUME, flatten
from ssl_toolkit.console import Console
from ssl_toolkit.engine.checkpoints import kept_checkpoints, load_newest
from ssl_toolkit.engine.devices import describe
from ssl_toolkit.engine.distributed import ProcessGroup, init_process_group, under_launcher
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import at_home, drop_partial
from ssl_toolkit.interrupts import handled
from ssl_toolkit.locking import hold
from ssl_toolkit.runs.check import check_data, find_data
from ssl_toolkit.runs.execute import finish
from ssl_toolkit.runs.folder import RunFolder, check_classes
from ssl_toolkit.runs.metrics_log import truncate_metrics
from ssl_toolkit.runs.record import (
    Change,
    configuration_hash,
    distributions,
    in_versions,
    versions,
    weights_hash,
)
from ssl_toolkit.runs.summary import RunResult, RunSummary, summary_of
from ssl_toolkit.runs.workers import prepare_all, run_with_workers, start_workers
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

    A finished run is returned unchanged, unless `steps` is larger than before.

    Args:
        run: Folder of the run.
        data: Path to its images, if they were moved; their content must be the same.
        steps: Total number of steps, to train longer than before; updates the configuration and
            the record. Values derived from the original number of steps don't change (decay of the
            average, BatchNorm's momentum, intervals of evaluations and checkpoints); schedules and
            ramps defined as fractions of the steps follow the new number.
        devices: Number of processes that share each batch; None for as many as before. Updates the
            record; another number changes the order of sums and the batches that BatchNorm sees.
        time_limit: Minutes after which to save and stop; None for the limit in the configuration,
            which isn't changed.
        console: As for `train`.

    Raises:
        ModelError: The folder contains no run, another process uses it, or no checkpoint can be
            used.
        ConfigError: Its configuration was changed, or it has done more than `steps` already.
        UserError: Its data is not found, or has changed.
        TrainingError: As `train`.
    """
    console = console or Console(quiet=True)
    path, data_path = at_home(run), None if data is None else at_home(data)
    main = partial(resume_as_main, path, data=data_path, steps=steps, time_limit=time_limit)
    if under_launcher():
        with init_process_group() as processes:
            return run_with_workers(processes, lambda: main(processes=processes, console=console))
    folder = RunFolder(path)
    if result := _already_finished(folder, data_path, steps, console):
        return result
    count = devices or folder.read_config().settings.devices
    if count > 1:
        options = {
            "run": str(path),
            "data": None if data_path is None else str(data_path),
            "steps": steps,
            "time_limit": time_limit,
        }
        return start_workers("resume", options, console, count, str(path))
    return main(processes=ProcessGroup(), console=console)


def resume_as_main(
    path: Path,
    processes: ProcessGroup,
    data: Path | None = None,
    steps: int | None = None,
    time_limit: float | None = None,
    *,
    console: Console,
    settings: Mapping[str, Any] | None = None,
) -> RunResult:
    """Resume a run in its main process; see `resume` for the arguments and errors.

    `settings` replace those of the configuration this time; they must be free on resume.
    """
    folder = RunFolder(path)
    with handled() as interrupts:
        if result := _already_finished(folder, data, steps, console):
            return result
        with hold(path):
            # Another process may have finished it before this one had the lock.
            if result := _already_finished(folder, data, steps, console):
                return result
            drop_partial(path)
            experiment = _resume(
                folder, processes, data, steps, time_limit, console, settings or {}
            )
            return finish(experiment, folder, console, interrupts)


def _already_finished(
    folder: RunFolder, data: Path | None, steps: int | None, console: Console
) -> RunResult | None:
    """Return the result of a run without steps left, else None."""
    summary, path = folder.read_summary(), folder.path
    extended = steps not in (None, summary.steps) and not summary.fitted
    if summary.status != "completed" or extended:
        return None
    if data is not None:
        check_data(folder, find_data(folder, data), data)
    console.say(f"{path}: finished already; nothing to do", important=True)
    return RunResult(folder=path, summary=summary)


def _resume(
    folder: RunFolder,
    processes: ProcessGroup,
    data: Path | None,
    steps: int | None,
    time_limit: float | None,
    console: Console,
    settings: Mapping[str, Any],
) -> Experiment:
    """Return the experiment in the state of its last checkpoint, and update the run's files."""
    summary, config = folder.read_summary(), folder.read_config()
    state, checkpoint, warning = _newest(folder, summary)
    requested = {} if steps is None else {"steps": steps}
    if processes.size != config.settings.devices:
        requested["devices"] = processes.size
    changes = _requested_changes(folder, config, state, requested)
    reopened = folder.reopen(data, initial=state is None).with_settings(**requested, **settings)
    experiment = prepare_all(reopened, processes, console)
    # The configuration in the folder keeps its original path to the data.
    config = config.with_settings(**requested)
    of_call = {**settings, **({} if time_limit is None else {"time_limit": time_limit})}
    experiment = replace(experiment, config=config.with_settings(**of_call))
    check_classes(experiment.classes, summary.classes, folder.path, data or config.settings.data)
    if state is None:
        _check_initial_weights(folder, experiment)
    else:
        _load_state(experiment.trainer, state, checkpoint)
        if checkpoint != folder.last:
            os.replace(checkpoint, folder.last)  # not the damaged one, as the previous
    truncate_metrics(folder.metrics, experiment.trainer.step)
    console.log_to(folder.log)
    if warning:
        console.warn(warning)
    if hardware := _hardware_changes(folder, experiment):
        console.warn("the hardware or precision has changed; the result will differ slightly")
    if software := _software_changes(folder, experiment):
        console.warn("versions of packages or plugins have changed; the result may differ")
    changes += hardware + software
    if changes:
        _record(folder, config, changes)
    for change in changes:
        console.say(f"{change.key}: {change.after} instead of {change.before}", important=True)
    progress = f"{experiment.trainer.step} of {config.settings.steps}"
    console.say(f"resuming after step {progress}", important=True)
    folder.predictions.unlink(missing_ok=True)  # of the weights at the interruption
    summary_of(experiment, "running").write(folder.summary)
    processes.broadcast({"state": state})
    return experiment


def _newest(folder: RunFolder, summary: RunSummary) -> tuple[State | None, Path, str]:
    """Return the state to resume from, its file and a warning; None if nothing was trained."""
    trained = summary.steps or (folder.metrics.exists() and folder.metrics.stat().st_size > 0)
    way_out = _start_again(folder)
    if not kept_checkpoints(folder.last):
        if trained:
            raise ModelError(f"{display_path(folder.last)}: checkpoint not found; {way_out}")
        return None, folder.last, ""
    try:
        return load_newest(folder.last)
    except ModelError as error:
        raise ModelError(f"{error}; {way_out}") from error


def _start_again(folder: RunFolder) -> str:
    return (
        f"to start again: `ssl-toolkit run --config {display_path(folder.config)} --output "
        f"{display_path(folder.path)} --overwrite`"
    )


def _check_initial_weights(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse to train a run without checkpoint from other weights than those that it started from.

    Raises:
        ModelError: Names the source of the weights.
    """
    if weights_hash(experiment.trainer.classifier) != folder.read_record().initial_weights:
        settings = experiment.config.settings
        source = "" if settings.weights is None else f"--weights {settings.weights} or "
        raise ModelError(
            f"{display_path(folder.path)} has no checkpoint yet, and its initial weights can't be "
            f"restored: {source}a package or the hardware has changed; {_start_again(folder)}"
        )


def _requested_changes(
    folder: RunFolder, config: ResolvedConfig, state: State | None, requested: dict[str, int]
) -> list[Change]:
    """Return the changes that the arguments make; raise if the configuration was edited.

    Args:
        folder: Folder of the run.
        config: Configuration in the folder.
        state: State of the last checkpoint; None if nothing was trained.
        requested: New values by key.

    Raises:
        ConfigError: Names the keys that were changed in the file, if there is a checkpoint.
    """
    record = folder.read_record()
    done = 0 if state is None else state["step"]
    steps = requested.get("steps")
    if steps is not None and steps < max(done, 1):
        raise ConfigError(
            f"--steps {steps}: {display_path(folder.path)} has done {done} steps already; give more"
        )
    current = dict(flatten(config.tree()))
    previous = current if state is None else dict(flatten(state.get("config", config.tree())))
    recorded = {
        change.key: change.after for change in record.changes if change.key in RECORDED_ON_RESUME
    }
    recorded |= {key: current[key] for key in requested}
    messages = [
        f"{key} is {current.get(key)!r}, was {previous.get(key)!r}"
        for key in sorted(previous.keys() | current.keys())
        if key not in FREE_ON_RESUME | MOVED_ON_RESUME  # moved images are checked by content
        and current.get(key) not in (previous.get(key), recorded.get(key, previous.get(key)))
    ]
    if state is None:  # the record has a hash of the configuration, not its keys
        known = ("", *map(configuration_hash, (config, config.with_settings(**requested))))
        messages = [] if record.configuration in known else ["its hash is not that of record.json"]
    if messages:
        raise ConfigError(
            f"{display_path(folder.config)} was changed since the run started: "
            f"{'; '.join(messages)}; restore it, or start a new run with `ssl-toolkit run --config "
            f"{display_path(folder.config)} --output NEW` (more steps alone: resume --steps N)"
        )
    return _changes(current, requested, done)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], step: int) -> list[Change]:
    return [
        Change(key=key, before=before.get(key), after=value, after_step=step)
        for key, value in after.items()
        if _without_index(before.get(key)) != _without_index(value)
    ]


def _hardware_changes(folder: RunFolder, experiment: Experiment) -> list[Change]:
    """Return the changes of device and precision since the last start or resume."""
    record = folder.read_record()
    previous = {"device": record.device, "precision": record.precision}
    previous |= {change.key: change.after for change in record.changes}
    current = {"device": describe(experiment.device), "precision": experiment.trainer.precision}
    return _changes(previous, current, experiment.trainer.step)


def _software_changes(folder: RunFolder, experiment: Experiment) -> list[Change]:
    """Return the changes of packages and plugins since the last start or resume.

    A plugin that comes with ssl-toolkit or timm has no change of its own.
    """
    record = folder.read_record()
    before = _software(record.versions, record.plugins)
    for change in record.changes:
        if change.key.startswith(("versions.", "plugins.")):
            before[change.key] = change.after
    now = _software(versions(), distributions(experiment.config.settings))
    found = _changes(before, dict.fromkeys(before) | now, experiment.trainer.step)
    return [
        change
        for change in found
        if not (change.key.startswith("plugins.") and in_versions((change.before, change.after)))
    ]


def _software(packages: Mapping[str, str], plugins: Mapping[str, str]) -> dict[str, Any]:
    of_packages = {f"versions.{name}": version for name, version in packages.items()}
    return of_packages | {f"plugins.{name}": source for name, source in plugins.items()}


def _without_index(value: Any) -> Any:
    """Return a device without its index: another GPU of the same model is no change."""
    return re.sub(r"^cuda:\d+", "cuda", value) if isinstance(value, str) else value


def _record(folder: RunFolder, config: ResolvedConfig, changes: list[Change]) -> None:
    """Write the changes to the run's files; after a kill, the same command writes them again."""
    record = folder.read_record()
    update = {
        "fingerprint": config.fingerprint(),
        "configuration": configuration_hash(config),
        "changes": (*record.changes, *changes),
    }
    record.model_copy(update=update).write(folder.record)
    yaml.write(folder.config, config.tree())


def _load_state(trainer: Trainer, state: State, path: Path) -> None:
    try:
        trainer.load_state_dict(state)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(f"{display_path(path)}: does not fit this run ({reason})") from error
