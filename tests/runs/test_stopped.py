"""Runs that are stopped early: the last whole step and its test result stay; and the estimate."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call
from run_files import summary

from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.interrupts import Interrupts
from ssl_toolkit.runs import estimate, execute, resume
from ssl_toolkit.text import brief, roughly

RUN = ("run", "--dataset", "digits", "--algo", "supervised", "--batch-size", "8",
       "--device", "cpu", "--backbone", "timm:test_resnet", "--image-size", "32")  # fmt: skip
LONG = (*RUN, "--steps", "100", "--eval-every", "50")
LIMIT = ("--time-limit", "1e-9")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that its time limit ended after one step of five, and what was printed."""
    run = tmp_path_factory.mktemp("limited") / "run"
    ended = call(*RUN, "--steps", "5", *LIMIT, "--output", run)
    assert (ended.returncode, ended.stderr) == (0, "")
    return run, ended.stdout


def predictions(run: Path) -> dict[str, Any]:
    with np.load(run / "predictions.npz") as arrays:
        return dict(arrays)


def signals_in_step(monkeypatch: pytest.MonkeyPatch, step: int, number: int) -> None:
    """Steps take a while; a signal comes in one of them, and it goes on for as long again."""
    update = Trainer._update

    def slow(trainer: Trainer) -> None:
        update(trainer)
        time.sleep(0.2)
        if trainer.step + 1 == step:
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    monkeypatch.setattr(Trainer, "_update", slow)
    monkeypatch.setattr(Interrupts.patient.__wrapped__, "__defaults__", (0.01,))  # type: ignore[attr-defined]


# --- what is kept ----------------------------------------------------------------------------


def test_a_time_limit_gives_the_test_result_so_far(limited: tuple[Path, str]) -> None:
    run, printed = limited
    values = summary(run)
    assert (values["status"], values["steps"], values["reason"]) == (
        "interrupted",
        1,
        "the time limit",
    )
    result = predictions(run)
    right = result["test_probabilities"].argmax(axis=1) == result["test_labels"]
    assert values["test"]["accuracy"] == pytest.approx(right.mean())
    assert f"test accuracy: {values['test']['accuracy']:.4f}" in printed
    assert f"ssl-toolkit resume {run}" in printed.splitlines()[-1]
    checked = call("check-run", run)
    assert checked.returncode == 0, checked.stdout
    # No report takes it for a result.
    report = call("report", run, "--output", run.parent / "report")
    assert report.returncode == 0, report.stderr


def test_a_run_resumed_after_its_test_ends_like_one_that_was_not_stopped(
    limited: tuple[Path, str], tmp_path: Path
) -> None:
    resumed = Path(shutil.copytree(limited[0], tmp_path / "resumed"))
    config = resumed / "config.yaml"
    config.write_text(config.read_text().replace("time_limit: 1.0e-09", "time_limit: null"))
    assert call("resume", resumed).returncode == 0
    through = tmp_path / "through"
    assert call(*RUN, "--steps", "5", "--output", through).returncode == 0
    ours, theirs = predictions(resumed), predictions(through)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert summary(resumed)["test"] == summary(through)["test"]
    assert summary(resumed)["status"] == "completed"


def test_a_resumed_run_removes_predictions_of_earlier_weights(
    limited: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(limited[0], tmp_path / "run"))

    def killed(*_: object) -> None:
        raise SystemError

    monkeypatch.setattr(resume, "finish", killed)
    with pytest.raises(SystemError):
        resume.resume(run)
    assert summary(run)["status"] == "running"
    assert not (run / "predictions.npz").exists()
    # Killed between the two files of a result it is whole too.
    shutil.copy(limited[0] / "predictions.npz", run)
    assert call("check-run", run).returncode == 0


# --- signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_step_longer_than_the_grace_period_is_kept_and_tested(
    number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals_in_step(monkeypatch, 3, number)
    ended = call(*LONG, "--output", tmp_path / "run")
    assert ended.returncode == status, ended.stderr
    values = summary(tmp_path / "run")
    assert (values["status"], values["steps"]) == ("interrupted", 3)
    assert values["test"]["count"] > 0
    assert (tmp_path / "run" / "predictions.npz").exists()
    assert ("press Ctrl-C again" in ended.stdout) == (number == signal.SIGINT)
    assert call("check-run", tmp_path / "run").returncode == 0


def test_a_long_test_is_skipped_after_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals_in_step(monkeypatch, 2, signal.SIGTERM)
    monkeypatch.setattr(execute, "prediction_seconds", lambda experiment: 1.0)
    ended = call(*LONG, "--output", tmp_path / "run")
    assert ended.returncode == 143
    values = summary(tmp_path / "run")
    assert (values["steps"], values["validation"], values["test"]) == (2, None, None)
    assert "not tested" in ended.stdout
    assert not (tmp_path / "run" / "predictions.npz").exists()


@pytest.mark.parametrize("first", [True, False])
def test_a_second_signal_skips_the_test(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    if first:
        signals_in_step(monkeypatch, 2, signal.SIGINT)
    monkeypatch.setattr(execute, "predict_parts", interrupted)
    ended = call(*LONG, *(() if first else LIMIT), "--output", tmp_path / "run")
    assert ended.returncode == 130
    values = summary(tmp_path / "run")
    assert (values["status"], values["reason"], values["test"]) == ("interrupted", "SIGINT", None)
    assert values["steps"] == (2 if first else 1)


def test_the_grace_period_follows_the_longest_step() -> None:
    # A shell lets its background jobs ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts = Interrupts(lambda: None)
    interrupts.took(0.4)
    interrupts.took(0.1)
    began = time.monotonic()

    def wait() -> None:
        with interrupts.patient(0.01):
            interrupts.receive(signal.SIGINT, None)
            while time.monotonic() < began + 20:
                time.sleep(0.01)

    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert 1.1 < time.monotonic() - began < 10


# --- the estimate ----------------------------------------------------------------------------


def test_the_estimate_is_printed_once_after_three_steps(tmp_path: Path) -> None:
    printed = call(*RUN, "--steps", "7", "--eval-every", "7", "--output", tmp_path / "run").stdout
    output = [line for line in printed.splitlines() if "per step, about" in line]
    assert len(output) == 1
    assert output[0].startswith("step 3/7: ")
    assert output[0].endswith(" left")
    assert "warning" not in printed
    # A resumed run is estimated too; the last step leaves nothing to estimate.
    more = call("resume", tmp_path / "run", "--steps", "10").stdout
    assert "per step, about" not in more
    assert "step 13/14: " not in call("resume", tmp_path / "run", "--steps", "13").stdout
    call("resume", tmp_path / "run", "--steps", "14")
    assert "step 17/18: " in call("resume", tmp_path / "run", "--steps", "18").stdout


def test_the_estimate_does_not_interrupt_the_rows(tmp_path: Path) -> None:
    printed = call(*RUN, "--steps", "7", "--eval-every", "2", "--output", tmp_path / "run").stdout
    lines = printed.splitlines()
    header = next(n for n, line in enumerate(lines) if line.split()[:2] == ["step", "loss"])
    assert [line.split()[0] for line in lines[header + 1 : header + 5]] == ["2", "4", "6", "7"]
    assert "per step, about" not in printed


def test_a_long_run_warns_and_names_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "LONG", 0.0)
    run = (*RUN, "--steps", "4", "--eval-every", "4")
    printed = call(*run, "--output", tmp_path / "run").stdout
    assert printed.count("warning: this run takes about") == 1
    for way in ("--minutes", "--steps", "--image-size"):
        assert way in printed
    assert "model.freeze" not in printed  # random weights must train
    weights = ("--weights", tmp_path / "run" / "checkpoints" / "last.pt")
    printed = call(*run, *weights, "--output", tmp_path / "other").stdout
    assert "--set model.freeze=backbone" in printed
    # Who has set a time has been told already.
    limit = ("--time-limit", "100")
    assert "takes about" not in call(*run, *limit, "--output", tmp_path / "limited").stdout


def test_times_in_words() -> None:
    assert [brief(s) for s in (0.0004, 0.009, 0.0996, 0.42, 12.4)] == [
        "0.4 ms", "9 ms", "100 ms", "0.42 s", "12 s",
    ]  # fmt: skip
    assert [roughly(s) for s in (0.2, 40, 420, 5400, 40_000, 400_000)] == [
        "1 s", "40 s", "7 min", "1.5 h", "11 h", "5 days",
    ]  # fmt: skip
