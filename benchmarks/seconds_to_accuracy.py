"""Measure the CPU seconds of training until a validation accuracy, over seeds.

    OMP_NUM_THREADS=1 python benchmarks/seconds_to_accuracy.py OUTPUT --config fast.yaml \\
        --set dataset=mnist5k --set algo=fixmatch --set fixmatch.unlabeled_ratio=2

Trains in this process with one thread. ``seconds`` in the logs of these runs is CPU time of the
process, which other work on the machine changes less than wall time. Finished runs in OUTPUT are
kept. Prints one line: means ± sample standard deviations over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from ssl_toolkit.comparisons.time_to_accuracy import seconds_to_accuracy
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.config.yaml import find_config
from ssl_toolkit.engine import trainer
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import metric_rows
from ssl_toolkit.runs.train import train


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0")
    parser.add_argument("--level", type=float, action="append", help="default: 0.9 and 0.95")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    levels = options.level or [0.9, 0.95]
    times: dict[float, list[float]] = {level: [] for level in levels}
    seconds, scores = [], []
    for seed in range(options.seeds):
        flags = {"seed": seed, "device": "cpu", "output": str(options.output / f"s{seed}")}
        config = load_config([find_config(name) for name in options.config], flags, options.set)
        with mock.patch.object(trainer, "time", SimpleNamespace(perf_counter=time.process_time)):
            run = train(config, resume=True)
        rows = [*metric_rows(RunFolder(run.folder).metrics)]
        for level in levels:
            reached = seconds_to_accuracy(rows, level)
            times[level] += [] if reached is None else [reached]
        seconds.append(run.summary.seconds)
        scores.append(run.summary.test.accuracy if run.summary.test else float("nan"))
    parts = [f"CPU seconds {_stats(seconds, 1)}", f"test accuracy {_stats(scores, 4)}"]
    for level, values in times.items():
        missing = "" if len(values) == len(seconds) else f" ({len(values)} of {len(seconds)} runs)"
        parts.append(f"to {level:g} {_stats(values, 1) if values else 'never'}{missing}")
    print(", ".join(parts))


def _stats(values: Sequence[float], digits: int) -> str:
    """Return mean ± sample standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


if __name__ == "__main__":
    main()
