"""The checks that plugin authors call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack

from ssl_toolkit.config.options import Options
from ssl_toolkit.testing.rules import RuleResult, demand, run_rules
from ssl_toolkit.testing.subject import find_subject

Expected = Mapping[str, str]
"""Names of rules that are known to be broken, with the reasons."""


class Arguments(TypedDict, total=False):
    """Optional arguments of `check`."""

    config: Options | None
    root: Path | None
    expected_failures: Expected | None
    device: str


def run_checks(
    plugin: type | str,
    *,
    kind: str | None = None,
    config: Options | None = None,
    root: Path | None = None,
    expected_failures: Expected | None = None,
    device: str = "cpu",
) -> tuple[RuleResult, ...]:
    """Check all rules of a plugin and return a result for each; a broken rule raises nothing.

    Args:
        plugin: a class, or a registered name.
        kind: ``algorithm`` and so on; None for that of the class, or the only one with the name.
        config: options to check with; None for the defaults.
        root: folder with the files of a data set; None for the default one.
        expected_failures: rules that are known to be broken, with the reason; one that passes
            counts as a failure.
        device: to compute on; on ``cuda``, waiting for the device is an error.

    Raises:
        PluginError: the name is unknown or ambiguous, or the class is no plugin.
        DataError: the files of a data set are missing.
        ModelError: the device is not available.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, kind, config=config, device=device, root=root)
    return tuple(run_rules(subject, expected_failures or {}))


def check(
    plugin: type | str,
    kind: str | None = None,
    *,
    config: Options | None = None,
    root: Path | None = None,
    expected_failures: Expected | None = None,
    device: str = "cpu",
) -> None:
    """Check that a plugin keeps its contract; arguments as for `run_checks`.

    `check_algorithm` and the like are this function for one kind. A data set is checked without
    downloading anything, a launcher by starting small programs, a logger in temporary folders; the
    name of a backbone may be one of timm's.

    Raises:
        ContractError: lists the rules that it breaks.
        PluginError: the name is unknown or ambiguous, the class is no plugin of that kind, or a
            package is missing.
        DataError: the files of a data set are missing.
        ModelError: the device is not available.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, kind, config=config, device=device, root=root)
    demand(subject, run_rules(subject, expected_failures or {}))


def check_algorithm(plugin: type | str, **arguments: Unpack[Arguments]) -> None:
    """Check that an algorithm keeps its contract; arguments as for `check`."""
    check(plugin, "algorithm", **arguments)


def check_augmenter(plugin: type | str, **arguments: Unpack[Arguments]) -> None:
    """Check that an augmenter keeps its contract; arguments as for `check`."""
    check(plugin, "augmenter", **arguments)


def check_backbone(plugin: type | str, **arguments: Unpack[Arguments]) -> None:
    """Check that a backbone, or one of timm's, keeps its contract; arguments as for `check`."""
    check(plugin, "backbone", **arguments)


def check_dataset(plugin: type | str, **arguments: Unpack[Arguments]) -> None:
    """Check that a data set keeps its contract, offline; arguments as for `check`."""
    check(plugin, "dataset", **arguments)


def check_launcher(plugin: type | str, **arguments: Unpack[Arguments]) -> None:
    """Check that a launcher keeps its contract; arguments as for `check`."""
    check(plugin, "launcher", **arguments)


def check_logger(plugin: type | str, **arguments: Unpack[Arguments]) -> None:
    """Check that a logger keeps its contract; arguments as for `check`."""
    check(plugin, "logger", **arguments)
