"""Check that runs are comparable: equal settings, splits, initial weights, draws and classes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ssl_toolkit.comparisons.schema import ComparedRun
from ssl_toolkit.config.defaults import AUTO
from ssl_toolkit.config.settings import Consequence, keys_behind
from ssl_toolkit.data.splits.split_file import compare_files
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import shorten, summarize

_INPUTS: tuple[Consequence, ...] = ("data", "strangers", "weights file")
_OF_DRAWS = "draws of "
_PERMIT = "; --allow-different permits it"


def check_comparable(
    runs: Sequence[ComparedRun], allowed: Collection[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Raise if completed runs must not be in one table.

    All settings except `NOT_COMPARED` and the options of the algorithms must be equal; the options
    within each row; the classes and the recorded hashes of the inputs; and for each seed those of
    the split, the initial weights and the draws.

    Args:
        runs: Completed runs.
        allowed: Shared settings, or sections of settings, that may differ.

    Returns:
        The settings that all runs share, and by row its values of those allowed to differ.

    Raises:
        ConfigError: One message for each setting or hash that differs, with the value of each row.
    """
    by_row: dict[str, list[ComparedRun]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    settings = {
        row: _over_seeds(of_row, lambda run: run.shared_settings) for row, of_row in by_row.items()
    }
    defaults = {row: run_defaults_of(of_row) for row, of_row in by_row.items()}
    overrides, faults = differences(settings, allowed, defaults)
    messages = [f"{message}{_PERMIT}" for message in faults]
    for row, of_row in by_row.items():
        for key, value in _varying(settings[row]):
            if permitted(key, allowed):
                overrides[row][key] = str(value)
            elif not any(message.startswith(f"{key} ") for message in messages):
                messages.append(f"{key} differs between the seeds of {row}: {value}{_PERMIT}")
        for key, value in _varying(_over_seeds(of_row, _algorithm_settings)):
            messages.append(f"{key} differs between the seeds of {row}: {value}")
    weights = _unequal(runs, "initial weights", keys_behind("initial weights"))
    unequal = [*unequal_splits(runs), *weights]
    # Other images or weights make other splits and initial weights: the seeds that differ say more.
    messages += unequal or unequal_inputs(runs)
    messages += _unequal(runs, "classes", keys_behind("classes"))
    messages += unequal_draws(runs)
    if messages:
        raise ConfigError(messages)
    permitted_keys = {key for values in overrides.values() for key in values}
    shared = {key: value for keys in settings.values() for key, value in keys.items()}
    different = {
        key
        for key, value in shared.items()
        if key in permitted_keys or any(keys.get(key) != value for keys in settings.values())
    }
    return {key: shared[key] for key in shared if key not in different}, overrides


def run_defaults_of(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the run defaults of the algorithm of a row, as its runs recorded them."""
    return next((run.record.run_defaults for run in runs if run.record), {})


def unequal_inputs(runs: Sequence[ComparedRun]) -> list[str]:
    """Return a message for each input whose content is not the same for all seeds."""
    return [message for name in _INPUTS for message in _unequal(runs, name, keys_behind(name))]


def unequal_splits(runs: Sequence[ComparedRun]) -> list[str]:
    """Return a message for each seed whose runs have several splits by equal settings."""
    return [*_unequal(runs, "split", keys_behind("split"))]


def unequal_draws(runs: Sequence[ComparedRun]) -> list[str]:
    """Return a message for each order of images, or kind of view, that differs for a seed.

    Only draws that two runs both make are compared, and only if the settings that determine them
    are equal.
    """
    causes = keys_behind("draws")
    shared = dict.fromkeys(key for run in runs for key in run.shared_settings)
    keys = [key for key in shared if key in causes or key.partition(".")[0] in causes]
    names = dict.fromkeys(name for run in runs for name in _recorded(run))
    return [
        f"{message} (the versions of packages differ, or the augmenter draws differently for "
        "another number of images, which `ssl-toolkit check` reports)"
        for name in names
        if name.startswith(_OF_DRAWS)
        for message in _unequal(runs, name, keys)
    ]


def fingerprint(runs: Sequence[ComparedRun], shared: Mapping[str, Any]) -> str:
    """Return the hash of the shared settings: that of the runs if it is the same in all."""
    recorded = {run.record.fingerprint for run in runs if run.record}
    if len(recorded) == 1:
        return recorded.pop()
    text = json.dumps(shared, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if shared else ""


class _BySeed(str):
    """The values of a setting that is not the same for all seeds of a row, as text."""


def _varying(settings: Mapping[str, Any]) -> Iterator[tuple[str, _BySeed]]:
    return ((key, value) for key, value in settings.items() if isinstance(value, _BySeed))


def _over_seeds(
    runs: Sequence[ComparedRun], read: Callable[[ComparedRun], dict[str, Any]]
) -> dict[str, Any]:
    """Return by key the value that all runs share, or a text with the value of each seed."""
    by_seed = {run.seed: read(run) for run in runs}
    joined = {}
    for key in dict.fromkeys(key for settings in by_seed.values() for key in settings):
        values = {seed: settings.get(key) for seed, settings in by_seed.items()}
        first, *others = values.values()
        text = ", ".join(f"{value} (seed {seed})" for seed, value in values.items())
        joined[key] = first if all(value == first for value in others) else _BySeed(text)
    return joined


def _algorithm_settings(run: ComparedRun) -> dict[str, Any]:
    if run.record and run.record.auto:  # each seed has its own choice
        return {"algo": AUTO}
    options = {f"{run.section}.{key}": value for key, value in run.options.items()}
    return {"algo": run.algorithm} | options


def _unequal(runs: Sequence[ComparedRun], name: str, keys: Sequence[str]) -> Iterator[str]:
    """Yield a message for each seed whose runs differ, among those with equal values of `keys`."""
    groups: dict[tuple[str, ...], dict[str, list[ComparedRun]]] = {}
    for run in runs:
        if (value := _recorded(run).get(name)) is None:
            continue
        settings = run.shared_settings
        seed = "" if name in (*_INPUTS, "classes") else f" of seed {run.seed}"
        group = (seed, *(json.dumps(settings.get(key), default=str) for key in keys))
        groups.setdefault(group, {}).setdefault(value, []).append(run)
    for (seed, *_), by_value in groups.items():
        if len(by_value) > 1:
            values = Counter(row for of in by_value.values() for row in {run.row for run in of})
            text = "; ".join(
                f"{value[:60]} in {_described(of, values)}" for value, of in by_value.items()
            )
            if name == "split":
                text += _split_change([of[0] for of in by_value.values()])
            where = "in all rows" if seed else "in all rows and for all seeds"
            yield f"{name}{seed} must be the same {where}, and can't be permitted: {text}"


def _described(runs: Sequence[ComparedRun], values: Mapping[str, int]) -> str:
    """Return rows by name, with the seeds of those that have several values."""
    names = (run.row if values[run.row] == 1 else f"{run.row} (seed {run.seed})" for run in runs)
    return summarize([*dict.fromkeys(names)])


def _split_change(runs: Sequence[ComparedRun]) -> str:
    """Return how the images of the first run differ from those of another; empty if unknown."""
    first, *others = (RunFolder(run.folder).split for run in runs)
    change = next(filter(None, (compare_files(first, other) for other in others)), "")
    return f" ({change})" if change else ""


def _recorded(run: ComparedRun) -> dict[str, str]:
    """Return the recorded classes and hashes, by name."""
    recorded = {"classes": ", ".join(run.summary.classes)} if run.summary else {}
    if run.record:
        hashes = {"split": run.record.split, "initial weights": run.record.initial_weights}
        hashes |= run.record.inputs
        hashes |= {f"{_OF_DRAWS}{name}": draws for name, draws in run.record.draws.items()}
        recorded |= {name: value[:16] for name, value in hashes.items()}
    return recorded


def permitted(key: str, allowed: Collection[str]) -> bool:
    """Return True if a shared key may differ: it, its section or its plugin may differ.

    The options of a plugin follow its name: where ``augment.strong`` may differ, so may
    ``augment.strong_options``.
    """
    return any(
        key in (name, f"{name}_options") or key.startswith((f"{name}.", f"{name}_options."))
        for name in allowed
    )


def differences(
    rows: Mapping[str, Mapping[str, Any]],
    allowed: Collection[str],
    run_defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Find the shared keys in which rows differ.

    A row may differ in the run defaults of its algorithm if the other rows are equal.

    Args:
        rows: by row name, its `shared_keys`.
        allowed: keys, or sections of keys, that may differ.
        run_defaults: by row name, the run defaults in effect; None for none.

    Returns:
        For each row its values of the keys that may differ or are run defaults; and a message for
        each other key that differs, except options of plugins that differ themselves.
    """
    defaults = {name: {} if run_defaults is None else run_defaults[name] for name in rows}
    different: dict[str, dict[str, Any]] = {name: {} for name in rows}
    faults: dict[str, str] = {}
    for key in dict.fromkeys(key for keys in rows.values() for key in keys):
        values = {name: keys.get(key) for name, keys in rows.items()}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            continue
        others = [value for name, value in values.items() if not permitted(key, defaults[name])]
        if permitted(key, allowed):
            for name, keys in rows.items():
                if key in keys:
                    different[name][key] = keys[key]
        elif len(others) < len(rows) and all(value == others[0] for value in others):
            for name in rows:
                different[name] |= {k: v for k, v in defaults[name].items() if permitted(key, {k})}
        else:
            faults[key] = f"{key} differs between rows that are compared: {_grouped(values)}"
    plugins = {key for key in faults if any(other.startswith(f"{key}_options") for other in faults)}
    messages = [
        f"{text} (and so do its options)" if key in plugins else text
        for key, text in faults.items()
        if not any(key != name and permitted(key, {name}) for name in plugins)
    ]
    return different, messages


def _grouped(values: Mapping[str, Any]) -> str:
    """List each value with its rows; the most common value last, without their names."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(repr(value), []).append(name)
    *others, common = sorted(groups.items(), key=lambda group: len(group[1]))
    if len(common[1]) == 1:  # no value is more common
        return summarize(
            [f"{shorten(value, 60)} in {name}" for value, (name,) in groups.items()], 4
        )
    messages = [f"{shorten(value, 60)} in {summarize(names, 4)}" for value, names in others]
    return f"{summarize(messages, 4)}; {shorten(common[0], 60)} in the {len(common[1])} others"
