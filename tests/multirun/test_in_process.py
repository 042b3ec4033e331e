"""A comparison of an algorithm that only this process knows: the runs happen in it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ssl_toolkit
from ssl_toolkit import (
    Algorithm,
    AugmentationParams,
    Augmenter,
    Batch,
    Context,
    Loss,
    StepOutput,
    UserError,
    Views,
    registry,
)

SHORT = {"dataset": "digits", "steps": 6, "eval_every": 3, "save_every": 3}
FAULTS: list[str] = []
"""What the algorithm does at its next step: the first is taken."""


class Local(Algorithm):
    """Supervised training that may be told to go wrong."""

    def views(self) -> Views:
        return Views()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        fault = FAULTS.pop(0) if FAULTS and ctx.step == 2 else ""
        if fault == "error":
            raise ZeroDivisionError("a fault of its own")
        if fault:
            signal.raise_signal(getattr(signal, fault))
        logits = ctx.model(batch.labeled_weak[0]).float()
        return StepOutput({"supervised": Loss(F.cross_entropy(logits, batch.labels))})


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    ssl_toolkit.register_algorithm("known_here")(Local)
    yield
    del registry._registered["algorithms", "known_here"]
    FAULTS.clear()


def comparison(folder: Path, **more: Any) -> dict[str, Any]:
    return {"algos": ["known_here", "supervised"], "output": folder, **SHORT, "seeds": [0], **more}


def rows(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("seconds", "per_second")
    return [
        {key: value for key, value in json.loads(line).items() if not key.endswith(timed)}
        for line in lines
    ]


class InTurn(Augmenter):
    """Draws one parameter after the other, so that each depends on the number of images."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {name: torch.rand(count, generator=generator) for name in ("red", "gain")}

    def transform(self, images: torch.Tensor, draws: AugmentationParams) -> torch.Tensor:
        return images * draws["gain"].view(-1, 1, 1, 1)


@pytest.mark.parametrize("ratio", [1, 7])
def test_an_augmenter_whose_draws_depend_on_the_count_is_refused_before_training(
    tmp_path: Path, ratio: int
) -> None:
    own = {"augment": {"strong": "in_turn"}, "fixmatch": {"unlabeled_ratio": ratio}}
    given = comparison(tmp_path / "made", **own) | {"algos": ["simple", "fixmatch"], "steps": 1}
    ssl_toolkit.register_augmenter("in_turn")(InTurn)
    try:
        if ratio == 1:
            assert ssl_toolkit.compare(given).status == 0
            return
        with pytest.raises(UserError, match="draws of unlabeled_strong of seed 0 must be the") as e:
            ssl_toolkit.compare(given)
    finally:
        del registry._registered["augmenters", "in_turn"]
    (message,) = e.value.messages
    assert "in simple; " in message
    assert "ssl-toolkit check" in message
    assert not (tmp_path / "made" / "runs").exists()


def test_failures_and_stops_are_as_in_processes(tmp_path: Path) -> None:
    """Three calls into one folder: a fault, Ctrl-C, and the end."""
    folder = tmp_path / "both"
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGINT)
    FAULTS.append("error")
    outcome = ssl_toolkit.compare(comparison(folder))
    assert (outcome.status, outcome.folder) == (1, folder)
    (own,), (other,) = (row.runs for row in outcome.comparison.rows)
    assert (own.status, other.status) == ("failed", "completed")
    assert "a fault of its own" in own.reason
    message = (folder / "logs/known_here-s0.txt").read_text(encoding="utf-8")
    assert "ZeroDivisionError in step of algorithm 'known_here'" in message

    FAULTS.append("SIGINT")
    more = comparison(folder, seeds=[0, 1])
    outcome = ssl_toolkit.compare(more)
    assert outcome.status == 130
    statuses = {row.name: [one.status for one in row.runs] for row in outcome.comparison.rows}
    assert statuses == {
        "known_here": ["interrupted", "missing"],
        "supervised": ["completed", "missing"],
    }
    assert signal.getsignal(signal.SIGINT) == handler

    outcome = ssl_toolkit.compare(more)
    assert outcome.status == 0
    # The two have one objective, so that their runs are the same run.
    first, second = (row.scores["test.accuracy"].values for row in outcome.comparison.rows)
    assert first == second
    for seed in (0, 1):
        mine, theirs = (
            folder / "runs" / name / f"s{seed}" for name in ("known_here", "supervised")
        )
        assert rows(mine) == rows(theirs)
    record = json.loads((mine / "record.json").read_text(encoding="utf-8"))
    assert record["plugins"]["algorithms: known_here"].startswith(f"{registry.NOTEBOOK} (code ")
    assert torch.get_num_threads() == threads


def test_other_launchers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"launcher: slurm starts other processes, .*'known_here'"):
        ssl_toolkit.compare(comparison(tmp_path / "both", launcher="slurm"))
    assert not (tmp_path / "both").exists()
