"""Stages: every fault before training, pseudo labels by earlier stages, one folder, one report."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal

import ssl_toolkit
from ssl_toolkit.config.yaml import configs_dir
from ssl_toolkit.console import Console
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.stages.config import StagesConfig, StageSettings, load_stages
from ssl_toolkit.stages.labels import selected
from ssl_toolkit.stages.run import check_stages, reopen
from ssl_toolkit.stages.summary import PseudoLabelCounts, StagesSummary

FILES = sorted((configs_dir() / "stages").glob("*.yaml"))
CREST = ("crest-plus", "crest")
TEXT = """
dataset: digits
steps: 12
eval_every: 6
stages:
  teacher: {algo: supervised}
  other: {algo: supervised, lr: 0.004}
  student: {algo: fixmatch, labels_from: "teacher,other", threshold: 0.3, weights_from: teacher}
  last: {algo: supervised, labels_from: previous, fraction: 0.25, threshold: 0}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(text: str) -> Path:
        path = tmp_path / "stages.yaml"
        path.write_text(text)
        return path

    return to_file


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    (folder / "file.yaml").write_text(TEXT)
    result = call("run", "--config", folder / "file.yaml", "--output", folder / "out")
    assert result.returncode == 0, result.stderr
    return folder / "out"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


# --- the files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_short_cites_its_paper_and_is_valid(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 15
    assert "arXiv:" in text
    config = load_stages([path], {"data": "images"})
    assert len(config.stages) > 1
    assert not config.stages[0].sources.sources


def test_the_files_are_those_of_the_docs() -> None:
    names = {path.stem for path in FILES}
    assert names == {"noisy-student", "curriculum-labeling", "crest", "crest-plus", "vote"}


def test_a_written_file_reads_back_the_same(write: Any, tmp_path: Path) -> None:
    from ssl_toolkit.config import yaml

    config = load_stages([write(TEXT)], {"seed": "3"}, ["fixmatch.unlabeled_ratio=2"])
    yaml.write(tmp_path / "again.yaml", config.tree())
    again = load_stages([tmp_path / "again.yaml"])
    assert config.differences(again) == []
    assert [stage.name for stage in again.stages] == ["teacher", "other", "student", "last"]
    assert again.stages[2].config.algorithm.model_dump()["unlabeled_ratio"] == 2
    assert again.stages[3].sources.labels_from == ["student"]
    assert {stage.config.settings.seed for stage in again.stages} == {3}
    changed = load_stages([write(TEXT.replace("0.25", "0.5"))], {"seed": "3"})
    assert config.differences(changed) == ["student", "last"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: [a]", "must be a map of stages"),
        ("stages: {}", "no stages"),
        ("stages: {a: 3}", "must be a map of stages"),
        ("stages: {previous: {}}", "'previous' is no name of a stage"),
        ("stages: {a/b: {}}", "'a/b' is no name of a stage"),
        ("stages: {a: {}, A: {}}", "differ in upper and lower case only"),
        ("stages: {a: {seed: 1}}", "stages.a.seed: all stages share it"),
        ("stages: {a: {labels_per_class: 1}}", "labels_per_class: all stages share it"),
        ("stages: {a: {output: x}}", "output: all stages share it"),
        ("stages: {a: {labels_from: previous}}", "no earlier stage is called 'previous'"),
        ("stages: {a: {}, b: {labels_from: c}}", "no earlier stage is called 'c'"),
        ("stages: {first: {}, b: {weights_from: frist}}", "did you mean 'first'"),
        ("stages: {a: {}, b: {labels_from: [a, a]}}", "a stage is given twice"),
        ("stages: {a: {}, b: {labels_from: a, threshold: 2}}", "threshold"),
        ("stages: {a: {lrr: 1}}", "stages.a: lrr"),
        ("stages: {a: {threshhold: 1}}", "threshhold: unknown key (did you mean 'threshold'?)"),
        ("stages: {a: {algo: simpel}}", "did you mean 'simple'"),
        ("stages: {a: {algo: supervised, simple: {temperature: 1}}}", "is an option of 'simple'"),
        ("stages: {a: {}, b: {weights_from: a, weights: x}}", "weights are both given"),
        ("task: multilabel\nstages: {a: {}, b: {labels_from: a}}", "supports --task multiclass"),
    ],
)
def test_a_wrong_file_is_one_line(write: Any, tmp_path: Path, text: str, message: str) -> None:
    line = refusal("run", "--config", write(text), "--output", tmp_path / "out")
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("{weights_from: a, backbone: wrn_16_2}", "weights_from: a trains the backbone wrn_10_1"),
        ("{algo: fixmatch, labels_from: a, threshold: 0}", "threshold 0 labels the whole pool"),
        ("{image_size: 8, batch_size: 1}", "stage b: --batch-size 1"),
    ],
)
def test_all_stages_are_checked_before_the_first_starts(
    write: Any, tmp_path: Path, stage: str, message: str
) -> None:
    path = write(f"dataset: digits\nsteps: 2\nstages: {{a: {{algo: supervised}}, b: {stage}}}")
    line = refusal("run", "--config", path, "--output", tmp_path / "out")
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()
    dry = call("run", "--config", path, "--output", tmp_path / "out", "--dry-run")
    assert dry.returncode == 2


def test_a_dry_run_prints_every_stage_and_writes_nothing(write: Any, tmp_path: Path) -> None:
    result = call("run", "--config", write(TEXT), "--output", tmp_path / "out", "--dry-run")
    assert result.returncode == 0, result.stderr
    (tmp_path / "again.yaml").write_text(result.stdout)
    assert load_stages([tmp_path / "again.yaml"]).differences(load_stages([write(TEXT)])) == []
    assert not (tmp_path / "out").exists()


# --- which pseudo labels --------------------------------------------------------------------------


def select(labels: list[int], confidences: list[float], **options: Any) -> list[int]:
    counts = np.array([90, 30, 10])
    settings = StageSettings(**{"threshold": 0, **options})
    keep = selected(np.array(labels), np.array(confidences, np.float32), counts, settings)
    return np.flatnonzero(keep).tolist()


def test_threshold_and_fraction() -> None:
    confidences = [0.5, 0.9, 0.7, 0.9, 0.2]
    assert select([0] * 5, confidences) == [0, 1, 2, 3, 4]
    assert select([0] * 5, confidences, threshold=0.7) == [1, 2, 3]
    assert select([0] * 5, confidences, fraction=0.2) == [1]  # of equal ones the earlier
    assert select([0] * 5, confidences, fraction=0.6, threshold=0.8) == [1, 3]


def test_crest_keeps_all_of_the_rarest_class() -> None:
    labels = [0] * 18 + [1] * 9 + [2] * 5
    confidences = [0.5 + place / 100 for place in range(32)]
    kept = select(labels, confidences, rebalance=0.5)
    shares = {0: (10 / 90) ** 0.5, 1: (30 / 90) ** 0.5, 2: 1.0}
    for label, share in shares.items():
        of_class = [place for place in range(32) if labels[place] == label]
        expected = of_class[len(of_class) - round(share * len(of_class)) :]
        assert [place for place in kept if labels[place] == label] == expected
    assert select(labels, confidences, rebalance=0) == list(range(32))


def test_the_temperature_of_crest_plus_falls_linearly_from_1_to_a_half() -> None:
    plus, plain = (load_stages([configs_dir() / "stages" / f"{n}.yaml"]) for n in CREST)
    last = len(plus.stages) - 1
    for place, (stage, other) in enumerate(zip(plus.stages, plain.stages, strict=True)):
        options = stage.config.tree()["fixmatch"]
        assert options["align_temperature"] == 1 - 0.5 * place / last
        assert options["align_exponent"] == 1
        assert stage.sources == other.sources


# --- a folder of stages ---------------------------------------------------------------------------


def test_everything_is_written(finished: Path) -> None:
    files = {path.name for path in finished.iterdir()}
    assert files >= {"stages.yaml", "stages.json", "report.html", "comparison.md", "pseudo_labels"}
    stages = read(finished / "stages.json")["stages"]
    assert [stage["status"] for stage in stages] == ["completed"] * 4
    assert stages[3]["labels_from"] == ["student"]
    counts = stages[3]["pseudo_labels"]
    assert counts["pool"] == counts["known"] / 0.25 + 1 or counts["labeled"] == round(0.25 * 1253)
    assert 0 < counts["correct"] <= counts["labeled"] == counts["known"]
    page = (finished / "report.html").read_text()
    assert all(name in page for name in ("teacher", "other", "student", "last"))
    config = (finished / "stages" / "student" / "config.yaml").read_text()
    assert str(finished / "stages" / "teacher" / "model") in config


def test_labels_are_the_vote_of_their_sources(finished: Path) -> None:
    from ssl_toolkit.inference.evaluate import predict_rows
    from ssl_toolkit.inference.model import load_model
    from ssl_toolkit.runs.check import find_data
    from ssl_toolkit.runs.folder import RunFolder

    table = find_data(RunFolder(finished / "stages" / "teacher"))
    with (finished / "pseudo_labels" / "student.csv").open() as file:
        rows = list(csv.DictReader(file))
    keys = {key: place for place, key in enumerate(table.keys)}
    places = np.array([keys[row["path"]] for row in rows])
    models = [load_model(finished / "stages" / name) for name in ("teacher", "other")]
    mean = np.mean([predict_rows(model, table, places, 256) for model in models], axis=0)
    for row, probabilities in zip(rows, mean, strict=True):
        assert float(row["confidence"]) == pytest.approx(probabilities.max(), abs=1e-5)
        if row["label"]:
            assert table.classes[probabilities.argmax()] == row["label"]
            assert float(row["confidence"]) >= 0.3
    record = read(finished / "stages" / "student" / "record.json")
    count = PseudoLabelCounts.read(finished / "pseudo_labels" / "student.csv").labeled
    assert f"{count:,} of the labeled images have pseudo labels" in record["notes"]


def test_all_stages_test_on_the_same_images(finished: Path) -> None:
    splits = [read(path) for path in finished.glob("stages/*/split.json")]
    for part in ("test", "validation"):
        assert len({json.dumps(split[part]) for split in splits}) == 1


def test_check_run_of_stages(finished: Path, tmp_path: Path) -> None:
    good = call("check-run", finished)
    assert good.returncode == 0, good.stderr
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    assert call("check-run", folder).returncode == 0  # also elsewhere
    (folder / "pseudo_labels" / "last.csv").write_text("path,label,data_label\n")
    (folder / "stages" / "teacher" / "predictions.npz").unlink()
    bad = call("check-run", folder)
    assert bad.returncode == 1
    assert "teacher: predictions.npz: missing" in bad.stderr
    assert "pseudo_labels/last.csv: differs from that of its run" in bad.stderr


def test_an_edited_summary_is_found(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    content = read(folder / "stages.json")
    content["stages"][0]["test_accuracy"] = 1.0
    (folder / "stages.json").write_text(json.dumps(content))
    assert "stages.json: teacher differ from the runs" in call("check-run", folder).stderr


def test_finished_stages_are_left_unchanged(finished: Path) -> None:
    files = [path for path in finished.glob("stages/**/*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    result = call("resume", finished)
    assert result.returncode == 0, result.stderr
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_stages_from_python(finished: Path, tmp_path: Path) -> None:
    result = ssl_toolkit.run_stages(reopen(finished), resumed=True)
    assert result.folder == finished
    assert result.summary == StagesSummary.read(finished / "stages.json")
    other = tmp_path / "other"
    with pytest.raises(ConfigError, match="stages: must be a map of stages, each a map of keys"):
        ssl_toolkit.run_stages({"output": other})
    with pytest.raises(ConfigError, match="no earlier stage is called 'b'"):
        ssl_toolkit.run_stages({"output": other, "stages": {"a": {"labels_from": "b"}}})
    with pytest.raises(ConfigError, match="the stages there have another configuration"):
        ssl_toolkit.run_stages({"stages": {"a": {}}, "output": finished}, resumed=True)
    assert not other.exists()


def test_the_output_folder(finished: Path, write: Any, tmp_path: Path) -> None:
    run = ("run", "--config", write(TEXT), "--output")
    assert "the folder exists" in refusal(*run, finished)
    other = write(TEXT.replace("0.3", "0.4"))
    changed = refusal("run", "--config", other, "--continue", "--output", finished)
    assert "another configuration: student" in changed
    assert "leave the other options out" in refusal("resume", finished, "--steps", "20")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "not the folder of stages" in refusal(*run, tmp_path / "full")


def config_of(write: Any, text: str) -> StagesConfig:
    return load_stages([write(text)])


def test_torchrun_is_refused(write: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ssl_toolkit.stages import run

    monkeypatch.setattr(run, "under_launcher", lambda: True)
    with pytest.raises(ConfigError, match="in place of torchrun"):
        run.run_stages(load_stages([write(TEXT)], {"output": str(tmp_path / "out")}))


def test_no_pseudo_label_is_a_warning(write: Any, tmp_path: Path) -> None:
    # The pool of 1253 does not count the labeled images, which are in it too.
    text = "dataset: digits\nsteps: 2\nalgo: supervised\nlabeled_in_pool: true\n"
    text += "stages: {a: {}, b: {labels_from: a}}"
    check_stages(config_of(write, text), Console(quiet=True))
    result = call("run", "--config", write(text), "--output", tmp_path / "out", "--quiet")
    assert result.returncode == 0, result.stderr
    warning = result.stdout + result.stderr
    assert "0 of 1253 images have a pseudo label; it trains without them" in warning
    assert reopen(tmp_path / "out").stages[1].sources.labels_from == ["a"]


def test_set_names_no_stage(write: Any, tmp_path: Path) -> None:
    command = ("run", "--config", write(TEXT), "--output", tmp_path / "out")
    line = refusal(*command, "--set", "stages.student.threshold=0.5")
    assert "--set stages.student.threshold=0.5: flags and --set apply to all stages" in line


def test_a_stage_that_has_not_started_may_change(write: Any, tmp_path: Path) -> None:
    text = """
dataset: digits
steps: 2
stages:
  a: {algo: supervised}
  b: {algo: fixmatch, labels_from: a, threshold: 1.0e-9, fixmatch: {unlabeled_ratio: 1}}
"""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".stages.1.partial.yaml").write_text("of a killed start")
    command = ("run", "--config", tmp_path / "stages.yaml", "--output", folder, "--continue")
    write(text)
    assert call(*command, "--time-limit", "1e-9").returncode == 0
    assert read(folder / "stages.json")["stages"][0]["status"] == "interrupted"
    line = call(*command, "--time-limit", "9").stderr.splitlines()[-1]
    assert "stage b: all 1,253 images of the pool get a pseudo label, and fixmatch" in line
    assert read(folder / "stages.json")["stages"][0]["status"] == "completed"
    write(text.replace("1.0e-9", "0.99"))
    assert call(*command).returncode == 0
    assert reopen(folder).stages[1].sources.threshold == 0.99
    assert call("check-run", folder).returncode == 0
    write(text.replace("1.0e-9", "0.98"))
    assert "have another configuration: b;" in refusal(*command)


def test_a_stage_before_one_that_has_started_may_not_change(
    finished: Path, write: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    for name in ("other", "last"):
        shutil.rmtree(folder / "stages" / name)
    path = write(TEXT.replace("0.004", "0.005").replace("0.25", "0.5"))
    line = refusal("run", "--config", path, "--output", folder, "--continue")
    assert "have another configuration: other;" in line


# --- interruptions --------------------------------------------------------------------------------


def start(path: Path, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ssl_toolkit", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def kill_when(process: subprocess.Popen[bytes], ready: Path, number: int) -> None:
    deadline = time.monotonic() + 120
    while not ready.exists() or not ready.stat().st_size:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    process.wait(60)


def results(folder: Path) -> dict[str, bytes]:
    names = ("pseudo_labels/*.csv", "stages/*/model/model.safetensors", "stages/*/predictions.npz")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in names
        for path in sorted(folder.glob(name))
    }


def test_a_stage_that_was_killed_before_its_first_checkpoint(
    finished: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    student = folder / "stages" / "student"
    for name in ("checkpoints", "model"):
        shutil.rmtree(student / name)
    for name in ("metrics.jsonl", "metrics.csv", "predictions.npz"):
        (student / name).unlink()
    killed = read(student / "summary.json") | {"status": "running", "steps": 0}
    (student / "summary.json").write_text(json.dumps(killed))
    shutil.rmtree(folder / "stages" / "last")
    # Labels by another student are not those of this one.
    (folder / "pseudo_labels" / "last.csv").write_text("path,label,data_label\n")
    result = call("resume", folder)
    assert result.returncode == 0, result.stderr
    assert results(folder) == results(finished)


@pytest.mark.slow
def test_killed_stages_resume_to_the_same_bits(write: Any, tmp_path: Path) -> None:
    text = TEXT.replace("steps: 12", "steps: 40").replace("eval_every: 6", "eval_every: 10")
    path = write(text)
    assert start(tmp_path, "run", "--config", path, "--output", "whole").wait(300) == 0
    broken = tmp_path / "broken"
    process = start(tmp_path, "run", "--config", path, "--output", "broken")
    kill_when(process, broken / "stages" / "teacher" / "metrics.jsonl", signal.SIGKILL)
    process = start(tmp_path, "resume", "broken")
    kill_when(process, broken / "pseudo_labels" / "student.csv", signal.SIGKILL)
    process = start(tmp_path, "run", "--config", path, "--output", "broken", "--continue")
    kill_when(process, broken / "stages" / "student" / "metrics.jsonl", signal.SIGTERM)
    assert process.returncode == 143
    assert read(broken / "stages.json")["stages"][2]["status"] == "interrupted"
    assert call("check-run", broken).returncode == 0
    assert start(tmp_path, "resume", "broken").wait(300) == 0
    expected = results(tmp_path / "whole")
    assert len(expected) == 2 + 4 + 4
    assert results(broken) == expected
    assert call("check-run", broken).returncode == 0


def test_the_add_on_of_a_stage_labels_the_pool_and_starts_a_later_one(
    write: Any, tmp_path: Path
) -> None:
    text = """
dataset: digits
steps: 2
labeled_in_pool: true
stages:
  teacher: {algo: fixmatch+abc}
  student: {algo: fixmatch+saw, labels_from: previous, weights_from: previous, threshold: 0}
"""
    result = call("run", "--config", write(text), "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    from ssl_toolkit.inference.evaluate import predict_rows
    from ssl_toolkit.inference.model import load_model
    from ssl_toolkit.runs.check import find_data
    from ssl_toolkit.runs.folder import RunFolder

    run = RunFolder(tmp_path / "out" / "stages" / "teacher")
    model, table = load_model(run.path, "cpu"), find_data(run)
    assert "addon.head.weight" in model.predictor.algorithm.state_dict()
    with (tmp_path / "out" / "pseudo_labels" / "student.csv").open() as file:
        rows = list(csv.DictReader(file))[:50]
    places = np.array([table.keys.index(row["path"]) for row in rows])
    labels = predict_rows(model, table, places, 64).argmax(axis=1)
    assert [row["label"] for row in rows] == [model.classes[label] for label in labels]


def test_image_files_without_labels_at_two_sizes(write: Any, tmp_path: Path) -> None:
    from PIL import Image

    numbers = np.random.default_rng(0)
    for part, count in (("labeled/red", 4), ("labeled/blue", 4), ("test/red", 2), ("test/blue", 2)):
        (tmp_path / "images" / part).mkdir(parents=True)
        for number in range(count):
            pixels = numbers.integers(0, 80, (12, 12, 3), np.uint8)
            pixels[..., 0 if "red" in part else 2] += 120
            Image.fromarray(pixels).save(tmp_path / "images" / part / f"{number}.png")
    (tmp_path / "images" / "unlabeled").mkdir()
    for number in range(6):
        pixels = numbers.integers(0, 80, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / "unlabeled" / f"{number}.png")
    text = """
steps: 2
backbone: wrn_10_1
algo: supervised
stages:
  small: {image_size: 8}
  large: {image_size: 12, labels_from: previous, threshold: 0}
"""
    folder = tmp_path / "out"
    images = tmp_path / "images"
    result = call("run", "--config", write(text), "--data", images, "--output", folder, "--quiet")
    assert result.returncode == 0, result.stderr
    counts = PseudoLabelCounts.read(folder / "pseudo_labels" / "large.csv")
    assert (counts.pool, counts.labeled, counts.known) == (6, 6, 0)
    assert call("check-run", folder).returncode == 0
    assert call("evaluate", folder / "stages" / "large").returncode == 0
