"""From the folders of runs to a comparison: read, check, compute."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.comparisons.comparability import check_comparable, fingerprint
from ssl_toolkit.comparisons.discover import check_unique
from ssl_toolkit.comparisons.plan_file import Place, read_failures, read_plan
from ssl_toolkit.comparisons.read import SCORES, highest, read_run, scores_of
from ssl_toolkit.comparisons.statistics import difference, holm, spread
from ssl_toolkit.comparisons.types import ComparedRun, Comparison, Difference, Variant
from ssl_toolkit.config.loading import AUTO
from ssl_toolkit.errors import ConfigError, PluginError
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.runs.check import refuse_contradictions
from ssl_toolkit.runs.record import RunRecord


def gather_folder(
    folder: Path,
    *,
    name: str | None = None,
    baseline: str | None = None,
    allow: Collection[str] = (),
    notes: Sequence[str] = (),
) -> Comparison:
    """Gather a comparison folder by its plan and its ``failures.json``.

    The latter holds, where it exists, the reasons of runs that ended without saying why in their
    own folders (killed, lost with their machine, refused).

    Args:
        folder: of the comparison.
        name: another title than the plan's.
        baseline: another baseline than the plan's.
        allow: keys that may differ beside those of the plan.
        notes: more for the reader.

    Raises:
        ConfigError: as `read_plan` and `gather`.
    """
    plan = read_plan(folder)
    if plan.budget != "steps":
        notes = (f"equal for all rows is the budget {plan.budget}, not the number of steps", *notes)
    return gather(
        plan.places(folder),
        name=name or plan.name,
        baseline=baseline or plan.baseline,
        allow={*plan.allow, *allow},
        algorithms=plan.algorithms,
        failures=read_failures(folder),
        notes=notes,
    )


def gather(
    places: Sequence[Place],
    *,
    name: str,
    baseline: str | None = None,
    allow: Collection[str] = (),
    algorithms: Mapping[str, str] | None = None,
    failures: Mapping[tuple[str, int], str] | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Read runs, refuse what is not comparable, and compute the scores of each row.

    Args:
        places: every run that belongs to the comparison, made or not; rows keep this order.
        name: title.
        baseline: row that the others are compared with.
        allow: shared keys, or sections of keys, in which rows may differ.
        algorithms: by row, for rows without any readable run.
        failures: by row and seed, reasons of runs that could not write one themselves; where such
            a run is completed by now, its results count.
        notes: further notes, shown first.

    Returns:
        Runs that are not completed have a status and a reason, and are in no mean.

    Raises:
        ConfigError: rows are not comparable (see `check_comparable`), the baseline is no row, or
            two places have the same row and seed.
        ModelError: the files of a completed run contradict each other.
    """
    names = [*dict.fromkeys(row for row, _, _ in places)]
    if baseline is not None and baseline not in names:
        raise ConfigError(
            f"baseline {baseline!r}: no row has this name{did_you_mean(baseline, names)}; "
            f"rows: {', '.join(names)}"
        )
    check_unique(places)
    failures = failures or {}
    members = [
        read_run(row, seed, folder, failures.get((row, seed), "")) for row, seed, folder in places
    ]
    completed = [member for member in members if member.completed]
    refuse_contradictions(member.folder for member in completed)
    shared, different = check_comparable(completed, allow)
    rows = [
        _row(
            row,
            (algorithms or {}).get(row, ""),
            tuple(member for member in members if member.row == row),
            different.get(row, {}),
        )
        for row in names
    ]
    return Comparison(
        name=name,
        rows=tuple(_compared(rows, baseline)),
        seeds=tuple(sorted({seed for _, seed, _ in places})),
        baseline=baseline,
        shared=shared,
        fingerprint=fingerprint(completed, shared),
        notes=(*notes, *_notes(members)),
    )


def _row(
    name: str, algorithm: str, members: tuple[ComparedRun, ...], different: Mapping[str, Any]
) -> Variant:
    known = [_algorithm(member) for member in members if member.config]
    algorithm = known[0] if known else algorithm
    values: dict[str, dict[int, float]] = {}
    for member in members:
        if member.completed and member.summary is not None:
            for score, value in scores_of(member.summary).items():
                values.setdefault(score, {})[member.seed] = value
    scores = {
        score: spread(values[score], highest=highest(score)) for score in SCORES if score in values
    }
    uses_hidden = _uses_hidden_labels(algorithm, members)
    return Variant(name, algorithm, members, scores, None, different, uses_hidden)


def _algorithm(member: ComparedRun) -> str:
    chosen = member.record and member.record.auto
    return AUTO if chosen else str((member.config or {})["algo"])


def _compared(rows: Sequence[Variant], baseline: str | None) -> list[Variant]:
    """The rows with their differences to the baseline, p-values adjusted for their number.

    A bound competes with nobody: it has no adjusted value and counts for none.
    """
    of = {row.name: row.scores["test.accuracy"] for row in rows if "test.accuracy" in row.scores}
    if baseline not in of:
        return [*rows]
    found: dict[str, Difference | None] = {
        name: difference(score.values, of[baseline].values)
        for name, score in of.items()
        if name != baseline
    }
    bounds = {row.name for row in rows if row.uses_hidden_labels}
    tested = {
        name: own.p_value
        for name, own in found.items()
        if own is not None and own.p_value is not None and name not in bounds
    }
    adjusted = dict(zip(tested, holm([*tested.values()]), strict=True))
    made = []
    for row in rows:
        own = found.get(row.name)
        own = None if own is None else replace(own, adjusted=adjusted.get(row.name))
        made.append(replace(row, difference=own))
    return made


def _uses_hidden_labels(algorithm: str, members: Sequence[ComparedRun]) -> bool:
    """Whether the algorithm gets hidden labels: as recorded, else as installed, else no."""
    for member in members:
        if member.record is not None:
            return member.record.uses_hidden_labels
    try:
        return bool(getattr(registry.load("algorithms", algorithm), "uses_hidden_labels", False))
    except PluginError:
        return False


def _notes(members: Sequence[ComparedRun]) -> list[str]:
    """What a reader must know before comparing numbers."""
    completed = [member for member in members if member.completed]
    notes = [_missing(members)]
    tested = [
        member.summary is not None and member.summary.test is not None for member in completed
    ]
    if tested and not all(tested):
        notes.append(
            "runs without test images have a validation accuracy only, which chose their weights"
        )
    notes += _how_trained(completed)
    notes += _environment(completed)
    warnings: dict[str, list[ComparedRun]] = {}
    for member in completed:
        for warning in member.record.warnings if member.record else ():
            warnings.setdefault(warning, []).append(member)
    notes += [
        f"{_describe(found, completed)}: {' '.join(warning.split())}"
        for warning, found in warnings.items()
    ]
    return [note for note in notes if note]


def _how_trained(completed: Sequence[ComparedRun]) -> list[str]:
    """Which runs took no steps, and what ``auto`` chose."""
    notes = []
    fitted = [member for member in completed if member.summary and member.summary.fitted]
    if fitted and len(fitted) < len(completed):
        message = _describe(fitted, completed)
        notes.append(f"fitted to frozen features at once, whatever the number of steps: {message}")
    chosen: dict[str, list[ComparedRun]] = {}
    for member in completed:
        if choice := member.record and member.record.auto:
            chosen.setdefault(str(choice["algorithm"]), []).append(member)
    return notes + [f"auto chose {name}: {_describe(m, completed)}" for name, m in chosen.items()]


def _missing(members: Sequence[ComparedRun]) -> str:
    done = {row: set[int]() for row in dict.fromkeys(member.row for member in members)}
    for member in members:
        if member.completed:
            done[member.row].add(member.seed)
    left = sum(not member.completed for member in members)
    if not left:
        return ""
    note = f"{left} of {len(members)} runs have no results and are in no mean"
    if len({frozenset(seeds) for seeds in done.values() if seeds}) > 1:
        note += "; rows have means over different seeds, differences are over the common ones"
    return note


def _environment(completed: Sequence[ComparedRun]) -> list[str]:
    """A note for each thing about the machine or the software that is not the same for all."""
    notes = []
    threads = {m.folder: m.record and _threads(m.record) for m in completed}
    on_cpu = [m for m in completed if m.record and m.record.device.startswith("cpu")]
    if message := _differing(on_cpu, threads):
        notes.append(
            f"numbers of CPU threads differ: {message}; that alone changes scores, as sums are cut "
            "otherwise, and seconds"
        )
    elif message := _differing(completed, threads):
        notes.append(f"seconds are not comparable, numbers of CPU threads differ: {message}")
    devices = {m.folder: m.record and _device(m.record) for m in completed}
    if message := _differing(completed, devices):
        notes.append(f"seconds and images per second are not comparable, devices differ: {message}")
    for key, name in {"precision": "precisions", "platform": "platforms"}.items():
        message = _differing(completed, {m.folder: getattr(m.record, key, None) for m in completed})
        if message:
            notes.append(f"{name} differ: {message}")
    versions = {m.folder: m.record.versions if m.record else {} for m in completed}
    for package in dict.fromkeys(name for found in versions.values() for name in found):
        message = _differing(completed, {folder: v.get(package) for folder, v in versions.items()})
        if message:
            notes.append(f"versions of {package} differ: {message}")
    return notes


def _device(record: RunRecord) -> str:
    """Return the device without the threads of a CPU, which have a note of their own."""
    return re.sub(r"^cpu \([0-9]+ threads\)$", "cpu", record.device)


def _threads(record: RunRecord) -> str:
    """Return the CPU threads of a run, and those that it was resumed with."""
    changed = " ".join(str(change.after) for change in record.changes if change.key == "device")
    later = re.findall(r"cpu \(([0-9]+) threads\)", changed)
    return ", then ".join([str(record.torch_threads), *later])


def _differing(completed: Sequence[ComparedRun], values: Mapping[Path, Any]) -> str:
    groups: dict[str, list[ComparedRun]] = {}
    for member in completed:
        value = values[member.folder]
        groups.setdefault("unknown" if value is None else str(value), []).append(member)
    if len(groups) < 2:
        return ""
    return "; ".join(f"{value} in {_describe(found, completed)}" for value, found in groups.items())


def _describe(found: Sequence[ComparedRun], completed: Sequence[ComparedRun]) -> str:
    """Rows by name, and by their seeds where only some of them are meant."""
    if len(found) == len(completed):
        return "all runs"
    parts = []
    for row in dict.fromkeys(member.row for member in found):
        seeds = [member.seed for member in found if member.row == row]
        whole = len(seeds) == sum(member.row == row for member in completed)
        parts.append(row if whole else f"{row} (seed {', '.join(map(str, seeds))})")
    return ", ".join(parts)
