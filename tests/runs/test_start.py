"""What a process imports before it does its work, and that leaving the rest out changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from ssl_toolkit.engine.optimization import without_compiler

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


def test_a_run_and_a_prediction_import_no_more_than_they_need(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("rule", "options"),
    [(AdamW, {"weight_decay": 0.1}), (SGD, {"momentum": 0.9, "nesterov": True})],
)
def test_an_optimizer_without_the_compiler_is_the_same(
    rule: type[Optimizer], options: dict[str, float]
) -> None:
    def train(made: type[Optimizer]) -> tuple[torch.Tensor, Optimizer]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
        groups = [{"params": list(net.parameters()), "name": "all"}]
        optimizer = made(groups, lr=0.1, fused=True, **options)
        for number in range(4):
            net(torch.randn(6, 5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 1:
                optimizer.load_state_dict(optimizer.state_dict())
        return torch.cat([p.detach().flatten() for p in net.parameters()]), optimizer

    weights, optimizer = train(without_compiler(rule))
    expected, torchs = train(rule)
    assert torch.equal(weights, expected)
    assert isinstance(optimizer, rule)
    torchs.load_state_dict(optimizer.state_dict())  # checkpoints are of the same form
