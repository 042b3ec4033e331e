"""Parts of a run beside the least that they can cost: the average, evaluation, growth of a step.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/parts.py [--rounds 20] [--threads 2]

- the average (WRN-28-2, buffers included) against one `foreach` lerp and copy of the same tensors,
  and against a loop over both state dicts as they are taken at each update, the way of FixMatch's
  well-known port and of timm's ModelEmaV2;
- evaluation of 128 images of 32 px (wrn_28_2, 64 a batch) against the bare forward of the same
  batches, ready as floats;
- CPU time of a step of MixMatch (wrn_10_1) at 16 to 128 labeled images: the slope of log time over
  log size, least squares through the medians.

The ways of one comparison take turns in rounds, in a rotating order; ratios are medians over the
rounds, by CPU time and by wall time.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import torch
from step import built, ratio, step_of, timed
from torch import nn

from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.torch_workarounds import copy_all_, lerp_all_

Ways = dict[str, Callable[[], object]]


def compared(ways: Ways, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """CPU and wall seconds of each way in each round."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        names = list(ways)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measured = timed(lambda way=ways[name]: way())
            if number > 1:
                times[name].append(measured)
    return times


def repeated(way: Callable[[], object], times: int) -> Callable[[], object]:
    return lambda: [way() for _ in range(times)]


def average_ways(model: nn.Module) -> Ways:
    ema = EMA(model, 0.999)
    averages, lives = list(ema.module.parameters()), list(model.parameters())
    copies, buffers = list(ema.module.buffers()), list(model.buffers())
    parameters = {name for name, _ in model.named_parameters()}

    @torch.no_grad()
    def bare() -> None:
        lerp_all_(averages, lives, 0.001)
        copy_all_(copies, buffers)

    @torch.no_grad()
    def loop() -> None:
        averaged = ema.module.state_dict()
        for name, value in model.state_dict().items():
            if name in parameters:
                averaged[name].copy_(averaged[name] * 0.999 + value * 0.001)
            else:
                averaged[name].copy_(value)

    ways = {"ours": lambda: ema.update(model), "foreach": bare, "loop": loop}
    return {name: repeated(way, 10) for name, way in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {platform.machine()}, {given.threads} threads, ", end="")
    print(f"{given.rounds} rounds")

    common = {"device": "cpu", "precision": "fp32", "image_size": 32, "batch": 16, "set": []}
    arguments = argparse.Namespace(algo="supervised", backbone="wrn_28_2", **common)
    trainer = built(arguments)
    times = compared(average_ways(trainer.classifier), given.rounds)
    took = 1e2 * statistics.median(cpu for cpu, _ in times["ours"])
    print(f"average: {took:.2f} ms; {ratio(times, 'ours', 'foreach')} of foreach, ", end="")
    print(f"{ratio(times, 'ours', 'loop')} of the loop")

    store, rows = trainer.batches.images.loaded, torch.arange(128)
    batches = [store.gather(part) for part in rows.split(64)]
    model = trainer.eval_model.eval()

    @torch.no_grad()
    def bare() -> None:
        for batch in batches:
            model(batch)

    ways: Ways = {"bare": bare, "ours": lambda: predict(model, store, rows, 64)}
    times = compared(ways, given.rounds)
    print(f"evaluation: {ratio(times, 'bare', 'ours')} of the bare forward's rate")

    sizes = (16, 32, 64, 128)
    arguments = argparse.Namespace(algo="mixmatch", backbone="wrn_10_1", **common)
    steps: Ways = {}
    for size in sizes:
        arguments.batch = size
        steps[str(size)] = step_of(built(arguments))
    times = compared(steps, given.rounds)
    points = [
        (math.log(int(name)), math.log(statistics.median(cpu for cpu, _ in measured)))
        for name, measured in times.items()
    ]
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    listed = ", ".join(f"{math.exp(y) * 1e3:.0f} ms at {math.exp(x):.0f}" for x, y in points)
    print(f"growth of a step with the batch: exponent {slope:.3f} ({listed})")


if __name__ == "__main__":
    main()
