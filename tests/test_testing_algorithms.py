"""Each rule for algorithms is broken by a fake that breaks no other."""

from __future__ import annotations

import time

import contract_fakes_runs  # noqa: F401
import contract_fakes_steps  # noqa: F401
import pytest
from contract_fakes import FAKES
from contract_fakes_options import Method, Plain
from torch import distributed as dist

from ssl_toolkit.testing import rules, run_checks
from ssl_toolkit.testing.rules import run_rule
from ssl_toolkit.testing.subject import find_subject

CASES = [
    (rule, fake) for rule, fakes in FAKES.items() for fake in fakes if issubclass(fake, Method)
]
RULES = {rule.name: rule for rule in rules("algorithm")}
SLOW = "two_processes_agree"


def broken(fake: type[Method], config: Method.Config | None = None) -> set[str]:
    """The rules that a fake breaks; the one on two processes is left to the fakes for it."""
    subject = find_subject(fake, config=config)
    expected = {rule for rule, fakes in FAKES.items() if fake in fakes}
    names = [name for name in RULES if name != SLOW or name in expected or fake is Plain]
    return {name for name in names if not run_rule(RULES[name], subject).passed}


def test_every_rule_has_a_fake() -> None:
    assert len(RULES) >= 20
    assert {rule for rule, _ in CASES} == RULES.keys()


@pytest.mark.parametrize(
    ("rule", "fake"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_fake_breaks_its_rule_alone(rule: str, fake: type[Method]) -> None:
    assert not dist.is_initialized()
    config = fake.Config(colour="red") if rule == "config_constructs" else None
    assert broken(fake, config) == {rule}


def test_a_good_one_breaks_none() -> None:
    started = time.process_time()
    results = run_checks(Plain)
    assert [result.rule for result in results] == [*RULES.values()]
    assert [result.explain() for result in results if not result.passed] == []
    # Processor time, for the machine may be busy; the two processes are not counted in it.
    assert time.process_time() - started < 10
