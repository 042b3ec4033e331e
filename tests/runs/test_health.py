"""Alarms from rows of metrics: each condition just beyond its limits and just within them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import call

from ssl_toolkit.console import Console
from ssl_toolkit.runs.health import alarms, collapse
from ssl_toolkit.runs.progress import TrainingProgress

STEPS = 1000
EVERY = 50
Change = Callable[[int], dict[str, float]]


def healthy(step: int) -> dict[str, float]:
    """What a good run of SimPLE logs: the labels are learned, then the other terms outweigh."""
    progress = step / STEPS
    return {
        "step": step,
        "train.coverage": 0.1 + 0.85 * progress,
        "train.loss.supervised": 2.0 * 10 ** (-4 * progress),
        "train.weighted.supervised": 2.0 * 10 ** (-4 * progress),
        "train.loss.unsupervised": 0.02,
        "train.weighted.unsupervised": 1.5 * progress,
        "train.loss.pair": 0.03,
        "train.weighted.pair": 2.2 * progress,
        "train.largest_class_share": 0.9 - 0.75 * progress if step < 150 else 0.15,
        "train.pseudo_label_shift": 0.6 if step < 150 else 0.05,
        "validation.accuracy": 0.3 + 0.65 * progress**0.5 - 0.04 * (step % 100 == 0),
    }


def run(change: Change = lambda step: {}, *, every: int = EVERY) -> list[dict[str, float]]:
    """The rows of a run; between the evaluations are rows that have no accuracy."""
    rows = []
    for step in range(every // 5, STEPS + 1, every // 5):
        row = healthy(step) | change(step)
        if step % every:
            del row["validation.accuracy"]
        rows.append(row)
    return rows


def within(first: int, last: int, **values: float) -> Change:
    named = {f"train.{key.replace('__', '.')}": value for key, value in values.items()}
    return lambda step: named if first <= step <= last else {}


def only(rows: list[dict[str, float]], *words: str) -> str:
    result = alarms(rows, steps=STEPS)
    assert len(result) == 1, result
    for word in words:
        assert word in result[0], result[0]
    return result[0]


def test_a_healthy_run_has_no_alarm() -> None:
    assert alarms(run(), steps=STEPS) == []
    assert alarms([], steps=STEPS) == []


def test_no_image_passes_for_long() -> None:
    text = only(run(within(400, 600, coverage=0.004)), "from step 400 to 600", "0.40%")
    assert "confidence_threshold" in text
    for first, last, coverage in ((400, 590, 0.004), (400, 600, 0.0051)):
        assert alarms(run(within(first, last, coverage=coverage)), steps=STEPS) == []


def test_long_also_means_three_evaluations() -> None:
    change = within(300, 600, coverage=0.0)
    assert alarms(run(change, every=300), steps=STEPS) == []  # of 300 and 600 alone
    only(run(within(300, 900, coverage=0.0), every=300), "from step 300 to 900")


def test_a_healthy_evaluation_resets_the_count() -> None:
    rows = run(within(400, 600, coverage=0.0))
    next(row for row in rows if row["step"] == 500)["train.coverage"] = 0.2
    assert alarms(rows, steps=STEPS) == []


def test_an_algorithm_without_pseudo_labels_has_no_such_alarm() -> None:
    rows = [{k: v for k, v in row.items() if "." not in k or "acc" in k} for row in run()]
    assert alarms(rows, steps=STEPS) == []


def test_one_class_takes_most_pseudo_labels() -> None:
    change = within(400, 600, largest_class_share=0.61, pseudo_label_shift=0.31)
    text = only(run(change), "from step 400 to 600", "61%", "0.31")
    assert "'pair'" in text  # the largest term is the likely cause
    assert "lower pair_weight" in text
    for values in (
        {"largest_class_share": 0.6, "pseudo_label_shift": 0.31},
        {"largest_class_share": 0.61, "pseudo_label_shift": 0.3},  # a long tail: large by right
        {"largest_class_share": 0.95, "pseudo_label_shift": 0.9, "coverage": 0.04},  # a few only
    ):
        assert alarms(run(within(400, 600, **values)), steps=STEPS) == []
    assert alarms(run(within(400, 590, largest_class_share=1.0, pseudo_label_shift=0.44)),
                  steps=STEPS) == []  # fmt: skip


def test_one_class_dominates_immediately() -> None:
    values = {"largest_class_share": 0.51, "pseudo_label_shift": 0.46, "coverage": 0.25}
    only(run(within(200, 250, **values)), "from step 200 to 250", "51%", "0.46")
    for change in (
        within(200, 200, **values),  # one evaluation alone
        within(200, 250, **values | {"largest_class_share": 0.5}),
        within(200, 250, **values | {"pseudo_label_shift": 0.45}),
        within(200, 250, **values | {"coverage": 0.24}),  # early, when few labels pass
    ):
        assert alarms(run(change), steps=STEPS) == []
    lasting = run(within(200, 1000, **values | {"largest_class_share": 0.9}))
    only(lasting, "from step 200 to 250")  # and not again because it lasts


def test_a_collapse_is_the_alarm_after_which_training_is_lost() -> None:
    quiet = run(within(200, 600, coverage=0.0, weighted__pair=1e-9))
    assert alarms(quiet, steps=STEPS)
    assert collapse(quiet, steps=STEPS) == ""
    rush = run(within(200, 250, largest_class_share=0.9, pseudo_label_shift=0.8, coverage=0.9))
    assert [collapse(rush, steps=STEPS)] == alarms(rush, steps=STEPS)
    fallen = run(lambda step: {"validation.accuracy": 0.1} if step >= 700 else {})
    assert [collapse(fallen, steps=STEPS)] == alarms(fallen, steps=STEPS)


def test_a_supervised_run_has_no_warnings_about_other_terms() -> None:
    rows = [
        {k: v for k, v in row.items() if "unsupervised" not in k and "pair" not in k}
        for row in run(lambda step: {"validation.accuracy": 0.1} if step >= 700 else {})
    ]
    assert "try more labels of each class" in only(rows, "fell from")


@pytest.mark.parametrize("name", ["unsupervised", "pair"])
def test_a_term_outweighs_the_labels_while_these_are_not_learned(name: str) -> None:
    beyond = {"weighted__supervised": 0.1, f"weighted__{name}": 101.0}
    only(run(within(400, 600, **beyond)), repr(name), "1,010 times", "from step 400 to 600")
    for within_limits in (
        {"weighted__supervised": 0.1, f"weighted__{name}": 99.0},
        {"weighted__supervised": 0.099, f"weighted__{name}": 1e4},  # the labels are learned
    ):
        assert alarms(run(within(400, 600, **within_limits)), steps=STEPS) == []


@pytest.mark.parametrize("name", ["unsupervised", "pair"])
def test_a_term_has_no_effect(name: str) -> None:
    beyond = {"weighted__supervised": 1.0, f"weighted__{name}": 0.9e-6}
    only(run(within(400, 600, **beyond)), repr(name), "no effect", "from step 400 to 600")
    nothing = {f"loss__{name}": 0.0, f"weighted__{name}": 0.0}
    only(run(within(400, 600, **nothing)), repr(name), "no effect")
    for within_limits in (
        {"weighted__supervised": 1.0, f"weighted__{name}": 1.1e-6},
        {f"weighted__{name}": 0.0},  # its weight is 0: it is switched off
    ):
        assert alarms(run(within(400, 600, **within_limits)), steps=STEPS) == []


def test_terms_without_effect_are_not_reported_if_no_image_passes() -> None:
    values = {"coverage": 0.0, "loss__pair": 0.0, "weighted__pair": 0.0}
    reported = alarms(run(within(400, 600, **values)), steps=STEPS)
    assert len(reported) == 1
    assert "passed the threshold" in reported[0]
    assert "'pair'" not in reported[0]


def test_accuracy_collapses() -> None:
    def fall(*steps: int, to: float) -> Change:
        return lambda step: {"validation.accuracy": to} if step in steps else {}

    best = healthy(550)["validation.accuracy"]
    text = only(run(fall(600, 650, to=best - 0.101)), f"{best:.4f} at step 550", "650")
    assert "validation accuracy" in text
    assert alarms(run(fall(600, 650, to=best - 0.099)), steps=STEPS) == []
    assert alarms(run(fall(600, to=best - 0.249)), steps=STEPS) == []  # one evaluation alone
    only(run(fall(600, to=best - 0.251)), "at step 600;")  # so deep that it is enough
    shifted = within(600, 600, pseudo_label_shift=0.46)
    both = run(lambda step: fall(600, to=best - 0.101)(step) | shifted(step))
    only(both, "at step 600;")  # two signs at once
    labeled = [
        {k.replace("validation", "train.labeled"): v for k, v in row.items()}
        for row in run(fall(600, 650, to=best - 0.101))
    ]
    only(labeled, "accuracy on the labeled training images")


def test_alarms_of_the_first_rows_are_unchanged() -> None:
    rows = run(
        lambda step: (
            within(200, 1000, coverage=0.0)(step)
            | within(300, 1000, weighted__supervised=1.0, weighted__pair=2000.0)(step)
            | ({"validation.accuracy": 0.1} if step >= 700 else {})
        )
    )
    message: list[str] = []
    for count in range(1, len(rows) + 1):
        result = alarms(rows[:count], steps=STEPS)
        assert result[: len(message)] == message
        message = result
    assert len(message) == 3
    assert "passed the threshold" in message[0]
    assert "'pair'" in message[1]
    assert "fell from" in message[2]


def test_each_alarm_is_printed_once_and_not_again_after_resume(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = run(within(400, 900, coverage=0.0))

    def messages(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
        with TrainingProgress(Console(quiet=True), STEPS, before) as course:
            for row in after:
                course.row(row | {"seconds": 1.0})
        return capsys.readouterr().out.splitlines()

    (line,) = messages([], rows)
    assert line.startswith("warning: from step 400 to 600 at most 0.00%")
    middle = next(i for i, row in enumerate(rows) if row["step"] == 500) + 1
    assert messages(rows[:middle], rows[middle:]) == [line]
    later = next(i for i, row in enumerate(rows) if row["step"] == 700) + 1
    assert messages(rows[:later], rows[later:]) == []


def test_a_warning_of_a_run_is_in_its_summary(tmp_path: Path) -> None:
    output = tmp_path / "run"
    result = call(
        "run", "--algo", "fixmatch", "--dataset", "digits", "--backbone", "wrn_10_1", "--steps",
        "5", "--eval-every", "1", "--batch-size", "8", "--device", "cpu", "--output", output,
        "--set", "fixmatch.confidence_threshold=1", "--quiet",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (alarm,) = json.loads((output / "summary.json").read_text("utf-8"))["health"]["alarms"]
    assert alarm.startswith("from step 1 to 3 at most 0.00%")
    warnings = [line for line in io.StringIO(result.stdout) if line.startswith("warning: from")]
    assert warnings == [f"warning: {alarm}\n"]
    assert f"warning: {alarm}\n" in (output / "log.txt").read_text("utf-8")


@pytest.mark.parametrize("what", ["stop", "warn"])
def test_a_collapse_stops_a_run_on_request_and_resume_continues_past_it(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collapse_at_two(rows: list[dict[str, float]], *, steps: int) -> str:
        return "lost" if any(row["step"] >= 2 for row in rows) else ""

    monkeypatch.setattr("ssl_toolkit.runs.progress.collapse", collapse_at_two)
    output = tmp_path / "run"
    result = call(
        "run", "--algo", "supervised", "--dataset", "digits", "--backbone", "wrn_10_1", "--steps",
        "4", "--eval-every", "1", "--batch-size", "8", "--device", "cpu", "--output", output,
        "--quiet", "--on-collapse", what,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    summary = json.loads((output / "summary.json").read_text("utf-8"))
    if what == "warn":
        assert (summary["status"], summary["steps"]) == ("completed", 4)
        return
    assert (summary["status"], summary["steps"]) == ("interrupted", 2)
    assert summary["reason"] == "a collapse of training (--on-collapse stop)"
    assert call("resume", output, "--quiet").returncode == 0
    summary = json.loads((output / "summary.json").read_text("utf-8"))
    assert (summary["status"], summary["steps"]) == ("completed", 4)
