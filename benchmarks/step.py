"""A training step beside the work that its algorithm can't do without, and where the rest goes.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/step.py --algo simple --batch 16 [--set KEY=VALUE ...]

The floor, on ready random tensors: the guess of the averaged model (eval, no gradient), one train
forward and backward of all images that the algorithm trains on, with the plainest loss, SGD by
`foreach`, and the average by one `foreach` lerp and copy. Its network has torch's own layout. How
many images it guesses and trains on is counted in a step of ours.

`plain` is our step with that layout, `default` the step as a run makes it (channels last, freed
memory kept), `compiled` that under ``--compile``, and `beside` that with the options of
``--beside``. Each is a process of its own, since the last two change what they share; they take
turns, one step of each a round, in a rotating order. A ratio is the median over the rounds of ours
divided by the floor in the same round, by CPU time of the process and by wall time; on a machine
with other work the former is the steadier.

Shares are measured in further steps of `default`, with clocks around its parts; a part inside
another counts for itself alone. On a GPU (``--device cuda``) the wall time is until the device is
done and the CPU time that of the host, floor and ours run under ``--precision``, and further lines
give the kernels and the host's time of a step, and the images' share of the matrix-multiply limit.
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


def built(arguments: argparse.Namespace, **keys: Any) -> Trainer:
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


def step_of(trainer: Trainer) -> Callable[[], None]:
    """One step after another, as `fit` makes them; saving and evaluating left out."""

    def step() -> None:
        settings = trainer.settings
        trainers.set_learning_rate(trainer.optimizer, settings.schedule, trainer.step, 10**6)
        trainer._forward_backward(trainer.step, 1)
        trainer._update()
        trainer.step += 1
        if trainer.step % LOG_EVERY == 0:
            trainer.recorder.flush()

    return step


def counted(trainer: Trainer) -> tuple[int, int]:
    """Images that a step guesses on, and those that it trains on."""
    seen: dict[bool, int] = {True: 0, False: 0}

    def count(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen[torch.is_grad_enabled()] += len(given[0])

    modules = {id(m): m for m in (trainer.classifier, trainer.eval_model)}.values()
    hooks = [module.register_forward_pre_hook(count) for module in modules]
    step_of(trainer)()
    for hook in hooks:
        hook.remove()
    return seen[False], seen[True]


def floor_of(trainer: Trainer, guessed: int, trained: int) -> Callable[[], None]:
    model = copy.deepcopy(trainer.classifier)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.002, 0.9, nesterov=True, foreach=True)
    size = trainer.settings.image_size
    generator = torch.Generator().manual_seed(0)
    assert size is not None
    device = model.mean.device
    guess = torch.rand((guessed, 3, size, size), generator=generator).to(device)
    images = torch.rand((trained, 3, size, size), generator=generator).to(device)
    labels = torch.randint(10, (trained,), generator=generator).to(device)
    averages, lives = list(teacher.parameters()), list(model.parameters())
    copies, buffers = list(teacher.buffers()), list(model.buffers())

    def step() -> None:
        with trainer.autocast():
            if guessed:
                with torch.no_grad():
                    teacher(guess)
            loss = nn.functional.cross_entropy(model(images).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            lerp_all_(averages, lives, 0.001)
            copy_all_(copies, buffers)

    return step


class Shares:
    """CPU time by part; each clock stops while one inside it runs."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stack = ["the rest"]
        self._last = time.process_time()

    def switch(self) -> None:
        now = time.process_time()
        self.seconds[self._stack[-1]] += now - self._last
        self._last = now

    def around(self, owner: Any, attribute: str, part: str) -> Any:
        original = getattr(owner, attribute)

        def timed(*arguments: Any, **options: Any) -> Any:
            self.switch()
            self._stack.append(part)
            try:
                return original(*arguments, **options)
            finally:
                self.switch()
                self._stack.pop()

        return mock.patch.object(owner, attribute, timed)


def shares(trainer: Trainer, steps: int) -> dict[str, float]:
    measured, step = Shares(), step_of(trainer)
    parts: list[tuple[Any, str, str]] = [
        (trainer.batches, "draw", "data"),
        (ImageSource, "gather", "data"),
        (trainer.batches, "_views", "augmentation"),
        (type(trainer.algorithm), "step", "loss"),
        (EngineContext, "teacher_forward", "guess"),
        (EngineContext, "forward", "forward"),
        (Tensor, "backward", "backward"),
        (type(trainer.optimizer), "step", "optimizer"),
        (type(trainer.optimizer), "zero_grad", "optimizer"),
        (EMA, "update", "average"),
        (trainers, "gradient_norm", "logging"),
        (StepRecorder, "add", "logging"),
        (StepRecorder, "flush", "logging"),
    ]
    with ExitStack() as stack:
        for owner, attribute, part in parts:
            stack.enter_context(measured.around(owner, attribute, part))
        step()
        measured.seconds.clear()
        for _ in range(steps):
            step()
        measured.switch()
    total = sum(measured.seconds.values())
    return {part: seconds / total for part, seconds in measured.seconds.items()}


def timed(step: Callable[[], None]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    host = time.process_time() - cpu
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return host, time.perf_counter() - wall


class Way:
    """A process that makes steps of one way when it is asked to.

    Args:
        name: floor, plain, default, compiled or beside.
        arguments: of the command line.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        context.Process(target=serve, args=(name, arguments, other), daemon=True).start()
        other.close()

    def ask(self, question: str, *given: Any) -> Any:
        """What `serve` answers."""
        self._connection.send((question, *given))
        return self._connection.recv()


def serve(name: str, arguments: argparse.Namespace, connection: Connection) -> None:
    torch.set_num_threads(arguments.threads)
    if name == "beside":
        arguments.set += arguments.beside
    if name in ("floor", "plain"):
        trainer = built(arguments, model={"channels_last": False})
    else:
        trainer = built(arguments)
        keep_freed_memory(trainer.classifier.mean.device)
    guessed, trained = counted(trainer)
    if name == "compiled" and (told := compile_forwards(trainer)):
        raise SystemExit(told)
    step = floor_of(trainer, guessed, trained) if name == "floor" else step_of(trainer)
    answers: dict[str, Callable[..., Any]] = {
        "step": lambda: timed(step),
        "counted": lambda: (guessed, trained),
        "shares": lambda steps: shares(trainer, steps),
        "gpu": lambda seconds: list(on_gpu(trainer, seconds, guessed, trained)),
    }
    with suppress(EOFError):  # the one that asks has ended
        while True:
            question, *given = connection.recv()
            connection.send(answers[question](*given))


def ratio(times: dict[str, list[tuple[float, float]]], ours: str, other: str) -> str:
    """Medians over the rounds, by CPU time and by wall time."""
    pairs = list(zip(times[ours], times[other], strict=True))
    by_cpu, by_wall = (statistics.median(a[i] / b[i] for a, b in pairs) for i in (0, 1))
    return f"{by_cpu:.3f} / {by_wall:.3f}"


def on_gpu(trainer: Trainer, seconds: float, guessed: int, trained: int) -> Iterator[str]:
    """Kernels and host time of a step, and its work beside what matrix products reach."""
    step, size = step_of(trainer), trainer.settings.image_size
    assert size is not None
    trainer.step -= trainer.step % LOG_EVERY
    step()
    host, _ = timed(step)
    with torch.profiler.profile() as profile:
        step()
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    yield f"{len(kernels)} kernels and copies, {1e3 * host:.1f} ms of the host"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trainer.eval_model(torch.rand(1, 3, size, size, device=trainer.classifier.mean.device))
    work = counter.get_total_flops() * (guessed + 3 * trained)  # a backward is two forwards
    dtype = torch.bfloat16 if trainer.precision == "bf16" else torch.float32
    square = torch.rand(8192, 8192, device="cuda", dtype=dtype)
    limit = 2 * 8192**3 / min(timed(lambda: square @ square)[1] for _ in range(10))
    yield f"{work / seconds / 1e12:.1f} TFLOP/s of {limit / 1e12:.1f} that a matrix product reaches"


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
    ways = {name: Way(name, arguments) for name in names}
    guessed, trained = ways["plain"].ask("counted")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(arguments.rounds + 2):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measured = ways[name].ask("step")
            if number > 1:
                times[name].append(measured)

    print(f"{arguments.algo}, {arguments.backbone}, batch {arguments.batch}: ", end="")
    print(f"{guessed} images guessed on, {trained} trained on; torch {torch.__version__}, ", end="")
    print(f"{platform.machine()}, {arguments.threads} threads, {arguments.rounds} rounds")
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
        for line in ways["default"].ask("gpu", seconds):
            print(f"  {line}")
    if arguments.shares:
        measured = ways["default"].ask("shares", arguments.shares)
        for part, share in sorted(measured.items(), key=lambda p: -p[1]):
            print(f"  {part:14}{100 * share:6.2f} % of the CPU time of `default`")


if __name__ == "__main__":
    main()
