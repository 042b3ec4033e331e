"""Define the rules of a contract, run them and report the broken ones."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Literal

import torch

from ssl_toolkit import registry
from ssl_toolkit.engine.checkpoints import random_states, restore_random_states
from ssl_toolkit.engine.plugin_faults import own_frames, short
from ssl_toolkit.engine.step_checks import WrongOutputError
from ssl_toolkit.testing.subject import Subject

Check = Callable[[Subject], None]
Status = Literal["passed", "failed", "xfailed", "xpassed"]


class ContractError(AssertionError):
    """A plugin breaks rules of its contract; the message lists them.

    Args:
        text: message.
        results: results of the broken rules.
    """

    def __init__(self, text: str, results: tuple[RuleResult, ...] = ()) -> None:
        super().__init__(text)
        self.results = results


class RuleViolationError(Exception):
    """A check failed; the message is the finding."""


@dataclass(frozen=True)
class Rule:
    """One rule of the contract of a kind of plugin."""

    name: str
    description: str
    """The requirement, in one sentence."""
    rationale: str
    """Why it matters."""
    cause: str
    """The usual cause of a failure."""
    check: Check = field(repr=False, compare=False)


@dataclass(frozen=True)
class RuleResult:
    """The result of a rule."""

    rule: Rule
    status: Status
    """``passed``; ``failed``; ``xfailed``: failed as expected; ``xpassed``: passed although a
    failure was expected."""
    finding: str
    """The violation, or the reason for an expected failure; empty for ``passed``."""
    location: str
    """File and line, if known; empty for ``passed``."""
    seconds: float

    @property
    def passed(self) -> bool:
        """True if the status is ``passed`` or ``xfailed``."""
        return self.status in ("passed", "xfailed")

    def explain(self) -> str:
        """Return a report of several lines: rule, finding, location, rationale, usual cause."""
        lines = [f"{self.rule.name}: {self.rule.description}", f"  finding:  {self.finding}"]
        if self.status == "xpassed":
            return "\n".join(lines)
        if self.location:
            lines.append(f"  location: {self.location}")
        lines += [f"  why:      {self.rule.rationale}", f"  cause:    {self.rule.cause}"]
        return "\n".join(lines)


_RULES: dict[str, dict[str, Rule]] = {}


def register(
    module: ModuleType, *kinds: str, checked: Callable[[Subject], Subject] | None = None
) -> None:
    """Register the public functions of a module as rules for these kinds of plugins.

    A rule has the name of its function, whose docstring consists of the description and of two
    paragraphs that start with ``Why:`` and ``Cause:``.

    Args:
        module: module of the rules.
        kinds: kinds of plugins.
        checked: returns what to check in place of a plugin; None for the plugin itself.
    """
    for name, check in vars(module).items():
        if inspect.isfunction(check) and check.__module__ == module.__name__ and name[0] != "_":
            text = " ".join((inspect.getdoc(check) or "").split()).removesuffix(".")
            description, rationale, cause = re.split(r"\.? (?:Why|Cause): ", text)
            for kind in kinds:
                call = check if checked is None else partial(_check_other, check, checked)
                rule = Rule(name, description, rationale, cause, call)
                _RULES.setdefault(kind, {})[name] = rule


def _check_other(check: Check, checked: Callable[[Subject], Subject], subject: Subject) -> None:
    check(checked(subject))


def rules(kind: str) -> tuple[Rule, ...]:
    """Return the rules for a kind of plugin, in the order in which they are checked.

    Args:
        kind: ``addon``, ``algorithm``, ``augmenter``, ``backbone``, ``dataset``, ``launcher``,
            ``logger``; or ``feature_algorithm``, an algorithm that fits a head to frozen features.
    """
    return tuple(_RULES[kind].values())


def require(condition: object, finding: str) -> None:
    """Fail the check unless the condition is true.

    Raises:
        RuleViolationError: the condition is false; the message is the finding.
    """
    if not condition:
        raise RuleViolationError(finding)


def run_rule(rule: Rule, subject: Subject, expected: str = "") -> RuleResult:
    """Check one rule on one CPU thread and restore the global random states.

    Args:
        rule: rule to check.
        subject: plugin to check.
        expected: reason for an expected failure; empty for none.
    """
    finding = location = ""
    start = time.perf_counter()
    with _isolated():
        try:
            rule.check(subject)
        except (RuleViolationError, WrongOutputError) as error:
            finding, location = str(error), _definition(subject.plugin)
        except (Exception, SystemExit) as error:
            finding = error_line(error)
            location = _innermost_line(error, subject.plugin)
    seconds = time.perf_counter() - start
    if expected and finding:
        return RuleResult(rule, "xfailed", expected, "", seconds)
    if expected:
        finding = f"passed, but was expected to fail ({expected}); remove the expected failure"
        return RuleResult(rule, "xpassed", finding, "", seconds)
    return RuleResult(rule, "failed" if finding else "passed", finding, location, seconds)


def run_rules(subject: Subject, expected_failures: Mapping[str, str]) -> Iterator[RuleResult]:
    """Check every rule for the plugin's kind.

    Raises:
        DataError: the files of a data set are not found.
        ValueError: an expected failure names no rule or has no reason.
    """
    subject.prepare()
    contract = rules(subject.contract)
    check_expected_failures(expected_failures, (rule.name for rule in contract))
    for rule in contract:
        yield run_rule(rule, subject, expected_failures.get(rule.name, ""))


def check_expected_failures(expected_failures: Mapping[str, str], names: Iterable[str]) -> None:
    """Reject expected failures without a rule or a reason.

    Raises:
        ValueError: names the entry.
    """
    names = set(names)
    for name, reason in expected_failures.items():
        if name not in names:
            suggestion = registry.did_you_mean(name, names)
            raise ValueError(f"expected_failures: unknown rule {name!r}{suggestion}")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"expected_failures: {name!r} needs a reason")


def raise_failures(subject: Subject, results: Iterable[RuleResult]) -> None:
    """Raise an error if a result is ``failed`` or ``xpassed``.

    Raises:
        ContractError: lists these results.
    """
    failures = tuple(result for result in results if not result.passed)
    if failures:
        count = "1 rule" if len(failures) == 1 else f"{len(failures)} rules"
        text = [f"{subject.kind} {subject.name!r} breaks {count} of its contract"]
        raise ContractError("\n".join([*text, *explain_failures(failures)]), failures)


def explain_failures(failures: Iterable[RuleResult]) -> list[str]:
    """Return a report for each failure, and one for all rules that stop at the same error.

    An error in ``step`` stops most rules, and none of their usual causes is its cause.
    """
    groups: dict[tuple[str, str], list[RuleResult]] = {}
    for result in failures:
        groups.setdefault((result.finding, result.location), []).append(result)
    return [_explain_together(group) for group in groups.values()]


def _explain_together(group: list[RuleResult]) -> str:
    first, *others = group
    if not others:
        return first.explain()
    names = ", ".join(result.rule.name for result in group)
    lines = [f"{len(group)} rules stop at the same error:", f"  finding:  {first.finding}"]
    if first.location:
        lines.append(f"  location: {first.location}")
    return "\n".join([*lines, f"  rules:    {names}"])


def error_line(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def _isolated() -> Iterator[None]:
    states, threads = random_states(), torch.get_num_threads()
    torch.set_num_threads(1)  # more threads only add overhead to such small tensors
    try:
        yield
    finally:
        restore_random_states(states)
        torch.set_num_threads(threads)


def _definition(plugin: type) -> str:
    """Return file and line of a class."""
    try:
        return f"{short(inspect.getsourcefile(plugin))}:{inspect.getsourcelines(plugin)[1]}"
    except (OSError, TypeError):  # defined at a prompt
        return f"{plugin.__module__}.{plugin.__qualname__}"


def _innermost_line(error: BaseException, plugin: type) -> str:
    """Return the innermost line of the plugin's package in the traceback of an error."""
    lines = [
        f"{short(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
        for frame, line in own_frames(error, plugin.__module__.partition(".")[0])
        if not frame.f_globals["__name__"].startswith("ssl_toolkit.testing")
    ]
    return lines[-1] if lines else _definition(plugin)
