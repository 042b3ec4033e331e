"""The balanced accuracy ranks where the classes of the test images are uneven."""

from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_run

from ssl_toolkit.comparisons.gather import gather
from ssl_toolkit.comparisons.schema import RunLocation
from ssl_toolkit.multirun.progress import state_of
from ssl_toolkit.reports.html.page import render
from ssl_toolkit.reports.tables import markdown_page, summary_table
from ssl_toolkit.runs.predictions import score_parts
from ssl_toolkit.runs.probe_report import verdict
from ssl_toolkit.runs.progress import score_rows
from ssl_toolkit.runs.scoring import (
    are_uneven,
    balanced_bootstrap_interval,
    paired_balanced_interval,
    paired_interval,
)
from ssl_toolkit.runs.summary import ProbeScores, ProbeSummary


def scores_of(balanced: float, accuracy: float, counts: tuple[int, int]) -> dict:
    return {
        "accuracy": accuracy,
        "count": sum(counts),
        "balanced_accuracy": balanced,
        "macro_f1": 0.5,
        "ece": 0.05,
        "nll": 0.4,
        "interval": [0.0, 1.0],
        "per_class": {
            name: {"accuracy": balanced, "count": count}
            for name, count in zip("ab", counts, strict=True)
        },
    }


def compared(folder: Path, counts: tuple[int, int], **summary):
    runs = []
    for algo, balanced, accuracy in (("supervised", 0.6, 0.95), ("fixmatch", 0.7, 0.9)):
        for seed in (0, 1, 2):
            path = folder / algo / f"s{seed}"
            scores = scores_of(balanced + 0.01 * seed**2 * (algo == "fixmatch"), accuracy, counts)
            fake_run(path, algo=algo, seed=seed, summary={"test": scores, **summary})
            runs.append(RunLocation(algo, seed, path, algo))
    return gather(runs, name="toy", baseline="supervised")


def test_every_rendering_ranks_by_the_balanced_accuracy(tmp_path):
    comparison = compared(tmp_path, (90, 10))
    assert comparison.ranked_by == "test.balanced_accuracy"
    fixmatch = comparison.rows[1]
    assert fixmatch.difference.mean == pytest.approx(0.1 + 0.05 / 3)
    table = summary_table(comparison)
    assert table.groups[0] == ("n", "balanced accuracy", "95 % interval")
    assert table.rows[1]["accuracy"] == "0.9000 ± 0.0000"
    reason = "because in the test images the classes are uneven, with 10 to 90 images"
    assert reason in markdown_page(comparison)
    assert "paired t-test of the test balanced accuracy against" in markdown_page(comparison)
    page = render(comparison, tmp_path)
    assert reason in page
    assert "fixmatch has the highest mean test balanced accuracy: 0.7167" in page
    assert "Test balanced accuracy of each seed" in page
    assert state_of(comparison.runs[0]).detail.startswith("test balanced accuracy 0.6000")


def test_even_classes_and_recipes_are_ranked_by_the_accuracy(tmp_path):
    even = compared(tmp_path / "even", (55, 45))
    assert even.ranked_by == "test.accuracy"
    assert "uneven" not in markdown_page(even)
    assert summary_table(even).groups[0] == ("n", "accuracy")
    recipe = compared(tmp_path / "recipe", (90, 10), recipe="simple/cifar10")
    assert recipe.ranked_by == "test.accuracy"


def test_without_test_images_the_validation_images_rank(tmp_path):
    path = tmp_path / "run"
    fake_run(path, summary={"test": None, "validation": scores_of(0.6, 0.9, (90, 10))})
    comparison = gather([RunLocation("supervised", 0, path)], name="x")
    assert comparison.ranked_by == "validation.balanced_accuracy"
    assert "a validation balanced accuracy (no test split) of 0.6" in render(comparison, tmp_path)


def test_the_console_leads_with_it():
    probs = np.eye(2, dtype=np.float32)[[0] * 9 + [0]]
    labels = np.array([0] * 9 + [1])
    scores = score_parts({"test": (probs, labels)}, ("a", "b"))["test"]
    assert scores.uneven
    rows = score_rows({"test": scores.model_dump()})
    assert rows[0] == (
        "test balanced accuracy",
        "0.5000, which ranks: the classes are uneven, with 1 to 9 images",
    )
    assert rows[1] == ("test balanced accuracy, 95 % interval", "0.5000 to 0.5000")
    assert rows[2][0] == "test accuracy"


def test_uneven():
    assert not are_uneven([])
    assert not are_uneven([0, 5])
    assert are_uneven([15, 10])
    assert not are_uneven([980, 1135, 892])  # MNIST's test set


def test_intervals_cover_the_balanced_accuracy():
    rng = np.random.default_rng(0)
    counts, recalls = np.array([200, 40, 20]), np.array([0.95, 0.8, 0.6])
    covered = 0
    for trial in range(300):
        hits = rng.binomial(counts, recalls)
        lower, upper = balanced_bootstrap_interval(hits, counts, resamples=500, seed=trial)
        covered += lower <= recalls.mean() <= upper
    assert 0.88 <= covered / 300 <= 0.98


def test_paired_intervals_cover_the_difference_of_balanced_accuracies():
    rng = np.random.default_rng(1)
    counts = [150, 40, 15]
    labels = np.repeat(np.arange(3), counts)
    easy = rng.random  # one draw decides both classifiers: they are correlated
    ours, theirs = np.array([0.95, 0.8, 0.6]), np.array([0.9, 0.7, 0.4])
    true, covered = float((ours - theirs).mean()), 0
    for _ in range(300):
        draw = 0.7 * easy(len(labels)) + 0.3 * rng.random(len(labels))
        first = draw < np.quantile(0.7 * rng.random(4000) + 0.3 * rng.random(4000), ours)[labels]
        second = draw < np.quantile(0.7 * rng.random(4000) + 0.3 * rng.random(4000), theirs)[labels]
        mean, lower, upper = paired_balanced_interval(first, second, labels)
        assert lower <= mean <= upper
        covered += lower <= true <= upper
    assert covered / 300 >= 0.92


def test_one_class_is_the_interval_of_the_accuracy():
    rng = np.random.default_rng(2)
    ours, theirs = rng.random((2, 50)) < 0.7
    one = paired_balanced_interval(ours, theirs, np.zeros(50, dtype=np.int64))
    assert one == pytest.approx(paired_interval(ours, theirs))


def test_the_probe_is_compared_by_the_balanced_accuracy():
    scores = ProbeScores(balanced=True, accuracy=0.8, count=50, difference=0.1, interval=(0.0, 0.2))
    probe = ProbeSummary(strength=1.0, cross_validation=None, validation=None, test=scores)
    assert "over the linear probe's 80.0 % balanced accuracy on 50 test images" in verdict(probe)
