"""docs/how-to/multi-label.md: its manifest reads as it says, and its command runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from in_process import call
from multilabel_data import make_manifest

from ssl_toolkit.data.load import read_data

PAGE = Path(__file__).parents[2] / "docs/how-to/multi-label.md"
TEXT = PAGE.read_text("utf-8")


def test_the_manifest(tmp_path: Path) -> None:
    match = re.search(r"```csv\n(.*?)```", TEXT, re.DOTALL)
    assert match is not None
    (tmp_path / "images.csv").write_text(match[1])
    for line in match[1].splitlines()[1:]:
        path = tmp_path / line.partition(",")[0]
        path.parent.mkdir(exist_ok=True)
        path.touch()
    table = read_data(tmp_path / "images.csv", multilabel=True)
    assert table.classes == ("dog", "person")
    sums = table.targets(np.arange(5)).sum(axis=1)
    assert [None if np.isnan(value) else int(value) for value in sums] == [2, 1, 0, None, 1]
    assert table.splits.tolist() == ["pool"] * 3 + ["unlabeled", "test"]


def test_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_manifest(tmp_path)
    monkeypatch.chdir(tmp_path)
    match = re.search(r"```bash\n(ssl-toolkit run .*)\n", TEXT)
    assert match is not None
    command = match[1].replace("--labels-per-class 20", "--labels-per-class 5")
    result = call(*shlex.split(command)[1:], "--steps", 2, "--image-size", 16)
    assert result.returncode == 0, result.stderr
    assert "test mAP" in result.stdout
    assert (tmp_path / "runs" / "pseudo_label-images-s0" / "model").is_dir()
