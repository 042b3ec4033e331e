"""docs/how-to/troubleshooting.md: each message is printed as quoted, and each command works."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest
import torch
from doc_pages import DOCS, blocks, commands, do, matches, parse, sections
from in_process import call
from PIL import Image

from ssl_toolkit.config.loading import load_config
from ssl_toolkit.engine import devices
from ssl_toolkit.engine.compatibility import check_parts
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.distributed import LOST
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.locking import hold
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.factory import find_backbone
from ssl_toolkit.runs import estimate
from ssl_toolkit.runs.health import alarms
from ssl_toolkit.runs.probe_report import verdict
from ssl_toolkit.runs.summary import ExpectedStrangers, ProbeScores, ProbeSummary

SECTIONS = sections((DOCS / "how-to/troubleshooting.md").read_text("utf-8"))
TINY = ["--batch-size", "4", "--device", "cpu", "--backbone", "wrn_10_1", "--image-size", "8"]
SHORT = [*TINY, "--steps", "2", "--eval-every", "1"]
Patch = pytest.MonkeyPatch


def draw(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(levels).save(path)


def draw_set(top: Path, cats: int = 4) -> None:
    """Draw labeled images of cats, dogs, and as many of others."""
    numbers = {"labeled/cat": cats, "labeled/dog": 4, "test/cat": 3, "test/dog": 3}
    for place, (folder, count) in enumerate({**numbers, "unlabeled": 12}.items()):
        for number in range(count):
            draw(top / folder / f"{number}.png", 100 * place + number)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets, most with one fault, and a finished run."""
    top = tmp_path_factory.mktemp("troubles")
    draw_set(top / "images")
    draw_set(top / "uneven", cats=20)
    for name in ("broken", "empty", "other", "leaking", "alone"):
        shutil.copytree(top / "images", top / name)
    damaged = top / "broken/labeled/cat/0.png"
    damaged.write_bytes(damaged.read_bytes()[:100])
    (top / "empty/labeled/owl").mkdir()
    draw(top / "other/test/fox/0.png", 900)
    shutil.copy(top / "leaking/labeled/cat/0.png", top / "leaking/test/cat/copy.png")
    shutil.rmtree(top / "alone/unlabeled")
    shutil.copytree(top / "images/labeled", top / "classes")
    with chdir(top):
        run = call("run", "--algo", "supervised", "--data", "images", "--output", "runs/a", *SHORT)
    assert run.returncode == 0
    return top


@pytest.fixture
def here(prepared: Path, tmp_path: Path, monkeypatch: Patch) -> Path:
    """The same as a working directory that a test may change."""
    shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def printed(*arguments: object) -> str:
    """Return all that a command prints."""
    result = call(*arguments)
    return result.stdout + result.stderr


def run(*arguments: object) -> str:
    return printed("run", "--algo", "supervised", *SHORT, *arguments)


def refused_images(patch: Patch) -> str:
    return "".join(run("--data", name) for name in ("broken", "empty", "other"))


def too_few(patch: Patch) -> str:
    few = run("--data", "images", "--labels-per-class", 5)
    alone = run("--data", "alone", "--algo", "fixmatch", "--labels-per-class", 2)
    return few + alone + run("--data", "classes", "--algo", "fixmatch")


def unknown_key(patch: Patch) -> str:
    wrong = run("--set", "num_train_iter=500")
    return wrong + run("--algo", "fixmatch", "--set", "mixmatch.alpha=1")


def missing(patch: Patch) -> str:
    patch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    return run("--algo", "fixmach") + run("--loggers", "wandb")


def offline(patch: Patch) -> str:
    files = printed("run", "--dataset", "cifar10", "--root", "files")
    return files + printed("run", "--backbone", "resnet18", "--pretrained", "--data", "images")


def no_gpu(patch: Patch) -> str:
    patch.setattr(torch.cuda, "device_count", lambda: 0)
    return run("--device", "cuda")


def bad_batches(patch: Patch) -> str:
    one = run("--data", "images", "--batch-size", 1)
    settings = resolve_config(load_config(flags={"batch_size": 10}))[0].settings
    backbone, name = find_backbone("wrn_10_1")
    with pytest.raises(ConfigError) as error:
        check_parts(settings, Classifier(backbone.build(name), 2), 4)
    return f"{one}\nerror: {error.value}"


def folder_exists(patch: Patch) -> str:
    exists = run("--output", "runs/a")
    with hold(Path("runs/a")):
        return exists + run("--output", "runs/a", "--overwrite")


def slow(patch: Patch) -> str:
    patch.setattr(estimate, "LONG", 0.0)
    patch.setattr(devices, "native_bfloat16", lambda: False)
    return run("--data", "images", "--steps", 6, "--eval-every", 6, "--precision", "bf16")


def out_of_memory(patch: Patch) -> str:
    def fail(trainer: Trainer) -> Never:
        raise torch.OutOfMemoryError

    patch.setattr(Trainer, "fit", fail)
    return run("--data", "images", "--output", "runs/a", "--overwrite")


def alarmed(rows: list[dict[str, float]]) -> str:
    return "\n".join(f"warning: {text}" for text in alarms(rows, steps=100))


def nothing_passes(patch: Patch) -> str:
    rows = [{"step": 20.0 * n, "validation.accuracy": 0.5, "train.coverage": 0.001} for n in (1, 2)]
    return alarmed([*rows, *({**rows[0], "step": 20.0 * n} for n in (3, 4, 5))])


def not_finite(patch: Patch) -> str:
    loss = run("--data", "images", "--lr", 1e30, "--steps", 3, "--eval-every", 3)
    return loss + run("--data", "images", "--lr", 1e30)


def not_better(patch: Patch) -> str:
    scores: dict[str, Any] = {"accuracy": 0.6, "count": 100, "difference": -0.1}
    lines = []
    for interval in ((-0.2, -0.05), (-0.2, 0.05)):
        test = ProbeScores(**scores, interval=interval)
        probe = ProbeSummary(strength=1.0, cross_validation=None, validation=None, test=test)
        lines.append(verdict(probe))
    return "\n".join(lines)


def collapsed(patch: Patch) -> str:
    def row(step: int, accuracy: float, share: float, shift: float) -> dict[str, float]:
        health = {"largest_class_share": share, "pseudo_label_shift": shift, "coverage": 0.9}
        terms = {"weighted.pair": 20.0, "weighted.supervised": 0.5}
        values = {f"train.{key}": value for key, value in (health | terms).items()}
        return {"step": float(step), "validation.accuracy": accuracy, **values}

    taken = alarmed([row(step, 0.5, 0.9, 0.8) for step in (60, 80)])
    return taken + "\n" + alarmed([row(40, 0.8, 0.2, 0.1), row(60, 0.3, 0.2, 0.1)])


def strangers(patch: Patch) -> str:
    return f"warning: {ExpectedStrangers(share=0.23, lower=0.19).warning}"


def other_threads(patch: Patch) -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run("--data", "images", "--seed", 1, "--output", "runs/other")
    finally:
        torch.set_num_threads(threads)
    return printed("report", "runs/a", "runs/other", "--output", "runs/both")


def unequal_rows(patch: Patch) -> str:
    rows = {"slow": {"algo": "supervised", "lr": 0.001}, "fast": {"algo": "supervised", "lr": 0.1}}
    Path("rows.yaml").write_text(json.dumps({"rows": rows}))
    return printed("compare", "--config", "rows.yaml", "--data", "images", *SHORT)


def interrupted(patch: Patch) -> str:
    return run("--data", "images", "--time-limit", 1e-6, "--output", "runs/stopped")


def changed(patch: Patch) -> str:
    config, text = Path("runs/a/config.yaml"), Path("runs/a/config.yaml").read_text()
    config.write_text(re.sub(r"^lr: .*", "lr: 0.5", text, flags=re.MULTILINE))
    edited = printed("resume", "runs/a", "--steps", 4)
    config.write_text(text)
    shutil.copytree("runs/a", "kept")
    record, summary = Path("runs/a/record.json"), Path("runs/a/summary.json")
    record.write_text(re.sub('("initial_weights": )".*"', r'\1"0"', record.read_text()))
    started = json.loads(summary.read_text()) | {"status": "running", "steps": 0}
    summary.write_text(json.dumps(started))
    Path("runs/a/metrics.jsonl").unlink()
    shutil.rmtree("runs/a/checkpoints")
    edited += printed("resume", "runs/a")
    shutil.rmtree("runs/a")
    Path("kept").rename("runs/a")
    draw(Path("images/test/cat/0.png"), 901)
    return edited + printed("resume", "runs/a", "--steps", 4)


def lost(patch: Patch) -> str:
    return f"error: {LOST}"


SCENARIOS: dict[str, Callable[[Patch], str]] = {
    "Images are refused": refused_images,
    "There are too few labels, or no unlabeled images": too_few,
    "A key is unknown": unknown_key,
    "A plugin or a package is missing": missing,
    "Files must be downloaded, and there is no network": offline,
    "The GPU is not found": no_gpu,
    "The batch does not fit BatchNorm or the processes": bad_batches,
    "The folder exists, or is in use": folder_exists,
    "It is slow": slow,
    "Memory runs out": out_of_memory,
    "No unlabeled image is used": nothing_passes,
    "A loss is not finite": not_finite,
    "Training is not better than a baseline": not_better,
    "Training collapses": collapsed,
    "It is too good: the same images in several splits": lambda patch: run("--data", "leaking"),
    "Rare classes are never predicted": lambda patch: run("--data", "uneven"),
    "Images in the pool belong to no class": strangers,
    "The same command gives other numbers": other_threads,
    "Rows of a comparison are refused": unequal_rows,
    "A run was interrupted": interrupted,
    "resume is refused": changed,
    "One of several processes ended": lost,
}


def test_every_section_with_a_message_has_a_scenario() -> None:
    quoting = [heading for heading, text in SECTIONS.items() if blocks(text, "text")]
    assert quoting == [*SCENARIOS]
    assert len(SECTIONS) > 30


@pytest.mark.parametrize("heading", SCENARIOS)
def test_messages_are_printed_as_quoted(heading: str, here: Path, monkeypatch: Patch) -> None:
    output = SCENARIOS[heading](monkeypatch)
    quoted = [line for block in blocks(SECTIONS[heading], "text") for line in block.splitlines()]
    assert [line for line in quoted if not matches(line, output)] == [], output


RUN = {
    "There are too few labels, or no unlabeled images",
    "The folder exists, or is in use",
    "It is too good: the same images in several splits",
    "Labeled images are in the pool too",
    "The same command gives other numbers",
    "A run was interrupted",
    "resume is refused",
}
"""Sections whose commands do more than to set keys: these run, others with --dry-run."""

WITH_COMMANDS = [heading for heading, text in SECTIONS.items() if commands(text)]


@pytest.mark.parametrize("heading", WITH_COMMANDS)
def test_commands_work(heading: str, here: Path) -> None:
    for line in commands(SECTIONS[heading]):
        parse(line)
        if ("compare" in line and "--pretrained" in line) or "reproduce" in line:
            continue  # they compute features, and measure a step
        more: list[str] = []
        if "ssl-toolkit run" in line and "--config" not in line:
            trains = heading in RUN and "--dry-run" not in line
            own = TINY if "--data" in line else SHORT[-4:]
            more = [*own, "--steps", "2"] if trains else ["--dry-run"]
        elif "ssl-toolkit compare" in line and "--dry-run" not in line:
            more = [*SHORT, "--dry-run"]
        result = do(line, more)
        assert result.returncode == 0, (line, result.stderr)


def test_every_symptom_says_how_to_check() -> None:
    checked = {heading for heading, text in SECTIONS.items() if "Check: " in text}
    assert {*WITH_COMMANDS, *SCENARIOS} - checked == set()
