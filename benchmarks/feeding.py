"""Compare how fast images are loaded from the cache and by torchvision's ImageFolder.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/feeding.py [--images 2000] [--size 84] [--rounds 10]

Writes JPEG files of 200 x 200 pixels to a temporary folder. Each round reads the same 250 of them
in random batches of 50, as float32 in [0, 1], by each loader in a rotating order: ImageFolder (PIL,
Resize, ToTensor), the memory-mapped cache, and the cache loaded into memory. Also prints the time
to build the cache and to open it again.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, InterpolationMode, Resize, ToTensor

from ssl_toolkit.data.load import read_data
from ssl_toolkit.engine import training_images

IMAGES, BATCH = 250, 50


def write_images(folder: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    for number in range(count):
        coarse = generator.integers(0, 256, (25, 25, 3)).astype(np.uint8)
        fine = np.asarray(Image.fromarray(coarse).resize((200, 200), Image.Resampling.BICUBIC))
        noise = generator.normal(0, 9, fine.shape)
        path = folder / f"class_{number % 10}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((fine + noise).clip(0, 255).astype(np.uint8)).save(path, quality=90)


def measure_loading(load: Callable[[list[int]], Tensor], rows: list[int]) -> float:
    start = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        load(rows[first : first + BATCH])
    return time.perf_counter() - start


def measure(task: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time and the CPU time of a task in seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    task()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=84)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    size = arguments.size
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "data")
        write_images(data, arguments.images)
        total = sum(file.stat().st_size for file in data.rglob("*.jpg"))
        print(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch "
            f"{torch.__version__}, Pillow {PIL.__version__}, {arguments.threads} threads; "
            f"{arguments.images} JPEG files of {total / arguments.images / 1024:.1f} KiB, "
            f"{size} px, {arguments.rounds} rounds of {IMAGES}"
        )
        resize = Resize((size, size), InterpolationMode.BICUBIC)  # as the cache does
        files = ImageFolder(data, Compose([resize, ToTensor()]))
        ratios = []
        for number in range(5):
            os.environ["SSL_TOOLKIT_CACHE"] = str(Path(scratch, f"cache{number}"))
            build = measure(lambda: read_data(data, size=size, workers=arguments.workers))
            epoch = measure(lambda: [files[row] for row in range(arguments.images)])
            ratios.append([theirs / ours for theirs, ours in zip(epoch, build, strict=True)])
        wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(
            f"building the cache: {wall:.2f} times as fast as an epoch of ImageFolder, {cpu:.2f} "
            f"by CPU time (medians of 5 rounds, {arguments.workers} workers)"
        )
        start = time.perf_counter()
        table = read_data(data, size=size)
        seconds = time.perf_counter() - start
        print(f"opening the cache: {seconds:.2f} s, {arguments.images / seconds:,.0f} images/s")

        rows = np.arange(arguments.images)
        in_memory = training_images.load_images(table, rows, size)
        training_images._COPIED_BYTES = 0
        mapped = training_images.load_images(table, rows, size)
        assert isinstance(in_memory.images, Tensor)
        assert not isinstance(mapped.images, Tensor)
        loaders: dict[str, Callable[[list[int]], Tensor]] = {
            "ImageFolder": lambda rows: torch.stack([files[row][0] for row in rows]),
            "cache, mapped": lambda rows: mapped.gather(torch.tensor(rows)),
            "cache, in memory": lambda rows: in_memory.gather(torch.tensor(rows)),
        }
        difference = (loaders["cache, mapped"]([3, 5]) - loaders["ImageFolder"]([3, 5])).abs().max()
        assert difference < 0.01, difference
        seconds_of: dict[str, list[float]] = {name: [] for name in loaders}
        generator = np.random.default_rng(1)
        for number in range(arguments.rounds + 1):
            selected = generator.permutation(arguments.images)[:IMAGES].tolist()
            names = [*loaders]
            for name in names[number % 3 :] + names[: number % 3]:
                seconds = measure_loading(loaders[name], selected)
                if number:  # the first round warms up
                    seconds_of[name].append(seconds)
        slow = seconds_of["ImageFolder"]
        for name, fast in seconds_of.items():
            rates = sorted(IMAGES / seconds for seconds in fast)
            ratio = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
            print(
                f"{name}: median {statistics.median(rates):,.0f} images per second "
                f"({rates[0]:,.0f} to {rates[-1]:,.0f}), {ratio:.1f} times as fast as ImageFolder "
                "(median of the rounds)"
            )


if __name__ == "__main__":
    main()
