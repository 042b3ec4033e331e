"""``check-run`` finds each kind of damage, and nothing in a run that is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from in_process import call, refusal
from run_files import DIGITS, hashes

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("check") / "run"
    assert call(*DIGITS, "--algo", "supervised", "--output", run).returncode == 0
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_complete_run(whole: Path) -> None:
    before = hashes(whole)
    result = call("check-run", whole)
    assert (result.returncode, result.stderr) == (0, "")
    assert "completed, whole (13 files checked, and its data)" in result.stdout
    actual = json.loads(call("check-run", whole, "--json").stdout)
    assert (actual["status"], actual["faults"]) == ("completed", [])
    assert "checkpoints/best.pt" in actual["checked"]
    assert hashes(whole) == before


def change(name: str, old: str, new: str) -> Damage:
    def damage(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return damage


def cut(name: str) -> Damage:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-90])


def remove(name: str) -> Damage:
    return lambda run: (run / name).unlink()


def other_predictions(run: Path) -> None:
    with np.load(run / "predictions.npz") as arrays:
        content = dict(arrays)
    content["test_labels"] = content["test_labels"][::-1]
    np.savez(run / "predictions.npz", **content)


def double_row(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines, lines[-1]]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.yaml"), "config.yaml: missing"),
        (remove("log.txt"), "log.txt: missing"),
        (remove("checkpoints/best.pt"), "checkpoints/best.pt: missing"),
        (remove("model/model.safetensors"), "model/model.safetensors: missing"),
        (change("summary.json", '"convergence_step": ', '"x": NaN, "convergence_step": '),
         "summary.json: damaged"),
        (change("config.yaml", "lr: 0.002", "lr: 0.003"), "fingerprint"),
        (change("split.json", '"digits/', '"digits/9'), "doesn't match its hash"),
        (change("metrics.jsonl", '"step": 2,', '"step": 7,'), "step 3 after step 7"),
        (change("metrics.jsonl", "0.", "NaN, \"x\": 0."), "damaged: not a row of metrics"),
        (double_row, "step 4 after step 4"),
        (cut("metrics.jsonl"), "line 4: damaged: not a row"),
        (cut("checkpoints/last.pt"), "last.pt: damaged"),
        (cut("checkpoints/last-1.pt"), "last-1.pt: damaged"),
        (cut("checkpoints/best.pt"), "best.pt: damaged"),
        (cut("model/model.safetensors"), "model.safetensors"),
        (change("model/config.json", '"0"', '"zero"'), "model/config.json: classes"),
        (cut("predictions.npz"), "predictions.npz: damaged"),
        (other_predictions, "its test scores are not those of summary.json"),
    ],
)  # fmt: skip
def test_damage_is_reported(damage: Damage, message: str, run: Path) -> None:
    damage(run)
    result = call("check-run", run)
    assert result.returncode == 1, result.stdout
    assert message in result.stderr
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    actual = json.loads(call("check-run", run, "--json").stdout)
    assert any(message in fault for fault in actual["faults"])


def forge(run: Path) -> None:
    values = json.loads((run / "summary.json").read_text())
    values["test"]["accuracy"] = 0.99
    (run / "summary.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (change("config.yaml", "lr: 0.002", "lr: 0.003"), "record.json: fingerprint is"),
        (change("config.yaml", "batch_size: 8", "batch_size: null"), "record.json: fingerprint is"),
        (change("summary.json", '"steps": 4', '"steps": 9'), "steps is 9, in config.yaml 4"),
        (change("split.json", '"digits/', '"digits/9'), "split.json doesn't match its hash"),
        (cut("metrics.jsonl"), "metrics.jsonl, line 4: damaged: not a row of metrics"),
        (forge, "predictions.npz: its test scores are not those of summary.json (accuracy)"),
        (other_predictions, "its test scores are not those of summary.json"),
    ],
)
def test_a_run_that_contradicts_itself_is_in_no_report(
    damage: Damage, text: str, run: Path, tmp_path: Path
) -> None:
    damage(run)
    message = refusal("report", run)
    assert len(message.splitlines()) == 1
    assert "contradicts itself" in message
    assert text in message
    assert str(run) in message
    assert not (run / "report.html").exists()
    checked = call("check-run", run)
    assert checked.returncode == 1
    assert text in checked.stderr


def test_scores_may_differ_in_their_last_digits(run: Path) -> None:
    values = json.loads((run / "summary.json").read_text())
    for name in ("nll", "ece"):  # sums, which another processor cuts otherwise
        values["test"][name] *= 1 + 1e-12
    values["test"]["interval"][0] += 0.01  # drawn, by whatever numpy was there
    (run / "summary.json").write_text(json.dumps(values))
    assert call("report", run).returncode == 0
    assert call("check-run", run).returncode == 0


def test_a_report_needs_neither_predictions_nor_the_plugins_of_a_run(run: Path) -> None:
    (run / "predictions.npz").unlink()
    for name in ("config.yaml", "summary.json"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace("supervised", "not_installed"))
    result = call("report", run)
    assert result.returncode == 0, result.stderr


def test_an_unfinished_run_can_lack_later_files(run: Path) -> None:
    for name in ("predictions.npz", "metrics.csv", "model/README.md", "checkpoints/best.pt"):
        (run / name).unlink()
    change("summary.json", '"completed"', '"running"')(run)
    lines = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(lines[:-20])  # a kill in the middle of a row
    result = call("check-run", run)
    assert result.returncode == 0
    assert f"if it was killed, continue with `ssl-toolkit resume {run}`" in result.stdout


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    assert "not the folder of a run" in refusal("check-run", tmp_path)
    assert str(tmp_path / "gone") in refusal("check-run", tmp_path / "gone")
