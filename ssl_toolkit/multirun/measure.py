"""Measure the steps that some minutes allow each row, on the machines of the runs.

``python -m ssl_toolkit.multirun.measure CONFIG ANSWER`` is the command of a launcher's job.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from ssl_toolkit.comparisons.schema import MEASURING
from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparison import PlannedRow, parse_budget
from ssl_toolkit.config.loading import RunConfig, load_config
from ssl_toolkit.console import Console
from ssl_toolkit.engine.compiling import compile_forwards
from ssl_toolkit.engine.costs import Costs
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.plugin_faults import plugin_faults
from ssl_toolkit.errors import ConfigError, ToolkitError, TrainingError
from ssl_toolkit.files import write_json
from ssl_toolkit.interfaces import Job, Launcher
from ssl_toolkit.launchers.job import last_error
from ssl_toolkit.multirun.in_process import InProcess
from ssl_toolkit.multirun.plan import Plan, steps_within
from ssl_toolkit.runs.auto import without_auto


def measured(plan: Plan, launcher: Launcher, console: Console) -> Plan:
    """Return the plan with the steps of all rows; the weights that are trained are discarded.

    Args:
        plan: Its folder exists.
        launcher: Not that of the runs, because a launcher launches once.
        console: Shows the result of each row.

    Raises:
        ConfigError: A row can't be measured, or the time is not enough for one step of it.
    """
    seconds = 60 * parse_budget(plan.comparison.settings.budget)[1]
    unmeasured = {row.name: row for row in plan.unmeasured}
    steps: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for name, costs in _costs(plan, launcher):
        if isinstance(costs, ToolkitError):
            if not unmeasured[name].optional or len(left_out) + 1 == len(plan.comparison.rows):
                raise costs
            left_out[name] = str(costs)
            continue
        steps[name] = steps_within(seconds, costs, unmeasured[name])
        console.say(f"{name}: {costs.step:.4f} s a step, {steps[name]} steps in {seconds:.0f} s")
    rows = tuple(row for row in plan.unmeasured if row.name not in left_out)
    rest = replace(plan, comparison=plan.comparison.without(left_out), unmeasured=rows)
    return rest.with_steps(steps)


def _costs(plan: Plan, launcher: Launcher) -> Iterator[tuple[str, Costs | ToolkitError]]:
    """Measure the rows as the runs are trained: with as many jobs, threads and GPUs.

    Yields:
        The name of each row with its costs, or with the error if it can't be measured.
    """
    if isinstance(launcher, InProcess):
        for row in plan.unmeasured:
            try:
                yield row.name, measure(plan.first(row))
            except TrainingError as error:
                yield row.name, error
        return
    folder = plan.folder / MEASURING
    shutil.rmtree(folder, ignore_errors=True)
    try:
        jobs = {f"measuring {row.name}": row for row in plan.unmeasured}
        for result in launcher.launch([_job(plan, *item, folder) for item in jobs.items()]):
            job = result.job
            if result.status:
                reason = result.reason or last_error(job.log) or f"status {result.status}"
                yield jobs[job.name].name, ConfigError(f"{job.name} for the budget: {reason}")
                continue
            answer = (job.folder / "costs.json").read_text(encoding="utf-8")
            yield jobs[job.name].name, Costs(**json.loads(answer))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _job(plan: Plan, name: str, row: PlannedRow, parent: Path) -> Job:
    folder = parent / row.slug
    folder.mkdir(parents=True)
    config, answer = folder / "config.yaml", folder / "costs.json"
    yaml.write(config, plan.first(row).tree())
    command = (sys.executable, "-m", "ssl_toolkit.multirun.measure", str(config), str(answer))
    return plan.job(name, command, folder, folder / "log.txt", row)


def measure(config: RunConfig) -> Costs:
    """Measure a run on its own device."""
    trainer = prepare(without_auto(config)).trainer
    if config.settings.compile:
        compile_forwards(trainer)
    with plugin_faults(config.settings, TrainingError):
        return trainer.measure()


def main(config: Path, answer: Path) -> int:
    """Measure, write the answer, and return the exit status."""
    try:
        write_json(answer, asdict(measure(load_config([config]))))
    except ToolkitError as error:
        for message in error.messages:
            print("error:", " ".join(message.split()), file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
