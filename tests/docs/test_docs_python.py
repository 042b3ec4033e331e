"""Every block of docs/how-to/python.md runs, in the order of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ssl_toolkit

PAGE = (Path(__file__).parents[2] / "docs/how-to/python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_blocks_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(BLOCKS)],
        capture_output=True, text=True, encoding="utf-8", check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "learning_rate" in done.stdout, "the wrong key is named"
    assert "did you mean" in done.stdout
    assert re.search(r"^0\.png \d 0\.\d\d$", done.stdout, re.MULTILINE)
    assert "torch.Size([5, 10])" in done.stdout
    accuracies = [float(line) for line in done.stdout.splitlines() if re.match(r"0\.\d+$", line)]
    assert len(accuracies) == 4
    assert accuracies[0] == accuracies[1], "the same run once more"
    assert min(accuracies) > 0.15, "30 steps teach more than chance"
    assert "labeled=50 unlabeled=1350 validation=0 test=397" in done.stdout
    assert "(2, 10)" in done.stdout
    assert float(done.stdout.split("score ")[1].split()[0]) > 0.9
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert runs == ["features", "first", "gray", "second", "smoothed-digits-s0", "stages"]


def test_the_page_contains_the_public_names() -> None:
    assert len(BLOCKS) == 15
    for name in (
        "train",
        "load_model",
        "register_algorithm",
        "UserError",
        "DataError",
        "SemiSupervisedClassifier",
        *("RunResult", "resume", "evaluate", "predict", "export", "report", "inspect"),
        *("pseudo_label", "compare", "run_stages", "ComparisonResult", "check_run"),
    ):
        assert name in PAGE
        assert hasattr(ssl_toolkit, name)
    assert "model.predict(" in PAGE
    assert not re.search(r"ssl_toolkit\.(\w+\.)+\w+ import|from ssl_toolkit\.", PAGE)
