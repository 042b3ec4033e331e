"""The logger of docs/loggers.md works as it stands, and the page names what is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ssl_toolkit import registry

PAGE = (Path(__file__).parents[2] / "docs" / "loggers.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, encoding="utf-8", check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("supervised-digits-s0")]
    assert re.fullmatch(r"supervised-digits-s0 20 0\.\d+", lines[-2])
    assert lines[-1] == "supervised-digits-s0 completed"


def test_every_built_in_logger_is_described() -> None:
    names = {entry.name for entry in registry.entries("loggers") if entry.built_in}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == names
