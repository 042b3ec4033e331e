"""What a comparison will run, checked as far as it can be before the first run starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparison import (
    ComparisonConfig,
    PlannedRow,
    allowed_keys,
    parse_budget,
)
from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.config.shared import differences, shared_keys
from ssl_toolkit.data.splits import Split
from ssl_toolkit.engine.experiment import Experiment, prepare, resolve_config
from ssl_toolkit.errors import ConfigError, ModelError, UserError
from ssl_toolkit.files import write_json, write_text
from ssl_toolkit.interfaces import Launcher
from ssl_toolkit.results.checking import refuse_contradictions
from ssl_toolkit.results.console import Console
from ssl_toolkit.results.data_check import check_same_data
from ssl_toolkit.results.folder import RunFolder, check_same
from ssl_toolkit.results.launchers.here import Here
from ssl_toolkit.results.launchers.local import Local, cores
from ssl_toolkit.results.members import read_member
from ssl_toolkit.results.placement import PLAN


@dataclass(frozen=True)
class Plan:
    """What is to be run, and where."""

    folder: Path
    """Absolute."""
    comparison: ComparisonConfig
    configs: Mapping[tuple[str, int], RunConfig]
    """By row name and seed, resolved."""
    threads: int
    """CPU threads of each run, the same for all: sums depend on how they are cut."""

    @property
    def name(self) -> str:
        """The title."""
        return self.comparison.settings.name or self.folder.name

    def member(self, row: PlannedRow, seed: int) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.folder / "runs" / row.slug / f"s{seed}")

    def config_path(self, row: PlannedRow, seed: int) -> Path:
        """The file with the configuration of one run."""
        return self.folder / "configs" / f"{row.slug}-s{seed}.yaml"


def make_plan(
    comparison: ComparisonConfig,
    folder: Path,
    launcher: Launcher,
    console: Console,
    *,
    afresh: bool = False,
) -> Plan:
    """Resolve every row, and check each as far as it can be without training.

    Rows share the data, and the runs of a seed the split; so each row is prepared with the first
    seed, and the first row with each seed.

    Args:
        comparison: validated.
        folder: absolute; what an earlier call has planned there is kept to.
        launcher: that will carry it out.
        console: shows the reading of pictures and the warnings.
        afresh: whether what is in the folder will be replaced.

    Raises:
        UserError: every fault that a run would end with before its first step; rows that are not
            equal in what they share; runs in the folder that are not those of the plan.
    """
    settings = comparison.settings
    resolved = {row.name: resolve_config(row.config)[0] for row in comparison.rows}
    allowed = allowed_keys(settings, comparison.rows)
    _check_equal(resolved, allowed)
    earlier = {} if afresh else _read_plan(folder)
    threads = settings.threads or earlier.get("threads") or _share_threads(comparison, launcher)
    messages: list[str] = []
    prepared: dict[str, Experiment] = {}
    drawn: dict[tuple[str, int], Split] = {}
    for row in comparison.rows:
        for seed in settings.seeds if row is comparison.rows[0] else settings.seeds[:1]:
            try:
                experiment = prepare(_seeded(resolved[row.name], seed), progress=console.reading)
            except UserError as error:
                messages += [m for m in error.messages if m not in messages]
                continue
            prepared.setdefault(row.name, experiment)
            drawn[row.name, seed] = experiment.split
            for warning in experiment.warnings:
                console.warn(f"{row.name}, seed {seed}: {warning}")
    if messages:
        raise ConfigError(messages)
    kind, amount = parse_budget(settings.budget)
    if kind != "steps":
        # Measured minutes would give other steps at each call.
        planned = {row["name"]: row["steps"] for row in earlier.get("rows", ())}
        steps = {
            name: planned.get(name) or _steps(experiment, kind, amount)
            for name, experiment in prepared.items()
        }
        resolved = {
            row.name: resolve_config(_with_steps(row.config, steps[row.name]))[0]
            for row in comparison.rows
        }
    configs = {
        (row.name, seed): _seeded(resolved[row.name], seed)
        for row in comparison.rows
        for seed in settings.seeds
    }
    plan = Plan(folder, comparison, configs, threads)
    known: dict[str | None, set[str]] = {}
    for row in comparison.rows:
        for seed in settings.seeds:
            member = plan.member(row, seed)
            if member.summary.exists() and not afresh:
                check_same(member, configs[row.name, seed])
                own = prepared[row.name]
                of_data = known.setdefault(own.config.settings.data, set())
                check_same_data(member, own.table, drawn.get((row.name, seed)), of_data)
                if read_member(row.name, seed, member.path).completed:
                    refuse_contradictions([member.path])
    return plan


def _check_equal(resolved: Mapping[str, RunConfig], allowed: set[str]) -> None:
    keys = {name: shared_keys(c.tree(), c.section) for name, c in resolved.items()}
    if messages := differences(keys, allowed)[1]:
        raise ConfigError(
            [f"{m}; make it equal, or allow it with --allow-different" for m in messages]
        )


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return replace(
        config, settings=config.settings.model_copy(update={"seed": seed, "output": None})
    )


def _with_steps(config: RunConfig, steps: int) -> RunConfig:
    return replace(config, settings=config.settings.model_copy(update={"steps": steps}))


def _steps(experiment: Experiment, kind: str, amount: float) -> int:
    """The steps that a budget of images or minutes allows a row."""
    trainer = experiment.trainer
    if kind == "images":
        batch = trainer.batches.draw(0)
        each = len(batch.labels) + len(batch.unlabelled_indices)
        steps = amount / (each * trainer.settings.optimizer.accumulate)
    else:
        steps = 60 * amount / trainer.seconds_per_step()
    if steps < 1:
        raise ConfigError(f"budget {kind}={amount:g}: not enough for one step")
    return int(steps)


def _share_threads(comparison: ComparisonConfig, launcher: Launcher) -> int:
    runs = len(comparison.rows) * len(comparison.settings.seeds)
    if isinstance(launcher, Here):
        return torch.get_num_threads()
    if not isinstance(launcher, Local):
        return 1
    jobs = launcher.options.jobs or min(runs, cores())
    return max(1, cores() // jobs)


def _read_plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN
    if not path.exists():
        return {}
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: damaged: {error}") from error
    return plan


def write_plan(plan: Plan) -> None:
    """Write what runs, launchers and reports need: configurations, ``plan.json`` and the whole."""
    comparison = plan.comparison
    for row in comparison.rows:
        for seed in comparison.settings.seeds:
            config = plan.configs[row.name, seed]
            tree = config.tree() | {"group": plan.name}
            path = plan.config_path(row, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, yaml.dump(tree))
    write_text(plan.folder / "comparison.yaml", yaml.dump(comparison.tree))
    write_json(
        plan.folder / PLAN,
        {
            "name": plan.name,
            "baseline": comparison.baseline,
            "allow": sorted(allowed_keys(comparison.settings, comparison.rows)),
            "budget": comparison.settings.budget,
            "threads": plan.threads,
            "seeds": comparison.settings.seeds,
            "rows": [
                {
                    "name": row.name,
                    "algorithm": row.config.settings.algo,
                    "folder": f"runs/{row.slug}",
                    "steps": plan.configs[row.name, comparison.settings.seeds[0]].settings.steps,
                }
                for row in comparison.rows
            ],
        },
    )
