"""Workarounds for torch 2.14, and all uses of its private names.

Each entry names the behavior that requires it; remove it when a newer torch no longer does.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed.nn.functional  # before a process group exists: `leave_process_group`
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

__all__ = [
    "BatchNorm",
    "TorchDispatchMode",
    "copy_all_",
    "data_parallel",
    "fresh_store",
    "keep_freed_memory",
    "leave_process_group",
    "lerp_all_",
    "norms",
    "sample_dirichlet",
    "tree_flatten",
    "tree_leaves",
    "without_compiler",
]
# BatchNorm: torch has no public base class of BatchNorm1d, 2d, 3d and SyncBatchNorm.
# TorchDispatchMode, tree_flatten, tree_leaves: documented by torch, but only under private modules.


@cache
def without_compiler(rule: type[Optimizer]) -> Callable[..., Optimizer]:
    """Return a subclass of the optimizer that does not import torch's compiler.

    torch 2.14 wraps these methods for users who compile the optimizer itself, which this
    toolkit does not; the wrappers import the compiler, a third of the startup time of a short run.
    """
    wrapped = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(rule, name)) for name in wrapped}
    methods["step"] = torch.no_grad()(inspect.unwrap(rule.step))
    return type(rule.__name__, (rule,), methods)


def keep_freed_memory(device: torch.device) -> None:
    """Let the C library keep freed memory for later tensors, up to a gigabyte each.

    torch 2.14 has no caching allocator on the CPU: a step frees what the next one allocates again.
    glibc by default returns it to the system, which then clears each page: a twentieth of the time
    of a small step, a third of a large one (docs/results/performance.md). The process keeps as
    much as it ever needed. Other C libraries and processes that compute on a GPU are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if device.type == "cpu" else None
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # names in glibc's malloc.h
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_threshold, 2**30)


def fresh_store(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Return a part of a store that only the processes of this start use.

    torchrun keeps its store when it restarts processes, so they would read the addresses of
    processes that have ended (torch 2.14). Here each process asks under a random name, and the
    first process answers with the name of the part.
    """
    name = os.urandom(8).hex()
    if rank:
        store.set(f"asks/{rank}", name)
        prefix = store.get(f"answer/{name}").decode()
        store.set(f"{prefix}/{rank}", "received")
        return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    waiting = set(range(1, size))
    deadline = time.monotonic() + timeout.total_seconds()
    while waiting and time.monotonic() < deadline:
        for other in [*waiting]:
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
            if store.check([f"{name}/{other}"]):
                waiting.remove(other)
        time.sleep(0.01)
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def leave_process_group() -> None:
    """Destroy the process group with its threads.

    In torch 2.14 gloo's threads live as long as anything refers to the group. If that is the end
    of the interpreter, a thread that still frees a tensor aborts the process ("terminate called
    without an active exception"). Two things refer to it: modules that `data_parallel` has
    returned, which are parts of cycles, and default arguments of ``torch.distributed.nn``, which
    `DistributedDataParallel` imports; imported earlier, their defaults are None.
    """
    dist.destroy_process_group()
    gc.collect()


def data_parallel(module: nn.Module) -> DistributedDataParallel:
    """Return the module with gradients averaged over the processes during backward.

    torch 2.14 warns of an argument's new name, which older versions do not have.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        # A parameter may get no gradient in a step; statistics are averaged after each step.
        return DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True)


def lerp_all_(starts: Sequence[Tensor], ends: Sequence[Tensor], weight: float) -> None:
    """Move each start toward its end in place, in one kernel; torch 2.14 has no public name."""
    torch._foreach_lerp_(list(starts), list(ends), weight)


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, in one kernel; torch 2.14 has no public name."""
    torch._foreach_copy_(list(targets), list(sources))


def norms(tensors: Sequence[Tensor], order: float = 2) -> list[Tensor]:
    """Return the norm of each tensor, from one kernel; torch 2.14 has no public name."""
    return list(torch._foreach_norm(list(tensors), order))


def sample_dirichlet(concentration: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from Dirichlet distributions; torch.distributions takes no generator in torch 2.14."""
    return torch._sample_dirichlet(concentration, generator)
