"""How the rate of `predict` compares with that of evaluation, where decoding is not the limit.

Evaluation classifies decoded images that lie in memory, in the layout that the run trained
with; `predict` opens the run's folder, decodes files ahead in threads, and yields row by row.
Both take the same images in the same batches. They alternate, and the medians are compared.

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
    """Two classes of noisy PNGs, all in the test part but two a class."""
    generator = np.random.default_rng(0)
    for number in range(count):
        part = "labeled" if number < 4 else "test"
        pixels = generator.integers(0, 256, (size, size, 3), dtype=np.uint8)
        path = folder / part / "ab"[number % 2] / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, compress_level=1)


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="wrn_28_2")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = folder / "data"
        make_images(data, given.images + 4, given.size)
        run = train({
            "algo": "supervised", "backbone": given.backbone, "data": str(data), "steps": 1,
            "image_size": given.size, "batch_size": 4, "output": str(folder / "run"),
            "device": given.device,
        }).folder  # fmt: skip
        model = load_model(run, given.device)
        paths = sorted((data / "test").rglob("*.png"))
        table = read_data(data, size=given.size)
        rows = np.flatnonzero(table.parts == "test")
        store = load_images(table, rows, given.size, model.device)
        evaluated = load_model(run, given.device).classifier.to(memory_format=torch.channels_last)
        places = torch.arange(len(rows))

        def evaluation() -> None:
            predict(evaluated, store, places, given.batch_size)

        def prediction() -> None:
            found = model.stream(paths, given.batch_size, workers=given.workers)
            each = ([str(path), *row] for path, row in zip(paths, found, strict=True))
            write_rows(folder / "predictions.csv", ("path", "p_a", "p_b"), each)

        seconds: dict[str, list[float]] = {"evaluation": [], "predict": []}
        busy: dict[str, list[float]] = {"evaluation": [], "predict": []}
        for repeat in range(given.repeats + 1):
            for name, task in (("evaluation", evaluation), ("predict", prediction)):
                started, worked = time.perf_counter(), time.process_time()
                task()
                if repeat:  # the first round warms up
                    seconds[name].append(time.perf_counter() - started)
                    busy[name].append(time.process_time() - worked)
    work = {name: statistics.median(taken) for name, taken in busy.items()}
    rates = {name: len(paths) / statistics.median(taken) for name, taken in seconds.items()}
    print(
        json.dumps(
            {
                "device": str(model.device),
                "threads": torch.get_num_threads(),
                "processors": os.cpu_count(),
                "torch": torch.__version__,
                "backbone": given.backbone,
                "size": given.size,
                "images": len(paths),
                "batch_size": given.batch_size,
                "repeats": given.repeats,
                "images_per_second": {name: round(rate, 1) for name, rate in rates.items()},
                "ratio": round(rates["predict"] / rates["evaluation"], 3),
                # Of all threads; on a machine that does other work too it is the steadier one.
                "ratio_of_processor_time": round(work["evaluation"] / work["predict"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
