"""Compare the Pair Loss computed by matrix products with the same loss from explicit pairs.

Times forward and backward at the paper's size for CIFAR-10: 64 images with 7 strong views each,
which gives 448 rows and 200,256 ordered pairs. Prints medians over rounds that alternate the order
of the two. Then runs each distance once with 4,096 rows and 100 classes, and prints the peak memory
of the process.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/pair_loss.py [--rounds 20] [--threads 1]
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import torch
from ssl_toolkit_simple import pair_loss, pair_weights
from torch import Tensor

IMAGES, STRONG_VIEWS, CLASSES = 64, 7, 10
THRESHOLDS = 0.95, 0.9
# Built once, so that the time of the explicit form does not include it.
PAIRS = (~torch.eye(IMAGES * STRONG_VIEWS, dtype=torch.bool)).nonzero(as_tuple=True)


def explicit_pairs(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the loss with a row per ordered pair; the backward needs N² · C stored numbers."""
    i, j = PAIRS
    log_probs = logits.log_softmax(dim=-1)
    anchors = targets[i]
    similarity = (anchors.sqrt() * targets[j].sqrt()).sum(dim=-1)
    confidence = anchors.amax(dim=-1)
    weights = confidence * (confidence > THRESHOLDS[0])
    weights = weights * similarity * (similarity > THRESHOLDS[1])
    distances = 1 - (anchors.sqrt() * (log_probs[j] / 2).exp()).sum(dim=-1)
    return (weights * distances).sum() / (len(i) / 2)


def matrix_products(logits: Tensor, targets: Tensor) -> Tensor:
    return pair_loss(logits, targets, *pair_weights(targets, *THRESHOLDS))


def measure(form: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor) -> float:
    logits.grad = None
    start = time.perf_counter()
    form(logits, targets).backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(IMAGES * STRONG_VIEWS, CLASSES, generator=generator).requires_grad_()
    probs = (8 * torch.randn(IMAGES, CLASSES, generator=generator)).softmax(dim=-1)
    targets = probs.repeat(STRONG_VIEWS, 1)

    values, gradients = [], []
    for form in (matrix_products, explicit_pairs):  # also the warm-up
        logits.grad = None
        loss = form(logits, targets)
        loss.backward()
        values.append(loss.detach())
        gradients.append(logits.grad)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)

    seconds: dict[str, list[float]] = {"matrix_products": [], "explicit_pairs": []}
    for number in range(arguments.rounds):
        forms = [matrix_products, explicit_pairs]
        for form in forms if number % 2 == 0 else forms[::-1]:
            seconds[form.__name__].append(measure(form, logits, targets))

    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, ", end="")
    print(f"{arguments.threads} threads, {arguments.rounds} rounds, {len(targets)} x {CLASSES}")
    for name, times in seconds.items():
        spread = f"{1e3 * min(times):.2f} to {1e3 * max(times):.2f}"
        print(f"{name}: median {1e3 * statistics.median(times):.2f} ms ({spread})")
    rounds = zip(seconds["explicit_pairs"], seconds["matrix_products"], strict=True)
    ratio = statistics.median(slow / fast for slow, fast in rounds)
    print(f"explicit pairs / matrix products: {ratio:.1f} (median of the rounds)")

    logits = torch.randn(4096, 100, generator=generator).requires_grad_()
    targets = (8 * torch.randn(4096, 100, generator=generator)).softmax(dim=-1)
    for distance in ("bhattacharyya", "entropy", "l2"):
        start = time.perf_counter()
        pair_loss(logits, targets, *pair_weights(targets, *THRESHOLDS), distance).backward()
        elapsed = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"4096 rows, {distance}: {1e3 * elapsed:.0f} ms; peak memory so far {peak:.0f} MiB")


if __name__ == "__main__":
    main()
