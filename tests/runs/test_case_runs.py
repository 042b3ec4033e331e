"""Faults that people met in tools of this kind; the numbers are those of the reports' list."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from in_process import Command, call, refusal

from ssl_toolkit import FeatureAlgorithm, registry

RUN = (
    "run", "--algo", "fixmatch", "--backbone", "test_resnet", "--image-size", "32", "--steps", "2",
    "--eval-every", "1", "--batch-size", "4", "--workers", "0", "--device", "cpu", "--seed", "1",
)  # fmt: skip
ALGORITHMS = [entry.name for entry in registry.entries("algorithms")]
SEMI_SUPERVISED = ["fixmatch", "mixmatch", "mixmatch_enhanced", "simple"]


# --- 28: mixed precision ------------------------------------------------------------------------


# Without bfloat16 in hardware, precision is fp32 before an algorithm sees it: a few are enough.
@pytest.mark.parametrize(
    ("algo", "native"),
    [*((algo, True) for algo in ALGORITHMS), ("simple", False), ("linear_probe", False)],
)
def test_28_mixed_precision_never_fails(
    algo: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssl_toolkit.engine.devices.native_bfloat16", lambda: native)
    strong = "fixed" if native else "randaugment"
    plugin = registry.load("algorithms", algo)
    result = call(
        "run", "--algo", algo, "--dataset", "digits", "--batch-size", "4", "--steps", "3",
        "--device", "cpu", "--precision", "bf16", "--seed", 1, "--eval-every", "3",
        "--set", f"augment.strong={strong}", "--output", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert ("warning: --precision bf16" in result.stdout) != native
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text("utf-8").strip())
    assert all(map(math.isfinite, row.values()))
    assert ("train.loss" in row) != issubclass(plugin, FeatureAlgorithm)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["precision"] == ("bf16" if native else "fp32")


# --- 30: what each algorithm needs --------------------------------------------------------------


@pytest.fixture
def base(cases: Path, tmp_path: Path) -> Path:
    """A copy of the clean data set, to be changed."""
    return Path(shutil.copytree(cases / "c00_base", tmp_path / "data"))


def test_30_supervised_needs_no_unlabeled_images(base: Path, tmp_path: Path) -> None:
    arguments = (*RUN, "--algo", "supervised", "--data", base, "--output")
    message = call(*arguments, tmp_path / "with")
    assert message.returncode == 0
    assert "supervised does not use the 12 unlabeled images" in message.stdout
    shutil.rmtree(base / "unlabeled")
    message = call(*arguments, tmp_path / "without")
    assert message.returncode == 0, message.stderr
    summary = json.loads((tmp_path / "without" / "summary.json").read_text("utf-8"))
    assert summary["counts"]["unlabeled"] == 0


@pytest.mark.parametrize("empty", [False, True])
def test_30_the_others_name_the_missing_folder(empty: bool, base: Path, tmp_path: Path) -> None:
    shutil.rmtree(base / "unlabeled")
    if empty:
        (base / "unlabeled").mkdir()
    for algo in [*SEMI_SUPERVISED, "fully_supervised"]:
        message = refusal(*RUN, "--algo", algo, "--data", base, "--output", tmp_path / "run")
        assert "unlabeled" in message
        assert str(base) in message
        assert algo in message
    assert not (tmp_path / "run").exists()


def test_30_the_upper_bound_needs_hidden_labels(cases: Path, tmp_path: Path) -> None:
    data = ("--data", cases / "c00_base", "--output", tmp_path / "run")
    assert "12 of 12 carry none" in refusal(*RUN, "--algo", "fully_supervised", *data)


def test_30_an_unknown_algorithm(cases: Path) -> None:
    message = refusal(*RUN, "--algo", "simpel", "--data", cases / "c00_base")
    assert "did you mean 'simple'" in message
    assert all(name in message for name in ALGORITHMS)


# --- 37, 38: configuration files ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "key", "near"),
    [
        ("typo.yaml", "lerning_rate", "'lr'"),
        ("typo_nested.yaml", "fixmatch.treshold", "'fixmatch.confidence_threshold'"),
    ],
)
def test_37_an_unknown_key(file: str, key: str, near: str, cases: Path) -> None:
    path = cases / "c37_yaml" / file
    message = refusal("run", "--config", path, "--data", "/not/there")
    assert f"{path}: {key}: unknown key (did you mean {near}?)" in message
    assert "/not/there" not in message


def test_37_an_option_of_another_algorithm() -> None:
    message = refusal(*RUN, "--set", "mixmatch.alpha=0.5", "--data", "/not/there")
    assert "mixmatch.alpha" in message
    assert "/not/there" not in message


def test_38_surprises_of_the_parser(cases: Path) -> None:
    folder = cases / "c37_yaml"
    assert re.search(r"dup\.yaml.*line 4.*'lr'", refusal("run", "--config", folder / "dup.yaml"))
    norway = call("run", "--config", folder / "norway.yaml", "--dry-run").stdout
    names = re.search(r"classes:\n((?:- .*\n)+)", norway)
    assert names
    assert names[1].split("\n")[:-1] == ["- 'no'", "- 'yes'", "- 'on'", "- '001'", "- 1e3"]
    for file in ("off.yaml", "boolword.yaml"):
        result = call("run", "--config", folder / file, "--dry-run")
        assert "\nema: false\n" in result.stdout, result.stderr


def test_38_class_folders_named_like_values(base: Path, tmp_path: Path) -> None:
    names = {"a": "no", "b": "on", "c": "001", "d": "1e3"}
    for part in ("labeled", "test"):
        for letter, name in names.items():
            (base / part / letter).rename(base / part / name)
    result = call(*RUN, "--data", base, "--output", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert sorted(summary["classes"]) == sorted(names.values())
    assert summary["test"]["per_class"].keys() == set(names.values())
    again = call("run", "--config", tmp_path / "run" / "config.yaml", "--output", tmp_path / "two")
    assert again.returncode == 0, again.stderr


# --- 40: the same name twice --------------------------------------------------------------------


def test_40_a_duplicate_name(cases: Path, command: Command, tmp_path: Path) -> None:
    # A second copy of one of them on the path, as an editable install leaves it: no clash.
    folder = cases / "c40_same_name"
    copy = tmp_path / "copy"
    shutil.copytree(folder / "three_pkg-1.0.dist-info", copy / "three_pkg-1.0.dist-info")
    path = os.pathsep.join(map(str, (folder, copy)))
    env = {"PYTHONPATH": path, "PYTHONWARNINGS": "error::DeprecationWarning"}

    listed = command("list", env=env)
    assert listed.returncode == 0, listed.stderr
    fixmatch, twice = sorted(listed.stderr.splitlines())
    assert "ssl-toolkit" in fixmatch
    assert "one-pkg" in fixmatch
    assert "two-pkg" in twice
    assert "three-pkg" in twice
    assert twice.count("three-pkg:") <= 1
    assert twice.count(" three-pkg ") + twice.count(" three-pkg;") == 1

    ran = command("run", "--algo", "fixmatch", "--dry-run", env=env)
    assert ran.returncode == 0, ran.stderr
    assert "fixmatch:\n  confidence_threshold" in ran.stdout
    assert "one-pkg" in ran.stderr

    stopped = command("run", "--algo", "twice", "--dry-run", env=env)
    assert stopped.returncode == 2
    assert "two-pkg" in stopped.stderr
    assert "three-pkg" in stopped.stderr


# --- 41: progress in a file ---------------------------------------------------------------------

LONGER = (*RUN, "--steps", "6", "--eval-every", "2", "--val-fraction", "0.25")


def test_41_a_log_is_plain_lines(cases: Path, command: Command, tmp_path: Path) -> None:
    data = ("--data", cases / "c00_base", "--output", tmp_path / "run")
    result = command(*LONGER, *data, env={"COLUMNS": "20"})
    assert result.returncode == 0, result.stderr
    log = result.stdout + result.stderr
    assert not {"\x1b", "\r"} & set(log)
    lines = log.splitlines()
    assert len(lines) < 100
    (header,) = [line for line in lines if "val acc" in line]
    rows = [line for line in lines if re.match(r" +\d+  ", line)]
    assert [row.split()[0] for row in rows] == list("246")
    assert {len(row) for row in rows} == {len(header)}
    assert any(re.fullmatch(r"test accuracy: [01]\.\d{4} of 12 images", line) for line in lines)
    assert any(len(line) > 60 for line in lines)  # nothing is cut or folded at 20 columns


@pytest.mark.parametrize(
    "env",
    [{"TERM": "dumb"}, pytest.param({"NO_COLOR": "1", "COLUMNS": "20"}, marks=pytest.mark.slow)],
)
def test_41_a_terminal_with_few_capabilities(
    env: dict[str, str], cases: Path, tmp_path: Path
) -> None:
    reader, writer = pty.openpty()
    arguments = (*LONGER, "--data", cases / "c00_base", "--output", tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-m", "ssl_toolkit", *map(str, arguments)],
        env={"TERM": "xterm"} | os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    ) as process:
        os.close(writer)
        stated = b""
        while chunk := read_some(reader):
            stated += chunk
    os.close(reader)
    text = stated.decode()
    assert process.returncode == 0, text
    if env.get("TERM") == "dumb":
        assert "\x1b" not in text
    assert not re.search(r"\x1b\[[\d;]*[3479]\d(;\d+)*m", text)  # no color
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    assert "val acc" in plain
    assert "Traceback" not in plain


def read_some(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # how Linux says that the other side closed
        return b""


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["run", "--help"]])
def test_41_a_reader_that_exits_early(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "ssl_toolkit", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert result.stderr == ""


# --- 43: the output folder ----------------------------------------------------------------------


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_43_a_run_is_never_overwritten_by_default(cases: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = (*RUN, "--data", cases / "c00_base", "--output", folder)
    assert call(*arguments).returncode == 0
    before = hashes(folder)
    message = refusal(*arguments)
    assert str(folder) in message
    assert "--overwrite" in message
    assert hashes(folder) == before

    (folder / "left over").write_text("of the old run")
    assert call(*arguments, "--algo", "supervised", "--overwrite").returncode == 0
    after = hashes(folder)
    assert after.keys() == before.keys()
    assert json.loads((folder / "summary.json").read_text("utf-8"))["algorithm"] == "supervised"
    assert sum(after[name] != before[name] for name in before) > 5


def test_43_only_runs_are_overwritten(cases: Path, tmp_path: Path) -> None:
    precious, file = tmp_path / "precious", tmp_path / "file"
    precious.mkdir()
    for path in (precious / "thesis.txt", file):
        path.write_text("years of work")
    before = hashes(tmp_path)
    for output in (precious, file, file / "below"):
        arguments = (*RUN, "--data", cases / "c00_base", "--output", output)
        assert str(output) in refusal(*arguments)
        assert str(output) in refusal(*arguments, "--overwrite")
    assert hashes(tmp_path) == before


# --- 47: a device that is not there -------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "cuda:0"])
def test_47_no_gpu(device: str, cases: Path, tmp_path: Path) -> None:
    data = ("--data", cases / "c00_base", "--output", tmp_path / "run")
    assert f"--device {device}" in refusal(*RUN, *data, "--device", device)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["gpuu", "cuda:x", "cuda:", "cpu:1", "cuda:-1", "cuda:²"])
def test_47_an_unknown_device(device: str, cases: Path, tmp_path: Path) -> None:
    data = ("--data", cases / "c00_base", "--output", tmp_path / "run")
    message = refusal(*RUN, *data, "--device", device)
    assert f"--device {device}" in message
    assert all(name in message for name in ("auto", "cpu", "cuda:N", "mps"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_47_auto_reports_the_device_it_selected(cases: Path, tmp_path: Path) -> None:
    data = ("--data", cases / "c00_base", "--output", tmp_path / "run")
    result = call(*RUN, *data, "--device", "auto")
    assert result.returncode == 0, result.stderr
    assert any(re.search(r"\bcpu\b", line) for line in result.stdout.splitlines())
    assert json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["device"] == "cpu"
    assert "cpu" in json.loads((tmp_path / "run" / "record.json").read_text("utf-8"))["device"]
