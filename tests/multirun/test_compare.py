"""`compare` from the command to its tables: equal runs, honest failures, nothing done twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from in_process import call, refusal

from ssl_toolkit import train
from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparison import ComparisonSettings
from ssl_toolkit.config.options import declaration_of, sentence

SHARED = ("--dataset", "digits", "--steps", 12, "--eval-every", 6)
TWO = ("--algos", "simple,supervised", "--seeds", "0,1", *SHARED)
BAD = {
    "algo": "simple",
    "simple": {
        "unsupervised_weight": 3e38,
        "unsupervised_loss": "cross_entropy",
        "confidence_threshold": 0.0,
        "rampup_steps": 0,
    },
}
"""A row whose loss is not finite."""


def read(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def stamps(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison") / "both"
    result = call("compare", *TWO, "--output", folder)
    assert result.returncode == 0, result.stderr + result.stdout
    return folder


def test_everything_is_written(finished: Path) -> None:
    names = {"comparison.json", "comparison.csv", "comparison.md", "report.html", "plan.json"}
    assert names <= {path.name for path in finished.iterdir()}
    rows = {row["name"]: row for row in read(finished / "comparison.json")["rows"]}
    assert list(rows) == ["simple", "supervised"]
    for name, row in rows.items():
        summaries = [
            read(finished / "runs" / name / f"s{seed}" / "summary.json") for seed in (0, 1)
        ]
        values = [summary["test"]["accuracy"] for summary in summaries]
        accuracy = row["scores"]["test.accuracy"]
        assert accuracy["mean"] == pytest.approx(sum(values) / 2)
        assert len(accuracy["values"]) == 2
        assert all(summary["status"] == "completed" for summary in summaries)


def test_runs_of_a_seed_share_split_weights_and_settings(finished: Path) -> None:
    for seed in (0, 1):
        records, splits = [], []
        for name in ("simple", "supervised"):
            run = finished / "runs" / name / f"s{seed}"
            records.append(read(run / "record.json"))
            splits.append((run / "split.json").read_bytes())
        assert splits[0] == splits[1]
        for key in ("split", "initial_weights", "fingerprint", "torch_threads"):
            assert records[0][key] == records[1][key], key
        assert len(records[0]["draws"]) == 5
        assert records[1]["draws"].items() < records[0]["draws"].items()
    first, second = (read(finished / "runs/simple" / seed / "record.json") for seed in ("s0", "s1"))
    assert first["split"] != second["split"]
    assert first["initial_weights"] != second["initial_weights"]
    assert first["fingerprint"] == second["fingerprint"]


def test_each_run_of_a_comparison_is_the_run_of_its_configuration(
    finished: Path, tmp_path: Path
) -> None:
    config = yaml.read(finished / "configs" / "supervised-s1.yaml")
    alone = train(config | {"output": str(tmp_path / "alone")})
    member = finished / "runs/supervised/s1"
    timed = ("seconds", "per_second")
    rows = [
        [
            {key: value for key, value in json.loads(line).items() if not key.endswith(timed)}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (alone.folder, member)
    ]
    assert rows[0] == rows[1]
    assert alone.test is not None
    assert json.loads(alone.test.model_dump_json()) == read(member / "summary.json")["test"]


def test_a_second_call_repeats_nothing(finished: Path) -> None:
    before = stamps(finished / "runs")
    result = call("compare", *TWO, "--output", finished)
    assert result.returncode == 0, result.stderr
    assert "4 of 4 runs are finished already" in result.stdout
    assert stamps(finished / "runs") == before


def test_a_second_call_names_the_runs_that_it_leaves_out(finished: Path) -> None:
    result = call("compare", *TWO, "--seeds", "1-2", "--output", finished, "--dry-run")
    warning = "not in the tables of this call: simple (seed 0), supervised (seed 0); these runs"
    assert warning in result.stdout + result.stderr
    result = call("compare", *TWO, "--output", finished, "--dry-run")
    assert "not in the tables" not in result.stdout + result.stderr


def test_other_settings_are_refused_before_any_run(finished: Path) -> None:
    before = stamps(finished)
    message = refusal("compare", *TWO, "--output", finished, "--lr", "0.01")
    assert "lr is 0.002 there, 0.01 here" in message
    assert stamps(finished) == before


def test_forged_results_are_refused_before_any_run(finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    summary = copy / "runs/simple/s0/summary.json"
    values = read(summary)
    values["test"]["accuracy"] = 0.99
    summary.write_text(json.dumps(values))
    before = stamps(copy)
    more = ("--algos", "simple,supervised,fixmatch", *TWO[2:])
    for given in (("compare", *more, "--output", copy), ("report", copy)):
        assert "not those of summary.json (accuracy)" in refusal(*given)
    assert stamps(copy) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--lr", "0.01"), "lr is 0.002 there, 0.01 here"),
        (("--threads", 7), "threads is "),
        (("--budget", "images=5000"), "budget is steps there, images=5000 here"),
        (("--device", "cuda:7"), "--device cuda:7"),
        (("--algos", "simple,fully_supervised,nothing"), "nothing"),
        (("--dataset", "stl10", "--root", "nowhere"), "stl10"),
        (("--batch-size", "1"), "--batch-size 1"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(finished: Path, more: Any, message: str) -> None:
    before = stamps(finished)
    run = refusal("compare", *TWO, "--output", finished, *more)
    result = call("compare", *TWO, "--output", finished, *more, "--dry-run")
    assert (result.returncode, result.stderr) == (2, run)
    assert message in run
    assert stamps(finished) == before


def test_allow_different_is_a_list_or_repeated(tmp_path: Path) -> None:
    rows = {"a": {"algo": "simple"}, "b": {"algo": "simple", "lr": 0.1, "batch_size": 16}}
    (tmp_path / "rows.yaml").write_text(yaml.dump({"rows": rows, "seeds": "0"}), encoding="utf-8")
    given = ("compare", "--config", tmp_path / "rows.yaml", *SHARED, "--output", tmp_path / "none")
    one = refusal(*given, "--dry-run", "--allow-different", "lr")
    assert "batch_size differs between rows" in one
    for more in (("lr,batch_size",), ("lr", "--allow-different", "batch_size")):
        assert call(*given, "--dry-run", "--allow-different", *more).returncode == 0


def test_flags_are_those_of_the_settings() -> None:
    help_text = " ".join(call("compare", "--help").stdout.split())
    for name, field in ComparisonSettings.model_fields.items():
        assert (f"--{name.replace('_', '-')} " in help_text) == declaration_of(field).flag
        if declaration_of(field).flag:
            assert sentence(field.description or "")[:-1] in help_text
    assert help_text.count("Repeatable.") == 4


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    given = ("--algos", "simple,fixmatch", *SHARED, "--budget", "minutes=3")
    result = call("compare", *given, "--output", tmp_path / "none", "--dry-run")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("# row: simple\n# row: fixmatch\n")
    assert yaml.parse(result.stdout)["algos"] == "simple,fixmatch"
    assert not (tmp_path / "none").exists()


def test_a_failed_run_does_not_affect_the_others(finished: Path, tmp_path: Path) -> None:
    extra = tmp_path / "bad.yaml"
    extra.write_text(yaml.dump({"rows": {"bad": BAD}}), encoding="utf-8")
    before = stamps(finished / "runs")
    result = call("compare", *TWO, "--config", extra, "--output", finished)
    assert result.returncode == 1, result.stderr
    assert result.stdout.endswith(
        "run the same command again to continue the runs without results\n"
    )
    after = stamps(finished / "runs")
    assert {path: after[path] for path in before} == before
    rows = {row["name"]: row for row in read(finished / "comparison.json")["rows"]}
    assert rows["bad"]["scores"] == {}
    assert {member["status"] for member in rows["bad"]["runs"]} == {"failed"}
    assert all("not finite" in member["reason"] for member in rows["bad"]["runs"])
    assert rows["simple"]["scores"]["test.accuracy"]["values"].keys() == {"0", "1"}
    table = (finished / "comparison.md").read_text(encoding="utf-8")
    assert "not finite" in table
    assert "nan" not in table.lower()


def test_foreseeable_errors_are_reported_before_training(tmp_path: Path) -> None:
    out = tmp_path / "none"
    unknown = refusal("compare", "--algos", "supervised,simpel", *SHARED, "--output", out)
    assert "did you mean 'simple'" in unknown
    images = tmp_path / "images"
    for folder in ("labeled/a", "labeled/b", "unlabeled"):
        (images / folder).mkdir(parents=True)
        for number in range(4):
            save_image(images / folder / f"{number}.png", number + len(folder))
    hidden = refusal(
        "compare", "--algos", "supervised,fully_supervised", "--data", images, "--output", out
    )
    assert "fully_supervised" in hidden
    assert "8 carry" in hidden or "4 of 4 carry none" in hidden
    rows = {"a": {"algo": "simple"}, "b": {"algo": "supervised", "lr": 0.1}}
    (tmp_path / "rows.yaml").write_text(yaml.dump({"rows": rows}), encoding="utf-8")
    different = refusal("compare", "--config", tmp_path / "rows.yaml", "--output", out)
    assert "lr differs between rows" in different
    assert "--allow-different" in different
    assert not out.exists()


def save_image(path: Path, value: int) -> None:
    from PIL import Image

    Image.new("RGB", (32, 32), (value * 9 % 256, value * 5 % 256, 40)).save(path)


def test_a_folder_of_another_program_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    message = refusal("compare", *TWO, "--output", tmp_path, "--overwrite")
    assert "not the folder of a comparison" in message
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_budget_of_images_gives_each_row_its_steps(tmp_path: Path) -> None:
    out = tmp_path / "images"
    budget = ("--budget", "images=1200", "--seeds", "0", "--dataset", "digits")
    result = call("compare", "--algos", "fixmatch,supervised", *budget, "--output", out)
    assert result.returncode == 0, result.stderr
    plan = {row["name"]: row["steps"] for row in read(out / "plan.json")["rows"]}
    # 32 labeled images a step; FixMatch draws 7 unlabeled ones for each of them.
    assert plan == {"fixmatch": 1200 // (32 * 8), "supervised": 1200 // 32}
    rows = {row["name"]: row for row in read(out / "comparison.json")["rows"]}
    assert rows["fixmatch"]["overrides"]["steps"] == "4"
    assert rows["fixmatch"]["scores"]["test.accuracy"]["deviation"] is None
    assert "±" not in (out / "comparison.md").read_text(encoding="utf-8")


def test_a_time_limit_leaves_a_comparison_to_be_continued(tmp_path: Path) -> None:
    given = ("--algos", "supervised", "--seeds", "0", "--dataset", "digits", "--steps", "4")
    result = call("compare", *given, "--time-limit", "1e-6", "--output", tmp_path / "out")
    assert result.returncode == 1
    assert "supervised, seed 0: stopped by the time limit" in result.stdout
    assert result.stdout.endswith(
        "run the same command again to continue the runs without results\n"
    )
    assert call("compare", *given, "--output", tmp_path / "out").returncode == 0


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    out = tmp_path / "stopped"
    given = ["compare", "--algos", "simple,supervised", "--seeds", "0", "--dataset", "digits"]
    given += ["--steps", "400", "--eval-every", "20", "--jobs", "1", "--output", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ssl_toolkit", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = out / "runs/simple/s0/metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert time.monotonic() - sent < 20
    assert "Traceback" not in stderr
    assert "run the same command again" in stdout
    assert not running(out)
    assert read(out / "runs/simple/s0/summary.json")["status"] == "interrupted"
    table = read(out / "comparison.json")
    assert [m["status"] for row in table["rows"] for m in row["runs"]] == [
        "interrupted",
        "missing",
    ]


def running(folder: Path) -> list[str]:
    """Processes whose command line names a folder."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and int(process.name) != os.getpid():
            result.append(line)
    return result
