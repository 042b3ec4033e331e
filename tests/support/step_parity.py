"""Train a toy network by an algorithm and by a plain-loop reference, and compare them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from toy_context import FakeContext, Net, build, make_batch, toy_images

from ssl_toolkit import Algorithm, Batch

Reference = Callable[[Net, Batch, int], tuple[dict[str, Any], list[bool] | None]]
"""``reference(net, batch, step)`` returns the weighted losses by name and the mask of the pseudo
labels (None without any), from the formulas of the paper."""

STEPS, RATE = 20, 0.5


def assert_parity(
    kind: type[Algorithm],
    reference: Reference,
    state: Callable[[], Mapping[str, Any]],
    scale: float = 150,
    head: nn.Module | None = None,
    **options: Any,
) -> list[int]:
    """Check losses, gradients, masks and buffers at each of 20 steps, in float64 to 1e-9.

    Args:
        kind: Algorithm to check.
        reference: Its formula.
        state: Returns the expected first entries of buffers after each step, by name.
        scale: Factor of the head's weights; makes predictions confident for some images only.
        head: Module of the reference that takes the weights of the algorithm's only module, and is
            trained like it.
        options: Options of the algorithm.

    Returns:
        Number of pseudo labels in use at each step.
    """
    ctx = FakeContext(normalized=False)
    ctx.live.double()
    ctx.teacher_net.double()
    with torch.no_grad():
        ctx.live.classifier.weight.mul_(scale)
    net = copy.deepcopy(ctx.live)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        algorithm = build(kind, **options).double()
    for name in algorithm.averaged_modules:
        ctx.averages[name] = copy.deepcopy(algorithm.get_submodule(name))
    heads = list(algorithm.children())
    assert len(heads) == (head is not None)
    if head is not None:
        head.double().load_state_dict(heads[0].state_dict())
    ours_trained = [*ctx.live.parameters(), *algorithm.parameters()]
    theirs_trained = [*net.parameters(), *(head.parameters() if head else ())]
    used = []
    for step in range(STEPS):
        ctx.step = step
        if algorithm.scan_every and step % algorithm.scan_every == 0:
            _scan(algorithm, ctx)
        batch = _double(make_batch(algorithm, seed=step))
        output = algorithm.step(batch, ctx)
        expected, mask = reference(net, batch, step)
        losses = {name: loss.weight * loss.value for name, loss in output.losses.items()}
        assert losses.keys() == expected.keys()
        for name, value in losses.items():
            _close(value, torch.as_tensor(expected[name], dtype=torch.float64), f"{name}, {step}")
        ours = output.pseudo_labels
        assert (ours.mask.tolist() if ours else None) == mask
        used.append(sum(mask or []))
        buffers = dict(algorithm.named_buffers())
        for name, value in state().items():
            target = torch.as_tensor(value, dtype=torch.float64)
            buffer = buffers[name] if target.ndim == 0 else buffers[name][: len(target)]
            _close(buffer.double(), target, f"{name}, {step}")
        _descend(ours_trained, sum(losses.values()))
        _descend(theirs_trained, sum(expected.values()))
        for one, other in zip(ours_trained, theirs_trained, strict=True):
            _close(one, other, f"parameters, {step}")
    return used


def toy_teacher() -> Net:
    """Return a copy of the teacher that `assert_parity` uses."""
    return copy.deepcopy(FakeContext(normalized=False).teacher_net).double()


def _double(batch: Batch) -> Batch:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(
        batch,
        **{
            name: value.double()
            for name, value in values.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        },
    )


def _close(ours: Tensor, theirs: Tensor, name: str) -> None:
    torch.testing.assert_close(
        ours.detach(),
        theirs.detach(),
        rtol=1e-9,
        atol=1e-9,
        msg=lambda text: f"{name}: {text}",
    )


def _descend(parameters: list[nn.Parameter], loss: Any) -> None:
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter -= RATE * gradient


@torch.no_grad()
def _scan(algorithm: Algorithm, ctx: FakeContext) -> None:
    images, labels, pool = toy_images()
    cut = len(pool) // 3  # several batches, of which the last is larger
    places = torch.arange(len(pool))
    algorithm.scan(
        iter([(torch.arange(len(images)), images, labels)]),
        iter([(places[:cut], pool[:cut]), (places[cut:], pool[cut:])]),
        ctx,
    )
