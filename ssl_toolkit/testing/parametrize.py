"""One test of pytest for each plugin and rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ssl_toolkit.testing.rules import (
    ContractError,
    Rule,
    check_expectations,
    demand,
    rules,
    run_rule,
)
from ssl_toolkit.testing.subject import Subject, find_subject

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class RuleCheck:
    """A rule and a plugin; calling it checks."""

    rule: Rule
    subject: Subject = field(repr=False)

    def __call__(self) -> None:
        """Check.

        Raises:
            ContractError: the plugin breaks the rule.
        """
        demand(self.subject, [run_rule(self.rule, self.subject)])


def parametrize_with_checks(
    plugins: Iterable[type | str],
    *,
    kind: str | None = None,
    expected_failures: Mapping[str, Mapping[str, str]] | None = None,
) -> pytest.MarkDecorator:
    """Decorator of a test with one argument, ``check``, that is called: a test for each rule.

    An expected failure is marked ``xfail``, strictly: it fails when it passes.

    Args:
        plugins: classes, or registered names.
        kind: ``algorithm`` and so on, where names are ambiguous.
        expected_failures: for the name of a plugin (registered, or that of the class), the rules
            that it is known to break, with the reason.

    Raises:
        PluginError: a name is unknown or ambiguous, or a class is no plugin.
        ValueError: an expected failure names no plugin or no rule, or has no reason.

    >>> @parametrize_with_checks(["simple", "fixmatch"])  # doctest: +SKIP
    ... def test_contract(check):
    ...     check()
    """
    import pytest

    expected = dict(expected_failures or {})
    cases = []
    for plugin in plugins:
        subject = find_subject(plugin, kind)
        reasons = expected.pop(subject.name, {})
        found = rules(subject.contract)
        check_expectations(reasons, (rule.name for rule in found))
        for rule in found:
            reason = reasons.get(rule.name)
            marks = [] if reason is None else [
                pytest.mark.xfail(reason=reason, strict=True, raises=ContractError)
            ]  # fmt: skip
            name = f"{subject.name}-{rule.name}"
            cases.append(pytest.param(RuleCheck(rule, subject), id=name, marks=marks))
    if expected:
        raise ValueError(f"expected_failures names {', '.join(map(repr, expected))}, not checked")
    return pytest.mark.parametrize("check", cases)
