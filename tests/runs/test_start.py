"""What a process imports before it does its work, and that leaving the rest out changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

UNNEEDED = ["kornia", "matplotlib", "pandas", "scipy", "sklearn", "sympy", "timm", "torchvision"]
UNNEEDED += ["torch._dynamo", "torch._inductor", "triton"]
"""Packages and parts of torch that no one asked for here; timm's and torch's take seconds."""

PROGRAM = """
import json, sys
from ssl_toolkit.commands import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code, arguments
print(json.dumps([name for name in json.loads(sys.argv[2]) if name in sys.modules]))
"""


def test_a_run_and_a_prediction_import_only_what_they_need(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    Image.new("RGB", (8, 8)).save(image)
    run = ["run", "--dataset", "digits", "--steps", "2", "--quiet", "--output", f"{tmp_path}/run"]
    commands = [run, ["predict", f"{tmp_path}/run", str(image), "--output", f"{tmp_path}/p.csv"]]
    given = [json.dumps(commands), json.dumps(UNNEEDED)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *given], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == []
