"""Compare the EMA update and evaluation with their lower bounds; measure how a step scales.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/parts.py [--rounds 20] [--threads 2]

- The EMA update (WRN-28-2, buffers included) is compared with one `foreach` lerp and copy of the
  same tensors, and with a loop over both state dicts, as in a well-known PyTorch port of FixMatch
  and in timm's ModelEmaV2.
- Evaluation of 128 images of 32 px (wrn_28_2, batches of 64) is compared with only the forward pass
  on the same batches as float tensors.
- The CPU time of a step of MixMatch (wrn_10_1) is measured with 16 to 128 labeled images; printed
  is the slope of log time over log batch size, fitted by least squares to the medians.

Each round runs all variants of a comparison once, in a rotating order; ratios are medians over the
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
from step import build_trainer, make_step, measure, ratio
from torch import nn

from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.torch_workarounds import copy_all_, lerp_all_

Variants = dict[str, Callable[[], object]]


def compare(variants: Variants, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the CPU and wall seconds of each variant in each round."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for number in range(rounds + 2):
        names = list(variants)
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            measurement = measure(lambda run=variants[name]: run())
            if number > 1:  # the first two rounds warm up
                times[name].append(measurement)
    return times


def repeat(run: Callable[[], object], times: int) -> Callable[[], object]:
    return lambda: [run() for _ in range(times)]


def ema_variants(model: nn.Module) -> Variants:
    ema = EMA(model, 0.999)
    averages, parameters = list(ema.module.parameters()), list(model.parameters())
    copies, buffers = list(ema.module.buffers()), list(model.buffers())
    parameter_names = {name for name, _ in model.named_parameters()}

    @torch.no_grad()
    def foreach() -> None:
        lerp_all_(averages, parameters, 0.001)
        copy_all_(copies, buffers)

    @torch.no_grad()
    def loop() -> None:
        averaged = ema.module.state_dict()
        for name, value in model.state_dict().items():
            if name in parameter_names:
                averaged[name].copy_(averaged[name] * 0.999 + value * 0.001)
            else:
                averaged[name].copy_(value)

    variants = {"ours": lambda: ema.update(model), "foreach": foreach, "loop": loop}
    return {name: repeat(run, 10) for name, run in variants.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {platform.machine()}, {options.threads} threads, ", end="")
    print(f"{options.rounds} rounds")

    common = {"device": "cpu", "precision": "fp32", "image_size": 32, "batch": 16, "set": []}
    arguments = argparse.Namespace(algo="supervised", backbone="wrn_28_2", **common)
    trainer = build_trainer(arguments)
    times = compare(ema_variants(trainer.classifier), options.rounds)
    milliseconds = 1e2 * statistics.median(cpu for cpu, _ in times["ours"])
    print(f"EMA update: {milliseconds:.2f} ms; ", end="")
    print(f"{ratio(times, 'ours', 'foreach')} of foreach, ", end="")
    print(f"{ratio(times, 'ours', 'loop')} of the loop")

    store, rows = trainer.batches.images.loaded, torch.arange(128)
    batches = [store.gather(part) for part in rows.split(64)]
    model = trainer.eval_model.eval()

    @torch.no_grad()
    def forward_only() -> None:
        for batch in batches:
            model(batch)

    variants: Variants = {"forward": forward_only, "ours": lambda: predict(model, store, rows, 64)}
    times = compare(variants, options.rounds)
    print(f"evaluation: {ratio(times, 'forward', 'ours')} of the speed of the forward pass alone")

    sizes = (16, 32, 64, 128)
    arguments = argparse.Namespace(algo="mixmatch", backbone="wrn_10_1", **common)
    steps: Variants = {}
    for size in sizes:
        arguments.batch = size
        steps[str(size)] = make_step(build_trainer(arguments))
    times = compare(steps, options.rounds)
    points = [
        (math.log(int(name)), math.log(statistics.median(cpu for cpu, _ in measured)))
        for name, measured in times.items()
    ]
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    listed = ", ".join(f"{math.exp(y) * 1e3:.0f} ms at {math.exp(x):.0f}" for x, y in points)
    print(f"scaling of a step with the batch size: exponent {slope:.3f} ({listed})")


if __name__ == "__main__":
    main()
