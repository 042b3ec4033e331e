"""Train a model from a configuration, and write its run folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.config import yaml
from ssl_toolkit.config.images import RGB8, PixelFormat, size_text
from ssl_toolkit.config.loading import Layer, RunConfig, plain_tree, validate, with_automatic_recipe
from ssl_toolkit.config.yaml import find_config
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
from ssl_toolkit.files import write_text
from ssl_toolkit.interrupts import handled
from ssl_toolkit.recipes import find_recipe
from ssl_toolkit.recipes.apply import check_initial_weights
from ssl_toolkit.runs.advice import uneven_advice
from ssl_toolkit.runs.execute import finish
from ssl_toolkit.runs.folder import Output, RunFolder
from ssl_toolkit.runs.record import AutoChoice, MinutesChoice, make_record
from ssl_toolkit.runs.resume import resume_as_main
from ssl_toolkit.runs.summary import RunResult, counts, summary_of
from ssl_toolkit.runs.time_budget import check_same_config, resolve_minutes
from ssl_toolkit.runs.workers import prepare_all, run_with_workers, start_workers
from ssl_toolkit.text import display_path

_OF_CALL = ("time_limit", "on_collapse", "loggers", "workers")
"""Settings of a call that resumes a run, which hold for this call."""


def train(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    images: Images | None = None,
    labels: Labels | None = None,
    unlabeled: Images | None = None,
    validation: LabeledImages | None = None,
    test: LabeledImages | None = None,
    overwrite: bool = False,
    resume: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Train as ``ssl-toolkit run`` does, on the data of `config` or on images in memory.

    Images in memory are written to a file ``given-HASH`` next to the run folder, and ``data`` of
    the configuration is set to its path; resuming and evaluating need the file.

    Args:
        config: A validated configuration, a tree of keys as in a ``--config`` file, or the path
            to such a file.
        images: An array (N, H, W, C) or (N, H, W), uint8, uint16 or float in [0, 1]; a tensor
            (N, C, H, W); a list of paths, Pillow images, arrays and tensors, of any sizes; a
            map-style torch data set of images or pairs (image, label); or features (N, D).
        labels: (N,) integers or strings; images with -1 or None join the unlabeled ones.
        unlabeled: More images, without labels.
        validation: A pair (images, labels), or a data set of pairs.
        test: As `validation`; never used for training.
        overwrite: Replace a run in the output folder.
        resume: Resume a run of this configuration in the output folder, or return a finished one;
            so the call can be repeated until it succeeds.
        console: Shows the progress; None shows only warnings and results. The log contains
            everything.

    Returns:
        The folder of the run and its summary.

    Raises:
        UserError: Before any training; nothing was written.
        TrainingError: A loss or weight was not finite; the status of the run is ``failed``.
    """
    if images is not None:
        layer = _layer(config)
        form = _check_output(layer, overwrite=overwrite, resume=resume)
        config = validate([_with_images(layer, form, images, labels, unlabeled, validation, test)])
    elif any(value is not None for value in (labels, unlabeled, validation, test)):
        raise ConfigError("labels, unlabeled, validation and test go with images=")
    elif not isinstance(config, RunConfig):
        config = validate(with_automatic_recipe([_layer(config)]))
    console = console or Console(quiet=True)
    settings = config.settings
    if settings.devices > 1 and not under_launcher():
        options = {"config": config.tree(), "overwrite": overwrite, "resume": resume}
        return start_workers("train", options, console, settings.devices, settings.output)
    with init_process_group() as processes:
        if settings.devices not in (1, processes.size):
            raise ConfigError(
                f"--devices {settings.devices}: {processes.size} processes were started; leave it "
                "out"
            )
        shared = config.with_settings(devices=processes.size)
        return run_with_workers(
            processes,
            lambda: _train_as_main(shared, processes, overwrite, resume or restarted(), console),
        )


def _layer(config: RunConfig | Mapping[str, Any] | str | os.PathLike[str]) -> Layer:
    if isinstance(config, str | os.PathLike):
        path = find_config(os.fspath(config))
        return Layer(str(path), yaml.read(path))
    tree = config.tree() if isinstance(config, RunConfig) else plain_tree(config)
    return Layer("configuration", tree)


def _check_output(layer: Layer, *, overwrite: bool, resume: bool) -> PixelFormat:
    """Check the keys and the output of a run on images in memory before writing the images.

    Returns:
        The channels and bits that the keys say.
    """
    for key in ("data", "dataset", "root"):
        if layer.tree.get(key) is not None:
            raise ConfigError(f"{layer.origin}: {key} and images= are both given; leave one out")
    settings = validate([Layer(layer.origin, layer.tree | {"data": "images="})]).settings
    if settings.task == "multilabel":
        raise ConfigError(
            f"{layer.origin}: task multilabel: images= has one label per image; write the labels "
            "to a manifest, or to an .npz with labels (N, C), and give its path as data"
        )
    if not resume:
        with Output(settings, overwrite=overwrite):
            pass
    return PixelFormat(settings.channels or RGB8.channels, settings.bits or RGB8.bits)


def _with_images(
    layer: Layer,
    form: PixelFormat,
    images: Images,
    labels: Labels | None,
    unlabeled: Images | None,
    validation: LabeledImages | None,
    test: LabeledImages | None,
) -> Layer:
    """Write images in memory to a file, and return the configuration with its path."""
    output = layer.tree.get("output")
    folder = Path(output).parent if output else Path("runs")
    try:
        data = write_data(
            folder,
            images,
            labels,
            unlabeled=unlabeled,
            validation=validation,
            test=test,
            form=form,
        )
    except OSError as error:
        raise ModelError(f"{error.filename or folder}: {error.strerror or error}") from error
    keys: dict[str, Any] = {"data": str(data.path)}
    if data.root is not None:
        keys["root"] = str(data.root)
    if layer.tree.get("classes") is None and len(data.classes) > 1:
        keys["classes"] = list(data.classes)
    return Layer(layer.origin, layer.tree | keys)


def _train_as_main(
    config: RunConfig, processes: ProcessGroup, overwrite: bool, resume: bool, console: Console
) -> RunResult:
    if resume and is_started(config):
        free = {key: getattr(config.settings, key) for key in _OF_CALL}
        path = Path(str(config.settings.output))
        return resume_as_main(path, processes, console=console, settings=free)
    for name in config.settings.loggers:
        registry.require_packages("loggers", name)
    check_initial_weights(config.settings.recipe, config.settings.weights)
    with (
        handled() as interrupts,
        Output(config.settings, overwrite=overwrite, restart=resume) as output,
    ):
        config, auto, minutes = resolve_minutes(config, console)
        experiment = prepare_all(config, processes, console)
        folder = output.create(experiment.config.settings)
        _write_start(experiment, folder, console, auto, minutes)
        processes.broadcast({"state": None})
        return finish(experiment, folder, console, interrupts)


def _write_start(
    experiment: Experiment,
    folder: RunFolder,
    console: Console,
    auto: AutoChoice | None,
    minutes: MinutesChoice | None,
) -> None:
    """Write the files of a run before its first step; remove them all on failure."""
    try:
        console.log_to(folder.log)
        yaml.write(folder.config, experiment.config.tree())
        make_record(experiment, auto, minutes).write(folder.record)
        save_split(folder.split, experiment.table, experiment.split, experiment.content)
        if (labels := experiment.config.settings.pseudo_labels) is not None:
            write_text(folder.pseudo_labels, Path(labels).read_text(encoding="utf-8"))
        if experiment.leaks:
            experiment.leaks.file(experiment.table).write(folder.leaks)
        console.say(f"run folder: {folder.path}", important=True)
        _introduce(experiment, console)
        summary = summary_of(experiment, "running")
        path = display_path(folder.path)
        again = ["--config", display_path(folder.config)]
        algo = experiment.config.settings.algo
        classes = {"labels": summary.health.labeled}
        if (tails := summary.imbalance) is not None and tails.pool is not None:
            classes["unlabeled images"] = tails.pool
        for line in uneven_advice(classes, algo, again, path):
            console.say(line)
        summary.write(folder.summary)
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise ModelError(f"{error.filename or folder.path}: {error.strerror}") from error
        raise


def is_started(config: RunConfig) -> bool:
    """Return True if the output folder contains a run of this configuration.

    Raises:
        ConfigError: No output is set, or the run there has another configuration.
        ModelError: A file there is damaged.
    """
    if config.settings.output is None:
        raise ConfigError("--continue resumes the run in a folder; set the folder by --output")
    folder = RunFolder(Path(config.settings.output))
    if not folder.summary.exists():
        return False  # at most the start of a run that ended before its first checkpoint
    check_same_config(folder, config)
    return True


def _introduce(experiment: Experiment, console: Console) -> None:
    settings = experiment.config.settings
    parts = ", ".join(f"{count} {part}" for part, count in counts(experiment.split))
    size = (
        "" if experiment.table.features is not None else f" at {size_text(settings.image_size)} px"
    )
    console.say(
        f"{settings.algo} (profile {settings.profile}), {settings.backbone}{size}, "
        f"{experiment.device}, seed {settings.seed}"
    )
    if settings.recipe is not None:
        console.say(find_recipe(settings.recipe).describe(settings.scale))
    console.say(f"{len(experiment.classes)} classes; {parts}")
    for note in experiment.notes:
        console.say(note)
    for warning in experiment.warnings:
        console.warn(warning)
