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
from torch.fx.experimental.proxy_tensor import make_fx

RUN = ["run", "--algo", "simple", "--dataset", "digits", "--steps", "2", "--batch-size", "8"]
RUN += ["--eval-every", "1", "--device", "cpu", "--set", "simple.strong_views=7"]


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["train.loss"] for line in lines]


def test_without_a_compiler_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(function: object) -> object:
        raise RuntimeError("\nNo working C++ compiler found\n  at cpp_builder.py")

    monkeypatch.setattr(torch, "compile", missing)
    ended = call(*RUN, "--compile", "--output", tmp_path / "run")
    assert ended.returncode == 0
    (told,) = [line for line in ended.stdout.splitlines() if line.startswith("warning: --compile")]
    assert told.endswith("going on without it (RuntimeError: No working C++ compiler found)")
    assert call(*RUN, "--output", tmp_path / "plain").returncode == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")


def test_the_forwards_of_a_step_are_compiled_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[bool, int]] = []

    def compile_module(self: nn.Module, **options: Any) -> None:
        assert not options["dynamic"]
        assert list(options["options"]) == ["post_grad_custom_pre_pass"]

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


def test_sums_in_two_stages_are_the_same_sums() -> None:
    from ssl_toolkit.engine.inductor import RowsFirst  # late: it imports the compiler

    def sums(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        variance, mean = torch.var_mean(images, (0, 2, 3), correction=0, keepdim=True)
        corrected = torch.var(images, (0, 2, 3))
        kept = images.sum((0, 2, 3), keepdim=True)
        return variance, mean, corrected, kept, images.sum((0, 2, 3)), images.sum((2, 3))

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 5, 4, 6, generator=generator, dtype=torch.float64)
    traced = make_fx(sums, tracing_mode="fake")(images)
    before = [node.target for node in traced.graph.nodes]
    RowsFirst()(traced.graph)
    traced.graph.lint()
    traced.recompile()
    after = [node.target for node in traced.graph.nodes]
    two_stages, moments = torch.ops.aten.sum.dim_IntList, torch.ops.aten.var_mean.correction
    assert before.count(moments) == 1
    assert after.count(moments) == 0
    assert after.count(two_stages) == before.count(two_stages) + 2 + 4
    for ours, theirs in zip(traced(images), sums(images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_compiled_steps_are_the_eager_ones_but_for_rounding(tmp_path: Path) -> None:
    for name, flags in (("eager", []), ("compiled", ["--compile"])):
        command = [sys.executable, "-m", "ssl_toolkit", *RUN, *flags, "--steps", "4"]
        command += ["--output", str(tmp_path / name)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert "going on without" not in ended.stdout
    eager, compiled = losses(tmp_path / "eager"), losses(tmp_path / "compiled")
    assert compiled != eager
    assert compiled == pytest.approx(eager, rel=1e-3)
