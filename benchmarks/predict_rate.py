"""Compare the speed of `predict` with that of evaluation, where decoding is not the bottleneck.

Evaluation classifies decoded images in memory, in the memory format of training; `predict` decodes
files ahead in threads and yields one row per image. Both classify the same images in the same
batches, in turns; the medians are compared.

    python benchmarks/predict_rate.py [--backbone NAME] [--size N] [--images N] [--repeats N]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ssl_toolkit import load_model, train
from ssl_toolkit.data.load import read_data
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.training_images import load_images
from ssl_toolkit.tabular import write_rows


def make_images(folder: Path, count: int, size: int) -> None:
    """Write noisy PNG files of two classes: two labeled images per class, the rest test images."""
    generator = np.random.default_rng(0)
    for number in range(count):
        part = "labeled" if number < 4 else "test"
        pixels = generator.integers(0, 256, (size, size, 3), dtype=np.uint8)
        path = folder / part / "ab"[number % 2] / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, compress_level=1)


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="wrn_28_2")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = folder / "data"
        make_images(data, options.images + 4, options.size)
        run = train({
            "algo": "supervised", "backbone": options.backbone, "data": str(data), "steps": 1,
            "image_size": options.size, "batch_size": 4, "output": str(folder / "run"),
            "device": options.device,
        }).folder  # fmt: skip
        model = load_model(run, options.device)
        paths = sorted((data / "test").rglob("*.png"))
        table = read_data(data, size=options.size)
        rows = np.flatnonzero(table.splits == "test")
        store = load_images(table, rows, options.size, model.device)
        classifier = load_model(run, options.device).classifier.to(
            memory_format=torch.channels_last
        )
        indices = torch.arange(len(rows))

        def evaluation() -> None:
            predict(classifier, store, indices, options.batch_size)

        def prediction() -> None:
            predictions = model.stream(
                paths, batch_size=options.batch_size, workers=options.workers
            )
            table_rows = ([str(path), *row] for path, row in zip(paths, predictions, strict=True))
            write_rows(folder / "predictions.csv", ("path", "p_a", "p_b"), table_rows)

        seconds: dict[str, list[float]] = {"evaluation": [], "predict": []}
        cpu_seconds: dict[str, list[float]] = {"evaluation": [], "predict": []}
        for repeat in range(options.repeats + 1):
            for name, task in (("evaluation", evaluation), ("predict", prediction)):
                wall, cpu = time.perf_counter(), time.process_time()
                task()
                if repeat:  # the first round warms up
                    seconds[name].append(time.perf_counter() - wall)
                    cpu_seconds[name].append(time.process_time() - cpu)
    cpu_time = {name: statistics.median(times) for name, times in cpu_seconds.items()}
    rates = {name: len(paths) / statistics.median(times) for name, times in seconds.items()}
    print(
        json.dumps(
            {
                "device": str(model.device),
                "threads": torch.get_num_threads(),
                "processors": os.cpu_count(),
                "torch": torch.__version__,
                "backbone": options.backbone,
                "size": options.size,
                "images": len(paths),
                "batch_size": options.batch_size,
                "repeats": options.repeats,
                "images_per_second": {name: round(rate, 1) for name, rate in rates.items()},
                "ratio": round(rates["predict"] / rates["evaluation"], 3),
                # Of all threads; more stable on a machine that also does other work.
                "ratio_of_processor_time": round(cpu_time["evaluation"] / cpu_time["predict"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
