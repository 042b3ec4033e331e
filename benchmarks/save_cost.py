"""Compare the time to save a checkpoint with the training time until the next one.

    python benchmarks/save_cost.py [--backbone wrn_28_2 --image-size 32 --steps-between 20]

The share it prints is the most that saving in the background could gain.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.checkpoints import save_checkpoint
from ssl_toolkit.engine.experiment import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="wrn_28_2")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument(
        "--steps-between", type=int, default=20, help="steps from one checkpoint to the next"
    )
    options = parser.parse_args()
    tree = {"algo": "simple", "dataset": "digits", "backbone": options.backbone, "device": "cpu",
            "image_size": options.image_size, "batch_size": 16, "steps": 1000}  # fmt: skip
    trainer = prepare(validate([Layer("benchmark", tree)])).trainer
    trainer.classifier.train()
    steps, saves = [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder, "last.pt")
        for number in range(4):
            start = time.perf_counter()
            trainer._forward_backward(number, 1)
            trainer._update()
            steps.append(time.perf_counter() - start)
        for _ in range(5):
            start = time.perf_counter()
            save_checkpoint(path, trainer.state_dict(), keep=2)
            saves.append(time.perf_counter() - start)
        size = path.stat().st_size / 2**20
    step, save = statistics.median(steps[1:]), statistics.median(saves)
    share = save / (save + options.steps_between * step)
    print(
        f"{options.backbone}, {options.image_size} px: step {step:.2f} s, checkpoint of {size:.0f} "
        f"MiB {save:.2f} s: {share:.1%} of the time with a checkpoint "
        f"every {options.steps_between} steps"
    )


if __name__ == "__main__":
    main()
