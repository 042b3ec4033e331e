"""Runs that are killed at random moments come to the very same end."""

from __future__ import annotations

import random
from pathlib import Path

import kill_resume
import pytest

SUITE = {
    "simple": (2, True),
    "mixmatch": (1, False),
    "mixmatch_enhanced": (1, True),
    "remixmatch": (1, True),
    "fixmatch": (2, False),
    "supervised": (1, True),
    "fully_supervised": (1, False),
    "flexmatch": (1, True),
    "freematch": (1, False),
    "softmatch": (1, False),
    "debiaspl": (1, False),
    "adamatch": (1, False),
    "dash": (1, True),
    "defixmatch": (1, False),
    "deep_label_propagation": (1, False),
    "simmatch": (1, True),
    "comatch": (1, False),
    "uda": (1, False),
    "mean_teacher": (1, False),
    "pseudo_label": (1, False),
    "pi_model": (1, False),
    "vat": (1, True),
    "openmatch": (1, False),
}
"""Kills of each algorithm, 25 in all, and whether threads read its images."""
WITH_OTHERS = {
    *("fully_supervised", "mixmatch_enhanced", "flexmatch", "softmatch", "debiaspl", "adamatch"),
    *("dash", "defixmatch", "simmatch", "uda", "pseudo_label", "pi_model"),
}
"""Algorithms whose state is of the same kind as that of others."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kill_resume.make_images(tmp_path_factory.mktemp("images"))


def test_every_algorithm_is_killed() -> None:
    assert SUITE.keys() == set(kill_resume.algorithms())
    assert sum(count for count, _ in SUITE.values()) == 25


@pytest.mark.parametrize(
    "algo",
    [pytest.param(x, marks=[pytest.mark.slow] if x in WITH_OTHERS else []) for x in SUITE],
)
def test_a_killed_run_resumes_to_the_same_result(algo: str, images: Path, tmp_path: Path) -> None:
    count, reads_files = SUITE[algo]
    result = kill_resume.kill_and_compare(
        algo, images if reads_files else None, count, random.Random(f"suite {algo}"), tmp_path
    )
    assert result.count == count
    assert result.differences == []


def test_a_killed_run_with_an_add_on_resumes_to_the_same_result(tmp_path: Path) -> None:
    moments = random.Random("add-on")
    result = kill_resume.kill_and_compare("fixmatch+daso", None, 1, moments, tmp_path)
    assert result.differences == []


@pytest.mark.slow
@pytest.mark.parametrize("algo", SUITE)
@pytest.mark.parametrize("reads_files", [False, True])
def test_a_run_killed_repeatedly(
    algo: str, reads_files: bool, images: Path, tmp_path: Path
) -> None:
    count = 1 if algo in ("supervised", "fully_supervised") else 2
    result = kill_resume.kill_and_compare(
        algo, images if reads_files else None, count, random.Random(f"slow {algo}"), tmp_path
    )
    assert result.differences == []


def test_a_difference_is_detected(images: Path, tmp_path: Path) -> None:
    """The comparison itself: two seeds give two runs."""
    runs = [tmp_path / "one", tmp_path / "other"]
    for seed, run in enumerate(runs):
        arguments = [*kill_resume.arguments_of("supervised", None, run), "--seed", str(seed)]
        log, cache = tmp_path / "log.txt", tmp_path / "cache"
        kill_resume.wait_for(kill_resume.start(arguments, log, cache), log)
    message = " ".join(kill_resume.differences(*runs))
    for name in ("metrics.jsonl", "predictions.npz", "last.pt: .model", "best.pt: .weights"):
        assert name in message
