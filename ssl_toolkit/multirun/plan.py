"""The plan of a comparison: its runs, checked as far as possible before the first one starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ssl_toolkit import registry
from ssl_toolkit.comparisons.comparability import differences, unequal_draws, unequal_splits
from ssl_toolkit.comparisons.schema import (
    CONFIG,
    PLAN,
    ComparedRun,
    PlanFile,
    PlannedRuns,
    read_plan,
)
from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparison import (
    ComparisonConfig,
    PlannedRow,
    allowed_keys,
    parse_budget,
)
from ssl_toolkit.config.loading import ResolvedConfig, load_config
from ssl_toolkit.config.settings import Settings, shared_keys
from ssl_toolkit.console import Console
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.data.splits.split_file import PARTS
from ssl_toolkit.engine.compatibility import check_parts, fits_random_features
from ssl_toolkit.engine.costs import Costs
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.devices import process_device
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.errors import ConfigError, UserError
from ssl_toolkit.interfaces import ImageTable, Job, Launcher
from ssl_toolkit.multirun.earlier import check_earlier, warn_of_other_runs
from ssl_toolkit.multirun.in_process import InProcess
from ssl_toolkit.multirun.warnings import show_warnings
from ssl_toolkit.processes.children import cores
from ssl_toolkit.runs.auto import as_row, without_auto
from ssl_toolkit.runs.check import check_same_data, check_same_inputs, refuse_contradictions
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.record import RunRecord, configuration_hash, hashes_of_inputs
from ssl_toolkit.runs.time_budget import check_same_config

RANDOM_FEATURES = "fits a head to frozen features, which needs --pretrained or --weights"
"""The reason to leave out an algorithm."""


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison and their folders."""

    folder: Path
    """Absolute path to the comparison."""
    comparison: ComparisonConfig
    configs: Mapping[tuple[str, int], ResolvedConfig]
    """By row name and seed."""
    threads: int
    """CPU threads of each run, equal for all because the order of sums depends on it."""
    unmeasured: tuple[PlannedRow, ...] = ()
    """Rows whose steps follow from minutes, and are not known yet."""

    @property
    def runs(self) -> list[tuple[PlannedRow, int]]:
        """All runs, seed by seed, so that early results are of every row."""
        settings, rows = self.comparison.settings, self.comparison.rows
        return [(row, seed) for seed in settings.seeds for row in rows]

    def run_folder(self, row: PlannedRow, seed: int) -> Path:
        """Return the path to a run."""
        return self.folder / "runs" / row.slug / f"s{seed}"

    def config_path(self, row: PlannedRow, seed: int) -> Path:
        """Return the path to the configuration of a run."""
        return self.folder / "configs" / f"{row.slug}-s{seed}.yaml"

    def first(self, row: PlannedRow) -> ResolvedConfig:
        """Return the configuration of a row's first seed."""
        return self.configs[row.name, self.comparison.settings.seeds[0]]

    def with_steps(self, steps: Mapping[str, int]) -> Plan:
        """Return the plan with the steps of unmeasured rows by name.

        Raises:
            ConfigError: A row has less than one step.
        """
        settings, configs = self.comparison.settings, dict(self.configs)
        unmeasured = tuple(row for row in self.unmeasured if row.name not in steps)
        for row in (row for row in self.unmeasured if row.name in steps):
            if steps[row.name] < 1:
                raise ConfigError(f"budget {settings.budget}: not enough for a step of {row.name}")
            resolved = resolve_config(row.config.with_settings(steps=steps[row.name]))[0]
            configs |= {
                (row.name, seed): resolved.with_settings(seed=seed, output=None)
                for seed in settings.seeds
            }
        return replace(self, configs=configs, unmeasured=unmeasured)

    def job(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        log: Path,
        row: PlannedRow,
        config: Path | None = None,
    ) -> Job:
        """Return a job with the threads and the GPUs of a row's runs."""
        settings = self.first(row).settings
        return Job(
            name=name,
            command=tuple(command),
            folder=folder,
            log=log,
            config=config,
            environment={"OMP_NUM_THREADS": str(self.threads)},
            threads=self.threads,
            gpus=settings.devices if settings.device.startswith("cuda") else 0,
            gpus_if_any=settings.devices if settings.device == "auto" else 0,
        )

    def write(self) -> PlanFile:
        """Write the configurations and ``plan.json``, and return the content of the latter."""
        comparison = self.comparison
        name = comparison.settings.name or self.folder.name
        for row, seed in self.runs:
            path = self.config_path(row, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            yaml.write(path, self.configs[row.name, seed].tree() | {"group": name})
        yaml.write(self.folder / CONFIG, comparison.tree)
        rows = (
            PlannedRuns(
                name=row.name,
                algorithm=row.config.settings.algo,
                folder=f"runs/{row.slug}",
                steps=self.first(row).settings.steps,
                method=row.base,
                labels=row.labels,
            )
            for row in comparison.rows
        )
        file = PlanFile(
            name=name,
            baseline=comparison.baseline,
            allow=tuple(sorted(allowed_keys(comparison.settings, comparison.rows))),
            budget=comparison.settings.budget,
            threads=self.threads,
            seeds=tuple(comparison.settings.seeds),
            rows=tuple(rows),
            curve=comparison.settings.curve,
            left_out=dict(comparison.left_out),
        )
        file.write(self.folder / PLAN)
        return file


def make_plan(
    comparison: ComparisonConfig,
    folder: Path,
    launcher: Launcher,
    console: Console,
    *,
    replaced: bool = False,
) -> Plan:
    """Resolve every row, and check each as far as possible without training.

    Rows share the data, and the runs of a seed the split; so each row is prepared with the first
    seed, and the first row with each seed, one after the other and on the CPU: the device is left
    to the runs.

    Args:
        comparison: Validated configuration.
        folder: Absolute path to the comparison; the plan of an earlier call there is kept.
        launcher: Launcher of the runs.
        console: Shows the progress of reading images and the warnings.
        replaced: True if the content of the folder will be replaced.

    Raises:
        UserError: All faults that would end a run before its first step; rows that are not
            equal in what they share; another plan, or runs of another one, in the folder.
    """
    settings, rows = comparison.settings, comparison.rows
    resolved = {row.name: resolve_config(as_row(row.config))[0] for row in rows}
    keys = {name: shared_keys(c.tree(), c.section) for name, c in resolved.items()}
    stated = {name: c.run_defaults() for name, c in resolved.items()}
    if faults := differences(keys, allowed_keys(settings, rows), stated)[1]:
        raise ConfigError([f"{m}; make it equal, or permit it: --allow-different" for m in faults])
    earlier = read_plan(folder) if not replaced and (folder / PLAN).exists() else None
    if earlier:
        check_earlier(earlier, folder, comparison)
    threads = settings.threads or (earlier and earlier.threads) or _threads(comparison, launcher)
    configs = {
        (row.name, seed): resolved[row.name].with_settings(seed=seed, output=None)
        for row in rows
        for seed in settings.seeds
    }
    if earlier:
        warn_of_other_runs(earlier, folder, configs.keys(), console)
    comparison, rehearsals = _rehearse_all(comparison, configs, launcher, console, folder)
    rows = comparison.rows
    if settings.curve:
        labeled = {row.labels: rehearsals[row.name, settings.seeds[0]].split for row in rows}
        _warn_if_not_nested([split.labeled for split in labeled.values()], console)
    kind, amount = parse_budget(settings.budget)
    plan = Plan(folder, comparison, configs, threads, () if kind == "steps" else tuple(rows))
    if kind != "steps":
        if kind == "images":
            images = {name: rehearsal.images for (name, _), rehearsal in rehearsals.items()}
            steps = {name: int(amount / count) for name, count in images.items()}
        else:  # measured again, they would be others
            steps = {} if replaced else _earlier_steps(plan)
        plan = plan.with_steps(steps)
    if not replaced:
        _check_existing(plan, rehearsals)
    return plan


def _warn_if_not_nested(labeled: Sequence[Rows], console: Console) -> None:
    """Warn if a smaller set of labeled images is not a part of the next larger one."""
    if any(len(np.setdiff1d(small, large)) for small, large in pairwise(labeled)):
        console.warn(
            "a smaller number of labels is not contained in a larger one: proportional counts of a "
            "class can decrease by rounding; --labels-per-class has nested sets"
        )


class _Rehearsal(NamedTuple):
    """The facts of a run that was prepared, without its images and its model."""

    images: int
    """Images that a step draws."""
    table: ImageTable
    split: Split
    inputs: Mapping[str, str]
    """Hashes as of `RunRecord.inputs`, for earlier runs; none in a new folder."""
    draws: ComparedRun
    """The run with the hashes of its draws, and of the rows of its split."""
    warnings: tuple[str, ...]


def _rehearse_all(
    comparison: ComparisonConfig,
    configs: Mapping[tuple[str, int], ResolvedConfig],
    launcher: Launcher,
    console: Console,
    folder: Path,
) -> tuple[ComparisonConfig, dict[tuple[str, int], _Rehearsal]]:
    """Prepare the runs that `make_plan` checks; leave out optional rows that can't train.

    Raises:
        ConfigError: All faults of the other rows, or of all rows: then they share the cause.
    """
    rehearsals: dict[tuple[str, int], _Rehearsal] = {}
    faults: dict[str, Sequence[str]] = {}

    def rehearse(row: PlannedRow, seed: int) -> None:
        try:
            config = configs[row.name, seed]
            rehearsals[row.name, seed] = _rehearse(config, launcher, console, row.name, folder)
        except UserError as error:
            faults[row.name] = error.messages

    left_out = {
        row.name: RANDOM_FEATURES
        for row in comparison.rows
        if row.optional and _on_random_features(row.config.settings)
    }
    if len(left_out) < len(comparison.rows):
        comparison = comparison.without(left_out)
    for row in comparison.rows:
        rehearse(row, comparison.settings.seeds[0])
    left_out = {
        row.name: faults[row.name][0]
        for row in comparison.rows
        if row.optional and row.name in faults
    }
    if len(left_out) < len(comparison.rows):
        comparison = comparison.without(left_out)
        faults = {name: messages for name, messages in faults.items() if name not in left_out}
    for seed in comparison.settings.seeds[1:]:
        rehearse(comparison.rows[0], seed)
    show_warnings({run: found.warnings for run, found in rehearsals.items()}, console)
    messages = list(dict.fromkeys(message for found in faults.values() for message in found))
    draws = [rehearsal.draws for rehearsal in rehearsals.values()]
    messages += unequal_splits(draws) or unequal_draws(draws)
    if messages:
        raise ConfigError(messages)
    return comparison, rehearsals


def _on_random_features(settings: Settings) -> bool:
    return fits_random_features(registry.load("algorithms", settings.algo), settings)


def _rehearse(
    config: ResolvedConfig, launcher: Launcher, console: Console, row: str, folder: Path
) -> _Rehearsal:
    """Prepare a run on the CPU, and keep the facts that the plan needs."""
    config = resolve_config(without_auto(config))[0]
    settings = config.settings
    if not isinstance(launcher, InProcess) and ":" in settings.device:
        raise ConfigError(
            f"--device {settings.device}: the launcher assigns the GPUs; use --device cuda, and "
            "CUDA_VISIBLE_DEVICES to choose among them"
        )
    device = settings.device
    if launcher.slots(1) is not None:  # the devices of a cluster are not known here
        device = process_device(device, 0, settings.devices).type
    if device != "cpu":
        model = settings.model.model_copy(update={"sync_batchnorm": False})
        config = config.with_settings(device="cpu", precision="auto", model=model)
    experiment = prepare(config, progress=console.reading)
    trainer = experiment.trainer
    if settings.devices > 1:
        check_parts(settings, trainer.classifier, settings.devices)
    views = trainer.batches.views
    ratio = views.unlabeled_ratio if views.needs_unlabeled else 0
    images = settings.batch_size * (1 + ratio) * settings.optimizer.accumulation_steps
    draws = trainer.batches.digests(settings.image_size)
    run = ComparedRun(
        row=row,
        seed=settings.seed,
        folder=folder,
        status="missing",
        config=config.tree(),
        record=RunRecord.model_construct(
            split=_hash_of_rows(experiment.split), initial_weights="", draws=draws
        ),
    )
    inputs = hashes_of_inputs(experiment) if (folder / PLAN).exists() else {}
    warnings = tuple(experiment.warnings)
    return _Rehearsal(images, experiment.table, experiment.split, inputs, run, warnings)


def _hash_of_rows(split: Split) -> str:
    """Return a hash of a split of a table; unlike the recorded one, it needs no content."""
    digests = (hashlib.sha256(getattr(split, part).tobytes()).digest() for part in PARTS)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _check_existing(plan: Plan, rehearsals: Mapping[tuple[str, int], _Rehearsal]) -> None:
    """Refuse runs in the folder that are of another configuration or of other inputs."""
    checked: dict[str | None, set[str]] = {}
    for row in plan.comparison.rows:
        first = rehearsals[row.name, plan.comparison.settings.seeds[0]]
        of_data = checked.setdefault(plan.first(row).settings.data, set())
        for seed in plan.comparison.settings.seeds:
            folder = RunFolder(plan.run_folder(row, seed))
            if not folder.summary.exists():
                continue
            if row not in plan.unmeasured:
                check_same_config(folder, plan.configs[row.name, seed])
            rehearsal = rehearsals.get((row.name, seed))
            check_same_data(folder, first.table, rehearsal and rehearsal.split, of_data)
            check_same_inputs(folder, first.inputs)
            if ComparedRun.read(row.name, seed, folder.path).completed:
                refuse_contradictions([folder.path])


def _earlier_steps(plan: Plan) -> dict[str, int]:
    """Return the steps of rows that were measured with these settings, or that have a run."""
    steps: dict[str, int] = {}
    for row, seed in plan.runs:
        folder, path = RunFolder(plan.run_folder(row, seed)), plan.config_path(row, seed)
        if folder.summary.exists():
            steps.setdefault(row.name, folder.read_config().settings.steps)
        elif row.name not in steps and path.exists():
            with suppress(UserError):  # an option that a plugin has no longer
                earlier = resolve_config(load_config([path]))[0]
                same = plan.with_steps({row.name: earlier.settings.steps}).configs[row.name, seed]
                if configuration_hash(same) == configuration_hash(earlier):
                    steps[row.name] = earlier.settings.steps
    return steps


def steps_within(seconds: float, costs: Costs, row: PlannedRow) -> int:
    """Return the steps of a row that some seconds allow."""

    def eval_every(steps: int) -> int:
        return resolve_config(row.config.with_settings(steps=steps))[0].settings.eval_every

    return costs.steps_within(seconds, eval_every)


def _threads(comparison: ComparisonConfig, launcher: Launcher) -> int:
    """Return the cores of this machine per run, or 1 if the runs are on other machines."""
    if isinstance(launcher, InProcess):
        return torch.get_num_threads()
    jobs = launcher.slots(len(comparison.rows) * len(comparison.settings.seeds))
    return 1 if jobs is None else max(1, cores() // jobs)
