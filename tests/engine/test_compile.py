"""``--compile``: what is compiled, and that a run goes on where nothing can be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import call
from torch import nn

RUN = ["run", "--algo", "simple", "--dataset", "digits", "--steps", "2", "--batch-size", "8"]
RUN += ["--eval-every", "1", "--device", "cpu", "--set", "simple.strong_views=7"]


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["train.loss"] for line in lines]


def test_without_a_compiler_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(function: object) -> object:
        raise RuntimeError("\nNo working C++ compiler found\n  at cpp_builder.py")

    monkeypatch.setattr(torch, "compile", missing)
    ended = call(*RUN, "--compile", "--output", tmp_path / "run")
    assert ended.returncode == 0
    (output,) = [
        line for line in ended.stdout.splitlines() if line.startswith("warning: --compile")
    ]
    assert output.endswith("continuing without it (RuntimeError: No working C++ compiler found)")
    assert call(*RUN, "--output", tmp_path / "plain").returncode == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")


def test_the_forwards_of_a_step_are_compiled_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[bool, int]] = []

    def compile_module(self: nn.Module, **options: Any) -> None:
        assert options == {"dynamic": False}

        def forward(images: torch.Tensor) -> Any:
            calls.append((self.training, len(images)))
            return self.forward(images)

        self._compiled_call_impl = forward

    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(nn.Module, "compile", compile_module)
    ended = call(*RUN, "--compile", "--output", tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    # Both steps: two weak views for the guess of the average, 8 + 7 · 8 images to train on.
    assert calls == [(False, 16), (True, 64)] * 2


@pytest.mark.slow
def test_compiled_steps_are_the_eager_ones_but_for_rounding(tmp_path: Path) -> None:
    for name, flags in (("eager", []), ("compiled", ["--compile"])):
        command = [sys.executable, "-m", "ssl_toolkit", *RUN, *flags, "--steps", "4"]
        command += ["--output", str(tmp_path / name)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert "continuing without" not in ended.stdout
    eager, compiled = losses(tmp_path / "eager"), losses(tmp_path / "compiled")
    assert compiled != eager
    assert compiled == pytest.approx(eager, rel=1e-3)
