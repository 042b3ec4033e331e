"""The notebooks run, and are kept without the output of somebody's machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssl_toolkit import registry

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    return [cell for cell in content["cells"] if cell["cell_type"] == kind]


def test_there_are_two_notebooks() -> None:
    names = ["own_algorithm.ipynb", "own_images.ipynb"]
    assert [notebook.name for notebook in NOTEBOOKS] == names


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_output(notebook: Path) -> None:
    for cell in cells(notebook, "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


def code_of(name: str) -> str:
    notebook = next(path for path in NOTEBOOKS if path.stem == name)
    return "\n".join("".join(cell["source"]) for cell in cells(notebook, "code"))


def test_own_images(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code_of("own_images")],
        capture_output=True, text=True, encoding="utf-8", check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "228 images" in done.stdout
    table = re.findall(r"^\d-\d\d\.png +(?:\d\.\d\d +){3}[147]$", done.stdout, re.MULTILINE)
    assert len(table) == 9
    right = re.search(r"^(\d+) of 60 right$", done.stdout, re.MULTILINE)
    assert right is not None
    assert int(right[1]) > 30, "30 steps teach more than chance (20)"
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text("utf-8"))
    assert summary["counts"] == {"labeled": 18, "unlabeled": 150, "validation": 0, "test": 60}


def test_own_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Registered, trained and compared in one process, which is this one."""
    monkeypatch.chdir(tmp_path)
    try:
        exec(code_of("own_algorithm"), {"__name__": "notebook"})
    finally:
        registry._registered.pop(("algorithms", "mine"), None)
    printed = capsys.readouterr().out
    right = re.findall(r"^step .* pseudo labels right (\d\.\d\d) ", printed, re.MULTILINE)
    assert len(right) == 4
    assert float(right[-1]) > float(right[0])
    means = dict(re.findall(r"^(\w+) +(\d\.\d{3}) on 2 seeds$", printed, re.MULTILINE))
    assert [*means] == ["mine", "supervised"]
    assert min(map(float, means.values())) > 0.2, "40 steps teach more than chance"
    comparison = json.loads((tmp_path / "runs/compared/comparison.json").read_text("utf-8"))
    members = [member for row in comparison["rows"] for member in row["runs"]]
    assert [member["status"] for member in members] == ["completed"] * 4
    assert (tmp_path / "runs/compared/report.html").is_file()
