"""Requirements that several rules share."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.testing.rules import require
from ssl_toolkit.torch_workarounds import tree_flatten

M = TypeVar("M", bound=nn.Module)

GENERATORS = ("python", "numpy", "torch")


@contextmanager
def no_global_draws(caller: str, generators: Iterable[str] = GENERATORS) -> Iterator[None]:
    """Require that the block draws nothing from the global generators."""
    before = random_states()
    yield
    used = [name for name in differing(before, random_states()) if name in generators]
    require(not used, f"{caller} draws from the global generator of {listed(used)}")


@contextmanager
def unmodified(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Require that the block doesn't write to the tensors."""
    before = {name: (tensor.clone(), tensor._version) for name, tensor in tensors.items()}
    yield
    modified = [
        name
        for name, tensor in tensors.items()
        if tensor._version != before[name][1] or not torch.equal(tensor, before[name][0])
    ]
    require(not modified, f"{listed(modified)} modified in place")


def require_gradients(module: nn.Module) -> None:
    """Require a finite gradient for every trainable parameter."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            gradient = parameter.grad
            require(gradient is not None, f"{name} gets no gradient")
            finite = gradient is None or gradient.isfinite().all()
            require(finite, f"the gradient of {name} is inf or nan")


def require_statistics(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    """Require three plausible numbers for each of mean and std, or None for both."""
    require((mean is None) == (std is None), f"mean is {mean}, but std is {std}")
    if mean is not None and std is not None:
        require(len(mean) == 3 and all(0 <= m <= 1 for m in mean), f"mean is {mean}")
        require(len(std) == 3 and all(0 < s <= 1 for s in std), f"std is {std}")


def replicas(module: M, build: Callable[[], M]) -> dict[str, M]:
    """Return replicas that must equal a module, by the way of replication.

    Args:
        module: module to replicate.
        build: builds another module, which then loads the state.
    """
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    restored = build()
    restored.load_state_dict(torch.load(file, weights_only=True))
    return {
        "restored from its state_dict": restored,
        "copied": copy.deepcopy(module),
        "pickled": pickle.loads(pickle.dumps(module)),
    }


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ; values are tensors, plain types or nested ones."""
    return sorted(
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not _equal(one[name], other[name])
    )


def listed(names: Iterable[str]) -> str:
    """Return quoted names for a message."""
    return ", ".join(map(repr, names))


def _equal(one: Any, other: Any) -> bool:
    (leaves, form), (other_leaves, other_form) = tree_flatten(one), tree_flatten(other)
    return form == other_form and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)
        for a, b in zip(leaves, other_leaves, strict=True)
    )
