"""The pages for a start: their commands run, in the order of the page, on small data."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from in_process import call
from PIL import Image

from ssl_toolkit.commands import COMMANDS

START = Path(__file__).parents[2] / "docs/start"


def commands(page: str) -> list[list[str]]:
    """Return the words of the commands of a page, without the name of the program."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (START / page).read_text("utf-8"), re.S | re.M)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    return [words[1:] for words in lines if words[0] == "ssl-toolkit"]


@pytest.mark.parametrize("page", ["own-images.md", "comparison.md"])
def test_the_commands_parse(page: str) -> None:
    found = commands(page)
    assert len(found) >= 4
    for name, *arguments in found:
        assert name in COMMANDS
        module = importlib.import_module(f"ssl_toolkit.commands.{name.replace('-', '_')}")
        module.command.make_context(name, arguments)


@pytest.mark.slow
def test_from_a_folder_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    colors = {"labeled/cat": 0, "labeled/dog": 120, "unlabeled": 60, "test/cat": 0, "test/dog": 120}
    for place, color in colors.items():
        folder = tmp_path / "images" / place
        folder.mkdir(parents=True)
        for number in range(8):
            pixels = generator.integers(0, 120, (24, 24, 3), np.uint8) + np.uint8(color)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    for words in commands("own-images.md"):
        result = call(*words)
        assert result.returncode == 0, (words, result.stderr)
    assert len(Path("answers.csv").read_text().splitlines()) == 9
    (block,) = re.findall(r"```python\n(.*?)```", (START / "own-images.md").read_text(), re.S)
    exec(block, {})


@pytest.mark.slow
def test_the_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands("comparison.md"):
        if words[0] == "compare":
            result = call(*("4" if word == "200" else word for word in words))  # steps
            assert result.returncode == 0, (words, result.stderr)
    assert Path("runs/three/report.html").exists()
    assert "0.95" in Path("runs/thresholds/comparison.md").read_text()
