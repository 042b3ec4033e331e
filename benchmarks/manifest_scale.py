"""Measure the startup time and the memory of a run on a manifest of a million images.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/manifest_scale.py [--rows 1000000] [--steps 400]

Writes the manifest to a temporary folder (``--folder DIR`` preserves it, with the cache, for the
next time). Each row names a different file, a hard link to one of 1,000 PNG files of 12 x 12
pixels. Prints, each in a new process:

1. how fast the cache is built at 8 px;
2. with the cache, the seconds until a run is ready for its first step (split file included) and the
   peak memory beyond `import torch, timm, ssl_toolkit` and beyond `import torch`; then the memory
   while it trains, and the time to draw a batch from this and from a small table;
3. the same startup from the split file, as `resume` does it.

Memory is the resident set, which includes mapped pages.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

SIZE, FILES, CLASSES = 8, 1000, 10


def write_manifest(folder: Path, rows: int) -> Path:
    """Write the manifest: 10 % of the rows labeled, 1 % test, the rest unlabeled."""
    manifest = folder / f"rows{rows}.csv"
    if manifest.exists():
        return manifest
    import numpy as np
    from PIL import Image

    sources = []
    for number in range(FILES):
        sources.append(folder / "sources" / f"{number}.png")
        if not sources[-1].exists():
            sources[-1].parent.mkdir(exist_ok=True)
            levels = np.random.default_rng(number).integers(0, 256, (12, 12, 3))
            Image.fromarray(levels.astype(np.uint8)).save(sources[-1])
    lines = ["path,label,split"]
    for number in range(rows):
        name = f"images/{number // 1000:04}/{number:07}.png"
        if number % 1000 == 0:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(sources[number % FILES], folder / name)
        label = f"class {number // 10 % CLASSES}"  # links to one file have the same label
        split = "test" if number % 100 == 0 else "labeled" if number % 10 == 1 else "unlabeled"
        lines.append(f"{name},{label if split != 'unlabeled' else ''},{split}")
    manifest.write_text("\n".join(lines) + "\n")
    return manifest


def memory() -> dict[str, float]:
    """Return the memory of this process in MB: resident, peak, and without mapped files."""
    names = {"VmRSS": "now", "VmHWM": "peak", "RssAnon": "anonymous"}
    megabytes = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            megabytes[names[name]] = int(value.split()[0]) * 1024 / 1e6
    return megabytes


def build(manifest: Path) -> None:
    from ssl_toolkit.data.load import read_data

    totals = []

    def progress(done: int, total: int) -> None:
        totals.append(total)
        if done and done % (total // 4) < 256:
            print(f"  {done:,} of {total:,} after {time.perf_counter() - start:.0f} s", flush=True)

    start = time.perf_counter()
    table = read_data(manifest, size=SIZE, progress=progress)
    seconds = time.perf_counter() - start
    if totals:
        rate = len(table.keys) / seconds
        print(f"building the cache: {seconds:.1f} s, {rate:,.0f} images per second")
    else:
        print("building the cache: already done")


def start_and_train(manifest: Path, steps: int, split: Path | None = None) -> None:
    import torch

    torch_alone = memory()
    import timm

    import ssl_toolkit  # noqa: F401

    imports = memory()
    assert timm.__version__
    from ssl_toolkit.config.loading import Layer, validate
    from ssl_toolkit.data.splits.split_file import save_split
    from ssl_toolkit.engine.experiment import prepare

    torch.set_num_threads(1)
    keys = {
        "algo": "fixmatch", "backbone": "wrn_10_1", "data": str(manifest), "image_size": SIZE,
        "batch_size": 16, "steps": steps, "eval_every": steps, "log_every": max(1, steps // 8),
        "device": "cpu",
    }  # fmt: skip
    if split is not None:
        keys["split"] = str(split)
    config = validate([Layer("benchmark", keys)])
    start = time.perf_counter()
    experiment = prepare(config)
    with tempfile.TemporaryDirectory() as scratch:
        save_split(Path(scratch, "split.json"), experiment.table, experiment.split)
        seconds = time.perf_counter() - start
        if split is None:
            os.replace(Path(scratch, "split.json"), manifest.parent / "split.json")
    ready = memory()
    assert not experiment.leaks
    print(
        f"start{' from a split file' if split else ''}: {seconds:.1f} s; memory beyond the imports "
        f"({imports['now']:.0f} MB): {ready['peak'] - imports['now']:.0f} MB peak, "
        f"{ready['now'] - imports['now']:.0f} MB when ready; beyond torch alone: "
        f"{ready['peak'] - torch_alone['now']:.0f} MB peak"
    )
    if split is not None:
        return
    assert len(experiment.table.keys) == sum(1 for _ in manifest.open()) - 1

    def report(row: dict[str, float]) -> None:
        now = memory()
        print(
            f"  step {row['step']:>4}: {now['now'] - imports['now']:.0f} MB beyond the imports, "
            f"{now['anonymous'] - imports['anonymous']:.0f} MB without mapped files"
        )

    experiment.trainer.observers.append(report)
    experiment.trainer.fit()
    keys["data"] = str(write_manifest(manifest.parent, 10_000))
    small = prepare(validate([Layer("benchmark", keys)]))
    for name, batches in (("", experiment.trainer.batches), ("10,000", small.trainer.batches)):
        seconds = []
        for number in range(300):
            start = time.perf_counter()
            batches.draw(number)
            seconds.append(time.perf_counter() - start)
        rows = name or f"{len(experiment.table.keys):,}"
        print(f"drawing a batch from {rows} rows: median {1e3 * statistics.median(seconds):.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--phase", choices=["build", "start", "again"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.phase is not None:
        manifest = write_manifest(arguments.folder, arguments.rows)
        if arguments.phase == "build":
            build(manifest)
        else:
            split = manifest.parent / "split.json" if arguments.phase == "again" else None
            start_and_train(manifest, arguments.steps, split)
        return
    with contextlib.ExitStack() as stack:
        folder = arguments.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        print(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}; {arguments.rows:,} rows, {SIZE} px, 1 thread",
            flush=True,
        )
        write_manifest(folder, arguments.rows)
        environment = {
            **os.environ, "SSL_TOOLKIT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"
        }  # fmt: skip
        options = ["--folder", folder, "--rows", arguments.rows, "--steps", arguments.steps]
        for phase in ("build", "start", "again"):
            command = [sys.executable, __file__, "--phase", phase, *map(str, options)]
            subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
