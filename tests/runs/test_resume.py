"""Going on with runs: longer ones, changed ones, damaged ones, and finished ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import call, refusal
from run_files import DIGITS, hashes, metrics, strict_json, summary, weights

ALGO = ("--algo", "fixmatch")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, and one that its time limit ended after the second step of four."""
    folder = tmp_path_factory.mktemp("resume")
    runs = {name: folder / name for name in ("finished", "stopped")}
    assert call(*DIGITS, *ALGO, "--output", runs["finished"]).returncode == 0
    limit = ("--time-limit", "1e-9", "--save-every", "1")
    assert call(*DIGITS, *ALGO, *limit, "--output", runs["stopped"]).returncode == 0
    return runs


@pytest.fixture
def stopped(made: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made["stopped"], tmp_path / "run"))


@pytest.fixture
def finished(made: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made["finished"], tmp_path / "run"))


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def without_limit(run: Path) -> Path:
    change(run / "config.yaml", "time_limit: 1.0e-09", "time_limit: null")
    return run


def test_a_stopped_run_reports_how_to_resume(made: dict[str, Path], stopped: Path) -> None:
    assert (summary(stopped)["status"], summary(stopped)["steps"]) == ("interrupted", 1)
    assert f"`ssl-toolkit resume {made['stopped']}`" in (stopped / "log.txt").read_text()
    # The limit says how long, not what: taking it out is no change of the run.
    assert call("resume", without_limit(stopped)).returncode == 0
    assert metrics(stopped) == metrics(made["finished"])
    ours, theirs = weights(stopped), weights(made["finished"])
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_time_limit_for_one_call(made: dict[str, Path], stopped: Path) -> None:
    config = (stopped / "config.yaml").read_text()
    again = call("resume", stopped, "--time-limit", "1e-9")
    assert "stopped by the time limit after step 2; " in again.stdout
    assert call("resume", stopped, "--time-limit", "60").returncode == 0
    assert (summary(stopped)["status"], summary(stopped)["steps"]) == ("completed", 4)
    assert metrics(stopped) == metrics(made["finished"])
    assert (stopped / "config.yaml").read_text() == config
    assert call("check-run", stopped).returncode == 0
    for wrong in ("0", "-1", "soon"):
        assert "--time-limit" in refusal("resume", stopped, "--time-limit", wrong)


def test_resume_of_a_finished_run_changes_no_file(made: dict[str, Path]) -> None:
    run = made["finished"]
    entries = [run, *run.rglob("*")]
    before = [(entry, entry.stat().st_mtime_ns) for entry in entries], hashes(run)
    for more in ((), ("--steps", "4")):
        assert "finished" in call("resume", run, *more).stdout
    assert ([(entry, entry.stat().st_mtime_ns) for entry in entries], hashes(run)) == before


def test_a_finished_run_can_be_extended(finished: Path) -> None:
    first = metrics(finished)
    result = call("resume", finished, "--steps", "6")
    assert (result.returncode, result.stderr) == (0, "")
    assert summary(finished)["status"] == "completed"
    assert summary(finished)["steps"] == 6
    assert [row["step"] for row in metrics(finished)] == [1, 2, 3, 4, 5, 6]
    assert metrics(finished)[:4] == first
    record = strict_json((finished / "record.json").read_text())
    assert record["changes"] == [{"key": "steps", "before": 4, "after": 6, "after_step": 4}]
    assert record["fingerprint"] == summary(finished)["fingerprint"]
    assert "\nsteps: 6\n" in (finished / "config.yaml").read_text()
    assert "6 instead of 4" in (finished / "log.txt").read_text()
    assert call("check-run", finished).returncode == 0
    assert "has done 6 steps already" in refusal("resume", finished, "--steps", "5")


def test_another_machine_is_reported_and_recorded(made: dict[str, Path], stopped: Path) -> None:
    record = stopped / "record.json"
    here = strict_json(record.read_text())["device"]
    change(record, f'"device": "{here}"', '"device": "cuda:0 (NVIDIA H200)"')
    change(record, '"precision": "fp32"', '"precision": "bf16"')
    ended = call("resume", without_limit(stopped))
    assert ended.returncode == 0
    assert "warning: the hardware or precision has changed" in ended.stdout
    assert f"device: {here} instead of cuda:0 (NVIDIA H200)" in ended.stdout
    assert "precision: fp32 instead of bf16" in ended.stdout
    assert [(c["key"], c["after_step"]) for c in strict_json(record.read_text())["changes"]] == [
        ("device", 1),
        ("precision", 1),
    ]
    # That is no leave to edit the configuration.
    change(stopped / "config.yaml", "precision: auto", "precision: fp32")
    assert "precision is 'fp32', was 'auto'" in refusal("resume", stopped, "--steps", "6")


def test_other_versions_are_reported_and_recorded(stopped: Path) -> None:
    file = stopped / "record.json"
    record = strict_json(file.read_text())
    here = record["versions"]["timm"], record["plugins"]["algorithms: fixmatch"]
    record["versions"]["timm"] = "0.1"
    record["versions"]["ssl-toolkit"] = "0.0.1"
    record["versions"].pop("scipy")
    for name in record["plugins"]:
        record["plugins"][name] = "ssl-toolkit 0.0.1"
    record["plugins"]["algorithms: fixmatch"] = "other 1.0"
    file.write_text(json.dumps(record))
    ended = call("resume", without_limit(stopped))
    assert ended.returncode == 0
    assert ended.stdout.count("warning: versions of packages or plugins have changed") == 1
    assert f"versions.timm: {here[0]} instead of 0.1" in ended.stdout
    assert f"plugins.algorithms: fixmatch: {here[1]} instead of other 1.0" in ended.stdout
    changes = strict_json(file.read_text())["changes"]
    assert {change["key"] for change in changes} == {
        *("versions.timm", "versions.ssl-toolkit", "versions.scipy"),
        "plugins.algorithms: fixmatch",
    }
    assert {change["after_step"] for change in changes} == {1}
    again = call("resume", stopped, "--steps", "5")
    assert again.returncode == 0
    assert "versions" not in again.stdout
    assert [c["key"] for c in strict_json(file.read_text())["changes"][4:]] == ["steps"]


def test_an_extended_run_that_is_stopped_again_resumes_without_steps(stopped: Path) -> None:
    result = call("resume", stopped, "--steps", "6")  # its limit ends it again
    assert result.returncode == 0
    assert summary(stopped)["status"] == "interrupted"
    assert call("resume", without_limit(stopped)).returncode == 0
    assert summary(stopped)["steps"] == 6


def test_edited_steps_are_refused_and_the_flag_is_allowed(stopped: Path) -> None:
    change(without_limit(stopped) / "config.yaml", "\nsteps: 4\n", "\nsteps: 6\n")
    assert "steps is 6, was 4" in refusal("resume", stopped)
    assert call("resume", stopped, "--steps", "6").returncode == 0
    assert summary(stopped)["steps"] == 6


def test_an_edited_configuration_is_refused_with_its_keys(stopped: Path) -> None:
    change(stopped / "config.yaml", "\nlr: 0.002\n", "\nlr: 0.01\n")
    change(stopped / "config.yaml", "confidence_threshold: 0.95", "confidence_threshold: 0.5")
    before = hashes(stopped)
    message = refusal("resume", stopped)
    assert len(message.splitlines()) == 1
    assert "lr is 0.01, was 0.002" in message
    assert "fixmatch.confidence_threshold is 0.5, was 0.95" in message
    assert "config.yaml" in message
    assert hashes(stopped) == before
    assert "was 0.002" in refusal("resume", stopped, "--steps", "9")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\nbatch_size: 8\n", "\nbatch_size: null\n", "batch_size: must not be null"),
        ("\nlr: 0.002\n", "\nlr: null\n", "lr: must not be null"),
        ("\nlabels_per_class: 4\n", "\nlabels_per_class: null\n", "is None, was 4"),
        ("\nweights: null\n", "\nweights: None\n", "weights is 'None', was None"),
    ],
)
def test_a_key_that_is_set_to_null_is_a_change(
    old: str, new: str, message: str, stopped: Path
) -> None:
    change(stopped / "config.yaml", old, new)
    assert message in refusal("resume", stopped)
    assert message in refusal("resume", stopped, "--steps", "9")


def test_an_omitted_setting_is_another_configuration(tmp_path: Path) -> None:
    given = (*DIGITS, "--algo", "supervised", "--output", tmp_path / "run", "--continue")
    assert call(*given, "--num-labels", "20").returncode == 0
    assert call(*given, "--num-labels", "20").returncode == 0
    assert "num_labels is 20 there, None here" in refusal(*given)


def test_a_damaged_checkpoint_loses_the_steps_since_the_previous_one(
    made: dict[str, Path], stopped: Path
) -> None:
    last = stopped / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:5000])
    result = call("resume", without_limit(stopped))
    assert result.returncode == 0
    for name in ("last.pt", "last-1.pt"):
        assert str(stopped / "checkpoints" / name) in result.stdout
    assert "warning: " in result.stdout
    assert metrics(stopped) == metrics(made["finished"])
    ours, theirs = weights(stopped), weights(made["finished"])
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert call("check-run", stopped).returncode == 0


def test_without_a_complete_checkpoint_nothing_restarts_silently(stopped: Path) -> None:
    for name in ("last.pt", "last-1.pt"):
        (stopped / "checkpoints" / name).write_bytes(b"nothing")
    before = hashes(stopped)
    message = refusal("resume", stopped)
    assert str(stopped / "checkpoints" / "last.pt") in message
    assert str(stopped / "checkpoints" / "last-1.pt") in message
    assert "--overwrite" in message
    shutil.rmtree(stopped / "checkpoints")
    assert "checkpoint not found" in refusal("resume", stopped)
    assert {k: v for k, v in before.items() if "/" not in k or "model" in k} == hashes(stopped)


def test_a_run_killed_before_its_first_checkpoint_restarts(
    made: dict[str, Path], stopped: Path
) -> None:
    shutil.rmtree(stopped / "checkpoints")
    for name in ("metrics.jsonl", "metrics.csv"):
        (stopped / name).unlink(missing_ok=True)
    message = summary(stopped) | {"status": "running", "steps": 0}
    (stopped / "summary.json").write_text(json.dumps(message))
    result = call("resume", without_limit(stopped))
    assert result.returncode == 0
    assert "after step 0 of 4" in result.stdout
    assert metrics(stopped) == metrics(made["finished"])


def test_a_checkpoint_of_another_run_is_refused(stopped: Path, made: dict[str, Path]) -> None:
    state: dict[str, Any] = torch.load(stopped / "checkpoints" / "last.pt", weights_only=True)
    state["model"] = {n: torch.zeros(3) for n in state["model"]}
    state["format"] = 1  # which came without a checksum
    torch.save(state, stopped / "checkpoints" / "last.pt")
    assert "last.pt: does not fit this run" in refusal("resume", stopped)


def test_leftovers_of_killed_writers_are_removed(stopped: Path) -> None:
    for name in (".summary.7.partial.json", "checkpoints/.last.7.partial.pt"):
        (stopped / name).write_text("half")
    assert call("resume", without_limit(stopped)).returncode == 0
    assert not [name for name in hashes(stopped) if "partial" in name]


def test_the_folder_of_a_comparison_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    message = refusal("resume", tmp_path)
    assert "not the folder of a run (no summary.json); it is that of a comparison" in message
    assert "repeat the command that started it" in message
    (tmp_path / "plan.json").unlink()
    assert "comparison" not in refusal("resume", tmp_path)


def test_a_folder_in_use_is_kept(stopped: Path) -> None:
    from ssl_toolkit.locking import hold

    before = hashes(stopped)
    with hold(stopped):
        message = refusal("resume", stopped)
        assert f"in use by process {os.getpid()} on host" in message
        assert "in use" in refusal(*DIGITS, *ALGO, "--overwrite", "--output", stopped)
    assert hashes(stopped) == before


def test_a_disk_that_is_full_ends_a_run_in_one_line(finished: Path) -> None:
    resource = pytest.importorskip("resource")
    checkpoints = {k: v for k, v in hashes(finished).items() if k.startswith("checkpoints/")}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, hard))
    try:
        result = call("resume", finished, "--steps", "20")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "File too large" in result.stderr
    assert str(finished / "checkpoints") in result.stderr
    after = hashes(finished)
    assert {k: v for k, v in after.items() if k.startswith("checkpoints/")} == checkpoints
    assert summary(finished)["status"] == "failed"
    assert call("resume", finished).returncode == 0
    assert summary(finished)["steps"] == 20


def test_a_disk_that_is_full_at_the_start_leaves_no_folder(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        message = refusal(*DIGITS, *ALGO, "--output", tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in message
    assert not (tmp_path / "run").exists()
