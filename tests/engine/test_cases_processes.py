"""Faults that people met with small batches, places to write to and several processes.

The numbers are those of the reports' list.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import kill_resume
import numpy as np
import pytest
import torch
from always_first import AlwaysFirst
from in_process import call, refusal
from ssl_toolkit_wide_resnet import WideResNet
from torch import Tensor

from ssl_toolkit import registry
from ssl_toolkit.data.load import read_data
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.training_images import load_images
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.runs.scoring import scores

RUN = (
    "run", "--backbone", "test_resnet", "--image-size", "32", "--batch-size", "4", "--workers", "0",
    "--device", "cpu", "--seed", "1",
)  # fmt: skip
ALGORITHMS = [
    entry.name
    for entry in registry.entries("algorithms")
    if entry.built_in and entry.name != "fully_supervised"  # needs labels that this data lacks
]


# --- 19: the last batch of a pass holds one image ---------------------------------------------


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_19_a_last_batch_of_one_image(algo: str, cases: Path, tmp_path: Path) -> None:
    data = ("--data", cases / "c19_last_batch_one", "--output", tmp_path / "run")
    result = call(*RUN, "--algo", algo, "--steps", "8", *data)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert summary["counts"] == {"labeled": 5, "unlabeled": 9, "validation": 0, "test": 5}
    assert summary["test"]["count"] == 5


def test_19_a_batch_of_one_image(cases: Path, tmp_path: Path) -> None:
    data = ("--data", cases / "c19_last_batch_one", "--output", tmp_path / "run")
    message = refusal(*RUN, "--algo", "supervised", *data, "--batch-size", "1")
    assert "batch-size 1" in message
    assert "BatchNorm" in message
    assert not (tmp_path / "run").exists()


# --- 22: evaluation that two processes share ----------------------------------------------------


class OneOfTwo(ProcessGroup):
    """One of two processes that go one after the other: the second one knows both parts."""

    def __init__(self, rank: int, parts: dict[int, Tensor]) -> None:
        super().__init__(rank, 2)
        self.parts = parts

    def all_gather(self, value: Tensor, dim: int = 0) -> Tensor:
        self.parts[self.rank] = value
        return torch.cat([self.parts.get(rank, value) for rank in range(2)], dim)


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_22_each_image_counts_once(batch_size: int, cases: Path) -> None:
    table = read_data(cases / "c22_metric_two_procs", size=32)
    rows = np.flatnonzero(table.splits == "test")
    store = load_images(table, rows, 32, torch.device("cpu"), None)
    constant = Classifier(AlwaysFirst(), 2)
    torch.manual_seed(0)
    for classifier in (constant, Classifier(WideResNet(10, 1), 2)):
        parts: dict[int, Tensor] = {}
        places = torch.arange(len(rows))
        for rank in (1, 0):
            probs = predict(classifier, store, places, batch_size, OneOfTwo(rank, parts))
        alone = predict(classifier, store, places, batch_size)
        assert [len(part) for part in parts.values()] == [6, 6]
        assert probs.shape == (11, 2)
        assert torch.allclose(probs, alone, atol=1e-6)
        if classifier is constant:
            result = scores(probs.numpy(), table.labels[rows], table.classes)
            assert result["accuracy"] == pytest.approx(0.636364, abs=1e-6)


# --- 43: a place that can not be written to -----------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the superuser may write to any real folder")
def test_43_an_output_that_cannot_be_written(cases: Path) -> None:
    began = time.monotonic()
    output = Path("/proc/sys/run")
    message = refusal(*RUN, "--algo", "fixmatch", "--data", cases / "c00_base", "--output", output)
    assert str(output) in message
    assert len(message.splitlines()) == 1
    assert time.monotonic() - began < 10 * max(1.0, os.getloadavg()[0])


# --- 48: several processes ----------------------------------------------------------------------


@pytest.mark.slow
def test_48_two_runs_of_two_processes_at_once(cases: Path, tmp_path: Path) -> None:
    """Five labeled images, nothing that passes the mask, and each run finds its own port."""
    runs = [tmp_path / name / "run" for name in ("one", "two")]
    logs = [tmp_path / "one.txt", tmp_path / "two.txt"]
    arguments = [*RUN, "--algo", "fixmatch", "--set", "fixmatch.confidence_threshold=1.0",
                 "--data", str(cases / "c19_last_batch_one"), "--steps", "4", "--devices", "2",
                 "--log-every", "1"]  # fmt: skip
    processes = [
        kill_resume.start([*arguments, "--output", str(run)], log, tmp_path / "cache")
        for run, log in zip(runs, logs, strict=True)
    ]
    for process, log in zip(processes, logs, strict=True):
        kill_resume.wait_for(process, log)
        assert "unused" not in log.read_text()
    for run in runs:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["train.coverage"] for line in lines] == [0.0] * 4
        summary = json.loads((run / "summary.json").read_text())
        assert summary["counts"]["labeled"] == summary["test"]["count"] == 5
    assert kill_resume.differences(*runs) == []
