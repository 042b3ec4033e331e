"""Compare a training step with the minimum work of its algorithm, and measure its parts.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/step.py --algo simple --batch 16 [--set KEY=VALUE ...]

The minimum is called the floor. On random tensors in memory it does: the forward pass of the EMA
model for pseudo labels (eval mode, no gradient), one forward and backward pass of all images that
the algorithm trains on, with cross-entropy, an SGD step with `foreach`, and an EMA update by one
`foreach` lerp and copy. Its memory format is torch's default. The numbers of images are counted in
a step of the toolkit.

The variants of the toolkit's step are:

- `plain`: the memory format of the floor;
- `default`: as in a run (channels last, freed memory retained);
- `compiled`: `default` with ``--compile``;
- `beside`: `default` with the options of ``--beside``.

Each variant runs in a separate process. Each round runs one step of each, in a rotating order. A
ratio is the median over the rounds of the step's time divided by the floor's, by CPU time of the
process and by wall time; CPU time is more stable on a machine that also does other work.

Shares are measured in further steps of `default` with timers around its parts; the time of a nested
part does not count for the outer one. On a GPU (``--device cuda``) wall time includes waiting for
the device, CPU time is that of the host, and ``--precision`` applies to all variants. Further lines
give the number of kernels and the host time of a step, and its TFLOP/s next to those of a matrix
product.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ssl_toolkit.config.loading import Layer, parse_set, validate
from ssl_toolkit.data.readers.arrays import ImageArray, array_table
from ssl_toolkit.engine import trainer as trainers
from ssl_toolkit.engine.compiling import compile_forwards
from ssl_toolkit.engine.context import EngineContext
from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.step_metrics import StepRecorder
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.interfaces import Dataset, DatasetDefaults, ImageTable
from ssl_toolkit.registry import register_dataset
from ssl_toolkit.torch_workarounds import copy_all_, keep_freed_memory, lerp_all_

LOG_EVERY = 10
IMAGES = 1000


@register_dataset("random_pixels")
class RandomPixels(Dataset):
    defaults = DatasetDefaults(image_size=32, labels_per_class=25, val_fraction=0.1)

    def load(self, root: Any, *, download: bool = False) -> ImageTable:
        generator = np.random.default_rng(0)
        pixels = generator.integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
        group = ImageArray("", "pool", pixels, np.arange(IMAGES) % 10)
        return array_table([str(c) for c in range(10)], [group])


def build_trainer(arguments: argparse.Namespace, **keys: Any) -> Trainer:
    tree = {
        "algo": arguments.algo,
        "backbone": arguments.backbone,
        "dataset": "random_pixels",
        "batch_size": arguments.batch,
        "device": arguments.device,
        "precision": arguments.precision,
        "image_size": arguments.image_size,
        "steps": 10**6,
        "optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    }
    layers = [Layer("benchmark", tree | keys), *map(parse_set, arguments.set)]
    trainer = prepare(validate(layers)).trainer
    trainer.classifier.train()
    return trainer


def make_step(trainer: Trainer) -> Callable[[], None]:
    """Return a function that runs a step as `fit` does, without saving and evaluating."""

    def step() -> None:
        settings = trainer.settings
        trainers.set_learning_rate(trainer.optimizer, settings.schedule, trainer.step, 10**6)
        trainer._forward_backward(trainer.step, 1)
        trainer._update()
        trainer.step += 1
        if trainer.step % LOG_EVERY == 0:
            trainer.recorder.flush()

    return step


def count_images(trainer: Trainer) -> tuple[int, int]:
    """Count the images of a step without gradient (for pseudo labels) and with gradient."""
    seen: dict[bool, int] = {True: 0, False: 0}

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[torch.is_grad_enabled()] += len(inputs[0])

    modules = {id(m): m for m in (trainer.classifier, trainer.eval_model)}.values()
    hooks = [module.register_forward_pre_hook(count) for module in modules]
    make_step(trainer)()
    for hook in hooks:
        hook.remove()
    return seen[False], seen[True]


def make_floor(trainer: Trainer, teacher_images: int, train_images: int) -> Callable[[], None]:
    model = copy.deepcopy(trainer.classifier)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.002, 0.9, nesterov=True, foreach=True)
    size = trainer.settings.image_size
    generator = torch.Generator().manual_seed(0)
    assert size is not None
    device = model.mean.device
    unlabeled = torch.rand((teacher_images, 3, size, size), generator=generator).to(device)
    images = torch.rand((train_images, 3, size, size), generator=generator).to(device)
    labels = torch.randint(10, (train_images,), generator=generator).to(device)
    averages, parameters = list(teacher.parameters()), list(model.parameters())
    copies, buffers = list(teacher.buffers()), list(model.buffers())

    def step() -> None:
        with trainer.autocast():
            if teacher_images:
                with torch.no_grad():
                    teacher(unlabeled)
            loss = nn.functional.cross_entropy(model(images).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            lerp_all_(averages, parameters, 0.001)
            copy_all_(copies, buffers)

    return step


class Shares:
    """CPU time by part; the timer of a part pauses while a nested one runs."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stack = ["the rest"]
        self._last = time.process_time()

    def switch(self) -> None:
        now = time.process_time()
        self.seconds[self._stack[-1]] += now - self._last
        self._last = now

    def patch(self, owner: Any, attribute: str, part: str) -> Any:
        original = getattr(owner, attribute)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            self.switch()
            self._stack.append(part)
            try:
                return original(*arguments, **options)
            finally:
                self.switch()
                self._stack.pop()

        return mock.patch.object(owner, attribute, wrapper)


def shares(trainer: Trainer, steps: int) -> dict[str, float]:
    timers, step = Shares(), make_step(trainer)
    parts: list[tuple[Any, str, str]] = [
        (trainer.batches, "draw", "data"),
        (ImageSource, "gather", "data"),
        (trainer.batches, "_views", "augmentation"),
        (type(trainer.algorithm), "step", "loss"),
        (EngineContext, "teacher_forward", "pseudo labels"),
        (EngineContext, "forward", "forward"),
        (Tensor, "backward", "backward"),
        (type(trainer.optimizer), "step", "optimizer"),
        (type(trainer.optimizer), "zero_grad", "optimizer"),
        (EMA, "update", "EMA"),
        (trainers, "gradient_norm", "logging"),
        (StepRecorder, "add", "logging"),
        (StepRecorder, "flush", "logging"),
    ]
    with ExitStack() as stack:
        for owner, attribute, part in parts:
            stack.enter_context(timers.patch(owner, attribute, part))
        step()
        timers.seconds.clear()
        for _ in range(steps):
            step()
        timers.switch()
    total = sum(timers.seconds.values())
    return {part: seconds / total for part, seconds in timers.seconds.items()}


def measure(step: Callable[[], None]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    host = time.process_time() - cpu
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return host, time.perf_counter() - wall


class Variant:
    """A process that runs steps of one variant on request.

    Args:
        name: floor, plain, default, compiled or beside.
        arguments: options of the command line.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        context.Process(target=serve, args=(name, arguments, other), daemon=True).start()
        other.close()

    def request(self, command: str, *arguments: Any) -> Any:
        """Return the result of a command of `serve`."""
        self._connection.send((command, *arguments))
        return self._connection.recv()


def serve(name: str, arguments: argparse.Namespace, connection: Connection) -> None:
    torch.set_num_threads(arguments.threads)
    if name == "beside":
        arguments.set += arguments.beside
    if name in ("floor", "plain"):
        trainer = build_trainer(arguments, model={"channels_last": False})
    else:
        trainer = build_trainer(arguments)
        keep_freed_memory(trainer.classifier.mean.device)
    counts = count_images(trainer)
    if name == "compiled" and (error := compile_forwards(trainer)):
        raise SystemExit(error)
    step = make_floor(trainer, *counts) if name == "floor" else make_step(trainer)
    commands: dict[str, Callable[..., Any]] = {
        "step": lambda: measure(step),
        "count": lambda: counts,
        "shares": lambda steps: shares(trainer, steps),
        "gpu": lambda seconds: list(gpu_report(trainer, seconds, *counts)),
    }
    with suppress(EOFError):  # the main process has exited
        while True:
            command, *parameters = connection.recv()
            connection.send(commands[command](*parameters))


def ratio(times: dict[str, list[tuple[float, float]]], ours: str, other: str) -> str:
    """Return the median ratios over the rounds, by CPU time and by wall time."""
    pairs = list(zip(times[ours], times[other], strict=True))
    by_cpu, by_wall = (statistics.median(a[i] / b[i] for a, b in pairs) for i in (0, 1))
    return f"{by_cpu:.3f} / {by_wall:.3f}"


def gpu_report(
    trainer: Trainer, seconds: float, teacher_images: int, train_images: int
) -> Iterator[str]:
    """Yield the kernels and host time of a step, and its TFLOP/s next to a matrix product's."""
    step, size = make_step(trainer), trainer.settings.image_size
    assert size is not None
    trainer.step -= trainer.step % LOG_EVERY
    step()
    host, _ = measure(step)
    with torch.profiler.profile() as profile:
        step()
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    yield f"{len(kernels)} kernels and copies, {1e3 * host:.1f} ms of host time"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trainer.eval_model(torch.rand(1, 3, size, size, device=trainer.classifier.mean.device))
    work = counter.get_total_flops() * (teacher_images + 3 * train_images)  # backward = 2 x forward
    dtype = torch.bfloat16 if trainer.precision == "bf16" else torch.float32
    square = torch.rand(8192, 8192, device="cuda", dtype=dtype)
    limit = 2 * 8192**3 / min(measure(lambda: square @ square)[1] for _ in range(10))
    yield f"{work / seconds / 1e12:.1f} TFLOP/s; a matrix product reaches {limit / 1e12:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", default="simple")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--backbone", default="wrn_28_2")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--shares", type=int, default=10, metavar="STEPS")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--beside", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    names = ["floor", "plain", "default"]
    names += ["compiled"] * arguments.compile + ["beside"] * bool(arguments.beside)
    variants = {name: Variant(name, arguments) for name in names}
    teacher_images, train_images = variants["plain"].request("count")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for number in range(arguments.rounds + 2):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            measurement = variants[name].request("step")
            if number > 1:  # the first two rounds warm up
                times[name].append(measurement)

    print(f"{arguments.algo}, {arguments.backbone}, batch {arguments.batch}: ", end="")
    print(f"{teacher_images} images for pseudo labels, {train_images} for training; ", end="")
    print(f"torch {torch.__version__}, {platform.machine()}, ", end="")
    print(f"{arguments.threads} threads, {arguments.rounds} rounds")
    for name, measurements in times.items():
        cpu, wall = (1e3 * statistics.median(part) for part in zip(*measurements, strict=True))
        line = f"{name:9} {cpu:7.0f} ms CPU {wall:7.0f} ms wall"
        if name != "floor":
            line += f"   {ratio(times, name, 'floor')} of the floor"
        if name == "beside":
            line += f", {ratio(times, name, 'default')} of `default`"
        print(line)
    if arguments.device != "cpu":
        seconds = statistics.median(wall for _, wall in times["default"])
        for line in variants["default"].request("gpu", seconds):
            print(f"  {line}")
    if arguments.shares:
        result = variants["default"].request("shares", arguments.shares)
        for part, share in sorted(result.items(), key=lambda p: -p[1]):
            print(f"  {part:14}{100 * share:6.2f} % of the CPU time of `default`")


if __name__ == "__main__":
    main()
