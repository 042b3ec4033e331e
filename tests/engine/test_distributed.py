"""Several processes share each batch, and come to what one process comes to."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rank_jobs import carry_out, carry_out_shared
from safetensors.torch import load_file

SHARED = {
    "backbone": "plain",
    "device": "cpu",
    "batch_size": 4,
    "steps": 4,
    "eval_every": 2,
    "log_every": 1,
    "lr": 0.05,
    # A rule that is continuous in the gradient: AdamW turns the order of a sum into whole steps.
    "optimizer": {"name": "sgd", "accumulation_steps": 2, "clip_norm": 5.0},
}
PASSES = {"confidence_threshold": 0.11}
JOBS: dict[str, dict[str, Any]] = {
    "supervised": {"algo": "supervised"},
    "fully_supervised": {"algo": "fully_supervised"},
    "fixmatch": {"algo": "fixmatch", "fixmatch": {"confidence_threshold": 0.11}},
    "nothing_passes": {"algo": "fixmatch", "fixmatch": {"confidence_threshold": 1.0}},
    "simple": {
        "algo": "simple",
        "simple": {
            "gather_pairs": True,
            "confidence_threshold": 0.1,
            "similarity_threshold": 0.5,
            "strong_views": 2,
            "rampup_fraction": 0.0,
        },
    },
    "mixmatch": {"algo": "mixmatch", "mixmatch": {"rampup_fraction": 0.0}},
    "mixmatch_batch": {"algo": "mixmatch", "mixmatch": {"mixup_per": "batch"}},
    "mixmatch_enhanced": {"algo": "mixmatch_enhanced", "mixmatch_enhanced": {"strong_views": 2}},
    "remixmatch": {"algo": "remixmatch", "remixmatch": {"strong_views": 2, "rampup_fraction": 0.0}},
    "flexmatch": {"algo": "flexmatch", "flexmatch": {"confidence_threshold": 0.11}},
    "freematch": {"algo": "freematch", "freematch": {"momentum": 0.9, "fairness_weight": 1.0}},
    "softmatch": {"algo": "softmatch", "softmatch": {"momentum": 0.9}},
    "debiaspl": {"algo": "debiaspl", "debiaspl": {"confidence_threshold": 0.11, "momentum": 0.9}},
    "adamatch": {"algo": "adamatch", "adamatch": {"unlabeled_momentum": 0.9}},
    "dash": {
        "algo": "dash",
        "dash": {"warmup_fraction": 0.34, "decay_fraction": 0.2, "mean_over_selected": True},
    },
    "openmatch": {
        "algo": "openmatch",
        "openmatch": {"confidence_threshold": 0.11, "warmup_fraction": 0.34, "scan_interval": 2},
    },
    "defixmatch": {"algo": "defixmatch", "defixmatch": {"confidence_threshold": 0.11}},
    "deep_label_propagation": {
        "algo": "deep_label_propagation",
        "deep_label_propagation": {"warmup_fraction": 0.34, "scan_interval": 2},
    },
    "simmatch": {"algo": "simmatch", "simmatch": {"confidence_threshold": 0.11}},
    "simmatch_averaged": {
        "algo": "simmatch",
        "simmatch": {"confidence_threshold": 0.11, "averaged_labels": True, "memory_momentum": 0},
    },
    "comatch": {
        "algo": "comatch",
        "comatch": {"confidence_threshold": 0.11, "graph_threshold": 0.1, "memory_size": 50},
    },
    "uda": {"algo": "uda", "uda": {"confidence_threshold": 0.11, "annealing": "linear"}},
    "mean_teacher": {"algo": "mean_teacher", "mean_teacher": {"rampup_fraction": 0.0}},
    "pseudo_label": {
        "algo": "pseudo_label",
        "pseudo_label": {"confidence_threshold": 0.11, "rampup_fraction": 0.0},
    },
    "pi_model": {"algo": "pi_model", "pi_model": {"rampup_fraction": 0.0}},
    "vat": {"algo": "vat", "vat": {"rampup_fraction": 0.0}},
    "projected": {"algo": "projected"},
    "drop_strangers": {
        "algo": "fixmatch",
        "fixmatch": PASSES,
        "drop_strangers": "hard",
        "val_fraction": 0.02,  # too few to show that there are no strangers
    },
    "validated_strangers": {"algo": "fixmatch", "fixmatch": PASSES, "drop_strangers": "hard"},
    "abc": {"algo": "fixmatch+abc", "fixmatch": PASSES | {"abc": PASSES}},
    "darp": {
        "algo": "fixmatch+darp",
        "fixmatch": PASSES | {"darp": {"interval": 1, "warmup_fraction": 0.34}},
    },
    "daso": {
        "algo": "fixmatch+daso",
        "fixmatch": PASSES
        | {"daso": {"queue_size": 3, "window": 4, "warmup_fraction": 0.34, "temperature": 0.5}},
    },
    "saw": {"algo": "fixmatch+saw", "fixmatch": PASSES | {"saw": {"updates": 3}}},
    "adsh": {
        "algo": "fixmatch+adsh",
        "fixmatch": {"adsh": {"updates": 3, "confidence_threshold": 0.15}},
    },
}


def checkerboards(folder: Path) -> Path:
    """Write images that resemble each other and no digit, so that any weights separate them."""
    folder.mkdir()
    for number in range(500):
        board = np.indices((8, 8)).sum(axis=0) % 2 == 0
        board.flat[[number % 64, number // 64]] ^= True
        Image.fromarray(board).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each job by one process and by two, in the folders ``one`` and ``two``."""
    root = tmp_path_factory.mktemp("ranks")
    strangers = {"strangers": {"data": str(checkerboards(root / "boards")), "fraction": 0.2}}
    jobs = {
        count: [
            SHARED
            | job
            | (strangers if "drop_strangers" in job else {})
            | {"output": str(root / count / name)}
            for name, job in JOBS.items()
        ]
        for count in ("one", "two")
    }
    carry_out_shared(jobs["two"], 2, root)
    carry_out(jobs["one"])
    return root


def rows(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("seconds", "images_per_second")}
        for line in lines
    ]


@pytest.mark.parametrize("name", JOBS)
def test_two_processes_equal_one(runs: Path, name: str) -> None:
    one, two = runs / "one" / name, runs / "two" / name
    names = sorted(path.name for path in (one / "model").glob("*.safetensors"))
    assert ("algorithm.safetensors" in names) == (name in ("projected", "abc", "openmatch"))
    for file in names:
        weights, others = (load_file(path / "model" / file) for path in (one, two))
        assert weights.keys() == others.keys()
        for key, value in weights.items():
            assert (value.double() - others[key].double()).abs().max() < 1e-5, key
    assert len(rows(one)) == len(rows(two)) == 4
    for row, other in zip(rows(one), rows(two), strict=True):
        assert row.keys() == other.keys()
        for key in row:
            if not key.startswith("train.pair_"):  # of each part, unless pairs are gathered
                assert math.isclose(row[key], other[key], rel_tol=1e-5, abs_tol=1e-5), key


def test_pairs_are_those_of_the_whole_batch_when_gathered(runs: Path) -> None:
    for key in ("train.loss.pair", "train.pair_both", "train.pair_confidence"):
        one, two = ([row[key] for row in rows(runs / n / "simple")] for n in ("one", "two"))
        assert max(one) > 0
        assert two == pytest.approx(one, abs=1e-5)


def test_every_image_is_scored_once(runs: Path) -> None:
    for name in JOBS:
        one, two = (
            json.loads((runs / n / name / "summary.json").read_text()) for n in ("one", "two")
        )
        assert one["counts"] == two["counts"]
        assert one["counts"]["validation"] % 2 == (name != "drop_strangers")
        assert one["counts"]["test"] % 2 == 1
        for part in ("validation", "test"):
            assert two[part]["accuracy"] == one[part]["accuracy"]


def test_processes_leave_the_same_images_out(runs: Path) -> None:
    for name in ("drop_strangers", "validated_strangers"):
        one, two = (
            json.loads((runs / n / name / "summary.json").read_text())["dropped"]
            for n in ("one", "two")
        )
        assert two == one
        assert one["strangers"] > 200
        assert (one["expected"] is None) == (name == "drop_strangers")


def test_training_changes_the_weights(runs: Path) -> None:
    """Equal runs in which nothing happens would prove nothing."""
    for name in JOBS:
        losses = [row["train.loss.supervised"] for row in rows(runs / "one" / name)]
        assert len(set(losses)) == 4
    assert any(row["train.coverage"] > 0 for row in rows(runs / "two" / "fixmatch"))
    assert all(row["train.coverage"] == 0 for row in rows(runs / "two" / "nothing_passes"))


def test_the_configuration_contains_the_number_of_processes(runs: Path) -> None:
    for count, number in (("one", 1), ("two", 2)):
        text = (runs / count / "supervised" / "config.yaml").read_text()
        assert f"devices: {number}\n" in text
