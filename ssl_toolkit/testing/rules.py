"""Define the rules of a contract, run them and report the broken ones."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch

from ssl_toolkit import registry
from ssl_toolkit.engine.checkpoints import random_states, restore_random_states
from ssl_toolkit.engine.plugin_faults import own_frames, short
from ssl_toolkit.engine.step_checks import WrongOutputError
from ssl_toolkit.testing.subject import Subject

Check = Callable[[Subject], None]
C = TypeVar("C", bound=Check)
Status = Literal["passed", "broken", "expected", "unexpected"]


class ContractError(AssertionError):
    """A plugin breaks rules of its contract; the message lists them.

    Args:
        text: the message.
        results: of the rules that are broken.
    """

    def __init__(self, text: str, results: tuple[RuleResult, ...] = ()) -> None:
        super().__init__(text)
        self.results = results


class BrokenRuleError(Exception):
    """Raised by a check: what it found."""


@dataclass(frozen=True)
class Rule:
    """One rule of the contract of a kind of plugin."""

    name: str
    what: str
    """The rule in one line."""
    why: str
    """Why it matters."""
    cause: str
    """The usual cause where it is broken."""
    check: Check = field(repr=False, compare=False)


@dataclass(frozen=True)
class RuleResult:
    """What came of a rule."""

    rule: Rule
    status: Status
    """``passed``; ``broken``; ``expected``: broken, as was said before; ``unexpected``: passed
    although it was said to be broken."""
    found: str
    """What was found, or the reason of an expected failure; empty for passed."""
    where: str
    """File and line, as far as known; empty for passed."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all is as it should be, expected failures included."""
        return self.status in ("passed", "expected")

    def explain(self) -> str:
        """Several lines: rule, finding, place, why it matters, the usual cause."""
        lines = [f"{self.rule.name}: {self.rule.what}", f"  found:  {self.found}"]
        if self.status == "unexpected":
            return "\n".join(lines)
        if self.where:
            lines.append(f"  where:  {self.where}")
        return "\n".join([*lines, f"  why:    {self.rule.why}", f"  cause:  {self.rule.cause}"])


_RULES: dict[str, dict[str, Rule]] = {
    group: {} for group in (*registry.GROUPS, "feature_algorithms")
}


def rule(*groups: str, why: str, cause: str) -> Callable[[C], C]:
    """Decorator: a check is a rule of these groups; its name and docstring are the rule's.

    Args:
        groups: of the registry.
        why: why the rule matters.
        cause: the usual cause where it is broken.
    """

    def register(check: C) -> C:
        what = (inspect.getdoc(check) or "").removesuffix(".")
        for group in groups:
            _RULES[group][check.__name__] = Rule(check.__name__, what, why, cause, check)
        return check

    return register


def rules(kind: str) -> tuple[Rule, ...]:
    """The rules of a kind of plugin, in the order in which they are checked.

    Args:
        kind: ``algorithm``, ``augmenter``, ``backbone``, ``dataset``, ``launcher``, ``logger``; or
            ``feature_algorithm``, an algorithm that fits a head to frozen features.
    """
    return tuple(_RULES[f"{kind}s"].values())


def reuse_rules(group: str, other: str, module: str) -> None:
    """Let the rules of one group that a module defines be rules of another group too."""
    for name, one in _RULES[group].items():
        if one.check.__module__ == module:
            _RULES[other][name] = one


def require(condition: object, found: str) -> None:
    """End a check unless the condition holds.

    Args:
        condition: what has to hold.
        found: what was found otherwise.

    Raises:
        BrokenRuleError: it does not hold.
    """
    if not condition:
        raise BrokenRuleError(found)


def run_rule(rule: Rule, subject: Subject, expected: str = "") -> RuleResult:
    """Check one rule, on one thread of the CPU; the global random states are put back.

    Args:
        rule: to be checked.
        subject: the plugin.
        expected: the reason why it is known to be broken; empty for none.
    """
    message = where = ""
    started = time.perf_counter()
    with _random_states_kept(), _one_thread():
        try:
            rule.check(subject)
        except (BrokenRuleError, WrongOutputError) as error:
            message, where = str(error), _place(subject.plugin)
        except (Exception, SystemExit) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            where = _frame(error, subject.plugin)
    seconds = time.perf_counter() - started
    if expected and message:
        return RuleResult(rule, "expected", expected, "", seconds)
    if expected:
        message = (
            f"it passes, although it was expected to fail ({expected}); remove the expectation"
        )
        return RuleResult(rule, "unexpected", message, "", seconds)
    return RuleResult(rule, "broken" if message else "passed", message, where, seconds)


def run_rules(subject: Subject, expected_failures: Mapping[str, str]) -> Iterator[RuleResult]:
    """Check every rule of a plugin's kind.

    Raises:
        DataError: the files of a data set are missing.
        ValueError: an expected failure names no rule, or gives no reason.
    """
    subject.prepare()
    known = rules(subject.contract)
    check_expectations(expected_failures, (rule.name for rule in known))
    for rule in known:
        yield run_rule(rule, subject, expected_failures.get(rule.name, ""))


def check_expectations(expected_failures: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse expected failures without a rule or a reason.

    Raises:
        ValueError: names the entry.
    """
    names = set(known)
    for name, reason in expected_failures.items():
        if name not in names:
            near = registry.did_you_mean(name, names)
            raise ValueError(f"expected_failures: no rule is called {name!r}{near}")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"expected_failures: {name!r} needs a reason")


def demand(subject: Subject, results: Iterable[RuleResult]) -> None:
    """Raise unless all results are as they should be.

    Raises:
        ContractError: lists the others.
    """
    wrong = tuple(result for result in results if not result.passed)
    if wrong:
        count = "a rule" if len(wrong) == 1 else f"{len(wrong)} rules"
        text = [f"{subject.kind} {subject.name!r} breaks {count} of its contract"]
        raise ContractError("\n".join([*text, *(result.explain() for result in wrong)]), wrong)


@contextmanager
def _random_states_kept() -> Iterator[None]:
    states = random_states()
    try:
        yield
    finally:
        restore_random_states(states)


@contextmanager
def _one_thread() -> Iterator[None]:
    """More would wait for each other longer than these small tensors take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _place(plugin: type) -> str:
    """File and line of a class."""
    try:
        return f"{short(inspect.getsourcefile(plugin))}:{inspect.getsourcelines(plugin)[1]}"
    except (OSError, TypeError):  # typed in at a prompt
        return f"{plugin.__module__}.{plugin.__qualname__}"


def _frame(error: BaseException, plugin: type) -> str:
    """The innermost line of the plugin's own package that the error came through."""
    own = [
        f"{short(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
        for frame, line in own_frames(error, plugin.__module__.partition(".")[0])
        if not frame.f_globals["__name__"].startswith("ssl_toolkit.testing")
    ]
    return own[-1] if own else _place(plugin)
