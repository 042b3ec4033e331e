"""One pytest test for each plugin and rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ssl_toolkit.testing.rules import (
    ContractError,
    Rule,
    check_expected_failures,
    raise_failures,
    rules,
    run_rule,
)
from ssl_toolkit.testing.subject import Subject, find_subject

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class RuleCheck:
    """A callable that checks a rule on a plugin."""

    rule: Rule
    subject: Subject = field(repr=False)

    def __call__(self) -> None:
        """Check the rule.

        Raises:
            ContractError: the plugin breaks the rule.
        """
        raise_failures(self.subject, [run_rule(self.rule, self.subject)])


def parametrize_with_checks(
    plugins: Iterable[type | str],
    *,
    kind: str | None = None,
    expected_failures: Mapping[str, Mapping[str, str]] | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test function with a ``check`` for each plugin and rule; the test calls it.

    Expected failures are marked as strict ``xfail``: the test fails if the rule passes.

    Args:
        plugins: classes or registered names.
        kind: kind of plugin, such as ``algorithm``, if a name is ambiguous.
        expected_failures: names of rules that a plugin is known to break, with the reasons, by the
            name of the plugin: the registered one, or that of the class.

    Raises:
        PluginError: a name is unknown or ambiguous, or a class is not a plugin.
        ValueError: an expected failure names no plugin or no rule, or has no reason.

    >>> @parametrize_with_checks(["simple", "fixmatch"])  # doctest: +SKIP
    ... def test_contract(check):
    ...     check()
    """
    import pytest

    remaining = dict(expected_failures or {})
    cases = []
    for plugin in plugins:
        subject = find_subject(plugin, kind)
        reasons = remaining.pop(subject.name, {})
        contract = rules(subject.contract)
        check_expected_failures(reasons, (rule.name for rule in contract))
        for rule in contract:
            marks = [
                pytest.mark.xfail(reason=reasons[name], strict=True, raises=ContractError)
                for name in reasons
                if name == rule.name
            ]
            name = f"{subject.name}-{rule.name}"
            cases.append(pytest.param(RuleCheck(rule, subject), id=name, marks=marks))
    if remaining:
        names = ", ".join(map(repr, remaining))
        raise ValueError(f"expected_failures: {names} not among the plugins to check")
    return pytest.mark.parametrize("check", cases)
