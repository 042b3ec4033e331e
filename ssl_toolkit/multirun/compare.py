"""A comparison from its configuration to its tables: plan, run what is missing, gather."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.comparisons.gather import gather_folder
from ssl_toolkit.comparisons.plan_file import MEASURING, PLAN, read_failures, write_failures
from ssl_toolkit.comparisons.read import read_run
from ssl_toolkit.comparisons.types import Comparison, Variant
from ssl_toolkit.config import default_plugins
from ssl_toolkit.config.comparison import ComparisonConfig, load_comparison
from ssl_toolkit.config.loading import check_options, plain_tree
from ssl_toolkit.config.locations import find_config
from ssl_toolkit.console import Console
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import check_writable
from ssl_toolkit.interfaces import Job, JobResult, Launcher
from ssl_toolkit.interrupts import STATUS, Interrupted, Interrupts, handled
from ssl_toolkit.launchers.job import last_error
from ssl_toolkit.locking import LOCK, hold
from ssl_toolkit.multirun.in_process import InProcess, registered_here
from ssl_toolkit.multirun.measure import measured
from ssl_toolkit.multirun.plan import Plan, make_plan, write_plan
from ssl_toolkit.multirun.progress import RunStates, state_of
from ssl_toolkit.reports.html import write_report
from ssl_toolkit.reports.tables import show_table, write_tables
from ssl_toolkit.text import display_path

STOPPING = 9.5
"""Seconds that a launcher gets to end everything after a signal."""


@dataclass(frozen=True)
class ComparisonResult:
    """The end of a comparison, as `compare` returns it."""

    folder: Path
    comparison: Comparison
    """Its rows and what they share: ``rows[0].scores["test.accuracy"].mean``."""
    status: int
    """Exit status: 0 when every run is completed, 1 when one failed, 130 or 143 after a signal."""

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

    Every row and every seed is checked before the first run starts. Runs that are finished in the
    output folder are kept, others are started or resumed. Each runs in a process of its own, but
    where a plugin was registered in this process alone (in a notebook) all runs happen in it, one
    after the other.

    Args:
        config: a validated comparison, a tree of keys as in a ``--config`` file, or the path of
            such a file.
        overwrite: whether a comparison that is in the output folder may be replaced.
        console: where the course is shown; None shows warnings and the results only.

    Returns:
        The folder, what was gathered, and the exit status.

    Raises:
        UserError: before any training.
    """
    if isinstance(config, str | os.PathLike):
        comparison = load_comparison([find_config(os.fspath(config))])
    elif isinstance(config, ComparisonConfig):
        comparison = config
    else:
        comparison = load_comparison(flags=plain_tree(config))
    console = console or Console(quiet=True)
    plan, launcher = planned(comparison, overwrite=overwrite, console=console)
    folder, replaced = plan.folder, overwrite and plan.folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    launchers = [launcher, *([_launcher(comparison)] if plan.unmeasured else ())]

    def stop() -> None:
        for one in launchers:
            one.stop()

    with hold(folder), handled(stop) as interrupts:
        if plan.unmeasured:
            plan = _measured(plan, launchers[-1], interrupts, console)
        if replaced:
            _empty(folder)
        write_plan(plan)
        jobs = _jobs(plan)
        console.say(f"comparison folder: {folder}", important=True)
        with interrupts.patient(STOPPING), _states(plan, jobs, console) as states:
            failed = _carry_out(jobs, launcher, plan, states)
        gathered = gather_folder(folder)
        write_tables(gathered, folder)
        write_report(gathered, folder / "report.html")
    show_table(gathered, console)
    status = int(failed)
    if interrupts.signal:
        console.say(
            f"stopped by {interrupts.signal}; run the same command again to finish the other runs",
            important=True,
        )
        status = STATUS[interrupts.signal]
    return ComparisonResult(folder, gathered, status)


def planned(
    comparison: ComparisonConfig, *, overwrite: bool, console: Console
) -> tuple[Plan, Launcher]:
    """What `compare` would do, with every check that it makes; nothing is trained or written.

    Raises:
        UserError: as `compare`.
    """
    folder, launcher = _folder(comparison), _launcher(comparison)
    replaced = overwrite and folder.exists()
    return make_plan(comparison, folder, launcher, console, replaced=replaced), launcher


def _measured(plan: Plan, launcher: Launcher, interrupts: Interrupts, console: Console) -> Plan:
    with interrupts.patient(STOPPING):
        try:
            plan = measured(plan, launcher, console)
        except ConfigError:
            if not interrupts.signal:  # else it was stopped, and is not at fault
                raise
    if interrupts.signal:
        raise Interrupted(interrupts.signal)
    if plan.unmeasured:
        raise ConfigError(f"{plan.unmeasured[0].name} was not measured; the launcher lost it")
    return plan


def _states(plan: Plan, jobs: Sequence[Job], console: Console) -> RunStates:
    waiting = {job.name for job in jobs}
    runs, ended = {}, {}
    for seed in plan.comparison.settings.seeds:
        for row in plan.comparison.rows:
            name, path = _job_name(row.name, seed), plan.member(row, seed).path
            runs[name] = path, plan.configs[row.name, seed].settings.steps
            if name not in waiting:
                ended[name] = state_of(read_run(row.name, seed, path))
    return RunStates(runs, ended, console)


def _carry_out(jobs: list[Job], launcher: Launcher, plan: Plan, states: RunStates) -> bool:
    """Run the jobs and show their states; return True if any failed."""
    failed = False
    for result in launcher.launch(jobs) if jobs else ():
        failed |= not _record(result, plan, states)
    return failed


def _folder(comparison: ComparisonConfig) -> Path:
    """The folder of the comparison, absolute, checked but not made."""
    given = comparison.settings.output or f"runs/comparison-{_data_name(comparison)}"
    folder = Path(given).absolute()
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"--output {given}: there is a file of that name; choose another name")
    ours = (LOCK, MEASURING)
    foreign = folder.is_dir() and any(path.name not in ours for path in folder.iterdir())
    if foreign and not (folder / PLAN).exists():
        raise ModelError(f"--output {given}: not the folder of a comparison; choose another")
    check_writable(folder, f"--output {display_path(folder)}")
    return folder


def _data_name(comparison: ComparisonConfig) -> str:
    settings = comparison.rows[0].config.settings
    return (
        Path(settings.data).stem if settings.data else settings.dataset or default_plugins.DATASET
    )


def _empty(folder: Path) -> None:
    """Remove a comparison, but not the lock on its folder."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _launcher(comparison: ComparisonConfig) -> Launcher:
    name = comparison.settings.launcher
    own = next(filter(None, (registered_here(row.config.settings) for row in comparison.rows)), "")
    if own and name != "local":
        raise ConfigError(
            f"launcher: {name} starts other processes, and {own} is registered in this one alone; "
            "leave the launcher out, or install the plugin as a package (`ssl-toolkit new`)"
        )
    if own:
        return InProcess()
    registry.require_packages("launchers", name)
    launcher: type[Launcher] = registry.load("launchers", name)
    options = comparison.settings.launcher_options
    return launcher(check_options(launcher.Config, options, "launcher_options"))


def _jobs(plan: Plan) -> list[Job]:
    """The runs that are not finished, seed by seed, so that early results cover every row."""
    jobs = []
    for seed in plan.comparison.settings.seeds:
        for row in plan.comparison.rows:
            member = plan.member(row, seed)
            if read_run(row.name, seed, member.path).completed:
                continue
            config = plan.config_path(row, seed)
            command = [sys.executable, "-m", "ssl_toolkit", "run", "--config", str(config)]
            command += ["--output", str(member.path), "--continue", "--quiet"]
            log = plan.folder / "logs" / f"{row.slug}-s{seed}.txt"
            name = _job_name(row.name, seed)
            jobs.append(plan.job(name, command, member.path, log, row, config))
    return jobs


def _record(result: JobResult, plan: Plan, states: RunStates) -> bool:
    """Show how a run ended, and keep the reason of a failure; return True if it did not fail."""
    failures = read_failures(plan.folder)
    job = result.job
    row, seed = plan.runs[job.folder]
    failures.pop((row, seed), None)
    run = read_run(row, seed, job.folder)
    failure = ""
    if not run.completed and run.status != "interrupted":
        failure = result.reason or last_error(job.log) or f"exit status {result.status}"
        failures[row, seed] = failure
    states.end(job.name, state_of(run, failure))
    write_failures(plan.folder, failures)
    return not failure


def _job_name(row: str, seed: int) -> str:
    return f"{row}, seed {seed}"
