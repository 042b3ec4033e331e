"""Write the files of a run that a comparison reads, without training."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from ssl_toolkit.config.loading import fingerprint_of
from ssl_toolkit.config.plugin_names import section_of

CONFIG: dict[str, Any] = {
    "algo": "supervised",
    "profile": "paper",
    "backbone": "wrn_10_1",
    "dataset": "digits",
    "labels_per_class": 4,
    "steps": 100,
    "lr": 0.002,
    "seed": 0,
    "workers": 0,
    "output": None,
    "ema": {"decay": 0.9},
}
RECORD: dict[str, Any] = {
    "format": 1,
    "versions": {"python": "3.11.7", "torch": "2.14.1"},
    "platform": "Linux",
    "device": "cpu (1 threads)",
    "torch_threads": 1,
    "precision": "fp32",
    "plugins": {},
    "uses_hidden_labels": False,
    "draws": {},
    "notes": [],
    "warnings": [],
}


def fake_run(
    folder: Path,
    *,
    algo: str = "supervised",
    seed: int = 0,
    accuracy: float = 0.9,
    options: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    record: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> Path:
    """Write a completed run with consistent files.

    The last three arguments replace keys of its files, which may make them inconsistent.
    """
    folder.mkdir(parents=True)
    section = section_of(algo)
    tree = {**copy.deepcopy(CONFIG), "algo": algo, "seed": seed, section: options or {}}
    tree |= config or {}
    of_config = {"fingerprint": fingerprint_of(tree)}
    scores = {
        "accuracy": accuracy,
        "count": 100,
        "balanced_accuracy": accuracy - 0.01,
        "macro_f1": accuracy - 0.02,
        "ece": 0.05,
        "nll": 0.4,
        "interval": [0.8, 0.95],
        "per_class": {"a": {"accuracy": accuracy, "count": 100}},
    }
    files = {
        "record.json": {
            **RECORD,
            "uses_hidden_labels": algo == "fully_supervised",
            **of_config,
            "split": f"split{seed}",
            "initial_weights": f"weights{seed}",
        }
        | (record or {}),
        "summary.json": {
            **of_config,
            **{key: tree[key] for key in ("profile", "backbone", "steps")},
            "format": 1,
            "status": "completed",
            "algorithm": algo,
            "seed": seed,
            "best_step": 90,
            "convergence_step": 50,
            "counts": {"labeled": 8, "unlabeled": 100, "validation": 100, "test": 100},
            "classes": ["a", "b"],
            "validation": scores,
            "test": scores,
            "probe": None,
            "fitted": False,
            "health": {"alarms": [], "labeled": {"a": 4, "b": 4}},
            "device": "cpu",
            "seconds": 10.0 + seed,
            "images_per_second": 300.0,
        }
        | (summary or {}),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return folder


def fake_plan(
    folder: Path, rows: dict[str, str], seeds: list[int], **changes: Any
) -> dict[str, Path]:
    """Write ``plan.json`` and ``comparison.yaml``; return the folder of each row by name."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = {
        "format": 1,
        "name": "toy",
        "baseline": None,
        "allow": [],
        "budget": "steps",
        "threads": 1,
        "seeds": seeds,
        "rows": [
            {"name": name, "algorithm": algo, "folder": f"runs/r{place}", "steps": 100}
            for place, (name, algo) in enumerate(rows.items())
        ],
    }
    (folder / "plan.json").write_text(json.dumps(plan | changes), encoding="utf-8")
    (folder / "comparison.yaml").write_text("{}\n", encoding="utf-8")
    return {name: folder / f"runs/r{place}" for place, name in enumerate(rows)}
