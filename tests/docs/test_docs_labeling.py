"""The commands of docs/how-to/labeling.md run one after the other on a small folder of images."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from in_process import call
from PIL import Image

from ssl_toolkit.labeling.labels_table import LabelsTable
from ssl_toolkit.labeling.queue import read_queue

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/labeling.md").read_text("utf-8")
LINES = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
COLORS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (40, 40, 210)}


def answer(queue: Path, labels: Path) -> None:
    """Answer as a person on the page would."""
    table = LabelsTable(labels)
    for image in read_queue(queue):
        table.put(image.path, image.path.partition("-")[0])
    table.write()


def studio(tasks: Path, output: Path) -> None:
    """Answer tasks as an export of Label Studio has them."""
    content = json.loads(tasks.read_text())
    for number, task in enumerate(content):
        label = task["data"]["path"].partition("-")[0]
        choice = {"type": "choices", "from_name": "label", "value": {"choices": [label]}}
        task["id"], task["annotations"] = number, [{"result": [choice], "was_cancelled": False}]
    output.write_text(json.dumps(content))


def test_the_page_from_images_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    generator = np.random.default_rng(0)
    for number in range(30):
        name, color = [*COLORS.items()][number % 3]
        pixels = generator.integers(0, 40, (24, 24, 3)) + color
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(f"photos/{name}-{number}.png")
    project, done = Path("project"), 0
    for line in LINES:
        words = shlex.split(line)[1:]
        if "DATA" in words:
            continue
        if words[:2] == ["label", "serve"]:
            answer(Path("next.csv"), Path("labels.csv"))
            continue
        if words[:2] == ["label", "import"]:
            studio(Path("tasks.json"), Path("answers.json"))
        result = call(*[word for word in words if word != "--serve"])
        assert result.returncode == 0, (line, result.stderr)
        done += 1
        if words[:2] == ["label", "round"]:
            answer(project / "rounds" / "1" / "queue.csv", project / "labels.csv")
            result = call(*[word for word in words if word != "--serve"])
            assert "round 2: 6 labels, 3 classes" in result.stdout
    assert done == 8
    predictions = Path("predictions.csv").read_text().splitlines()[1:]
    right = [line.split(",")[1] in line.split(",")[0] for line in predictions]
    assert sum(right) > 24
    assert len(LabelsTable(Path("labels.csv")).labels) == 12
    shutil.rmtree(project)


def test_every_command_of_the_page_parses() -> None:
    assert len(LINES) >= 9
    for line in LINES:
        _, name, *arguments = shlex.split(line)
        path = f"ssl_toolkit.commands.{name}"
        if name == "label":
            verb, *arguments = arguments
            path += f".{verb}" + "_" * (verb == "import")
        importlib.import_module(path).command.make_context(name, arguments)


@pytest.mark.parametrize("method", ["kmeans", "typicality", "margin", "badge", "random"])
def test_every_method_has_a_row(method: str) -> None:
    assert f"| `{method}`" in PAGE
