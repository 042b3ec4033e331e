"""What works around torch: it still helps, computes the same, and stays in one file."""

from __future__ import annotations

import ctypes
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from ssl_toolkit.torch_workarounds import (
    BatchNorm,
    copy_all_,
    fresh_store,
    keep_freed_memory,
    lerp_all_,
    norms,
    sample_dirichlet,
    without_compiler,
)

ROOT = Path(__file__).parents[2]
PRIVATE = re.compile(r"torch\._|from torch\.?[a-z_.]*\._|from torch[a-z_.]* import .*\b_[A-Za-z]")


def test_private_names_of_torch_are_used_in_one_file() -> None:
    files = {
        file.relative_to(ROOT).as_posix()
        for folder in ("ssl_toolkit", "plugins", "benchmarks", "examples")
        for file in (ROOT / folder).rglob("*.py")
        if any(
            PRIVATE.search(line.replace("torch.__version__", ""))
            for line in file.read_text("utf-8").splitlines()
        )
    }
    fuzzing = {"benchmarks/fuzz_atheris.py"}  # instruments torch's unpickler
    assert files - fuzzing == {"ssl_toolkit/torch_workarounds.py"}


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


class Restart:
    """The processes of one start, as threads that share a store."""

    def __init__(self, path: Path) -> None:
        self.parts: dict[int, Any] = {}
        self.threads = [threading.Thread(target=self.join, args=(path, rank)) for rank in range(2)]

    def join(self, path: Path, rank: int) -> None:
        store = dist.FileStore(str(path), -1)
        self.parts[rank] = fresh_store(store, rank, 2, timedelta(seconds=20))

    def run(self) -> dict[int, Any]:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(30)
        return self.parts


def test_a_restart_does_not_read_what_ended_processes_wrote(tmp_path: Path) -> None:
    first, second = Restart(tmp_path / "store").run(), Restart(tmp_path / "store").run()
    first[0].set("address", "old")
    assert first[1].get("address") == b"old"
    assert not second[1].check(["address"])
    second[0].set("address", "new")
    assert second[1].get("address") == b"new"


def test_freed_memory_is_kept_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, name: int, value: int) -> None:
            calls.append((name, value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    keep_freed_memory(torch.device("cuda"))
    assert calls == []
    keep_freed_memory(torch.device("cpu"))
    assert calls == [(-1, 2**30), (-3, 2**30)]


def test_operations_on_lists_are_those_on_tensors() -> None:
    starts, ends = [torch.zeros(2), torch.ones(3)], [torch.ones(2), torch.zeros(3)]
    lerp_all_(starts, ends, 0.25)
    assert [t.tolist() for t in starts] == [[0.25] * 2, [0.75] * 3]
    copy_all_(starts, ends)
    assert all(map(torch.equal, starts, ends))
    values = [torch.tensor([3.0, -4.0])]
    assert [norms(values)[0].item(), norms(values, float("inf"))[0].item()] == [5, 4]


def test_dirichlet_draws_follow_the_generator() -> None:
    concentration = torch.full((4, 2), 0.75, dtype=torch.float64)
    first, second = (
        sample_dirichlet(concentration, torch.Generator().manual_seed(0)) for _ in range(2)
    )
    assert torch.equal(first, second)
    torch.testing.assert_close(first.sum(dim=1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm])
def test_every_batchnorm_layer_has_the_base_class(kind: type[nn.Module]) -> None:
    assert issubclass(kind, BatchNorm)
