"""The notebooks run, and are kept without the output of somebody's machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    return [cell for cell in content["cells"] if cell["cell_type"] == kind]


def test_there_is_a_notebook() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["own_pictures.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_output(notebook: Path) -> None:
    for cell in cells(notebook, "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_own_pictures(tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in cells(NOTEBOOKS[0], "code")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(code)],
        capture_output=True, text=True, encoding="utf-8", check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "228 pictures" in done.stdout
    table = re.findall(r"^\d-\d\d\.png +(?:\d\.\d\d +){3}[147]$", done.stdout, re.MULTILINE)
    assert len(table) == 9
    right = re.search(r"^(\d+) of 60 right$", done.stdout, re.MULTILINE)
    assert right is not None
    assert int(right[1]) > 30, "30 steps teach more than chance (20)"
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text("utf-8"))
    assert summary["counts"] == {"labelled": 18, "unlabelled": 150, "validation": 0, "test": 60}
