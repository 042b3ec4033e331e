"""``ssl-toolkit report``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_runs import fake_plan, fake_run
from in_process import call, refusal

FILES = {"comparison.json", "comparison.csv", "comparison.md", "report.html"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_single_run_gets_a_page(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "my run")
    before = names(run)
    result = call("report", run)
    assert result.returncode == 0, result.stderr
    assert names(run) == before | {"report.html"}
    assert "my run" in (run / "report.html").read_text("utf-8")
    assert result.stdout.startswith("supervised: n 1, accuracy 0.9000,")
    assert call("report", run).returncode == 0  # again


def test_several_runs_get_a_folder(tmp_path: Path) -> None:
    runs = [
        fake_run(tmp_path / f"r{place}{seed}", algo=algo, seed=seed)
        for place, algo in enumerate(("supervised", "fixmatch"))
        for seed in (0, 1)
    ]
    result = call("report", *runs, "--baseline", "supervised", "--name", "two ways")
    assert result.returncode == 0, result.stderr
    assert names(tmp_path / "report") == FILES
    tree = json.loads((tmp_path / "report" / "comparison.json").read_text("utf-8"))
    assert (tree["name"], tree["baseline"]) == ("two ways", "supervised")
    assert [len(row["runs"]) for row in tree["rows"]] == [2, 2]
    assert call("report", *runs).returncode == 0  # its own files are replaced
    assert call("report", *runs, "--output", "page.html").returncode == 0
    assert call("report", *runs, "--output", tmp_path / "deep" / "er").returncode == 0
    assert names(tmp_path / "deep" / "er") == FILES
    assert (tmp_path / "page.html").is_file()


def test_a_comparison_is_reported_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cmp"
    rows = fake_plan(folder, {"plain": "supervised", "other": "fixmatch"}, [0, 1])
    fake_run(rows["plain"] / "s0")
    fake_run(rows["other"] / "s0", algo="fixmatch", config={"lr": 0.5})
    message = refusal("report", folder)
    assert message.startswith("error: lr differs")
    assert not FILES & names(folder)
    again = ("--allow-different", "lr,steps", "--baseline", "plain", "--name", "other title")
    result = call("report", folder, *again)
    assert result.returncode == 0, result.stderr
    tree = json.loads((folder / "comparison.json").read_text("utf-8"))
    assert (tree["name"], tree["baseline"]) == ("other title", "plain")
    assert names(folder) >= FILES
    assert "plain, seed 1: missing" in result.stdout
    assert "lr=0.5" in (folder / "comparison.md").read_text("utf-8")
    assert call("report", folder, "--allow-different", "lr", "--output", "out").returncode == 0
    assert names(tmp_path / "out") == FILES


def test_all_rows_may_be_missing(tmp_path: Path) -> None:
    fake_plan(tmp_path / "cmp", {"plain": "supervised"}, [0])
    result = call("report", tmp_path / "cmp")
    assert result.returncode == 0, result.stderr
    assert "plain [1]: n 0 of 1" in result.stdout


def test_other_files_are_kept(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / f"r{seed}", seed=seed) for seed in (0, 1)]
    (tmp_path / "report").mkdir()
    for name, text in {"comparison.md": "mine", "comparison.json": '{"a": 1}'}.items():
        (tmp_path / "report" / name).write_text(text, encoding="utf-8")
    message = refusal("report", *runs)
    assert "is not of a report" in message
    assert names(tmp_path / "report") == {"comparison.md", "comparison.json"}
    assert (tmp_path / "report" / "comparison.md").read_text("utf-8") == "mine"


def test_a_table_of_an_unknown_format_is_not_replaced(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / f"r{seed}", seed=seed) for seed in (0, 1)]
    assert call("report", *runs).returncode == 0
    table = tmp_path / "report" / "comparison.json"
    content = json.loads(table.read_text("utf-8"))
    table.write_text(json.dumps(content | {"format": 7}), encoding="utf-8")
    message = refusal("report", *runs)
    assert "comparison.json: unknown format 7" in message
    assert len(message.splitlines()) == 1
    assert json.loads(table.read_text("utf-8"))["format"] == 7


def test_a_folder_that_is_neither_run_nor_comparison(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert len(refusal("report", tmp_path / "empty").splitlines()) == 1
    assert "not the folder of a run or of a comparison" in refusal("report", tmp_path / "nowhere")
    run = fake_run(tmp_path / "run")
    fake_plan(tmp_path / "cmp", {"plain": "supervised"}, [0])
    assert "report it alone" in refusal("report", run, tmp_path / "cmp")
    (tmp_path / "cmp" / "plan.json").unlink()
    assert "plan.json: not found" in refusal("report", tmp_path / "cmp")
    assert "no row has this name" in refusal("report", run, "--baseline", "x")
    (tmp_path / "file.txt").write_text("", encoding="utf-8")
    assert refusal("report", run, "--output", tmp_path / "file.txt")
    assert "missing argument" in refusal("report")


def test_a_failed_run_is_reported_too(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", summary={"status": "failed", "reason": "loss is nan"})
    result = call("report", run)
    assert result.returncode == 0, result.stderr
    assert "supervised, seed 0: failed: loss is nan" in result.stdout
    assert "loss is nan" in (run / "report.html").read_text("utf-8")


def test_no_table_has_an_interval_outside_of_its_range(tmp_path: Path) -> None:
    runs = [
        fake_run(tmp_path / f"{algo}{seed}", algo=algo, seed=seed, accuracy=accuracy)
        for algo, accuracies in {"fixmatch": (0.9603, 1.0), "supervised": (0.02, 0.98)}.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    result = call("report", *runs, "--baseline", "supervised", "--output", tmp_path / "made")
    assert result.returncode == 0, result.stderr
    made = json.loads((tmp_path / "made" / "comparison.json").read_text("utf-8"))
    for row in made["rows"]:
        for name, score in row["scores"].items():
            if score["interval"] is not None:
                lower, upper = score["interval"]
                assert 0 < lower < score["mean"] < upper, name
                assert upper < 1 or name in {"test.nll", "seconds", "images_per_second", "steps"}
    lower, upper = made["rows"][0]["difference"]["interval"]
    assert (lower, upper) == (-1, 1)
    texts = [result.stdout, (tmp_path / "made" / "comparison.md").read_text("utf-8")]
    texts.append((tmp_path / "made" / "report.html").read_text("utf-8"))
    for text in texts:
        message = re.findall(r"([+-]?[0-9.]+) to ([+-]?[0-9.]+)(?=\.|,|<| \|)", text)
        assert len(message) >= 2
        for ends in message:
            assert all(-1 <= float(end) <= 1 for end in ends), ends
        assert "logit scale" in text
