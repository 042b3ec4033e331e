"""Write the files of runs that the report reads, with numbers from a formula."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit.comparisons.schema import ComparedRun, Comparison, Difference, ScoreStats, Variant
from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.scoring import scores
from ssl_toolkit.runs.summary import Counts, Health, RunSummary, Scores

CLASSES = tuple("0123456789")
PAIRS = ("pair_confidence", "pair_similarity", "pair_both")


def metrics(
    shift: float, logged: int = 40, evaluated: int = 10, *, old: bool = False
) -> Iterator[dict[str, float]]:
    """Yield rows of metrics like those of SimPLE."""
    for k in range(1, logged + 1):
        wave = 0.02 * math.sin(k * (1 + shift))
        row = {"step": 10 * k, "lr": 0.002, "seconds": 0.3 * k, "images_per_second": 100.0}
        row |= {f"train.loss{n}": 1 / k + wave + 0.1 for n in ("", ".supervised", ".pair")}
        row |= {
            "train.coverage": 1 - 1 / k,
            "train.pseudo_label_accuracy": 0.9 + wave,
            "train.pair_confidence": 0.8 + wave,
        }
        if not old:
            row |= {
                "train.largest_class_share": 0.2 + wave,
                "train.pseudo_label_shift": 0.1 + wave,
                **{f"train.{n}": 0.5 + wave for n in PAIRS},
                **{f"train.{n}_false": 0.1 + wave for n in PAIRS},
            }
        if k % (logged // evaluated) == 0:
            row |= {"validation.accuracy": 0.9 - 0.5 / k + wave, "validation.loss": 1 / k + 0.2}
        yield row


def predictions(
    path: Path, classes: Sequence[str], seed: int, *, images: int = 24, side: int = 16
) -> Scores:
    """Write test predictions, with mistakes if there are images; return the scores."""
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(classes)), 20)
    logits = draw.normal(size=(len(labels), len(classes)))
    logits[np.arange(len(labels)), labels] += 2.5
    probabilities = np.exp(3 * logits)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    worst = wrong[np.argsort(-probabilities[wrong].max(axis=1))][:images]
    arrays: dict[str, Any] = {
        "format": 1,
        "classes": np.array(classes),
        "validation_probabilities": np.empty((0, len(classes)), np.float32),
        "validation_labels": np.empty(0, np.int64),
        "test_probabilities": probabilities.astype(np.float32),
        "test_labels": labels,
    }
    if images:
        arrays |= {
            "mistakes": worst,
            "mistakes_keys": np.array(
                [f"test/{classes[labels[k]]}/{k}.png" for k in worst], dtype=np.str_
            ),
            "mistakes_images": draw.integers(0, 256, (len(worst), side, side, 3), np.uint8),
        }
    np.savez_compressed(path, **arrays)
    return Scores(**scores(probabilities.astype(np.float32), labels, classes))


def run_folder(
    folder: Path,
    seed: int,
    *,
    classes: Sequence[str] = CLASSES,
    old: bool = False,
    logged: int = 40,
    evaluated: int = 10,
    side: int = 16,
) -> RunSummary:
    """Write a completed run, with fewer fields if `old`; return its summary."""
    folder.mkdir(parents=True)
    rows = metrics(0.1 * seed, logged, evaluated, old=old)
    lines = (json.dumps({"format": 1, **row}) for row in rows)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    test = predictions(
        folder / "predictions.npz", classes, seed, images=0 if old else 24, side=side
    )
    labels = {name: 10 + k for k, name in enumerate(classes)}
    return RunSummary(
        status="completed",
        algorithm="simple",
        backbone="wrn_10_1",
        seed=seed,
        profile="paper",
        steps=10 * logged,
        best_step=10 * logged,
        convergence_step=None,
        counts=Counts(labeled=4 * len(classes), unlabeled=0, validation=0, test=test.count),
        classes=tuple(classes),
        validation=None,
        test=test,
        probe=None,
        fitted=False,
        health=Health(
            alarms=(),
            labeled=dict.fromkeys(classes, 4),
            pseudo_labels=None if old else labels,
        ),
        fingerprint="71eed6f8",
        device="cpu",
        seconds=12.5,
        images_per_second=None,
    )


def spread(values: dict[int, float]) -> ScoreStats:
    numbers = np.array(list(values.values()))
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return ScoreStats(values=values, mean=mean, deviation=None, interval=None)
    deviation = float(numbers.std(ddof=1))
    interval = mean - deviation, mean + deviation
    return ScoreStats(values=values, mean=mean, deviation=deviation, interval=interval)


def comparison(
    folder: Path, names: Sequence[str] = ("simple", "mixmatch"), seeds: int = 3, **options: Any
) -> Comparison:
    """Return a comparison of completed runs; the options are those of `run_folder`."""
    rows: list[Variant] = []
    record = RunRecord(
        versions={"python": "3.11.7", "torch": "2.14.1"},
        platform="Linux",
        device="cpu (1 threads)",
        precision="fp32",
        torch_threads=1,
        plugins={},
        uses_hidden_labels=False,
        fingerprint="71eed6f8",
        split="5b1e",
        initial_weights="3e1d",
        draws={},
        notes=(),
        warnings=(),
    )
    for place, name in enumerate(names):
        members = []
        for seed in range(seeds):
            path = folder / f"{place}-{seed}"
            summary = run_folder(path, 10 * place + seed, **options)
            config = {"algo": name, "steps": summary.steps, name: {"temperature": 0.5}}
            members.append(
                ComparedRun(
                    row=name,
                    seed=seed,
                    folder=path,
                    status="completed",
                    summary=summary,
                    record=record,
                    config=config,
                )
            )
        accuracies = {
            m.seed: m.summary.test.accuracy for m in members if m.summary and m.summary.test
        }
        stats = {
            "test.accuracy": spread(accuracies),
            "test.macro_f1": spread(accuracies),
            "seconds": spread({seed: 12.5 + seed for seed in accuracies}),
        }
        difference = None
        if rows:
            base = rows[0].scores["test.accuracy"].values
            paired = spread({seed: value - base[seed] for seed, value in accuracies.items()})
            difference = Difference(**dict(paired), p_value=0.034 if seeds > 1 else None)
        rows.append(
            Variant(
                name=name,
                algorithm=name,
                overrides={},
                options=members[0].options,
                scores=stats,
                difference=difference,
                runs=tuple(members),
            )
        )
    shared = {"dataset": "digits", "steps": 400, "ema": {"decay": 0.99}, "weights": None}
    baseline = names[0] if len(names) > 1 else None
    return Comparison(
        name="trial",
        baseline=baseline,
        seeds=tuple(range(seeds)),
        fingerprint="71eed6f8",
        rows=tuple(rows),
        shared=shared,
    )
