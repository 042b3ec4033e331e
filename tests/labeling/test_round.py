"""`label round`: rounds of labeling that survive a kill at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from in_process import call, refusal
from labeling_data import Client
from test_next import COLORS, draw

from ssl_toolkit.commands.label import serve
from ssl_toolkit.labeling import rounds
from ssl_toolkit.labeling.labels_table import LabelsTable
from ssl_toolkit.labeling.queue import read_queue
from ssl_toolkit.labeling.rounds import RoundRecord

NAMES = [*COLORS]
FLAGS = ("--algo", "supervised", "--backbone", "test_resnet", "--steps", 4, "--device", "cpu")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool of 24 images of three colors without labels, and 6 test images."""
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    for i in range(24):
        draw(tmp_path / "data" / "unlabeled" / f"{i:02d}.png", NAMES[i % 3], i)
    for i in range(6):
        draw(tmp_path / "data" / "test" / NAMES[i % 3] / f"{i}.png", NAMES[i % 3], 100 + i)
    return tmp_path / "data"


def command(data: Path, *more: object, output: str = "rounds") -> tuple[object, ...]:
    folder = data.parent / output
    return ("label", "round", data, "-o", folder, "--budget", 3, *FLAGS, "--quiet", *more)


def answer(queue: Path, file: Path) -> Path:
    """Write the true classes of the images of a queue."""
    rows = [f"{one.path},{NAMES[int(one.path[-6:-4]) % 3]}\n" for one in read_queue(queue)]
    file.write_text("path,label\n" + "".join(rows))
    return file


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that do not depend on when a call was interrupted."""
    names = (
        "labels.csv",
        "rounds.csv",
        "queue.csv",
        "round.json",
        "split.json",
        "model.safetensors",
    )
    files = [path for path in folder.rglob("*") if path.name in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_rounds_from_no_label_to_a_model(data: Path) -> None:
    folder = data.parent / "rounds"
    done = call(*command(data))
    assert done.returncode == 0, done.stderr
    assert "round 1: 0 labels, 0 classes, not trained" in done.stdout
    assert "3 images of" in done.stderr
    queue = folder / "rounds" / "1" / "queue.csv"
    assert len(read_queue(queue)) == 3
    again = call(*command(data))
    assert again.stdout.splitlines() == done.stdout.splitlines()[-1:]
    assert not (folder / "rounds" / "2").exists()
    done = call(*command(data, "--answers", answer(queue, data.parent / "answers.csv")))
    assert done.returncode == 0, done.stderr
    assert "round 2: 3 labels, 3 classes, test accuracy" in done.stdout
    record = RoundRecord.read(folder / "rounds" / "2" / "round.json")
    assert record.test is not None
    assert record.test.count == 6
    queued = {one.path for one in read_queue(folder / "rounds" / "2" / "queue.csv")}
    assert queued.isdisjoint(LabelsTable(folder / "labels.csv").rows)
    assert len((folder / "rounds.csv").read_text().splitlines()) == 3
    before = results(folder)
    assert call(*command(data, "--answers", data.parent / "answers.csv")).returncode == 0
    assert results(folder) == before


def test_a_part_of_the_answers(data: Path) -> None:
    folder = data.parent / "rounds"
    call(*command(data, "--method", "margin"))
    first, second, _ = read_queue(folder / "rounds" / "1" / "queue.csv")
    table = LabelsTable(folder / "labels.csv")
    table.put(first.path, "red")
    table.put(second.path, "")
    table.write()
    done = call(*command(data, "--method", "margin"))
    assert "1 images of" in done.stderr
    assert not (folder / "rounds" / "2").exists()
    done = call(*command(data, "--method", "margin", "--partial"))
    assert "round 2: 1 labels, 1 classes, not trained" in done.stdout
    record = RoundRecord.read(folder / "rounds" / "2" / "round.json")
    assert (record.labels, record.skipped, record.method) == (1, 1, "kmeans")
    assert "at least two classes need labels" in record.not_trained
    assert second.path not in [one.path for one in read_queue(folder / "rounds/2/queue.csv")]


def test_answers_that_training_refuses_can_be_corrected(data: Path) -> None:
    folder = data.parent / "rounds"
    call(*command(data))
    file = answer(folder / "rounds" / "1" / "queue.csv", folder / "labels.csv")
    right = file.read_text()
    file.write_text(right.replace("red", "rde"))
    refused = refusal(*command(data))
    assert f"{file}, line " in refused
    assert "'rde', no class of the data (did you mean 'red'?)" in refused
    assert not (folder / "rounds" / "2").exists()
    file.write_text(right)
    done = call(*command(data))
    assert done.returncode == 0, done.stderr
    assert "round 2: 3 labels, 3 classes, test accuracy" in done.stdout


def test_an_image_that_training_can_not_read_can_be_removed(data: Path) -> None:
    folder = data.parent / "rounds"
    start = command(data, "--method", "random", "--budget", 12)
    call(*start)
    file = answer(folder / "rounds" / "1" / "queue.csv", folder / "labels.csv")
    damaged = read_queue(folder / "rounds" / "1" / "queue.csv")[0].path
    (data / damaged).write_bytes(b"damaged")
    assert "can't read image" in refusal(*start)
    (data / damaged).unlink()
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith(damaged)))
    stopped = call(*start, "--time-limit", "1e-9")
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped; repeat the command to resume" in stopped.stderr
    done = call(*start)
    assert done.returncode == 0, done.stderr
    assert "round 2: 11 labels, 3 classes, test accuracy" in done.stdout


@pytest.mark.parametrize("flag", ["weights", "pretrained"])
def test_the_backbone_of_the_settings_chooses(
    data: Path, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    def choose(*_: object, **arguments: object) -> object:
        given.update(arguments)
        raise rounds.NoImageLeft("")

    monkeypatch.setattr(rounds, "choose_next", choose)
    weights = {"weights": ("--weights", "a.pt"), "pretrained": ("--pretrained",)}[flag]
    call(*command(data, *weights, "--image-size", 96))
    path = "a.pt" if flag == "weights" else None
    asked = {"backbone": "test_resnet", "weights": path, "image_size": 96}
    assert given.items() >= asked.items()


@pytest.mark.parametrize("method", ["margin", "badge"])
def test_the_run_of_a_round_chooses(data: Path, method: str) -> None:
    folder = data.parent / "rounds"
    call(*command(data, "--method", method))
    file = answer(folder / "rounds" / "1" / "queue.csv", data.parent / "answers.csv")
    done = call(*command(data, "--method", method, "--answers", file))
    assert done.returncode == 0, done.stderr
    images = read_queue(folder / "rounds" / "2" / "queue.csv")
    assert {one.method for one in images} == {method}
    assert {one.guess for one in images} <= {*NAMES}
    assert all(one.confidence for one in images)


def test_until_no_image_is_left(data: Path) -> None:
    folder = data.parent / "rounds"
    start = command(data, "--budget", 30)
    call(*start)
    file = answer(folder / "rounds" / "1" / "queue.csv", data.parent / "answers.csv")
    done = call(*start, "--answers", file)
    assert "no image is left to label" in done.stderr
    assert call(*start).stdout.splitlines() == done.stdout.splitlines()[-2:]
    assert not (folder / "rounds" / "3").exists()


def test_the_page_of_a_round(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call(*command(data))
    found: list[int] = []

    def answer_all(line: str) -> None:
        client = Client(line)
        try:
            found.append(client.request("GET", "", path="/wrong/state")[0])
            state = client.state()
            found.append(state["total"])
            while state["index"] < state["total"]:
                label = NAMES[int(state["path"][-6:-4]) % 3]
                state = client.state("answer", {"index": state["index"], "label": label})
        finally:
            client.state("finish", {})

    def say(line: str) -> None:
        threading.Thread(target=answer_all, args=(line,)).start()

    monkeypatch.setattr(serve, "echo", say)
    done = call(*command(data, "--serve"))
    assert done.returncode == 0, done.stderr
    assert found == [403, 3]
    assert "round 2: 3 labels, 3 classes, test accuracy" in done.stdout
    queue = read_queue(data.parent / "rounds" / "rounds" / "1" / "queue.csv")
    expected = {one.path: NAMES[int(one.path[-6:-4]) % 3] for one in queue}
    assert LabelsTable(data.parent / "rounds" / "labels.csv").rows == expected


def test_images_with_a_label_in_the_data_are_trained_on_and_not_queued(data: Path) -> None:
    folder = data.parent / "rounds"
    for i in range(3):
        draw(data / "labeled" / NAMES[i] / f"{i}.png", NAMES[i], 200 + i)
    done = call(*command(data, "--budget", 30))
    assert done.returncode == 0, done.stderr
    assert "round 1: 3 labels, 3 classes, test accuracy" in done.stdout
    queue = folder / "rounds" / "1" / "queue.csv"
    assert {one.path for one in read_queue(queue)} == {f"unlabeled/{i:02d}.png" for i in range(24)}
    start = command(data, "--answers", answer(queue, data.parent / "answers.csv"))
    assert "round 2: 27 labels, 3 classes" in call(*start).stdout
    assert len(LabelsTable(folder / "labels.csv").rows) == 24
    assert "no image is left" in call(*start).stderr
    assert not (folder / "rounds" / "3").exists()


def test_settings_that_contradict_rounds(data: Path) -> None:
    assert "no such option --val-fraction" in refusal(*command(data, "--val-fraction", 0.1))
    for text in ("val_fraction=0.1", "labels_per_class=2", "data=elsewhere"):
        assert "label round: --" in refusal(*command(data, "--set", text))
    message = refusal(*command(data, "--set", "task=multilabel"))
    assert "label several with `label serve --task multilabel`" in message
    assert "stepps" in refusal(*command(data, "--set", "stepps=1"))
    assert not (data.parent / "rounds").exists()
    assert "doesn't exist" in refusal(*command(data.parent / "none"))
    (data.parent / "file").touch()
    assert "a file has this name; choose another" in refusal(*command(data, output="file"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 4])
def test_a_kill_at_any_moment_changes_nothing(data: Path, kills: int) -> None:
    reference, folder = data.parent / "reference", data.parent / "rounds"
    call(*command(data, output="reference"))
    file = answer(reference / "rounds" / "1" / "queue.csv", data.parent / "answers.csv")
    start = time.monotonic()
    run(*command(data, "--answers", file, output="reference"))
    seconds = time.monotonic() - start
    call(*command(data))
    moments = random.Random(1)
    for _ in range(kills):
        kill(moments.uniform(0.3, 1.0) * seconds, *command(data, "--answers", file))
    run(*command(data, "--answers", file))
    assert results(folder) == results(reference)
    assert "rounds/2/run/model/model.safetensors" in results(folder)


def run(*arguments: object) -> None:
    texts = [str(argument) for argument in arguments]
    subprocess.run([sys.executable, "-m", "ssl_toolkit", *texts], check=True, capture_output=True)


def kill(seconds: float, *arguments: object) -> None:
    """Run a command, and kill it and its children after some seconds."""
    texts = [str(argument) for argument in arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", "ssl_toolkit", *texts],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
