"""Whether runs may stand in one table: equal settings, splits, initial weights and classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ssl_toolkit.comparisons.types import ComparedRun
from ssl_toolkit.config.comparability import differences, flatten, permitted, shared_keys
from ssl_toolkit.config.loading import AUTO
from ssl_toolkit.config.roles import Consequence, keys_behind
from ssl_toolkit.data.splits.split_file import compare_files
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import summarize


def section(config: Mapping[str, Any]) -> str:
    """The key of the algorithm's own section in a configuration of plain types."""
    return str(config["algo"]).rpartition(":")[2]


def shared_settings(member: ComparedRun) -> dict[str, Any]:
    """What a comparison holds equal, by dotted key, as written in ``config.yaml``."""
    assert member.config is not None
    return shared_keys(member.config, section(member.config))


def own_settings(member: ComparedRun) -> dict[str, Any]:
    """The algorithm's own options, by key without its name."""
    assert member.config is not None
    return dict(flatten(member.config.get(section(member.config)) or {}))


def check_comparable(
    members: Sequence[ComparedRun], allowed: Collection[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Refuse completed runs that no table may hold together.

    Compared are all settings but `NOT_COMPARED` and the algorithms' own sections; the own section
    within a row; and for each seed the hashes of the split, of the initial weights and of the
    draws (older runs have none of the latter two) and the classes.

    Args:
        members: completed runs.
        allowed: shared keys, or sections of keys, that may differ.

    Returns:
        The settings that all share; and by row its values of those that differ by permission.

    Raises:
        ConfigError: one message for each key or hash that differs, with the value of each row.
    """
    by_row: dict[str, list[ComparedRun]] = {}
    for member in members:
        by_row.setdefault(member.row, []).append(member)
    settings = {name: _joined(runs, shared_settings) for name, runs in by_row.items()}
    different, faults = differences(settings, allowed)
    messages = [f"{message}; --allow-different permits it" for message in faults]
    for name, runs in by_row.items():
        for key, value in _joined(runs, shared_settings).items():
            _check_seeds(name, key, value, allowed, different, messages)
        for key, value in _joined(runs, _algorithm).items():
            if isinstance(value, _BySeed):
                messages.append(f"{key} differs between the seeds of {name}: {value}")
    consequences: tuple[Consequence, ...] = ("split", "initial weights", "classes")
    for what in consequences:
        messages += _unequal(members, what, keys_behind(what))
    messages += unequal_draws(members)
    if messages:
        raise ConfigError(messages)
    marked = {key for values in different.values() for key in values}
    shared = {key: value for keys in settings.values() for key, value in keys.items()}
    return {key: value for key, value in shared.items() if key not in marked}, different


def fingerprint(members: Sequence[ComparedRun], shared: Mapping[str, Any]) -> str:
    """Hash of the shared settings: that of the runs where it is the same for all of them."""
    own = {member.record.fingerprint for member in members if member.record}
    if len(own) == 1:
        return own.pop()
    text = json.dumps(shared, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if shared else ""


class _BySeed(str):
    """The values of a row whose seeds differ, as text."""


def _joined(
    members: Sequence[ComparedRun], read: Callable[[ComparedRun], dict[str, Any]]
) -> dict[str, Any]:
    """By key the value that all members have, or a text with that of each seed."""
    found = {member.seed: read(member) for member in members}
    joined = {}
    for key in dict.fromkeys(key for settings in found.values() for key in settings):
        values = {seed: settings.get(key) for seed, settings in found.items()}
        first = next(iter(values.values()))
        equal = all(value == first for value in values.values())
        message = ", ".join(f"{value} (seed {seed})" for seed, value in values.items())
        joined[key] = first if equal else _BySeed(message)
    return joined


def _algorithm(member: ComparedRun) -> dict[str, Any]:
    assert member.config is not None
    if member.record and member.record.auto:  # each seed chooses for itself
        return {"algo": AUTO}
    name = section(member.config)
    return {"algo": name} | {f"{name}.{key}": v for key, v in own_settings(member).items()}


def _check_seeds(
    row: str,
    key: str,
    value: Any,
    allowed: Collection[str],
    different: dict[str, dict[str, Any]],
    messages: list[str],
) -> None:
    """A shared key that differs between the seeds of a row though not between the rows."""
    if not isinstance(value, _BySeed):
        return
    if permitted(key, allowed):
        different[row][key] = str(value)
    elif not any(message.startswith(f"{key} ") for message in messages):
        messages.append(
            f"{key} differs between the seeds of {row}: {value}; --allow-different permits it"
        )


def _unequal(members: Sequence[ComparedRun], what: str, keys: Sequence[str]) -> Iterator[str]:
    """A message for each seed whose runs disagree, among those with equal values of `keys`."""
    groups: dict[tuple[str, ...], dict[str, list[ComparedRun]]] = {}
    for member in members:
        found = _found(member, what)
        if found is None:
            continue
        settings = shared_settings(member)
        seed = "" if what == "classes" else str(member.seed)
        group = (seed, *(json.dumps(settings.get(key), default=str) for key in keys))
        groups.setdefault(group, {}).setdefault(found, []).append(member)
    for (seed, *_), by_value in groups.items():
        if len(by_value) > 1:
            message = "; ".join(
                f"{value[:60]} in {summarize([*dict.fromkeys(run.row for run in runs)])}"
                for value, runs in by_value.items()
            )
            of = f" of seed {seed}" if seed else ""
            if what == "split":
                message += _told_changes([runs[0] for runs in by_value.values()])
            yield f"{what}{of} must be the same in all rows, and can't be permitted: {message}"


def _told_changes(members: Sequence[ComparedRun]) -> str:
    """How the images of the first run differ from those of another, if their files say."""
    first, *others = (RunFolder(member.folder).split for member in members)
    message = next(filter(None, (compare_files(first, other) for other in others)), "")
    return f" ({message})" if message else ""


def unequal_draws(members: Sequence[ComparedRun]) -> list[str]:
    """A message for each order of images, or kind of view, that runs of a seed draw differently.

    Only what two runs both draw is held against each other, where the settings that it follows from
    are equal.
    """
    causes = keys_behind("draws")
    shared = dict.fromkeys(key for member in members for key in shared_settings(member))
    keys = [key for key in shared if key in causes or key.partition(".")[0] in causes]
    names = dict.fromkeys(name for member in members for name in _draws(member))
    return [
        f"{message} (versions may differ; or for other numbers of images the augmenter draws "
        "otherwise, as `ssl-toolkit check` on it tells)"
        for name in names
        for message in _unequal(members, f"{_OF_DRAWS}{name}", keys)
    ]


_OF_DRAWS = "draws of "


def _draws(member: ComparedRun) -> Mapping[str, str]:
    return member.record.draws if member.record else {}


def _found(member: ComparedRun, what: str) -> str | None:
    if what == "classes":
        return ", ".join(member.summary.classes) if member.summary else None
    if what.startswith(_OF_DRAWS):
        value = _draws(member).get(what.removeprefix(_OF_DRAWS))
    else:
        value = getattr(member.record, what.replace(" ", "_"), None)
    return None if value is None else value[:16]
