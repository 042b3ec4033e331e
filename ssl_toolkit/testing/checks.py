"""The checks that plugin authors call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ssl_toolkit.config.options import Options
from ssl_toolkit.testing.rules import RuleResult, demand, run_rules
from ssl_toolkit.testing.subject import find_subject

Expected = Mapping[str, str]
"""Names of rules that are known to be broken, with the reason."""


def run_checks(
    plugin: type | str,
    *,
    kind: str | None = None,
    config: Options | None = None,
    root: Path | None = None,
    expected_failures: Expected | None = None,
    device: str = "cpu",
) -> tuple[RuleResult, ...]:
    """Check all rules of a plugin and tell what came of each; a broken one raises nothing.

    Args:
        plugin: a class, or a registered name.
        kind: ``algorithm`` and so on; None for that of the class, or the only one with the name.
        config: options to check with; None for the defaults.
        root: folder with the files of a data set; None for the default one.
        expected_failures: rules that are known to be broken, with the reason; one that passes
            counts as a failure.
        device: to compute on; on ``cuda``, waiting for the device is an error of the device.

    Raises:
        PluginError: the name is unknown or ambiguous, or the class is no plugin.
        DataError: the files of a data set are missing.
        ModelError: the device isn't there.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, kind, config=config, device=device, root=root)
    return tuple(run_rules(subject, expected_failures or {}))


def check_algorithm(
    plugin: type | str,
    *,
    config: Options | None = None,
    expected_failures: Expected | None = None,
    device: str = "cpu",
) -> None:
    """Check that an algorithm keeps its contract; arguments as for `run_checks`.

    Raises:
        ContractError: lists the rules that it breaks.
        PluginError: the name is unknown, or the class is no algorithm.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, "algorithm", config=config, device=device)
    demand(subject, run_rules(subject, expected_failures or {}))


def check_augmenter(
    plugin: type | str,
    *,
    config: Options | None = None,
    expected_failures: Expected | None = None,
    device: str = "cpu",
) -> None:
    """Check that an augmenter keeps its contract; arguments as for `run_checks`.

    Raises:
        ContractError: lists the rules that it breaks.
        PluginError: the name is unknown, or the class is no augmenter.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, "augmenter", config=config, device=device)
    demand(subject, run_rules(subject, expected_failures or {}))


def check_backbone(
    plugin: type | str,
    *,
    expected_failures: Expected | None = None,
    device: str = "cpu",
) -> None:
    """Check that a backbone keeps its contract; a name may be one of timm's.

    Arguments as for `run_checks`.

    Raises:
        ContractError: lists the rules that it breaks.
        PluginError: the name is unknown, or the class is no backbone.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, "backbone", device=device)
    demand(subject, run_rules(subject, expected_failures or {}))


def check_dataset(
    plugin: type | str, *, root: Path | None = None, expected_failures: Expected | None = None
) -> None:
    """Check that a data set keeps its contract, with nothing downloaded.

    Arguments as for `run_checks`.

    Raises:
        ContractError: lists the rules that it breaks.
        PluginError: the name is unknown, or the class is no data set.
        DataError: its files are not there.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, "dataset", root=root)
    demand(subject, run_rules(subject, expected_failures or {}))


def check_launcher(
    plugin: type | str,
    *,
    config: Options | None = None,
    expected_failures: Expected | None = None,
) -> None:
    """Check that a launcher keeps its contract, by starting small programs with it.

    Arguments as for `run_checks`.

    Raises:
        ContractError: lists the rules that it breaks.
        PluginError: the name is unknown, or the class is no launcher.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, "launcher", config=config)
    demand(subject, run_rules(subject, expected_failures or {}))


def check_logger(plugin: type | str, *, expected_failures: Expected | None = None) -> None:
    """Check that a logger keeps its contract, in temporary folders.

    Arguments as for `run_checks`.

    Raises:
        ContractError: lists the rules that it breaks.
        PluginError: the name is unknown, the class is no logger, or a package is missing.
        ValueError: an expected failure names no rule, or has no reason.
    """
    subject = find_subject(plugin, "logger")
    demand(subject, run_rules(subject, expected_failures or {}))
