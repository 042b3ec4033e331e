"""Each rule for the other kinds of plugins is broken by a fake that breaks no other."""

from __future__ import annotations

import contract_fakes_options  # noqa: F401
import contract_fakes_runs  # noqa: F401
import contract_fakes_steps  # noqa: F401
import pytest
from contract_fakes import FAKES
from contract_fakes_augmenters import Dark
from contract_fakes_backbones import SmallNet
from contract_fakes_datasets import Thirty
from contract_fakes_outside import Lines, Serial

from ssl_toolkit import Algorithm
from ssl_toolkit.testing import check_plugin, class_rules, config_rules, rules
from ssl_toolkit.testing.rules import run_rule
from ssl_toolkit.testing.subject import INTERFACES, find_subject

GOOD = {"augmenter": Dark, "backbone": SmallNet, "dataset": Thirty, "launcher": Serial}
GOOD |= {"logger": Lines}
CASES = [
    (rule, fake)
    for rule, fakes in FAKES.items()
    for fake in fakes
    if not issubclass(fake, Algorithm)
]


def broken(fake: type) -> set[str]:
    subject = find_subject(fake)
    return {r.name for r in rules(subject.kind) if not run_rule(r, subject).passed}


def test_every_rule_of_every_kind_has_a_fake() -> None:
    kinds_with_fakes = [kind for kind in INTERFACES if kind != "addon"]  # test_addon_rules
    named = {rule.name for kind in kinds_with_fakes for rule in rules(kind)}
    of_features = {rule.name for rule in rules("feature_algorithm")}  # test_testing_features
    assert named <= FAKES.keys() <= named | of_features
    for kind in kinds_with_fakes:
        for rule in rules(kind):
            kinds = {fake.plugin_kind for fake in FAKES[rule.name]}  # type: ignore[attr-defined]
            shared = rule.check.__module__ in (class_rules.__name__, config_rules.__name__)
            assert shared or f"{kind}s" in kinds, rule


@pytest.mark.parametrize(
    ("rule", "fake"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_fake_breaks_only_its_rule(rule: str, fake: type) -> None:
    assert broken(fake) == {rule}


@pytest.mark.parametrize("kind", GOOD)
def test_a_correct_plugin_breaks_no_rule(kind: str) -> None:
    results = check_plugin(GOOD[kind], on_fail=None)
    assert [result.rule for result in results] == [*rules(kind)]
    assert [result.explain() for result in results if not result.passed] == []
