"""Twenty steps of every algorithm against plain loops over its formulas, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops_mixing import SimPLELoop
from parity_cases import ADD_ONS, CASES, VARIANTS
from parity_page import built_in_algorithms
from step_parity import TOLERANCE, deviations

from ssl_toolkit import FeatureAlgorithm, registry

PROFILES = [
    (algo, profile)
    for algo in CASES
    for profile in ("paper", *registry.load("algorithms", algo).profiles)
]


def test_every_algorithm_that_trains_in_steps_has_a_case() -> None:
    names = built_in_algorithms()
    fits = {n for n in names if issubclass(registry.load("algorithms", n), FeatureAlgorithm)}
    assert CASES.keys() == {*names} - fits
    assert CASES.keys() >= VARIANTS.keys()


@pytest.mark.parametrize(("algo", "profile"), PROFILES)
def test_an_algorithm_is_the_formula_of_its_paper(algo: str, profile: str) -> None:
    result = deviations(algo, profile, CASES[algo])
    assert result.largest < TOLERANCE, result


@pytest.mark.parametrize(
    ("algo", "options"), [(algo, options) for algo in VARIANTS for options in VARIANTS[algo]]
)
def test_its_options_change_the_formula_as_documented(
    algo: str, options: dict[str, object]
) -> None:
    case = CASES[algo]
    result = deviations(algo, "paper", replace(case, options=case.options | options))
    assert result.largest < TOLERANCE, result


def test_every_add_on_has_a_case() -> None:
    names = {entry.name for entry in registry.entries("addons") if entry.built_in}
    assert {name.partition("+")[2] for name in ADD_ONS} == names


@pytest.mark.parametrize("algo", ADD_ONS)
def test_an_algorithm_with_an_add_on_is_the_formula_of_its_paper(algo: str) -> None:
    result = deviations(algo, "paper", ADD_ONS[algo])
    assert result.largest < TOLERANCE, result


class WrongWeight(SimPLELoop):
    def pair_weight(self) -> float:
        return 1.001 * super().pair_weight()


def test_another_formula_is_far_apart() -> None:
    result = deviations("simple", "paper", replace(CASES["simple"], loop=WrongWeight))
    assert result.losses > 1e-5
    assert min(result.gradients, result.weights, result.averages) > 1e-6


def test_clipping_matters_in_the_profile_of_simple() -> None:
    assert deviations("simple", "reference", CASES["simple"]).clipped > 3
    assert not deviations("fixmatch", "reference", CASES["fixmatch"]).clipped
