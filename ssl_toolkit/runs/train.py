"""A run from its configuration to its finished folder; and going on with one that was stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import AUTO, Layer, RunConfig, plain_tree, validate
from ssl_toolkit.config.locations import find_config
from ssl_toolkit.console import Console
from ssl_toolkit.data.readers.in_memory import Images, LabeledImages, Labels, write_data
from ssl_toolkit.data.splits.split_file import save_split
from ssl_toolkit.engine.distributed import (
    ProcessGroup,
    init_process_group,
    restarted,
    under_launcher,
)
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import write_json
from ssl_toolkit.interrupts import handled
from ssl_toolkit.runs.execute import finish
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.output_folder import Output
from ssl_toolkit.runs.record import record
from ssl_toolkit.runs.resume import lead_on, resume
from ssl_toolkit.runs.spawn import launch
from ssl_toolkit.runs.summary import RunResult, counts, summary_of
from ssl_toolkit.runs.time_budget import check_chosen, resolve_minutes
from ssl_toolkit.runs.workers import prepare_all, shared

__all__ = ["RunResult", "is_started", "resume", "train"]


def train(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    images: Images | None = None,
    labels: Labels | None = None,
    unlabeled: Images | None = None,
    validation: LabeledImages | None = None,
    test: LabeledImages | None = None,
    overwrite: bool = False,
    proceed: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Do what ``ssl-toolkit run`` does, on the data that `config` names or that are given here.

    Images that are given are written beside the folder of the run as a file of the name
    ``given-HASH``, and ``data`` of the configuration names it: resuming and evaluating need it.

    Args:
        config: a validated configuration, a tree of keys as in a ``--config`` file, or the path
            of such a file.
        images: an array (N, H, W, 3) or (N, H, W), uint8 or float in [0, 1]; a tensor (N, 3, H, W);
            a list of paths, images of Pillow's, arrays and tensors, of any sizes; a map-style data
            set of torch's, its items images or pairs (image, label); or features (N, D).
        labels: (N,) whole numbers or texts, -1 or None for an image without label, which joins the
            unlabeled ones.
        unlabeled: more images, without labels.
        validation: a pair (images, labels), or a data set of pairs; likewise `test`.
        test: never learned from.
        overwrite: whether a run that is in the output folder may be replaced.
        proceed: resume a run of this very configuration that is in the output folder, and
            leave a finished one as it is; so the call may be repeated until it succeeds.
        console: where the course is shown; None shows warnings and the results only. The log gets
            everything.

    Returns:
        The folder of the run and its summary.

    Raises:
        UserError: before any training; nothing was written.
        TrainingError: a loss or weight was not finite; the summary says ``failed``.
    """
    if images is not None:
        checked = _check_given(_layer(config), overwrite=overwrite, proceed=proceed)
        layer = _with_data(checked, images, labels, unlabeled, validation, test)
        config = validate([layer])
    elif any(given is not None for given in (labels, unlabeled, validation, test)):
        raise ConfigError("labels, unlabeled, validation and test go with images=")
    elif not isinstance(config, RunConfig):
        config = validate([_layer(config)])
    console = console or Console(quiet=True)
    if config.settings.devices > 1 and not under_launcher():
        order = {"config": config.tree(), "overwrite": overwrite, "proceed": proceed}
        return launch(order | console.kind(), config.settings.devices, config.settings.output)
    with init_process_group() as processes:
        config = _shared_out(config, processes.size)
        return shared(
            processes,
            lambda: _lead(config, processes, overwrite, proceed or restarted(), console),
        )


def _layer(config: RunConfig | Mapping[str, Any] | str | os.PathLike[str]) -> Layer:
    if isinstance(config, str | os.PathLike):
        path = find_config(os.fspath(config))
        return Layer(str(path), yaml.read(path))
    tree = config.tree() if isinstance(config, RunConfig) else plain_tree(config)
    return Layer("configuration", tree)


def _check_given(layer: Layer, *, overwrite: bool, proceed: bool) -> Layer:
    """Refuse what is wrong with the keys of a run on images that are given, before a write."""
    for key in ("data", "dataset", "root"):
        if layer.tree.get(key) is not None:
            raise ConfigError(f"{layer.origin}: {key} and images= are both given; leave one out")
    settings = validate([Layer(layer.origin, layer.tree | {"data": "images="})]).settings
    if not proceed:
        with Output(settings, overwrite=overwrite):
            pass
    return layer


def _with_data(layer: Layer, images: Images, *given: Any) -> Layer:
    """The keys with ``data`` for images that are given, which are written for it."""
    labels, unlabeled, validation, test = given
    output = layer.tree.get("output")
    folder = Path(output).parent if output else Path("runs")
    try:
        made = write_data(
            folder, images, labels, unlabeled=unlabeled, validation=validation, test=test
        )
    except OSError as error:
        raise ModelError(f"{error.filename or folder}: {error.strerror or error}") from error
    keys: dict[str, Any] = {"data": str(made.path)}
    if made.root is not None:
        keys["root"] = str(made.root)
    if layer.tree.get("classes") is None and len(made.classes) > 1:
        keys["classes"] = list(made.classes)
    return Layer(layer.origin, layer.tree | keys)


def _lead(
    config: RunConfig, processes: ProcessGroup, overwrite: bool, proceed: bool, console: Console
) -> RunResult:
    if proceed and is_started(config):
        return lead_on(Path(str(config.settings.output)), processes, console=console)
    for name in config.settings.loggers:
        registry.require_packages("loggers", name)
    with (
        handled() as interrupts,
        Output(config.settings, overwrite=overwrite, restart=proceed) as output,
    ):
        choices: dict[str, Any] = {"auto": None, "minutes": None}
        if config.settings.algo == AUTO or config.settings.minutes is not None:
            config, choices = resolve_minutes(config, console)
        experiment = prepare_all(config, processes, console)
        folder = output.make(experiment.config.settings)
        _begin(experiment, folder, console, choices)
        processes.broadcast({"state": None})
        return finish(experiment, folder, console, interrupts)


def _shared_out(config: RunConfig, size: int) -> RunConfig:
    """The configuration with the number of processes that were started."""
    if config.settings.devices not in (1, size):
        raise ConfigError(
            f"--devices {config.settings.devices}: {size} processes were started; leave it out"
        )
    return replace(config, settings=config.settings.model_copy(update={"devices": size}))


def _begin(
    experiment: Experiment,
    folder: RunFolder,
    console: Console,
    choices: dict[str, Any],
) -> None:
    """Write what is known before the first step; if that fails, nothing is left."""
    try:
        console.log_to(folder.log)
        yaml.write(folder.config, experiment.config.tree())
        record(experiment, **choices).write(folder.record)
        save_split(folder.split, experiment.table, experiment.split, experiment.content)
        if experiment.leaks:
            write_json(folder.leaks, experiment.leaks.content(experiment.table))
        console.say(f"run folder: {folder.path}", important=True)
        _introduce(experiment, console)
        summary_of(experiment, "running").write(folder.summary)
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise ModelError(f"{error.filename or folder.path}: {error.strerror}") from error
        raise


def is_started(config: RunConfig) -> bool:
    """Return True if the output folder holds a run of this configuration.

    Raises:
        ConfigError: no output is given, or the run that is there has another configuration.
        ModelError: what is there is damaged.
    """
    if config.settings.output is None:
        raise ConfigError("--continue resumes the run in a folder; give the folder as --output")
    folder = RunFolder(Path(config.settings.output))
    if not folder.summary.exists():
        return False  # at most the start of a run that ended before there was anything in it
    check_chosen(folder, config)
    return True


def _introduce(experiment: Experiment, console: Console) -> None:
    settings = experiment.config.settings
    parts = ", ".join(f"{count} {part}" for part, count in counts(experiment.split))
    size = "" if experiment.table.features is not None else f" at {settings.image_size} px"
    console.say(
        f"{settings.algo} (profile {settings.profile}), {settings.backbone}{size}, "
        f"{experiment.device}, seed {settings.seed}"
    )
    console.say(f"{len(experiment.classes)} classes; {parts}")
    for note in experiment.notes:
        console.say(note)
    for warning in experiment.warnings:
        console.warn(warning)
