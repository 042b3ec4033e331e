"""The kit itself: what it tells, expected failures, tests of pytest, the command, the document."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contract_fakes_options as fakes
import pytest
import torch
from contract_fakes_outside import Lines, WithVersion
from in_process import call, refusal

from ssl_toolkit import PluginError, register_augmenter, register_logger, registry
from ssl_toolkit.errors import DataError, ModelError
from ssl_toolkit.testing import (
    ContractError,
    RuleResult,
    check_plugin,
    parametrize,
    parametrize_with_checks,
    rules,
)
from ssl_toolkit.testing.host_sync import forbid
from ssl_toolkit.testing.rules import RuleViolationError, explain_failures, run_rule
from ssl_toolkit.testing.subject import INTERFACES, find_subject

REASON = "its weight has a floor, on purpose"


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def one(fake: type, rule: str, reason: str = "") -> Any:
    """What comes of one rule of a fake."""
    subject = find_subject(fake)
    return run_rule({r.name: r for r in rules(subject.kind)}[rule], subject, reason)


def test_a_broken_rule_is_reported_with_place_reason_and_cause() -> None:
    with pytest.raises(ContractError) as caught:
        check_plugin(WithVersion)
    text = str(caught.value)
    assert text.startswith("logger 'WithVersion' breaks 1 rule of its contract\n")
    assert "declares_packages: `packages` is a tuple of module names" in text
    assert "finding:  packages is ('numpy>=1.26',)" in text
    assert re.search(r"location: \S*contract_fakes_outside\.py:\d+", text)
    assert "why:      packages are checked before the run folder is created" in text
    assert "cause:    a string instead of a tuple" in text
    assert [result.rule.name for result in caught.value.results] == ["declares_packages"]


def test_an_exception_of_the_plugin_is_reported_with_its_line() -> None:
    result = one(fakes.Ending, "returns_valid_output")
    assert result.status == "failed"
    assert result.finding == "ZeroDivisionError: float division by zero"
    assert re.search(r"contract_fakes_options\.py:\d+ in step$", result.location)


def test_an_expected_failure_needs_a_reason_and_fails_when_it_passes() -> None:
    expected = one(fakes.Loud, "disables_loss_at_zero_weight", REASON)
    assert (expected.status, expected.passed, expected.finding) == ("xfailed", True, REASON)
    unexpected = one(fakes.Plain, "disables_loss_at_zero_weight", REASON)
    assert (unexpected.status, unexpected.passed) == ("xpassed", False)
    assert f"({REASON}); remove the expected failure" in unexpected.explain()

    check_plugin(WithVersion, expected_failures={"declares_packages": "for a test"})
    with pytest.raises(ContractError, match="passed, but was expected to fail"):
        check_plugin("tensorboard", "logger", expected_failures={"declares_packages": "for a test"})
    with pytest.raises(ValueError, match="'declares_packages' needs a reason"):
        check_plugin(WithVersion, expected_failures={"declares_packages": " "})
    with pytest.raises(ValueError, match=r"unknown rule 'declares_package' \(did you mean"):
        check_plugin(WithVersion, expected_failures={"declares_package": "for a test"})


def test_options_to_check_with() -> None:
    named = {rule.name: rule for rule in rules("algorithm")}["returns_valid_output"]
    config = fakes.Demanding.Config(color="red")
    assert run_rule(named, find_subject(fakes.Demanding, config=config)).passed
    assert "color" in run_rule(named, find_subject(fakes.Demanding)).finding
    with pytest.raises(PluginError, match=r"config is .* not a Weak"):
        check_plugin("weak", "augmenter", config=config)


def test_unavailable_data_cannot_be_checked() -> None:
    with pytest.raises(PluginError, match=r"unknown algorithm 'simpel' \(did you mean 'simple'"):
        check_plugin("simpel", "algorithm")
    with pytest.raises(PluginError, match=r"is not a subclass of ssl_toolkit\.Algorithm"):
        check_plugin(WithVersion, "algorithm")
    with pytest.raises(PluginError, match="Method does not implement step"):
        check_plugin(fakes.Method, "algorithm")
    with pytest.raises(PluginError, match="is not a plugin"):
        check_plugin(int)
    with pytest.raises(PluginError, match="unknown backbone 'wrn_1_1'"):
        check_plugin("timm:wrn_1_1", "backbone")
    with pytest.raises(PluginError, match="unknown launcher"):
        check_plugin("weak", "launcher")
    with pytest.raises(DataError, match="cifar10 is not in"):
        check_plugin("cifar10", "dataset", root=Path("nowhere"))
    with pytest.raises(ModelError, match="cuda"):
        check_plugin("simple", "algorithm", device="cuda:63")

    class Lacking(WithVersion):
        packages = ("no_such_package",)

    with pytest.raises(PluginError, match="needs the package no_such_package"):
        check_plugin(Lacking)


def test_a_name_of_two_kinds_is_ambiguous() -> None:
    @register_augmenter("contract_pair")
    class Pair(registry.load("augmenters", "none")):  # type: ignore[misc]
        """One of two."""

    register_logger("contract_pair")(WithVersion)
    with pytest.raises(PluginError, match=r"ambiguous \(augmenter and logger\); choose"):
        check_plugin("contract_pair")
    assert find_subject("contract_pair", "logger").plugin is WithVersion


def test_global_states_are_restored() -> None:
    torch.manual_seed(5)
    torch.set_num_threads(1)
    before = torch.get_rng_state()
    one(fakes.Plain, "reproduces_losses")
    assert torch.equal(torch.get_rng_state(), before)


# --- waiting for the device ---------------------------------------------------------------------

HERE = torch.device("cpu")


def shares(images: torch.Tensor, draws: torch.Tensor) -> object:
    return images * draws.tolist()[0] * float(draws[1].to(images.device))


ALLOWED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "draws are read": shares,
    "one_hot of known classes": lambda x, d: torch.nn.functional.one_hot(x.long(), 3),
    "masked fill": lambda x, d: x.clone().index_put_((x > 0.5,), torch.zeros(())),
    "where": lambda x, d: torch.where(x > 0.5, x, 0),
    "indices": lambda x, d: x[x.argsort()],
}
FORBIDDEN: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "item": lambda x, d: (x * d).sum().item(),
    "condition": lambda x, d: 1 if (x > 2).any() else 0,
    "tolist of a view": lambda x, d: x[:2].view(1, 2).tolist(),
    "numpy": lambda x, d: x.numpy(),
    "array": lambda x, d: x.__array__(),
    "cpu": lambda x, d: x.cpu(),
    "mask": lambda x, d: x[x > 0.5],
    "nonzero": lambda x, d: torch.nonzero(x),
    "where alone": lambda x, d: torch.where(x > 0.5),
    "unique": lambda x, d: torch.unique(x),
    "equal": lambda x, d: torch.equal(x, x),
    "written into a draw": lambda x, d: d.copy_(x).tolist(),
    "one_hot of unknown classes": lambda x, d: torch.nn.functional.one_hot(x.long()),
    "repeat": lambda x, d: torch.repeat_interleave(x, x.long()),
    "print": lambda x, d: str(x),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_operations_that_never_wait_are_allowed(name: str) -> None:
    images, draws = torch.rand(8), torch.rand(8)
    freely = ALLOWED[name](images, draws)
    with forbid(HERE, [images]):
        watched = ALLOWED[name](images, draws)
    assert str(watched) == str(freely)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_operations_that_wait_are_found(name: str) -> None:
    images, draws = torch.rand(8), torch.rand(8)
    FORBIDDEN[name](images.clone(), draws.clone())
    with pytest.raises(RuleViolationError), forbid(HERE, [images]):
        FORBIDDEN[name](images, draws)


# --- pytest -------------------------------------------------------------------------------------


def test_parametrize_makes_a_test_for_each_plugin_and_rule() -> None:
    reasons = {"WithVersion": {"declares_packages": REASON}}
    mark = parametrize_with_checks([Lines, WithVersion], expected_failures=reasons).mark
    assert (mark.name, mark.args[0]) == ("parametrize", "check")
    cases = {case.id: case for case in mark.args[1]}
    names = [rule.name for rule in rules("logger")]
    assert [*cases] == [f"{name}-{rule}" for name in ("Lines", "WithVersion") for rule in names]
    marked = {name: case.marks for name, case in cases.items() if case.marks}
    assert marked.keys() == {"WithVersion-declares_packages"}
    ((xfail,),) = marked.values()
    assert xfail.name == "xfail"
    assert xfail.kwargs == {"reason": REASON, "strict": True, "raises": ContractError}
    cases["Lines-declares_packages"].values[0]()
    with pytest.raises(ContractError, match="packages is"):
        cases["WithVersion-declares_packages"].values[0]()


def test_pytest_is_only_imported_for_its_tests() -> None:
    for path in Path(parametrize.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            imports_it = isinstance(node, ast.Import | ast.ImportFrom) and "pytest" in ast.unparse(
                node
            )
            assert not imports_it, path


def test_parametrize_refuses_expectations_of_nothing() -> None:
    with pytest.raises(ValueError, match="'fixmatch' not among the plugins"):
        parametrize_with_checks(["simple"], expected_failures={"fixmatch": {}})
    with pytest.raises(ValueError, match="'inherits_from_no_plugin' needs a reason"):
        parametrize_with_checks(
            ["simple"], expected_failures={"simple": {"inherits_from_no_plugin": ""}}
        )


# --- command ------------------------------------------------------------------------------------


def test_check_prints_broken_rules_and_all_of_them_with_verbose() -> None:
    done = call("check", "none")
    output = done.stdout
    assert done.returncode == 0
    kept = f"{len(rules('augmenter'))} of {len(rules('augmenter'))} rules passed"
    assert re.fullmatch(rf"augmenter none\n{kept} \([\d.]+ s\)\n", output)

    output = call("check", "none", "--verbose").stdout
    assert output.splitlines()[0].strip() == "augmenter none"
    for rule in rules("augmenter"):
        assert re.search(rf"{rule.name}\s+\S\s+passed", output)
    assert kept in output


def test_check_reports_broken_rules() -> None:
    register_logger("contract_logger")(WithVersion)
    done = call("check", "contract_logger")
    output = done.stdout
    assert done.returncode == 1
    assert "has_docstring" not in output
    assert "finding:  packages is ('numpy>=1.26',)" in output
    assert f"{len(rules('logger')) - 1} of {len(rules('logger'))} rules passed" in output
    done = call("check", "contract_logger", "--json")
    assert done.returncode == 1
    printed = json.loads(done.stdout)
    assert (printed["kind"], printed["name"]) == ("logger", "contract_logger")
    broken = {r["rule"]: r for r in printed["rules"] if r["status"] == "failed"}
    assert broken.keys() == {"declares_packages"}
    assert broken["declares_packages"]["rationale"]
    assert len(printed["rules"]) == len(rules("logger"))


def test_an_error_that_stops_several_rules_is_explained_once() -> None:
    def result(number: int, finding: str) -> RuleResult:
        return RuleResult(rules("logger")[number], "failed", finding, "a.py:3 in log", 0.0)

    typo, other = [result(0, "NameError: x"), result(1, "NameError: x")], result(2, "too slow")
    assert explain_failures([typo[0], other, typo[1]]) == [
        "2 rules stop at the same error:\n"
        "  finding:  NameError: x\n"
        "  location: a.py:3 in log\n"
        f"  rules:    {typo[0].rule.name}, {typo[1].rule.name}",
        other.explain(),
    ]


def test_check_refuses_unknown_names() -> None:
    assert "unknown plugin 'simpel' (did you mean 'simple'" in refusal("check", "simpel")
    assert "unknown logger 'simple'" in refusal("check", "simple", "--kind", "logger")
    assert "cifar10 is not in nowhere" in refusal("check", "cifar10", "--root", "nowhere")


# --- document -----------------------------------------------------------------------------------


CONTRACTS = (*INTERFACES, "feature_algorithm")


def table(kind: str) -> list[str]:
    return [f"| `{rule.name}` | {rule.description} |" for rule in rules(kind)]


def test_the_page_contains_every_rule() -> None:
    text = (Path(__file__).parents[2] / "docs/plugins/contract-kit.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    expected = list(dict.fromkeys(row for kind in CONTRACTS for row in table(kind)))
    assert sorted(rows) == sorted(expected)


def test_every_rule_is_explained_completely() -> None:
    for kind in CONTRACTS:
        for rule in rules(kind):
            assert len(rule.description.split()) > 4, rule
            assert len(rule.rationale.split()) > 4, rule
            assert len(rule.cause.split()) > 2, rule


def test_one_check_takes_plugins_of_all_kinds() -> None:
    check_plugin(WithVersion, expected_failures={"declares_packages": "for a test"})
    with pytest.raises(ContractError, match="declares_packages"):
        check_plugin(WithVersion, "logger")
    with pytest.raises(PluginError, match="WithVersion"):
        check_plugin(WithVersion, "algorithm")
