"""Run the members of a suite, one comparison after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_toolkit.config.comparison import PlannedRow
from ssl_toolkit.config.defaults import AUTO
from ssl_toolkit.config.loading import plain_tree
from ssl_toolkit.console import Console
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ConfigError, ToolkitError, UserError, one_line
from ssl_toolkit.files import at_home, check_writable
from ssl_toolkit.multirun.compare import check, compare
from ssl_toolkit.multirun.cost import StepTimes
from ssl_toolkit.suites.members import PlannedMember, plan_members
from ssl_toolkit.suites.page import JSON, PAGE, show_results, write_results
from ssl_toolkit.suites.results import Benchmark, collect
from ssl_toolkit.suites.schema import Suite, find_suite, read_suite
from ssl_toolkit.text import display_path, roughly, summarize

SUITE = "suite.yaml"
"""The suite as it was run, in the output folder."""
WHERE = ("launcher", "launcher_options", "threads", "device")
"""Settings that say where the runs happen, which change no result."""
CLASSES = 10
"""Number of classes for the measurement of steps, which hardly depend on it."""


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of `benchmark`."""

    folder: Path
    """Path to the output folder, with ``benchmark.html`` and ``benchmark.csv``."""
    report: Benchmark
    """Content of ``benchmark.json``."""
    status: int
    """Exit status: 0 if every run is completed, 1 if one is not, 130 or 143 after a signal."""


def benchmark(
    suite: str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    algos: Sequence[str] = (),
    seeds: Sequence[int] = (),
    data_root: str | Path | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> BenchmarkResult:
    """Do what ``ssl-toolkit benchmark SUITE`` does.

    Args:
        suite: Name of a suite, or path to its file.
        config: Where the runs happen: ``launcher``, ``launcher_options``, ``threads``, ``device``.
        algos: Algorithms in place of the suite's, beside its baseline and its upper bound.
        seeds: Seeds in place of the suite's.
        data_root: Path to the folder with the data sets made by scripts.
        output: Path to the output folder; None for ``runs/benchmark-<name>``. Completed runs in it
            are kept, and its algorithms and seeds are reported too.
        overwrite: True to replace existing comparisons.
        console: Shows the progress; None shows warnings and results only.

    Returns:
        The folder, the results of all members, and the exit status.

    Raises:
        UserError: Before any training.
    """
    chosen = find_suite(str(suite)).changed(
        algos=algos, seeds=seeds, data_root=None if data_root is None else str(data_root)
    )
    tree = plain_tree(config or {})
    if others := [key for key in tree if key not in WHERE]:
        raise ConfigError(
            f"{others[0]}: a suite fixes the settings of its runs; leave it out (config has "
            f"{', '.join(WHERE)})"
        )
    folder = (default_folder(chosen.name) if output is None else at_home(output)).absolute()
    chosen, members = plan_suite(chosen, folder, tree, overwrite=overwrite)
    status = run_suite(chosen, members, folder, overwrite=overwrite, console=console)
    return BenchmarkResult(folder, Benchmark.read(folder / JSON), status)


def default_folder(name: str) -> Path:
    """Return the output folder of a suite."""
    return Path(f"runs/benchmark-{name}")


def plan_suite(
    suite: Suite,
    folder: Path,
    tree: Mapping[str, Any],
    sets: Sequence[str] = (),
    *,
    overwrite: bool = False,
) -> tuple[Suite, list[PlannedMember]]:
    """Return a suite with what an earlier call ran in the same folder, and its members, planned.

    Args:
        suite: The suite, with the algorithms and seeds to run.
        folder: Path to the output folder.
        tree: Values of `WHERE`; None for the defaults.
        sets: ``launcher_options.KEY=VALUE``.
        overwrite: True to leave out what was run earlier.

    Raises:
        ConfigError: The folder belongs to something else, or a setting is invalid.
        PluginError: An algorithm is unknown or broken.
    """
    joined = joined_with_earlier(suite, folder)
    suite = suite if overwrite else joined
    return suite, plan_members(suite, folder, tree, sets)


def suite_of(folder: Path) -> Suite | None:
    """Return the suite that was run in a folder; None if there was none."""
    path = folder / SUITE
    return read_suite(path) if path.exists() else None


def joined_with_earlier(suite: Suite, folder: Path) -> Suite:
    """Return the suite with the algorithms and seeds of earlier calls in the same folder.

    Raises:
        ConfigError: The folder belongs to another suite or version, or to something else.
    """
    check_writable(folder, f"--output {display_path(folder)}")
    earlier = suite_of(folder)
    if earlier is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(
                f"--output {display_path(folder)}: not the folder of a suite; choose another"
            )
        return suite
    if (earlier.name, earlier.version) != (suite.name, suite.version):
        raise ConfigError(
            f"--output {display_path(folder)}: contains suite {earlier.name} version "
            f"{earlier.version}, this is {suite.name} version {suite.version}; choose another"
        )
    return suite.joined(earlier)


def run_suite(
    suite: Suite,
    members: Sequence[PlannedMember],
    folder: Path,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> int:
    """Run what is not completed, then write the results of all members.

    A member that is refused, or whose data is missing, does not affect the others.

    Args:
        suite: The suite, with the algorithms and seeds to run.
        members: Its members, planned.
        folder: Path to the output folder.
        overwrite: True to replace existing comparisons.
        console: Shows the progress; only warnings and results if None.

    Returns:
        The exit status: 0 if every run of a member whose data is there is completed, 1 if a run or
        a member failed, 130 or 143 after a signal.

    Raises:
        ConfigError: Every member was refused, or has no data; before any training.
    """
    console = console or Console(quiet=True)
    missing = {one.name: one.missing for one in members if one.missing}
    for name, hint in missing.items():
        console.warn(f"{name}: not run: {hint}")
    if len(missing) == len(members):
        raise ConfigError([f"{name}: {hint}" for name, hint in missing.items()])
    earlier = suite_of(folder)
    folder.mkdir(parents=True, exist_ok=True)
    suite.write(folder / SUITE)
    failures: dict[str, str] = {}
    refused: list[str] = []
    status = 0
    ready = [one for one in members if not one.missing]
    for member in ready:
        console.say(f"{member.name}: {member.title}", important=True)
        try:
            result = compare(member.comparison, overwrite=overwrite, console=console).status
        except ToolkitError as error:
            failures[member.name] = one_line("; ".join(error.messages))
            console.warn(f"{member.name}: {failures[member.name]}")
            refused += error.messages if isinstance(error, UserError) else ()
            result = 1
        status = status or result
        if result > 1:  # a signal
            status = result
            break
    if len(failures) == len(ready) and refused:
        if earlier is None:
            (folder / SUITE).unlink()
            with contextlib.suppress(OSError):  # results of earlier members are kept
                folder.rmdir()
        else:  # otherwise the next call would repeat what was refused
            earlier.write(folder / SUITE)
        raise ConfigError([*dict.fromkeys(refused)])
    write_and_show(collect(suite, folder, missing=missing, failures=failures), folder, console)
    return status


def write_and_show(results: Benchmark, folder: Path, console: Console) -> None:
    """Write tables and page, and print the overview."""
    write_results(results, folder)
    show_results(results, console)
    console.say(f"page: {display_path(folder / PAGE)}", important=True)


def describe(suite: Suite, members: Sequence[PlannedMember], jobs: int) -> Iterator[str]:
    """Yield what a suite runs, with the time of its steps, which are measured on this device.

    Args:
        suite: The suite.
        members: Its members, planned; their data is checked.
        jobs: Number of runs at a time.
    """
    yield f"suite {suite.name} version {suite.version}: {suite.title}"
    times, total = StepTimes(), 0.0
    for member in members:
        comparison, fault = member.comparison, ""
        if member.missing:
            fault = f"not run: {member.missing}"
        else:
            try:
                plan, _ = check(comparison, overwrite=False, console=Console(quiet=True))
                comparison = plan.comparison  # without rows that can't train
            except UserError as error:
                fault = f"refused: {one_line(error.messages[0])}"
        seeds = comparison.settings.seeds
        yield f"{member.name}: {member.title}"
        rows = ", ".join(row.name for row in comparison.rows)
        yield f"  rows: {rows}; seeds: {', '.join(map(str, seeds))}"
        if fault:
            yield f"  {fault}"
            continue
        seconds, unmeasured = _seconds(comparison.rows, times)
        seconds *= len(seeds)
        total += seconds
        without = f", without {summarize(unmeasured)}" if unmeasured else ""
        yield f"  training steps: {roughly(seconds)}{without}"
    at_once = f", {roughly(total / jobs)} with {jobs} jobs on as many idle devices" * (jobs > 1)
    yield (
        f"estimated time: {roughly(total)}{at_once}, of training steps alone; evaluations and the "
        "start of each run are in addition"
    )


def _seconds(rows: Sequence[PlannedRow], times: StepTimes) -> tuple[float, list[str]]:
    """Return the seconds of one seed of all rows, and the rows that can't be measured."""
    total, unmeasured = 0.0, []
    for row in rows:
        if row.config.settings.algo == AUTO:
            unmeasured.append(row.name)
            continue
        try:
            cost = times.cost(resolve_config(row.config)[0], CLASSES)
        except UserError:
            unmeasured.append(row.name)
            continue
        total += cost.step * cost.steps if cost else 0.0
    return total, unmeasured
