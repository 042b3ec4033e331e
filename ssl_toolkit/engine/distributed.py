"""The processes that share a run: one, or several under torch's DistributedDataParallel.

Every process holds the whole model and draws the whole batch of a step, indices and augmentation
alike, but reads, augments and trains on its own shard. So a run of several processes computes what
one process computes with the same batch, up to the order of sums (and BatchNorm, whose statistics
are those of a shard).

The main process, rank 0, alone writes files; it broadcasts to the others what they need.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ssl_toolkit.errors import ConfigError, ToolkitError, TrainingError, UserError
from ssl_toolkit.torch_workarounds import (
    BatchNorm,
    copy_all_,
    fresh_store,
    leave_process_group,
)

_CPU = torch.device("cpu")

T = TypeVar("T")
Message = dict[str, Any]

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, such as while the main process writes a checkpoint."""

LOST = (
    "another process of the run ended before this one; the last checkpoint is kept, resume it with "
    "`ssl-toolkit resume`"
)


class ProcessGroup:
    """The processes of a run, as one of them sees it.

    With a single process, every method returns its argument and costs nothing. With several, each
    method must be called by all of them in the same order.

    Args:
        rank: index of this process, 0 for the main process.
        size: number of processes.
        local_rank: index of this process on its host.
        local_size: number of processes on its host.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self._receiving = False
        """True while the other processes are blocked in `receive`."""

    @property
    def is_main(self) -> bool:
        """True in the process that writes the files."""
        return self.rank == 0

    @property
    def peers_waiting(self) -> bool:
        """True while the other processes are blocked in `receive`."""
        return self.size > 1 and self._receiving

    # --- tensors --------------------------------------------------------------------------------

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """Return the sum over all processes, without gradient."""
        value = value.detach()
        if self.size == 1:
            return value
        summed = value.to(torch.int64) if value.dtype == torch.bool else value.clone()
        dist.all_reduce(summed)
        return summed

    def all_gather(self, value: Tensor, dim: int = 0) -> Tensor:
        """Concatenate the shards of all processes along a dimension, by rank; with gradient."""
        if self.size == 1:
            return value
        gathered: Tensor = _AllGather.apply(value, dim, self)
        return gathered

    def local_shard(self, value: Tensor, dim: int = 0) -> Tensor:
        """Return this process's shard of a tensor that all have: the inverse of `all_gather`."""
        if self.size == 1:
            return value
        return value.chunk(self.size, dim)[self.rank]

    def unsynchronized(self, module: nn.Module) -> AbstractContextManager[object]:
        """Keep gradients apart: the last batch of a step exchanges their sum, not each one."""
        context = module.no_sync if self.size > 1 else nullcontext
        return context()  # type: ignore[operator]

    @torch.no_grad()
    def average_statistics(self, module: nn.Module) -> None:
        """Average the running statistics of all BatchNorm layers over the processes.

        Those of frozen layers, which are in eval mode, stay bit for bit the same.
        """
        if self.size == 1:
            return
        layers = [m for m in module.modules() if isinstance(m, BatchNorm) and m.training]
        buffers = [s for m in layers for s in (m.running_mean, m.running_var) if s is not None]
        if buffers:
            mean = self.all_reduce_sum(torch.cat(buffers)) / self.size
            copy_all_(buffers, torch.split(mean, [len(s) for s in buffers]))

    # --- messages -------------------------------------------------------------------------------

    def any_reason(self, reason: str) -> str:
        """Return the reason of the first process that has one; empty if none has."""
        if self.size == 1 or not int(self.all_reduce_sum(torch.tensor(bool(reason)))):
            return reason if self.size == 1 else ""
        return next(filter(None, self._gather_texts(reason)))

    def broadcast(self, message: Message) -> None:
        """Send a message of tensors and plain types to the `receive` of all other processes."""
        if self.size > 1:
            dist.broadcast_object_list([message], 0, device=_CPU)
        self._receiving = True

    def receive(self) -> Message:
        """Return the next message that the main process broadcasts.

        Raises:
            UserError: the main process raised it before training and has reported it.
        """
        received: list[Message] = [{}]
        dist.broadcast_object_list(received, 0, device=_CPU)
        message = received[0]
        if "error" in message:
            raise _mark_reported(UserError(message["error"]))
        return message

    @contextmanager
    def main_process_section(self) -> Iterator[None]:
        """Run a block while the others are in `receive`; they get an error raised inside it."""
        self._receiving = True
        try:
            with self.peer_failures():
                yield
        except ToolkitError as error:
            if self.peers_waiting:
                self.broadcast({"error": list(error.messages)})
            raise

    @contextmanager
    def collective_section(self) -> Iterator[None]:
        """Run a block that all processes run, none of them in `receive`.

        Raises:
            TrainingError: another process ended.
        """
        self._receiving = False
        with self.peer_failures():
            yield
        self._receiving = True

    @contextmanager
    def peer_failures(self) -> Iterator[None]:
        """Report the end of another process as such.

        Raises:
            TrainingError: in place of the error that torch raises.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_peer_failure(error):
                raise
            self._receiving = False  # the others may have ended
            raise _mark_reported(TrainingError(LOST), self.rank > 0) from error

    def run_on_all(self, function: Callable[[], T]) -> T:
        """Return the function's result in each process, once it has succeeded in all.

        The first process of each host runs before the others, which then find the files that it
        has cached.

        Raises:
            UserError: the function failed in some process; the main process reports it.
        """
        if self.size == 1:
            return function()
        self._receiving = False
        result, failure = None, None
        for first in (True, False):
            if (self.local_rank == 0) == first:
                try:
                    result = function()
                except UserError as error:
                    failure = error
            # A barrier on the CPU, because no GPU has been chosen yet.
            self.all_reduce_sum(torch.zeros(1))
        errors = self._gather_texts("" if failure is None else str(failure))
        if failure is not None:
            raise _mark_reported(failure, bool(self.rank and errors[0]))
        for rank, text in enumerate(errors):
            if text:
                raise _mark_reported(UserError(f"process {rank}: {text}"), self.rank > 0)
        self._receiving = True
        return result  # type: ignore[return-value]

    def _gather_texts(self, text: str) -> list[str]:
        texts = [""] * self.size
        dist.all_gather_object(texts, text)
        return texts


class _AllGather(torch.autograd.Function):
    """Concatenation over the processes; the gradient of a shard is summed over them."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, processes: ProcessGroup) -> Tensor:
        ctx.dim, ctx.processes = dim, processes
        shards = [torch.empty_like(value) for _ in range(processes.size)]
        dist.all_gather(shards, value.contiguous())
        return torch.cat(shards, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = ctx.processes.all_reduce_sum(gradients[0])
        return ctx.processes.local_shard(summed, ctx.dim), None, None


def convert_sync_batchnorm(module: T, device: torch.device) -> T:
    """Return the module with BatchNorm layers that take the statistics of the whole batch.

    Raises:
        ConfigError: torch has no such layer for the device.
    """
    if device.type != "cuda":
        raise ConfigError(
            "model.sync_batchnorm: torch synchronizes BatchNorm on CUDA devices only, not on "
            f"{device.type}; leave it out"
        )
    converted: T = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return converted


def under_launcher() -> bool:
    """Return True if ``torchrun`` or the like started this process as one of several."""
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in variables) and int(os.environ["WORLD_SIZE"]) > 1


def restarted() -> bool:
    """Return True if ``torchrun --max-restarts`` has restarted the processes after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def init_process_group() -> Iterator[ProcessGroup]:
    """Join the other processes of the run, if any; leave them at the end."""
    if not under_launcher():
        yield ProcessGroup()
        return
    if dist.is_initialized():  # by the caller, for several runs in a row
        yield _from_environment()
        return
    # Messages are CPU tensors, so there is a backend for those in any case.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    rendezvous = dist.rendezvous("env://", timeout=TIMEOUT)  # type: ignore[attr-defined]
    store, rank, size = next(rendezvous)
    store.set_timeout(TIMEOUT)
    fresh = fresh_store(store, rank, size, TIMEOUT)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield _from_environment()
    finally:
        leave_process_group()


def _from_environment() -> ProcessGroup:
    local = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), *local)


def _mark_reported(error: T, reported: bool = True) -> T:
    error.already_reported = reported  # type: ignore[attr-defined]
    return error


def _is_peer_failure(error: RuntimeError) -> bool:
    words = ("gloo", "nccl", "connection")
    return isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
