"""Faults that people met with images of their own; the numbers are those of the reports' list."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import always_first  # noqa: F401  (registers the backbone)
import numpy as np
import pytest
import torch
from in_process import Command, call, refusal

from ssl_toolkit.data.load import read_data

RUN = (
    "run", "--algo", "fixmatch", "--backbone", "test_resnet", "--image-size", "32", "--steps", "2",
    "--eval-every", "1", "--batch-size", "4", "--workers", "0", "--device", "cpu", "--seed", "1",
)  # fmt: skip
BASE = {"labeled": 16, "unlabeled": 12, "validation": 0, "test": 12}


def run(data: Path, output: Path, *more: object) -> tuple[dict[str, Any], str]:
    """The summary of a run that went well, and what it printed."""
    result = call(*RUN, "--data", data, "--output", output, *more)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads((output / "summary.json").read_text("utf-8")), result.stdout


def split(output: Path) -> dict[str, list[str]]:
    content: dict[str, list[str]] = json.loads((output / "split.json").read_text("utf-8"))
    return content


def test_02_side_files(cases: Path, tmp_path: Path) -> None:
    summary, message = run(cases / "c02_side_files", tmp_path / "run")
    assert summary["counts"] == BASE
    assert summary["classes"] == ["a", "b", "c", "d"]
    assert "._img" not in message
    assert sum("notes.txt" in line for line in message.splitlines()) <= 1


def test_04_rotated_images_are_trained_upright(cases: Path, tmp_path: Path) -> None:
    run(cases / "c04_exif", tmp_path / "run")
    for kind, pattern in (("turned", "o{}.jpg"), ("upright", "o{}_twin.png")):
        folder = tmp_path / "data" / "train" / kind
        folder.mkdir(parents=True)
        for turn in range(1, 9):
            name = pattern.format(turn)
            shutil.copy(cases / "c04_exif" / "predict" / name, folder / f"{turn}{name[-4:]}")
    table = read_data(tmp_path / "data", size=32)  # what a run of 32 px trains on
    images = table.read(np.arange(16), 32)
    assert (images[:8] == images[8:]).all()
    assert len({image.tobytes() for image in images}) == 8


def test_05_color_modes(cases: Path, tmp_path: Path, command: Command) -> None:
    data = cases / "c05_modes"
    result = command(*RUN, "--data", data, "--output", tmp_path / "run")  # warnings would show
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert summary["counts"] == {**BASE, "labeled": 18, "unlabeled": 13}


def test_06_extensions_and_odd_sizes(cases: Path, tmp_path: Path) -> None:
    summary, message = run(cases / "c06_ext_sizes", tmp_path / "run")
    assert summary["counts"] == {**BASE, "labeled": 24, "unlabeled": 16}
    assert {Path(key).suffix for key in split(tmp_path / "run")["labeled"]} == {
        ".JPG", ".JPEG", ".PNG", ".png", ".bmp", ".tif", ".webp", ".gif"
    }  # fmt: skip
    (line,) = [line for line in message.splitlines() if "noext" in line]
    assert line.startswith("files not used")


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_07_a_decompression_bomb(policy: str, cases: Path, tmp_path: Path) -> None:
    arguments = [*RUN, "--data", cases / "c07_bomb", "--output", tmp_path / "run"]
    if policy == "skip":
        arguments += ["--on-bad-image", "skip"]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ssl_toolkit", *map(str, arguments)], stdout=out, stderr=out
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    message = (tmp_path / "out").read_text("utf-8")
    assert usage.ru_utime + usage.ru_stime < 30  # of its own: the machine may be busy
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    assert peak < 1.5e9
    (line,) = [line for line in message.splitlines() if "huge.png" in line]
    assert "60000 x 60000" in line
    if policy == "error":
        assert process.returncode == 2
        assert line.startswith("error: ")
        assert not (tmp_path / "run").exists()
    else:
        assert process.returncode == 0, message
        assert "unreadable images skipped: 1 of 41" in message
        summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
        assert summary["counts"] == BASE


def test_09_folders_of_tools(cases: Path, tmp_path: Path) -> None:
    summary, _ = run(cases / "c09_tool_folders", tmp_path / "run")
    assert summary["classes"] == ["a", "b", "c", "d"]
    assert summary["counts"]["labeled"] == 16


def test_11_classes_keep_their_names(cases: Path, tmp_path: Path) -> None:
    data = cases / "c11_numeric_names"
    output = tmp_path / "run"
    summary, _ = run(data, output, "--algo", "supervised", "--steps", 60, "--eval-every", 60)
    assert summary["classes"] == ["1", "10", "2", "20"]
    assert summary["test"]["accuracy"] == 1.0
    assert set(summary["test"]["per_class"]) == {"1", "2", "10", "20"}
    state = torch.load(output / "checkpoints" / "last.pt", weights_only=True)
    assert state["classes"] == ["1", "10", "2", "20"]


@pytest.mark.parametrize("case", ["c12_unlabeled_flat", "c12b_unlabeled_nested"])
def test_12_unlabeled_images_have_no_classes(case: str, cases: Path, tmp_path: Path) -> None:
    summary, _ = run(cases / case, tmp_path / "run")
    assert summary["counts"] == BASE
    assert summary["classes"] == ["a", "b", "c", "d"]
    message = refusal(
        *RUN, "--algo", "fully_supervised", "--data", cases / case, "--output", tmp_path / "bound"
    )
    assert "12 of 12 carry none" in message


def test_13_names_under_a_plain_locale(cases: Path, tmp_path: Path, command: Command) -> None:
    data = cases / "c13_names"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = command(*RUN, "--data", data, "--output", tmp_path / "run", env=plain)
    assert result.returncode == 0, result.stderr
    assert "[red]bracket" in result.stdout
    expected = json.loads((data / "EXPECT.json").read_text("utf-8"))
    raw = (tmp_path / "run" / "summary.json").read_bytes()
    assert all(name.encode("utf-8") in raw for name in expected["classes"])
    summary = json.loads(raw)
    assert summary["classes"] == sorted(expected["classes"])
    assert summary["counts"]["unlabeled"] == expected["unlabeled"]
    again = call(*RUN, "--data", data, "--output", tmp_path / "again")  # this locale, that cache
    assert again.returncode == 0, again.stderr
    for name in ("split.json", "predictions.npz"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_14_links(cases: Path, tmp_path: Path) -> None:
    data = cases / "c14_links"
    started = time.monotonic()
    message = refusal(*RUN, "--data", data, "--output", tmp_path / "run")
    assert time.monotonic() - started < 10
    assert "gone.png" in message
    summary, shown = run(data, tmp_path / "run", "--on-bad-image", "skip")
    assert summary["counts"] == {**BASE, "labeled": 17}
    assert "gone.png" in shown
    parts = split(tmp_path / "run")
    assert not {Path(key).name for key in parts["unlabeled"]} & {
        Path(key).name for key in parts["test"]
    }


def test_16_labeled_images_in_the_pool(cases: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    for kind in "ab":
        shutil.copytree(cases / "c17_pool" / kind, pool / kind)
    labeled = []
    for flag, expected in (("--labeled-in-pool", 20), ("--no-labeled-in-pool", 16), (None, 16)):
        flags = ["--labels-per-class", 2, *([flag] if flag else [])]
        summary, _ = run(pool, tmp_path / str(flag), *flags)
        assert summary["counts"]["unlabeled"] == expected
        labeled.append(split(tmp_path / str(flag))["labeled"])
    assert labeled[0] == labeled[1] == labeled[2]
    fractions = ["--val-fraction", 0.2, "--test-fraction", 0.2, "--labels-per-class", 2]
    run(pool, tmp_path / "parts", *fractions, "--labeled-in-pool")
    parts = split(tmp_path / "parts")
    held = set(parts["validation"] + parts["test"])
    assert len(held) == 8
    assert not held & set(parts["labeled"] + parts["unlabeled"])

    folder = cases / "c16_labeled_in_unlabeled"
    for flag, expected in (("--no-labeled-in-pool", 12), (None, 28)):
        summary, _ = run(folder, tmp_path / f"folder{flag}", *([flag] if flag else []))
        assert summary["counts"] == {**BASE, "unlabeled": expected}


def test_17_too_few_images_of_a_class(cases: Path, tmp_path: Path) -> None:
    data = cases / "c17_pool"
    arguments = (*RUN, "--data", data, "--output", tmp_path / "run")
    messages = refusal(*arguments, "--labels-per-class", 4).splitlines()
    assert re.search(r"'c' has 1 of the 4", messages[0])
    assert re.search(r"'d' has 2 of the 4", messages[1])
    assert not (tmp_path / "run").exists()

    _, shown = run(data, tmp_path / "one", "--labels-per-class", 1, "--val-fraction", 0.5)
    labeled = split(tmp_path / "one")["labeled"]
    assert sorted(key[0] for key in labeled) == ["a", "b", "c", "d"]
    (line,) = [line for line in shown.splitlines() if "no validation image" in line]
    assert re.search(r"\bc\b", line)

    summary, shown = run(data, tmp_path / "ten", "--num-labels", 10)
    assert summary["counts"]["labeled"] == 10
    counts = [
        int(n) for n in re.search(r"per class: a (\d), b (\d), c (\d), d (\d)", shown).groups()
    ]  # type: ignore[union-attr]
    assert sum(counts) == 10
    assert min(counts) >= 1


def test_17_long_tail(cases: Path, tmp_path: Path) -> None:
    data = cases / "c17b_long_tail"
    summary, _ = run(data, tmp_path / "run", "--backbone", "always_first")
    assert summary["test"]["accuracy"] == pytest.approx(0.9)
    assert summary["test"]["balanced_accuracy"] == pytest.approx(1 / 3, abs=1e-4)


def fingerprints(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in [folder, *folder.rglob("*")]
    }


def test_43_data_that_is_read_only(cases: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(cases / "c00_base", tmp_path / "data"))
    before = fingerprints(data)
    inside = [data, *data.rglob("*")]
    try:
        for path in inside:
            path.chmod(0o555 if path.is_dir() else 0o444)
        summary, _ = run(data, tmp_path / "run")
        assert summary["counts"] == BASE
        assert fingerprints(data) == before
    finally:
        for path in inside:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_43_a_cache_that_cannot_be_written(
    cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, message = run(cases / "c00_base", tmp_path / "kept")
    assert "SSL_TOOLKIT_CACHE" not in message
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "file"))
    other, message = run(cases / "c00_base", tmp_path / "run")
    (warning,) = [line for line in message.splitlines() if "SSL_TOOLKIT_CACHE" in line]
    assert warning.startswith("warning: decoded images can't be cached in ")
    assert other["counts"] == summary["counts"]
    assert (tmp_path / "run" / "predictions.npz").read_bytes() == (
        tmp_path / "kept" / "predictions.npz"
    ).read_bytes()
    record = json.loads((tmp_path / "run" / "record.json").read_text("utf-8"))
    assert any("SSL_TOOLKIT_CACHE" in line for line in record["warnings"])


def test_43_data_that_is_missing(tmp_path: Path) -> None:
    started = time.monotonic()
    message = refusal(*RUN, "--data", tmp_path / "nowhere", "--output", tmp_path / "run")
    assert time.monotonic() - started < 10
    assert str(tmp_path / "nowhere") in message
    assert not (tmp_path / "run").exists()
