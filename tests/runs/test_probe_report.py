"""The paired interval against published numbers, and the sentence that is made of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from ssl_toolkit.engine.transfer import ProbeResult
from ssl_toolkit.runs.probe_report import compare_with_probe, probe_line, verdict
from ssl_toolkit.runs.scoring import paired_interval


def hits(both: int, ours: int, theirs: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    first = [True] * (both + ours) + [False] * (theirs + neither)
    second = [True] * both + [False] * ours + [True] * theirs + [False] * neither
    return np.array(first), np.array(second)


@pytest.mark.parametrize(
    ("table", "lower", "upper"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 2635-2650, table III, method 10.
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((0, 30, 0, 0), 0.8395, 1.0),
        ((30, 0, 0, 0), -0.1135, 0.1135),
    ],
)
def test_newcombes_examples(table: tuple[int, int, int, int], lower: float, upper: float) -> None:
    difference, low, high = paired_interval(*hits(*table))
    n = sum(table)
    assert difference == pytest.approx((table[1] - table[2]) / n)
    assert low <= difference <= high
    assert low == pytest.approx(lower, abs=6e-5)
    assert high == pytest.approx(upper, abs=6e-5)


def test_the_interval_stays_in_range_and_is_antisymmetric() -> None:
    for table in itertools.product([0, 1, 3, 40], repeat=4):
        if not sum(table):
            continue
        ours, theirs = hits(*table)
        difference, low, high = paired_interval(ours, theirs)
        assert -1 <= low <= difference <= high <= 1
        assert low < high
        flipped = paired_interval(theirs, ours)
        assert flipped == pytest.approx((-difference, -high, -low), abs=1e-12)


def test_the_interval_of_a_difference_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        base = rng.random(60)
        ours, theirs = base < 0.8, np.where(rng.random(60) < 0.3, rng.random(60), base) < 0.7
        _, low, high = paired_interval(ours, theirs)
        held += low <= 0.1 <= high
    assert 0.93 <= held / 2000 <= 0.98


def result(validation: list[int], test: list[int]) -> ProbeResult:
    eye = torch.eye(2)
    return ProbeResult(3.0, 0.75, eye[validation], eye[test])


def test_the_sentence_follows_the_interval() -> None:
    labels = np.array([0, 1] * 50)
    right, wrong = np.eye(2)[labels], np.eye(2)[1 - labels]
    none = np.empty((0, 2)), np.empty(0, dtype=np.int64)
    probe = result([], labels.tolist())

    def message(ours: np.ndarray, probe: ProbeResult = probe) -> str:
        return verdict(compare_with_probe(probe, {"validation": none, "test": (ours, labels)}))

    assert message(wrong).startswith("training hurt: the linear probe is better")
    assert message(right).startswith("these images do not show whether training helped")
    worse = result([], (1 - labels).tolist())
    text = message(right, worse)
    assert text.startswith("training helped: +100.0 points over the linear probe's 0.0 % on 100")
    assert "95 % interval" in text
    row = compare_with_probe(worse, {"validation": none, "test": (right, labels)})
    assert row.validation is None
    assert row.test is not None
    assert row.test.difference == 1.0


def test_without_test_images_validation_is_reported_and_without_both_nothing() -> None:
    labels = np.array([0, 1, 0])
    none = np.empty((0, 2)), np.empty(0, dtype=np.int64)
    row = compare_with_probe(
        result([0, 1, 1], []), {"validation": (np.eye(2)[labels], labels), "test": none}
    )
    assert "on 3 validation images" in verdict(row)
    assert verdict(compare_with_probe(result([], []), {"validation": none, "test": none})) == ""


def test_the_first_line_summarizes_the_data() -> None:
    probe = result([0], [0])
    assert probe_line(probe, 0.5).endswith(
        "50.0 % of the validation images and 75.0 % of the labels in cross-validation"
    )
    unknown = ProbeResult(10.0, None, torch.empty(0, 2), torch.empty(0, 2))
    assert probe_line(unknown, None).endswith("accuracy unknown, too few labels")
