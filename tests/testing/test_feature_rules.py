"""Each rule for algorithms on frozen features is broken by a fake that breaks no other."""

from __future__ import annotations

import contract_fakes_features  # noqa: F401
import pytest
from contract_fakes import FAKES
from contract_fakes_features import FeatureMethod, PlainMeans

from ssl_toolkit.testing import check_plugin, class_rules, config_rules, rules
from ssl_toolkit.testing.rules import run_rule
from ssl_toolkit.testing.subject import find_subject

CASES = [
    (rule, fake)
    for rule, fakes in FAKES.items()
    for fake in fakes
    if issubclass(fake, FeatureMethod)
]
RULES = {rule.name: rule for rule in rules("feature_algorithm")}


def test_every_rule_of_their_own_has_a_fake() -> None:
    modules = class_rules.__name__, config_rules.__name__
    shared = {name for name, rule in RULES.items() if rule.check.__module__ in modules}
    assert {"has_docstring", "preserves_options_in_yaml"} <= shared
    assert len(RULES.keys() - shared) >= 10
    assert {rule for rule, _ in CASES} >= RULES.keys() - shared


@pytest.mark.parametrize(
    ("rule", "fake"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_fake_breaks_only_its_rule(rule: str, fake: type[FeatureMethod]) -> None:
    subject = find_subject(fake)
    assert subject.contract == "feature_algorithm"
    assert {n for n, one in RULES.items() if not run_rule(one, subject).passed} == {rule}


def test_a_correct_plugin_breaks_no_rule() -> None:
    results = check_plugin(PlainMeans, on_fail=None)
    assert [result.rule for result in results] == [*RULES.values()]
    assert [result.explain() for result in results if not result.passed] == []
