"""A run from its configuration to its finished folder; and going on with one that was stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer, RunConfig, load_config, plain_tree, validate
from ssl_toolkit.config.locations import find_config
from ssl_toolkit.data.split_file import save_split
from ssl_toolkit.engine.experiment import Experiment, resolve_config
from ssl_toolkit.engine.ranks import Ranks, joined, restarted, under_launcher
from ssl_toolkit.engine.trainer import needed
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import write_json, write_text
from ssl_toolkit.interrupts import handled
from ssl_toolkit.results.console import Console
from ssl_toolkit.results.folder import RunFolder, check_same
from ssl_toolkit.results.following import prepare_all, shared
from ssl_toolkit.results.loggers import check_loggers
from ssl_toolkit.results.output import Output
from ssl_toolkit.results.processes import launch
from ssl_toolkit.results.record import record
from ssl_toolkit.results.resuming import lead_on, resume
from ssl_toolkit.results.training import Outcome, counts, finish, summary_of

__all__ = ["Outcome", "begun", "resume", "train"]


def train(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    overwrite: bool = False,
    proceed: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Do what ``ssl-toolkit run`` does.

    Args:
        config: a validated configuration, a tree of keys as in a ``--config`` file, or the path
            of such a file.
        overwrite: whether a run that is in the output folder may be replaced.
        proceed: go on with a run of this very configuration that is in the output folder, and
            leave a finished one as it is; so the call may be repeated until it succeeds.
        console: where the course is shown; None shows warnings and the results only. The log gets
            everything.

    Returns:
        The folder of the run and its summary.

    Raises:
        UserError: before any training; nothing was written.
        TrainingError: a loss or weight was not finite; the summary says ``failed``.
    """
    if isinstance(config, str | os.PathLike):
        config = load_config([find_config(os.fspath(config))])
    elif not isinstance(config, RunConfig):
        config = validate([Layer("configuration", plain_tree(config))])
    console = console or Console(quiet=True)
    if config.settings.devices > 1 and not under_launcher():
        order = {"config": config.tree(), "overwrite": overwrite, "proceed": proceed}
        return launch(order | console.kind(), config.settings.devices, config.settings.output)
    with joined() as ranks:
        config = _shared_out(config, ranks.size)
        return shared(
            ranks,
            lambda: _lead(config, ranks, overwrite, proceed or restarted(), console),
        )


def _lead(
    config: RunConfig, ranks: Ranks, overwrite: bool, proceed: bool, console: Console
) -> Outcome:
    if proceed and begun(config):
        return lead_on(Path(needed(config.settings.output)), ranks, console=console)
    check_loggers(config.settings.loggers)
    with (
        handled() as interrupts,
        Output(config.settings, overwrite=overwrite, restart=proceed) as output,
    ):
        experiment = prepare_all(config, ranks, console)
        folder = output.make(experiment.config.settings)
        _begin(experiment, folder, console)
        ranks.say({"state": None})
        return finish(experiment, folder, console, interrupts)


def _shared_out(config: RunConfig, size: int) -> RunConfig:
    """The configuration with the number of processes that were started."""
    if config.settings.devices not in (1, size):
        raise ConfigError(
            f"--devices {config.settings.devices}: {size} processes were started; leave it out"
        )
    return replace(config, settings=config.settings.model_copy(update={"devices": size}))


def _begin(experiment: Experiment, folder: RunFolder, console: Console) -> None:
    """Write what is known before the first step; if that fails, nothing is left."""
    try:
        console.log_to(folder.log)
        write_text(folder.config, yaml.dump(experiment.config.tree()))
        write_json(folder.record, record(experiment))
        save_split(folder.split, experiment.table, experiment.split, experiment.content)
        if experiment.leaks:
            write_json(folder.leaks, experiment.leaks.content(experiment.table))
        console.say(f"run folder: {folder.path}", important=True)
        _introduce(experiment, console)
        folder.write_summary(summary_of(experiment, "running"))
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise ModelError(f"{error.filename or folder.path}: {error.strerror}") from error
        raise


def begun(config: RunConfig) -> bool:
    """Whether the output folder holds a run of this configuration, however far it came.

    Raises:
        ConfigError: no output is given, or the run that is there has another configuration.
        ModelError: what is there is damaged.
    """
    if config.settings.output is None:
        raise ConfigError("--continue goes on with what is in a folder; give it as --output")
    folder = RunFolder(Path(config.settings.output))
    if not folder.summary.exists():
        return False  # at most the start of a run that ended before there was anything in it
    check_same(folder, resolve_config(config)[0])
    return True


def _introduce(experiment: Experiment, console: Console) -> None:
    settings = experiment.config.settings
    parts = ", ".join(f"{count} {part}" for part, count in counts(experiment.split).items())
    console.say(
        f"{settings.algo} (profile {settings.profile}), {settings.backbone} at "
        f"{settings.image_size} px, {experiment.device}, seed {settings.seed}"
    )
    console.say(f"{len(experiment.classes)} classes; {parts}")
    for note in experiment.notes:
        console.say(note)
    for warning in experiment.warnings:
        console.warn(warning)
