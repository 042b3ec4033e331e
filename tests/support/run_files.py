"""Read the files of a run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

MAY_DIFFER = ("time", "seconds", "per_second", "memory")

DIGITS = (
    "run", "--algo", "simple", "--dataset", "digits", "--steps", "4", "--eval-every", "2",
    "--log-every", "1", "--batch-size", "8", "--device", "cpu",
)  # fmt: skip


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def metrics(run: Path, *, timings: bool = False) -> list[dict[str, Any]]:
    rows = [strict_json(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [
        {k: v for k, v in row.items() if timings or not any(word in k for word in MAY_DIFFER)}
        for row in rows
    ]


def summary(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = strict_json((run / "summary.json").read_text("utf-8"))
    return result


def weights(run: Path, which: str = "last") -> dict[str, torch.Tensor]:
    state = torch.load(run / "checkpoints" / f"{which}.pt", weights_only=True)
    result: dict[str, torch.Tensor] = state["model"] if which == "last" else state["weights"]
    return result


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
