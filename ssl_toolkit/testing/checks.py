"""Check a plugin against its contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ssl_toolkit.config.options import Options
from ssl_toolkit.testing.rules import RuleResult, raise_failures, run_rules
from ssl_toolkit.testing.subject import find_subject


def check_plugin(
    plugin: type | str,
    kind: str | None = None,
    *,
    config: Options | None = None,
    root: Path | None = None,
    expected_failures: Mapping[str, str] | None = None,
    device: str = "cpu",
    on_fail: Literal["raise"] | None = "raise",
) -> tuple[RuleResult, ...]:
    """Check that a plugin satisfies its contract.

    Nothing is downloaded. Launchers start small programs, and loggers write to temporary folders.

    Args:
        plugin: class, registered name, or name of a timm model.
        kind: kind of plugin, such as ``algorithm``; needed if several plugins have the name, and
            for timm models. By default, the kind of the class or of the only plugin of that name.
        config: options to check with; the defaults if None.
        root: path to the files of a data set; the default path if None.
        expected_failures: names of rules that the plugin is known to break, with the reasons. A
            rule that passes nevertheless counts as a failure.
        device: device to compute on; on ``cuda``, every synchronization is detected.
        on_fail: ``"raise"`` to raise an error if a rule fails, None to only return the results.

    Returns:
        A result for each rule, in the order of `rules`.

    Raises:
        ContractError: a rule fails; lists all failures.
        PluginError: the name is unknown or ambiguous, the class is not a plugin of that kind, or a
            package is not installed.
        DataError: the files of a data set are not found.
        ModelError: the device is not available.
        ValueError: an expected failure names no rule or has no reason.
    """
    subject = find_subject(plugin, kind, config=config, device=device, root=root)
    results = tuple(run_rules(subject, expected_failures or {}))
    if on_fail == "raise":
        raise_failures(subject, results)
    return results
