"""Measure the memory and the speed of streaming unlabeled images from shards.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/streaming.py [--images 20000] [--side 200]

Writes tar shards to a temporary folder, each with 1,000 JPEG files of `side` x `side` pixels (500
different ones), prepares a run with ``--stream-buffer``, and reads one epoch of unlabeled images at
84 px in batches of 64. Prints the resident set before and during the epoch, how many blocks of the
shards were read, and the speed; then the speed of decoding the same files in the same order without
streaming; then the seconds per training step without and with reading one batch ahead, in turns.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import tarfile
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import numpy as np
import PIL
import torch
from PIL import Image

from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.data.images.files import read_images
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.engine.batches import unlabeled_stream
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.streaming import BLOCK_BYTES, StreamedImages

SIZE, BATCH, SHARD_IMAGES, DIFFERENT = 84, 64, 1000, 500
STEPS, TURNS = 20, 2


def write_shards(folder: Path, count: int, side: int) -> None:
    generator = np.random.default_rng(0)
    encoded = []
    for _ in range(DIFFERENT):
        coarse = generator.integers(0, 256, (25, 25, 3)).astype(np.uint8)
        fine = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))
        file = io.BytesIO()
        noise = generator.normal(0, 9, fine.shape)
        Image.fromarray((fine + noise).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        encoded.append(file.getvalue())
    for start in range(0, count, SHARD_IMAGES):
        with tarfile.open(folder / f"train-{start // SHARD_IMAGES:04}.tar", "w") as archive:
            for number in range(start, start + SHARD_IMAGES):
                parts = (("jpg", encoded[number % DIFFERENT]), ("cls", b"%d" % (number % 10)))
                for suffix, content in parts:
                    member = tarfile.TarInfo(f"{number:07}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def resident() -> float:
    """Return the resident set of this process in MB."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--buffer", type=int, default=1000)
    parser.add_argument("--side", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SSL_TOOLKIT_CACHE"] = str(Path(scratch, "cache"))
        data = Path(scratch, "data")
        data.mkdir()
        write_shards(data, arguments.images, arguments.side)
        total = sum(shard.stat().st_size for shard in data.iterdir())
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Pillow "
            f"{PIL.__version__}; {arguments.images} images in shards of {total / 1e6:.0f} MB, "
            f"buffer {arguments.buffer}"
        )
        keys = {
            "algo": "fixmatch", "backbone": "wrn_10_1", "data": str(data), "image_size": SIZE,
            "labels_per_class": 10, "steps": 10, "device": "cpu",
            "stream_buffer": arguments.buffer,
        }  # fmt: skip
        experiment = prepare(validate([Layer("benchmark", keys)]))
        images = experiment.trainer.batches.images
        streamed, files = images.pool.images, files_of(experiment.table)
        assert isinstance(streamed, StreamedImages)
        assert files is not None
        order = unlabeled_stream(images, 0).take(0, len(images.unlabeled))
        before, peak = resident(), 0.0
        streamed.blocks.reads = 0
        start = time.perf_counter()
        for batch in torch.split(order, BATCH):
            images.pool.gather(batch)
            peak = max(peak, resident())
        seconds = time.perf_counter() - start
        blocks = sum(-(-shard.stat().st_size // BLOCK_BYTES) for shard in data.iterdir())
        limit = streamed.blocks.most * BLOCK_BYTES / 1e6
        print(
            f"resident: {before:.0f} MB before, {peak:.0f} MB peak (at most "
            f"{limit:.0f} MB of blocks in memory); {streamed.blocks.reads} reads of {blocks} blocks"
        )
        first = order[:2000].tolist()
        rows = experiment.split.unlabeled[first]
        paths = [Path(files[row]) for row in rows.tolist()]
        start = time.perf_counter()
        for index in range(0, len(paths), BATCH):
            read_images(paths[index : index + BATCH], SIZE)
        seconds_per_file = (time.perf_counter() - start) / len(paths)
        print(
            f"streamed: {len(order) / seconds:,.0f} images per second; decoded without streaming: "
            f"{1 / seconds_per_file:,.0f}"
        )
        for ratio in (1, 7):
            keys |= {"batch_size": 8, "steps": STEPS, "fixmatch": {"unlabeled_ratio": ratio}}
            print(f"{8 * ratio} streamed images per step: {_compare_steps(keys)}")


def _compare_steps(keys: dict[str, object]) -> str:
    """Return the seconds per step without and with reading ahead: the least of some turns.

    They include one evaluation of 100 images.
    """
    least = {False: float("inf"), True: float("inf")}
    for _ in range(TURNS):
        for ahead in least:
            trainer = prepare(validate([Layer("benchmark", keys)])).trainer
            start = time.perf_counter()
            with trainer.batches.reading_ahead(STEPS if ahead else 0):
                trainer.fit()
            least[ahead] = min(least[ahead], (time.perf_counter() - start) / STEPS)
    return f"{least[False]:.3f} s per step, {least[True]:.3f} s with reading ahead"


if __name__ == "__main__":
    main()
