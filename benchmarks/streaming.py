"""Memory and rate of unlabeled images that are streamed from shards.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/streaming.py [--images 20000] [--buffer 1000]

Makes tar shards of 1,000 JPEG files of 200 x 200 pixels each (500 different ones) in a temporary
folder, prepares a run with --stream-buffer, and takes one epoch of unlabeled images at 84 px in
batches of 64. Prints the resident set before and during the epoch, how often each block of the
shards was read, and the rate; then that of decoding the same files in the same order one by one.
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

SIZE, BATCH, A_SHARD, DIFFERENT = 84, 64, 1000, 500


def make(folder: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    encoded = []
    for _ in range(DIFFERENT):
        coarse = generator.integers(0, 256, (25, 25, 3)).astype(np.uint8)
        fine = np.asarray(Image.fromarray(coarse).resize((200, 200), Image.Resampling.BICUBIC))
        file = io.BytesIO()
        noise = generator.normal(0, 9, fine.shape)
        Image.fromarray((fine + noise).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        encoded.append(file.getvalue())
    for start in range(0, count, A_SHARD):
        with tarfile.open(folder / f"train-{start // A_SHARD:04}.tar", "w") as archive:
            for number in range(start, start + A_SHARD):
                parts = (("jpg", encoded[number % DIFFERENT]), ("cls", b"%d" % (number % 10)))
                for suffix, content in parts:
                    member = tarfile.TarInfo(f"{number:07}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def resident() -> float:
    """Megabytes of this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--buffer", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ["SSL_TOOLKIT_CACHE"] = str(Path(place, "cache"))
        data = Path(place, "data")
        data.mkdir()
        make(data, arguments.images)
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
        before, highest = resident(), 0.0
        streamed.blocks.reads = 0
        start = time.perf_counter()
        for batch in torch.split(order, BATCH):
            images.pool.gather(batch)
            highest = max(highest, resident())
        seconds = time.perf_counter() - start
        blocks = sum(-(-shard.stat().st_size // BLOCK_BYTES) for shard in data.iterdir())
        held = streamed.blocks.most * BLOCK_BYTES / 1e6
        print(
            f"resident: {before:.0f} MB before, {highest:.0f} MB at its highest (at most "
            f"{held:.0f} MB of blocks are held); {streamed.blocks.reads} reads of {blocks} blocks"
        )
        first = order[:2000].tolist()
        rows = experiment.split.unlabeled[first]
        paths = [Path(files[row]) for row in rows.tolist()]
        start = time.perf_counter()
        for one in range(0, len(paths), BATCH):
            read_images(paths[one : one + BATCH], SIZE)
        alone = (time.perf_counter() - start) / len(paths)
        print(
            f"streamed: {len(order) / seconds:,.0f} images a second; decoded one by one: "
            f"{1 / alone:,.0f}"
        )


if __name__ == "__main__":
    main()
