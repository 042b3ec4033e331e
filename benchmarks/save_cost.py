"""How long a checkpoint takes, beside how long training to the next one takes.

    python benchmarks/save_cost.py [--backbone wrn_28_2 --image-size 32 --steps-between 20]

Decides whether saving in the background would pay: at most the share that is printed is gained.
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
    parser.add_argument("--steps-between", type=int, default=20, help="1,000 steps save each 20")
    given = parser.parse_args()
    tree = {"algo": "simple", "dataset": "digits", "backbone": given.backbone, "device": "cpu",
            "image_size": given.image_size, "batch_size": 16, "steps": 1000}  # fmt: skip
    trainer = prepare(validate([Layer("benchmark", tree)])).trainer
    trainer.classifier.train()
    steps, saves = [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder, "last.pt")
        for number in range(4):
            began = time.perf_counter()
            trainer._forward_backward(number, 1)
            trainer._update()
            steps.append(time.perf_counter() - began)
        for _ in range(5):
            began = time.perf_counter()
            save_checkpoint(path, trainer.state_dict(), keep=2)
            saves.append(time.perf_counter() - began)
        size = path.stat().st_size / 2**20
    step, save = statistics.median(steps[1:]), statistics.median(saves)
    share = save / (save + given.steps_between * step)
    print(
        f"{given.backbone} at {given.image_size} px: step {step:.2f} s, checkpoint of {size:.0f} "
        f"MiB {save:.2f} s: {share:.1%} of the time with one each {given.steps_between} steps"
    )


if __name__ == "__main__":
    main()
