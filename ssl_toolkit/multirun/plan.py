"""What a comparison will run, checked as far as it can be before the first run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from ssl_toolkit.comparisons.comparability import unequal_draws
from ssl_toolkit.comparisons.plan_file import PLAN, PlanFile, PlannedRuns, read_plan
from ssl_toolkit.comparisons.read import read_run
from ssl_toolkit.comparisons.types import ComparedRun
from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparability import differences, shared_keys
from ssl_toolkit.config.comparison import (
    ComparisonConfig,
    PlannedRow,
    allowed_keys,
    parse_budget,
)
from ssl_toolkit.config.loading import ResolvedConfig, RunConfig
from ssl_toolkit.console import Console
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.compatibility import check_parts
from ssl_toolkit.engine.costs import Costs
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.devices import own_device
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.errors import ConfigError, UserError
from ssl_toolkit.interfaces import ImageTable, Job, Launcher
from ssl_toolkit.multirun.in_process import InProcess
from ssl_toolkit.processes.children import cores
from ssl_toolkit.runs.auto import as_row, stand_in
from ssl_toolkit.runs.check import refuse_contradictions
from ssl_toolkit.runs.data_check import check_same_data
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.time_budget import check_chosen
from ssl_toolkit.text import display_path


@dataclass(frozen=True)
class Plan:
    """What is to be run, and where."""

    folder: Path
    """Absolute."""
    comparison: ComparisonConfig
    configs: Mapping[tuple[str, int], ResolvedConfig]
    """By row name and seed."""
    threads: int
    """CPU threads of each run, the same for all: sums depend on how they are cut."""
    unmeasured: tuple[PlannedRow, ...] = ()
    """Rows whose steps follow from minutes, and are not known yet."""

    @property
    def name(self) -> str:
        """The title."""
        return self.comparison.settings.name or self.folder.name

    @property
    def runs(self) -> dict[Path, tuple[str, int]]:
        """Row and seed by the folder of the run."""
        rows, seeds = self.comparison.rows, self.comparison.settings.seeds
        return {self.member(row, seed).path: (row.name, seed) for row in rows for seed in seeds}

    def member(self, row: PlannedRow, seed: int) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.folder / "runs" / row.slug / f"s{seed}")

    def with_steps(self, steps: Mapping[str, int]) -> Plan:
        """The plan with the steps of some rows by name; the other ones are unmeasured.

        Raises:
            ConfigError: a row has less than one step.
        """
        settings, configs, unmeasured = self.comparison.settings, dict(self.configs), []
        for row in self.comparison.rows:
            if row.name not in steps:
                unmeasured.append(row)
                continue
            if steps[row.name] < 1:
                raise ConfigError(f"budget {settings.budget}: not enough for a step of {row.name}")
            resolved = resolve_config(_with_steps(row.config, steps[row.name]))[0]
            configs |= {(row.name, seed): _seeded(resolved, seed) for seed in settings.seeds}
        return replace(self, configs=configs, unmeasured=tuple(unmeasured))

    def first(self, row: PlannedRow) -> ResolvedConfig:
        """The configuration of a row's first seed."""
        return self.configs[row.name, self.comparison.settings.seeds[0]]

    def job(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        log: Path,
        row: PlannedRow,
        config: Path | None = None,
    ) -> Job:
        """A command with the threads and the GPUs of a row's runs."""
        settings = self.first(row).settings
        cuda, auto = settings.device.startswith("cuda"), settings.device == "auto"
        return Job(
            name=name,
            command=tuple(command),
            folder=folder,
            log=log,
            config=config,
            environment={"OMP_NUM_THREADS": str(self.threads)},
            threads=self.threads,
            gpus=settings.devices if cuda else 0,
            gpus_if_any=settings.devices if auto else 0,
        )

    def config_path(self, row: PlannedRow, seed: int) -> Path:
        """The file with the configuration of one run."""
        return self.folder / "configs" / f"{row.slug}-s{seed}.yaml"


def make_plan(
    comparison: ComparisonConfig,
    folder: Path,
    launcher: Launcher,
    console: Console,
    *,
    replaced: bool = False,
) -> Plan:
    """Resolve every row, and check each as far as it can be without training.

    Rows share the data, and the runs of a seed the split; so each row is prepared with the first
    seed, and the first row with each seed, one after the other and on the CPU: the device is left
    to the runs.

    Args:
        comparison: validated.
        folder: absolute; what an earlier call has planned there is kept to.
        launcher: that will carry it out.
        console: shows the reading of images and the warnings.
        replaced: whether what is in the folder will be replaced.

    Raises:
        UserError: every fault that a run would end with before its first step; rows that are not
            equal in what they share; another plan, or runs of another one, in the folder.
    """
    settings = comparison.settings
    resolved = {row.name: resolve_config(as_row(row.config))[0] for row in comparison.rows}
    allowed = allowed_keys(settings, comparison.rows)
    _check_equal(resolved, allowed)
    planned = not replaced and (folder / PLAN).exists()
    earlier = read_plan(folder) if planned else None
    _check_planned(comparison, earlier, folder)
    threads = (
        settings.threads or (earlier and earlier.threads) or _share_threads(comparison, launcher)
    )
    messages: list[str] = []
    rehearsed: dict[tuple[str, int], _Rehearsed] = {}
    for row in comparison.rows:
        for seed in settings.seeds if row is comparison.rows[0] else settings.seeds[:1]:
            try:
                config = _seeded(resolved[row.name], seed)
                found = _rehearse(config, launcher, console, row.name, folder)
            except UserError as error:
                messages += [m for m in error.messages if m not in messages]
                continue
            rehearsed[row.name, seed] = found
    messages += unequal_draws([found.draws for found in rehearsed.values()])
    if messages:
        raise ConfigError(messages)
    configs = {
        (row.name, seed): _seeded(resolved[row.name], seed)
        for row in comparison.rows
        for seed in settings.seeds
    }
    plan = Plan(folder, comparison, configs, threads)
    kind, amount = parse_budget(settings.budget)
    if kind != "steps":
        # Measured minutes would give other steps at each call.
        steps = {} if replaced else _planned_steps(plan, earlier)
        if kind == "images":
            steps = {
                name: int(amount / found.images) for (name, _), found in rehearsed.items()
            } | steps
        plan = plan.with_steps(steps)
    known: dict[str | None, set[str]] = {}
    for row in comparison.rows:
        own = rehearsed[row.name, settings.seeds[0]]
        of_data = known.setdefault(resolved[row.name].settings.data, set())
        for seed in settings.seeds:
            member = plan.member(row, seed)
            if not member.summary.exists() or replaced:
                continue
            if row not in plan.unmeasured:
                check_chosen(member, plan.configs[row.name, seed])
            drawn = rehearsed.get((row.name, seed))
            check_same_data(member, own.table, drawn and drawn.split, of_data)
            if read_run(row.name, seed, member.path).completed:
                refuse_contradictions([member.path])
    return plan


def _check_planned(comparison: ComparisonConfig, earlier: PlanFile | None, folder: Path) -> None:
    """Refuse what would give new runs of a comparison another footing than those it has."""
    settings = comparison.settings
    given = {"threads": settings.threads, "budget": settings.budget}
    messages = [
        f"{key} is {getattr(earlier, key)} there, {value} here"
        for key, value in given.items()
        if earlier is not None and value not in (None, getattr(earlier, key))
    ]
    if messages:
        raise ConfigError(
            f"{display_path(folder)}: the comparison there has another plan: "
            f"{'; '.join(messages)}; use "
            "the same values, or choose another --output (--overwrite starts it again)"
        )


class _Rehearsed(NamedTuple):
    """What is kept of a run that was prepared: neither its images nor its model."""

    images: int
    """Images that a step draws."""
    table: ImageTable
    split: Split
    draws: ComparedRun
    """What the run will record of its draws."""


def _rehearse(
    config: ResolvedConfig, launcher: Launcher, console: Console, row: str, folder: Path
) -> _Rehearsed:
    """Prepare a run on the CPU and let go of it."""
    config = resolve_config(stand_in(config))[0]
    settings = config.settings
    if not isinstance(launcher, InProcess) and ":" in settings.device:
        raise ConfigError(
            f"--device {settings.device}: the launcher hands the GPUs out; use --device cuda, and "
            "CUDA_VISIBLE_DEVICES for those that it may use"
        )
    device = settings.device
    if launcher.slots(1) is not None:  # the devices of a cluster are not known here
        device = own_device(device, 0, settings.devices).type
    if device != "cpu":
        model = settings.model.model_copy(update={"sync_batchnorm": False})
        update = {"device": "cpu", "precision": "auto", "model": model}
        config = replace(config, settings=settings.model_copy(update=update))
    experiment = prepare(config, progress=console.reading)
    trainer = experiment.trainer
    if settings.devices > 1:
        check_parts(settings, trainer.classifier, settings.devices)
    for warning in experiment.warnings:
        console.warn(f"{row}, seed {settings.seed}: {warning}")
    views = trainer.batches.views
    ratio = views.unlabeled_ratio if views.needs_unlabeled else 0
    images = settings.batch_size * (1 + ratio) * settings.optimizer.accumulation_steps
    draws = trainer.batches.digests(settings.image_size)
    drawn = ComparedRun(
        row,
        settings.seed,
        folder,
        "missing",
        config=config.tree(),
        record=RunRecord.model_construct(draws=draws),
    )
    return _Rehearsed(images, experiment.table, experiment.split, drawn)


def _check_equal(resolved: Mapping[str, RunConfig], allowed: set[str]) -> None:
    keys = {name: shared_keys(c.tree(), c.section) for name, c in resolved.items()}
    if messages := differences(keys, allowed)[1]:
        raise ConfigError(
            [f"{m}; make it equal, or allow it with --allow-different" for m in messages]
        )


def _seeded(config: ResolvedConfig, seed: int) -> ResolvedConfig:
    return replace(
        config, settings=config.settings.model_copy(update={"seed": seed, "output": None})
    )


def _planned_steps(plan: Plan, earlier: PlanFile | None) -> dict[str, int]:
    """Return the steps of the rows that an earlier call planned, or of runs that it started."""
    steps = {row.name: row.steps for row in earlier.rows} if earlier else {}
    for row in plan.comparison.rows:
        for seed in plan.comparison.settings.seeds:
            member = plan.member(row, seed)
            if row.name not in steps and member.summary.exists():
                steps[row.name] = member.read_config().settings.steps
    return steps


def steps_within(seconds: float, costs: Costs, row: PlannedRow) -> int:
    """The steps of a row that some seconds allow."""

    def eval_every(steps: int) -> int:
        return resolve_config(_with_steps(row.config, steps))[0].settings.eval_every

    return costs.steps_within(seconds, eval_every)


def _with_steps(config: RunConfig, steps: int) -> RunConfig:
    return replace(config, settings=config.settings.model_copy(update={"steps": steps}))


def _share_threads(comparison: ComparisonConfig, launcher: Launcher) -> int:
    runs = len(comparison.rows) * len(comparison.settings.seeds)
    if isinstance(launcher, InProcess):
        return torch.get_num_threads()
    jobs = launcher.slots(runs)
    return 1 if jobs is None else max(1, cores() // jobs)


def write_plan(plan: Plan) -> None:
    """Write what runs, launchers and reports need: configurations, ``plan.json`` and the whole."""
    comparison = plan.comparison
    for row in comparison.rows:
        for seed in comparison.settings.seeds:
            config = plan.configs[row.name, seed]
            tree = config.tree() | {"group": plan.name}
            path = plan.config_path(row, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            yaml.write(path, tree)
    yaml.write(plan.folder / "comparison.yaml", comparison.tree)
    PlanFile(
        name=plan.name,
        baseline=comparison.baseline,
        allow=tuple(sorted(allowed_keys(comparison.settings, comparison.rows))),
        budget=comparison.settings.budget,
        threads=plan.threads,
        seeds=tuple(comparison.settings.seeds),
        rows=tuple(
            PlannedRuns(
                name=row.name,
                algorithm=row.config.settings.algo,
                folder=f"runs/{row.slug}",
                steps=plan.first(row).settings.steps,
            )
            for row in comparison.rows
        ),
    ).write(plan.folder / PLAN)
