"""Read the runs of a comparison, check them and compute its scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.comparisons.comparability import check_comparable, fingerprint, run_defaults_of
from ssl_toolkit.comparisons.label_curve import label_curve
from ssl_toolkit.comparisons.ranking import ranking
from ssl_toolkit.comparisons.schema import (
    SCORES,
    ComparedRun,
    Comparison,
    Failures,
    PlanFile,
    RunLocation,
    Variant,
    describe_left_out,
    upper_bound,
)
from ssl_toolkit.comparisons.statistics import holm, paired_difference, score_stats
from ssl_toolkit.comparisons.time_to_accuracy import with_times
from ssl_toolkit.config.defaults import AUTO
from ssl_toolkit.config.label_counts import LabelKey
from ssl_toolkit.errors import ConfigError, PluginError
from ssl_toolkit.recipes import recipe_name
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.runs.record import RunRecord, in_versions
from ssl_toolkit.text import display_path, display_text

THEN = ", then "
"""Between the values of a fact that changed when a run was resumed."""


def gather_plan(
    plan: PlanFile, folder: Path, failures: Failures, levels: Sequence[float] = ()
) -> Comparison:
    """Gather the runs of a plan.

    Args:
        plan: The plan.
        folder: Path to the comparison.
        failures: As for `gather`.
        levels: As for `gather`.

    Raises:
        UserError: As `gather`.
    """
    notes = []
    if plan.budget != "steps":
        notes.append(f"equal for all rows is the budget {plan.budget}, not the number of steps")
    if plan.left_out:
        notes.append(describe_left_out(plan.left_out))
    return gather(
        plan.runs(folder),
        name=plan.name,
        baseline=plan.baseline,
        allow=plan.allow,
        failures=failures,
        notes=notes,
        curve=plan.curve,
        levels=levels,
    )


def gather(
    locations: Sequence[RunLocation],
    *,
    name: str,
    baseline: str | None = None,
    allow: Collection[str] = (),
    failures: Failures | None = None,
    notes: Sequence[str] = (),
    curve: LabelKey | None = None,
    levels: Sequence[float] = (),
) -> Comparison:
    """Read runs, refuse those that are not comparable, and compute the scores of each row.

    Args:
        locations: All runs, including those that don't exist; rows keep this order.
        name: Title.
        baseline: Row that the others are compared with; of a label curve, its method.
        allow: Shared settings, or sections of settings, in which rows may differ.
        failures: By row and seed, reasons of failed runs that are not recorded in their folders
            (killed, lost with their machine, refused); ignored for a run that is completed now.
        notes: Further notes, shown first.
        curve: The setting with several numbers of labels; None without a label curve.
        levels: Validation accuracies whose seconds to report; by default as in `with_times`.

    Returns:
        Runs that are not completed have a status and a reason, and are in no mean.

    Raises:
        ConfigError: Rows are not comparable (see `check_comparable`), the baseline is no row, or
            two runs have the same row and seed.
    """
    failures = failures or {}
    _check_unique(locations)
    runs, planned = [], {}
    for location in locations:
        row, seed = location.row, location.seed
        run = ComparedRun.read(row, seed, location.folder, failures.get(row, {}).get(seed, ""))
        runs.append(run)
        planned[run.row] = location
    names = [*dict.fromkeys(run.row for run in runs)]
    methods = [*dict.fromkeys(location.method or name for name, location in planned.items())]
    if baseline is not None and baseline not in methods:
        raise ConfigError(
            f"baseline {baseline!r}: no row has this name{did_you_mean(baseline, methods)}; "
            f"rows: {', '.join(methods)}"
        )
    completed = [run for run in runs if run.completed]
    shared, overrides = check_comparable(completed, allow)
    of_row = {row: tuple(run for run in runs if run.row == row) for row in names}
    if curve is not None:  # not a permission: rows are compared at equal numbers of labels
        for of_one in overrides.values():
            of_one.pop(curve, None)
    rows = [_variant(planned[row], of_row[row], overrides.get(row, {})) for row in names]
    ranked_by, reason = ranking(run.summary for run in completed if run.summary)
    notes = [*notes, reason] if reason else notes
    by_labels = [
        [row for row in rows if row.labels == labels]
        for labels in dict.fromkeys(row.labels for row in rows)
    ]
    rows = [row for of in by_labels for row in _with_differences(of, baseline, ranked_by)]
    rows, levels_of = with_times(rows, levels)
    return Comparison(
        name=name,
        ranked_by=ranked_by,
        levels_of=levels_of,
        rows=tuple(rows),
        seeds=tuple(sorted({run.seed for run in runs})),
        baseline=baseline,
        shared=shared,
        fingerprint=fingerprint(completed, shared),
        notes=(*map(display_text, notes), *_notes(runs, completed)),
        curve=label_curve(rows, curve, ranked_by) if curve else None,
    )


def _check_unique(locations: Sequence[RunLocation]) -> None:
    """Refuse two runs of one row with one seed."""
    taken: dict[tuple[str, int], Path] = {}
    for row, seed, folder, *_ in locations:
        other = taken.setdefault((row, seed), folder)
        if other is not folder:
            raise ConfigError(
                f"{display_path(other)} and {display_path(folder)} are both {row} with seed "
                f"{seed}; name one of them"
            )


def _variant(
    planned: RunLocation, runs: tuple[ComparedRun, ...], overrides: Mapping[str, Any]
) -> Variant:
    name, algorithm = runs[0].row, planned.algorithm
    configured = [run for run in runs if run.config]
    if configured:
        first = configured[0]
        is_auto = first.record and first.record.auto
        algorithm = AUTO if is_auto else str((first.config or {})["algo"])
    scores = {}
    for score in SCORES:
        values = {run.seed: run.scores[score] for run in runs if score in run.scores}
        if values:
            scores[score] = score_stats(values, highest=upper_bound(score))
    return Variant(
        name=name,
        method=planned.method or name,
        labels=planned.labels,
        algorithm=algorithm,
        uses_hidden_labels=_uses_hidden_labels(algorithm, runs),
        overrides=dict(overrides),
        run_defaults=tuple(key for key in overrides if key in run_defaults_of(runs)),
        options=configured[0].options if configured else {},
        scores=scores,
        difference=None,
        runs=runs,
    )


def _with_differences(
    rows: Sequence[Variant], baseline: str | None, ranked_by: str
) -> list[Variant]:
    """Return the rows with their differences to the baseline, p-values adjusted for their number.

    Differences are of the score that ranks, on test images. Along a label curve, `rows` are those
    of one number of labels, and a family of tests.

    A row that uses hidden labels is an upper bound: it has no adjusted p-value and doesn't count.
    """
    values = {r.method: r.scores[ranked_by].values for r in rows if ranked_by in r.scores}
    if baseline not in values or not ranked_by.startswith("test."):
        return [*rows]
    differences = {
        name: paired_difference(of_row, values[baseline])
        for name, of_row in values.items()
        if name != baseline
    }
    bounds = {row.method for row in rows if row.uses_hidden_labels}
    p_values = {
        name: difference.p_value
        for name, difference in differences.items()
        if difference and difference.p_value is not None and name not in bounds
    }
    adjusted = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    for name, difference in differences.items():
        if difference and name in adjusted:
            update = {"adjusted_p_value": adjusted[name]}
            differences[name] = difference.model_copy(update=update)
    return [row.model_copy(update={"difference": differences.get(row.method)}) for row in rows]


def _uses_hidden_labels(algorithm: str, runs: Sequence[ComparedRun]) -> bool:
    """Return the recorded fact, else that of the installed algorithm, else False."""
    for run in runs:
        if run.record is not None:
            return run.record.uses_hidden_labels
    try:
        return bool(getattr(registry.load("algorithms", algorithm), "uses_hidden_labels", False))
    except PluginError:
        return False


def _notes(runs: Sequence[ComparedRun], completed: Sequence[ComparedRun]) -> list[str]:
    """Return what a reader must know before comparing numbers."""
    notes = [text] if (text := _missing(runs)) else []
    if any(run.summary and not run.summary.is_tested for run in completed):
        notes.append(
            "runs without test images have a validation accuracy only, which chose their weights"
        )
    fitted = [run for run in completed if run.summary and run.summary.fitted]
    if 0 < len(fitted) < len(completed):
        note = "fitted to frozen features at once, whatever the number of steps"
        notes.append(f"{note}: {_describe(fitted, completed)}")
    recipes: dict[str, list[ComparedRun]] = {}
    for run in completed:
        if run.summary and run.summary.recipe:
            name = recipe_name(run.summary.recipe, run.summary.scale)
            recipes.setdefault(name, []).append(run)
    notes += [f"recipe {name}: {_describe(of, completed)}" for name, of in recipes.items()]
    chosen = _grouped(completed, lambda record: [record.auto.algorithm] if record.auto else [])
    notes += [f"auto chose {name}: {_describe(of, completed)}" for name, of in chosen.items()]
    notes += _environment(completed)
    notes += [
        f"{_describe(warned, completed)}: {' '.join(warning.split())}"
        for warning, warned in _grouped(completed, attrgetter("warnings")).items()
    ]
    return notes


def _missing(runs: Sequence[ComparedRun]) -> str:
    """Return how many runs are in no mean, and whether rows have other seeds; empty for neither."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        if run.completed:
            seeds.setdefault(run.row, set()).add(run.seed)
    left = sum(not run.completed for run in runs)
    parts = [f"{left} of {len(runs)} runs have no results and are in no mean"] if left else []
    if len(set(map(frozenset, seeds.values()))) > 1:
        parts += ["rows have means over different seeds, differences are over the common ones"]
    return "; ".join(parts)


def _environment(completed: Sequence[ComparedRun]) -> list[str]:
    """Return a note for each fact about machine and software that is not the same for all runs."""
    notes = []
    on_cpu = [run for run in completed if run.record and run.record.device.startswith("cpu")]
    if text := _differing(on_cpu, _threads):
        notes.append(
            f"numbers of CPU threads differ: {text}; that alone changes scores, because sums are "
            "split differently, and seconds"
        )
    elif text := _differing(completed, _threads):
        notes.append(f"seconds are not comparable, numbers of CPU threads differ: {text}")
    if text := _differing(completed, _device):
        notes.append(f"seconds and images per second are not comparable, devices differ: {text}")
    records = [run.record for run in completed if run.record]
    packages = dict.fromkeys(name for record in records for name in record.versions)
    facts: dict[str, Callable[[RunRecord], str | None]] = {
        "precisions": lambda record: _over_time(record, "precision", record.precision),
        "platforms": attrgetter("platform"),
    }
    facts |= {f"versions of {name}": _version_of(name) for name in packages}
    notes += [
        f"{name} differ: {text}"
        for name, fact in facts.items()
        if (text := _differing(completed, fact))
    ]
    plugins = dict.fromkeys(name for record in records for name in record.plugins)
    return notes + [note for name in plugins if (note := _plugin(name, completed))]


def _differing(
    runs: Sequence[ComparedRun],
    fact: Callable[[RunRecord], str | None],
    completed: Sequence[ComparedRun] = (),
) -> str:
    """Return the values of a fact with their runs; empty for one value that never changed."""
    groups = _grouped(runs, lambda record: [fact(record) or "unknown"])
    texts = [f"{value} in {_describe(of, completed or runs)}" for value, of in groups.items()]
    return "; ".join(texts) if len(texts) > 1 or any(THEN in value for value in groups) else ""


def _plugin(name: str, completed: Sequence[ComparedRun]) -> str:
    """Return a note if the runs of a plugin had several distributions or versions of it.

    The versions of ssl-toolkit and timm have notes of their own.
    """

    def fact(record: RunRecord) -> str:
        return _over_time(record, f"plugins.{name}", record.plugins[name])

    runs = [run for run in completed if run.record and name in run.record.plugins]
    found = _grouped(runs, lambda record: fact(record).split(THEN))
    if in_versions(found) or not (text := _differing(runs, fact, completed)):
        return ""
    mixed = [
        row
        for row in dict.fromkeys(run.row for run in runs)
        if len({text for text, of in found.items() if any(run.row == row for run in of)}) > 1
    ]
    note = f"distributions of {name} differ: {text}"
    return f"{note}; the scores of {', '.join(mixed)} are of different code" if mixed else note


def _version_of(package: str) -> Callable[[RunRecord], str | None]:
    key = f"versions.{package}"
    return lambda record: _over_time(record, key, record.versions.get(package, ""))


def _over_time(record: RunRecord, key: str, first: str) -> str:
    """Return a recorded value, and those that it had after the run was resumed."""
    later = [str(change.after or "none") for change in record.changes if change.key == key]
    return THEN.join([first or "none", *later]) if later else first


def _device(record: RunRecord) -> str:
    """Return the device without the threads of a CPU, which have a note of their own."""
    return re.sub(r"^cpu \([0-9]+ threads\)$", "cpu", record.device)


def _threads(record: RunRecord) -> str:
    """Return the CPU threads of a run, and those that it was resumed with."""
    changed = " ".join(str(change.after) for change in record.changes if change.key == "device")
    later = re.findall(r"cpu \(([0-9]+) threads\)", changed)
    return THEN.join([str(record.torch_threads), *later])


def _grouped(
    runs: Sequence[ComparedRun], values: Callable[[RunRecord], Iterable[str]]
) -> dict[str, list[ComparedRun]]:
    """Return the runs of each value that is computed from their records."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        for value in values(run.record) if run.record else ():
            groups.setdefault(value, []).append(run)
    return groups


def _describe(runs: Sequence[ComparedRun], completed: Sequence[ComparedRun]) -> str:
    """Return rows by name, with the seeds if not all of them are meant."""
    if len(runs) == len(completed):
        return "all runs"
    parts = []
    for row in dict.fromkeys(run.row for run in runs):
        seeds = [str(run.seed) for run in runs if run.row == row]
        whole = len(seeds) == sum(run.row == row for run in completed)
        parts.append(row if whole else f"{row} (seed {', '.join(seeds)})")
    return ", ".join(parts)
