"""An output never replaces an input, and its name says what it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from in_process import call, refusal
from PIL import Image

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import fingerprint_of
from ssl_toolkit.data.class_names import unguarded
from ssl_toolkit.runs.metrics_log import write_table

RUN = ("run", "--algo", "supervised", "--backbone", "test_resnet", "--image-size", "32", "--steps",
       "1", "--batch-size", "4", "--device", "cpu", "--quiet")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "made"
    draw = np.random.default_rng(0)
    rows = ["path,label,split"]
    for part, count in (("labeled", 2), ("test", 2)):
        for kind in "ab":
            (folder / "data" / part / kind).mkdir(parents=True)
            for number in range(count):
                path = folder / "data" / part / kind / f"{number}.png"
                Image.fromarray(draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)
                rows.append(f"{path.relative_to(folder)},{kind},{part}")
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    for data, name in (("data", "run"), ("list.csv", "listed")):
        done = call(*RUN, "--data", folder / data, "--output", folder / name)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(made, tmp_path / "here"))
    for run in ("run", "listed"):  # its data is the copy's
        config = folder / run / "config.yaml"
        config.write_text(config.read_text().replace(str(made), str(folder)))
        fingerprint = fingerprint_of(yaml.read_dumped(config))
        for file in (folder / run / "record.json", folder / run / "summary.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"fingerprint": fingerprint}))
    monkeypatch.chdir(folder)
    shutil.copy("data/test/a/0.png", "mine.png")
    shutil.copy("data/test/a/0.png", "mine.csv")  # named itself, it is an image all the same
    os.link("mine.png", "hard.csv")
    Path("soft.csv").symlink_to("mine.png")
    return folder


def unchanged(folder: Path) -> Callable[[], bool]:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return lambda: before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("predict run mine.png --output mine.png", "ends in .csv or .tsv or .jsonl"),
        ("predict run data --output new.png", "ends in .csv"),
        ("predict run data --output new.JPG", "ends in .csv"),
        ("predict run data --output new.json", "ends in .csv"),
        ("predict run data --output new", "ends in .csv"),
        ("predict run mine.csv --output mine.csv", "is an input"),
        ("predict run mine.png --output hard.csv", "is an input"),
        ("predict run mine.png --output soft.csv", "is an input"),
        ("predict run data --output ./run/metrics.csv", "is an input"),
        ("predict listed data --output list.csv", "is an input"),
        ("pseudo-label run mine.csv --output mine.csv", "is an input"),
        ("pseudo-label run data --output data/test/a/0.png", "ends in .csv"),
        ("pseudo-label listed data --output ./data/../list.csv", "is an input"),
        ("evaluate run --confusion data/test/a/0.png", "this is in the folder of the data"),
        ("evaluate run --data data --confusion data/new.png", "this is in the folder of the data"),
        ("evaluate listed --confusion data/test/a/0.png", "is an input"),
        ("evaluate run --data list.csv --confusion data/test/a/0.png", "is an input"),
        ("evaluate run --confusion new.csv", "ends in .png"),
        ("inspect data --contact-sheet data/test/a/0.png", "this is in the folder of the data"),
        ("inspect list.csv --contact-sheet data/test/a/0.png", "is an input"),
        ("inspect data --contact-sheet list.csv", "must be a .png file"),
        ("report run --output new.png", "give FILE.html"),
        ("report run --output mine.png", "give FILE.html"),
        ("report run --output list.csv", "give FILE.html"),
        ("report run --output new.pdf", "give FILE.html"),
        ("export run --format torch-export --output mine.png --overwrite", "ends in .pt2"),
        ("export run --format timm --output mine.png --overwrite", "not the folder of a model"),
        ("export run --format onnx --output data --overwrite", "ends in .onnx"),
    ],
)
def test_outputs_that_are_refused(here: Path, line: str, words: str) -> None:
    same = unchanged(here)
    assert words in refusal(*line.split())
    assert same()


def test_files_that_no_command_reads_can_be_replaced(here: Path) -> None:
    for line in (
        "predict run data --output p.csv",
        "predict run data --output p.TSV",
        "predict run data --output p.ndjson",
        "predict run data --output run/predictions.csv",
        "pseudo-label run data --threshold 0 --output q.csv",
        "inspect list.csv --contact-sheet sheet.png",
        "evaluate listed --confusion confusion.png",
        "report run --output page.html",
        "report run --output tables.v2",
    ):
        for _ in range(2):  # an earlier output is no input
            done = call(*line.split())
            assert done.returncode == 0, (line, done.stderr)


def test_every_table_of_ours_is_guarded(here: Path) -> None:
    lines = ['{"format": 1, "step": 1, "=sum": -0.5}', '{"format": 1, "step": 2, "@x": 1}']
    Path("metrics.jsonl").write_text("\n".join(lines))
    write_table(Path("metrics.jsonl"), Path("metrics.csv"))
    head, first, second = Path("metrics.csv").read_text().splitlines()
    assert head == "step,'=sum,'@x"
    assert first == "1,-0.5,"
    assert second == "2,,1"
    assert unguarded("'=sum") == "=sum"
    Path("=in").mkdir()
    shutil.copy("mine.png", "=in/=1.png")
    for arguments in (("predict", "run", "=in"), ("pseudo-label", "run", ".", "--uncertain", "9")):
        output = call(*arguments).stdout
        assert not [line for line in output.splitlines() if line[0] in "=+-@"]
        assert "'=in/=1.png" in output or "./=in/=1.png" in output
