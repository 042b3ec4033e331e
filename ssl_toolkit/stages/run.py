"""Run stages one after the other, and resume them at and inside each stage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ssl_toolkit.comparisons.gather import gather
from ssl_toolkit.comparisons.schema import RunLocation
from ssl_toolkit.config import yaml
from ssl_toolkit.config.defaults import DATASET
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.config.yaml import find_config
from ssl_toolkit.console import Console
from ssl_toolkit.engine.compatibility import check_parts
from ssl_toolkit.engine.distributed import under_launcher
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.errors import ConfigError, ModelError, UserError
from ssl_toolkit.files import check_writable, drop_partial
from ssl_toolkit.locking import LOCK, clear, hold
from ssl_toolkit.reports.html.page import PAGE, write_report
from ssl_toolkit.reports.tables import show_table, write_tables
from ssl_toolkit.runs.auto import without_auto
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.runs.summary import RunResult
from ssl_toolkit.runs.train import train
from ssl_toolkit.stages.config import Stage, StagesConfig, load_stages, validate_stages
from ssl_toolkit.stages.labels import write_labels
from ssl_toolkit.stages.summary import (
    CONFIG,
    SUMMARY,
    PseudoLabelCounts,
    StagesSummary,
    labels_path,
    run_path,
    summarize_stages,
)
from ssl_toolkit.text import display_path


class StagesResult(NamedTuple):
    """The result of `run_stages`."""

    folder: Path
    summary: StagesSummary
    signal: str
    """Name of the signal that stopped a stage; empty for none."""


def run_stages(
    config: StagesConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resumed: bool = False,
    console: Console | None = None,
) -> StagesResult:
    """Run the stages that are not completed, then write the tables and the report.

    Args:
        config: Validated stages, a tree of keys as in a file with ``stages``, or the path to such a
            file.
        overwrite: True to replace stages in the output folder.
        resumed: True to resume the stages in the output folder; those that have not started may
            have changed.
        console: Shows the progress; only warnings and results if None.

    Returns:
        The folder, and the summary of each stage.

    Raises:
        UserError: A setting, a file or the output folder is invalid; before any training.
        TrainingError: A stage failed; the same stages can be resumed.
    """
    if isinstance(config, str | os.PathLike):
        config = load_stages([find_config(os.fspath(config))])
    elif not isinstance(config, StagesConfig):
        config = validate_stages(config)
    console = console or Console(quiet=True)
    if under_launcher():
        raise ConfigError("stages start their own processes; use --devices N in place of torchrun")
    folder = _folder(config, overwrite=overwrite, resumed=resumed)
    check_stages(config, console)
    folder.mkdir(parents=True, exist_ok=True)
    signal = ""
    with hold(folder):
        if overwrite:
            clear(folder, last=CONFIG)
        drop_partial(folder)
        if not (folder / CONFIG).exists() or reopen(folder).tree() != config.tree():
            yaml.write(folder / CONFIG, config.tree())
        console.say(f"folder of the stages: {folder}", important=True)
        try:
            for stage in config.stages:
                result = _run(stage, folder, console)
                if result.summary.status != "completed":
                    signal = result.signal
                    hint = f"resume with `ssl-toolkit resume {display_path(folder)}`"
                    console.say(f"stopped in stage {stage.name}; {hint}", important=True)
                    break
        finally:
            summary = summarize_stages(config, folder)
            summary.write(folder / SUMMARY)
        if all(stage.status == "completed" for stage in summary.stages):
            _report(config, folder, console)
    return StagesResult(folder, summary, signal)


def reopen(folder: Path) -> StagesConfig:
    """Return the configuration of the stages in a folder."""
    config = load_stages([folder / CONFIG])
    return replace(config, output=str(folder))


def check_stages(config: StagesConfig, console: Console) -> None:
    """Check everything that can be checked without training.

    Raises:
        ConfigError: Lists all faults, with the names of their stages.
    """
    messages: list[str] = []
    backbones: dict[str, str] = {}
    for stage in config.stages:
        try:
            experiment = prepare(without_auto(stage.config), progress=console.reading)
            settings = experiment.config.settings
            if settings.devices > 1:
                check_parts(settings, experiment.trainer.classifier, settings.devices)
        except UserError as error:
            messages += [f"stage {stage.name}: {message}" for message in error.messages]
            continue
        backbones[stage.name] = settings.backbone
        source = backbones.get(stage.sources.weights_from or "")
        if source is not None and source != settings.backbone:
            messages.append(
                f"stage {stage.name}: weights_from: {stage.sources.weights_from} trains the "
                f"backbone {source}, this stage {settings.backbone}; use the same"
            )
        needs = experiment.trainer.batches.views.needs_unlabeled
        keeps_all = stage.sources.threshold == 0 and stage.sources.fraction == 1
        if stage.sources.labels_from and needs and keeps_all and not settings.labeled_in_pool:
            messages.append(
                f"stage {stage.name}: threshold 0 labels the whole pool, and {settings.algo} "
                "learns from unlabeled images; raise it, or set labeled_in_pool: true"
            )
    if messages:
        raise ConfigError(messages)


def _run(stage: Stage, folder: Path, console: Console) -> RunResult:
    """Start or resume a stage."""
    run = RunFolder(run_path(folder, stage.name))
    if run.summary.exists():
        return resume(run.path, time_limit=stage.config.settings.time_limit, console=console)
    sources = stage.sources
    update: dict[str, Any] = {"output": str(run.path)}
    if sources.labels_from:
        path = labels_path(folder, stage.name)
        console.say(f"{stage.name}: pseudo labels by {', '.join(sources.labels_from)}")
        path.parent.mkdir(exist_ok=True)
        runs = [run_path(folder, name) for name in sources.labels_from]
        # Even if the file exists: its sources may have been trained again since.
        write_labels(path, without_auto(stage.config), runs, sources, console)
        counts = PseudoLabelCounts.read(path)
        message = f"{stage.name}: {counts.labeled} of {counts.pool} images have a pseudo label"
        if counts.known:
            message += f", {counts.correct / counts.known:.1%} of them correct"
        if counts.labeled:
            console.say(message, important=True)
        else:
            console.warn(f"{message}; it trains without them; lower the threshold")
        update["pseudo_labels"] = str(path)
    if sources.weights_from:
        update["weights"] = str(RunFolder(run_path(folder, sources.weights_from)).model)
    return train(stage.config.with_settings(**update), resume=True, console=console)


def _report(config: StagesConfig, folder: Path, console: Console) -> None:
    """Write the tables and the report; stages may differ in all settings."""
    locations = [
        RunLocation(stage.name, stage.config.settings.seed, run_path(folder, stage.name))
        for stage in config.stages
    ]
    first = config.stages[0].name
    gathered = gather(
        locations, name=folder.name, baseline=first, allow=tuple(Settings.model_fields)
    )
    write_tables(gathered, folder)
    write_report(gathered, folder / PAGE)
    show_table(gathered, console)


def _folder(config: StagesConfig, *, overwrite: bool, resumed: bool) -> Path:
    """Return the absolute path to the output folder, checked but not created."""
    settings = config.stages[0].config.settings
    data = Path(settings.data).stem if settings.data else settings.dataset or DATASET
    name = f"{config.name}-{data.rpartition(':')[2]}-s{settings.seed}"
    folder = Path(config.output or f"runs/{name}").absolute()
    where = f"--output {display_path(folder)}"
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{where}: a file has this name; choose another one")
    paths = [*folder.iterdir()] if folder.is_dir() else []
    content = {path.name for path in paths if path.name != LOCK and ".partial" not in path.name}
    if content and CONFIG not in content:
        raise ModelError(f"{where}: not the folder of stages; choose another")
    if content and not (overwrite or resumed):
        raise ModelError(
            f"{where}: the folder exists; choose another name, resume with `ssl-toolkit resume "
            f"{display_path(folder)}`, or replace it with --overwrite"
        )
    if content and not overwrite:
        _check_same(config, folder, where)
    check_writable(folder, where)
    return folder


def _check_same(config: StagesConfig, folder: Path, where: str) -> None:
    """Refuse other settings of stages that have started, or that precede one that has."""
    stored = reopen(folder)
    names = [stage.name for stage in stored.stages]
    while names and not RunFolder(run_path(folder, names[-1])).summary.exists():
        names.pop()
    if changed := [name for name in config.differences(stored) if name in names]:
        raise ConfigError(
            f"{where}: the stages there have another configuration: {', '.join(changed)}; restore "
            "it, or choose another --output (--overwrite replaces them)"
        )
