"""Plan a comparison, run what is missing, and write its tables and report."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.comparisons.gather import gather_plan
from ssl_toolkit.comparisons.schema import (
    FAILURES,
    MEASURING,
    PLAN,
    ComparedRun,
    Comparison,
    Failures,
    FailuresFile,
    Variant,
    describe_left_out,
    read_failures,
)
from ssl_toolkit.config import defaults
from ssl_toolkit.config.comparison import ComparisonConfig, load_comparison
from ssl_toolkit.config.loading import check_options, plain_tree
from ssl_toolkit.config.plugin_names import kind_of
from ssl_toolkit.config.yaml import find_config
from ssl_toolkit.console import Console
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import check_writable
from ssl_toolkit.interfaces import Job, Launcher
from ssl_toolkit.interrupts import STATUS, Interrupted, Interrupts, handled
from ssl_toolkit.launchers.job import last_error
from ssl_toolkit.locking import LOCK, clear, hold
from ssl_toolkit.multirun.in_process import InProcess
from ssl_toolkit.multirun.measure import measured
from ssl_toolkit.multirun.plan import Plan, make_plan
from ssl_toolkit.multirun.progress import RunStates, state_of
from ssl_toolkit.reports.html.page import PAGE, write_report
from ssl_toolkit.reports.tables import show_table, write_tables
from ssl_toolkit.text import display_path

GRACE = 9.5
"""Seconds in which a launcher must end all jobs after a signal."""


@dataclass(frozen=True)
class ComparisonResult:
    """The result of `compare`."""

    folder: Path
    """Path to the comparison."""
    comparison: Comparison
    """Its rows and shared settings: ``rows[0].scores["test.accuracy"].mean``."""
    status: int
    """Exit status: 0 if every run is completed, 1 if one is not, 130 or 143 after a signal."""

    @property
    def rows(self) -> tuple[Variant, ...]:
        """The rows of the comparison, in their order."""
        return self.comparison.rows


def compare(
    config: ComparisonConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> ComparisonResult:
    """Do what ``ssl-toolkit compare`` does.

    Every row and every seed is checked before the first run starts. Runs that are completed in the
    output folder are kept, others are started or resumed. Each runs in a process of its own; with a
    plugin that is registered in this process only (in a notebook) all runs happen in it, one after
    the other.

    Args:
        config: A validated comparison, a tree of keys as in a ``--config`` file, or the path to
            such a file.
        overwrite: True to replace a comparison in the output folder.
        console: Shows the progress; None shows warnings and results only.

    Returns:
        The folder, the comparison, and the exit status.

    Raises:
        UserError: Before any training.
    """
    if isinstance(config, str | os.PathLike):
        comparison = load_comparison([find_config(os.fspath(config))])
    elif isinstance(config, ComparisonConfig):
        comparison = config
    else:
        comparison = load_comparison(flags=plain_tree(config))
    console = console or Console(quiet=True)
    plan, launcher = check(comparison, overwrite=overwrite, console=console)
    folder = plan.folder
    replaced = overwrite and folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    launchers = [launcher, *([_launcher(comparison)] if plan.unmeasured else ())]

    def stop() -> None:
        for one in launchers:
            one.stop()

    with hold(folder), handled(stop) as interrupts:
        if plan.unmeasured:
            plan = _measured(plan, launchers[-1], interrupts, console)
        if replaced:
            clear(folder, last=PLAN)
        if left_out := plan.comparison.left_out:
            console.say(describe_left_out(left_out), important=True)
        plan_file, failures = plan.write(), read_failures(folder)
        console.say(f"comparison folder: {folder}", important=True)
        with interrupts.patient(GRACE):
            succeeded = _run_jobs(plan, launcher, failures, console)
        gathered = gather_plan(plan_file, folder, failures)
        write_tables(gathered, folder)
        write_report(gathered, folder / PAGE)
    show_table(gathered, console)
    status = 0 if succeeded else 1
    if interrupts.signal:
        console.say(
            f"stopped by {interrupts.signal}; run the same command again to resume", important=True
        )
        status = STATUS[interrupts.signal]
    elif status:
        console.say(
            "run the same command again to continue the runs without results", important=True
        )
    return ComparisonResult(folder, gathered, status)


def check(
    comparison: ComparisonConfig, *, overwrite: bool, console: Console
) -> tuple[Plan, Launcher]:
    """Make every check of `compare`, without training and without writing anything.

    Returns:
        The plan, and its launcher.

    Raises:
        UserError: As `compare`.
    """
    folder, launcher = _folder(comparison), _launcher(comparison)
    replaced = overwrite and folder.exists()
    return make_plan(comparison, folder, launcher, console, replaced=replaced), launcher


def _measured(plan: Plan, launcher: Launcher, interrupts: Interrupts, console: Console) -> Plan:
    with interrupts.patient(GRACE):
        try:
            plan = measured(plan, launcher, console)
        except ConfigError:
            if not interrupts.signal:  # after a signal the failure is the expected one
                raise
    if interrupts.signal:
        raise Interrupted(interrupts.signal)
    if plan.unmeasured:
        raise ConfigError(f"{plan.unmeasured[0].name} was not measured; the launcher lost it")
    return plan


def _run_jobs(plan: Plan, launcher: Launcher, failures: Failures, console: Console) -> bool:
    """Run what is not completed, show the states, and update the reasons of failures.

    Returns:
        True if every run is completed.
    """
    runs: dict[str, ComparedRun] = {}
    folders: dict[str, tuple[Path, int]] = {}
    jobs: list[Job] = []
    for row, seed in plan.runs:
        name, folder = f"{row.name}, seed {seed}", plan.run_folder(row, seed)
        runs[name] = run = ComparedRun.read(row.name, seed, folder)
        folders[name] = folder, plan.configs[row.name, seed].settings.steps
        if not run.completed:
            config = plan.config_path(row, seed)
            command = [sys.executable, "-m", "ssl_toolkit", "run", "--config", str(config)]
            command += ["--output", str(folder), "--continue", "--quiet"]
            log = plan.folder / "logs" / f"{row.slug}-s{seed}.txt"
            jobs.append(plan.job(name, command, folder, log, row, config))
    completed = {name: state_of(run) for name, run in runs.items() if run.completed}
    succeeded = True
    with RunStates(folders, completed, console).shown() as states:
        for result in launcher.launch(jobs) if jobs else ():
            job, before = result.job, runs[result.job.name]
            run = ComparedRun.read(before.row, before.seed, before.folder)
            failures.get(run.row, {}).pop(run.seed, None)
            failure = ""
            succeeded = succeeded and run.completed
            if not run.completed and run.status != "interrupted":
                failure = result.reason or last_error(job.log) or f"exit status {result.status}"
                failures.setdefault(run.row, {})[run.seed] = failure
            states.end(job.name, state_of(run, failure))
            FailuresFile(failures=failures).write(plan.folder / FAILURES)
    return succeeded


def _folder(comparison: ComparisonConfig) -> Path:
    """Return the absolute path to the comparison, checked but not created."""
    settings = comparison.rows[0].config.settings
    data = Path(settings.data).stem if settings.data else settings.dataset
    output = comparison.settings.output or f"runs/comparison-{data or defaults.DATASET}"
    folder = Path(output).absolute()
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"--output {output}: a file has this name; choose another one")
    content = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if content - {LOCK, MEASURING} and PLAN not in content:
        raise ModelError(f"--output {output}: not the folder of a comparison; choose another")
    check_writable(folder, f"--output {display_path(folder)}")
    return folder


def registered_here(comparison: ComparisonConfig) -> str:
    """Return a plugin that a decorator registered in this process; empty for none."""
    settings = [row.config.settings for row in comparison.rows]
    for group, name in (plugin for of_row in settings for plugin in of_row.plugins):
        if registry.has(group, name):
            entry = registry.find(group, name)
            if entry.distribution == registry.NOTEBOOK:
                return f"{kind_of(group)} {entry.name!r}"
    return ""


def _launcher(comparison: ComparisonConfig) -> Launcher:
    name = comparison.settings.launcher
    if plugin := registered_here(comparison):
        if name == "local":
            return InProcess()
        raise ConfigError(
            f"launcher: {name} starts other processes, and {plugin} is registered in this one "
            "only; leave the launcher out, or install the plugin as a package (`ssl-toolkit new`)"
        )
    registry.require_packages("launchers", name)
    launcher: type[Launcher] = registry.load("launchers", name)
    options = comparison.settings.launcher_options
    return launcher(check_options(launcher.Config, options, "launcher_options"))
