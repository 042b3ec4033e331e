"""The processes that share a run: one, or several under torch's DistributedDataParallel.

Every process holds the whole model and draws the whole batch of a step, indices and augmentation
alike, but reads, augments and trains on its own part of it. So a run of several processes is one
process with the same batch, up to the order of sums (and BatchNorm, which sees a part each).

The first process leads: it alone writes files, and what it says the others hear.
"""

from __future__ import annotations

import io
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ssl_toolkit.errors import ConfigError, ToolkitError, TrainingError, UserError

T = TypeVar("T")
Message = dict[str, Any]

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, such as while the first one writes."""

LOST = (
    "another process of the run ended before this one; the last checkpoint is kept, go on with "
    "`ssl-toolkit resume`"
)


class Ranks:
    """The place of this process among those of its run.

    With one process, every method gives back what it is given and costs nothing. With several,
    each must be called by all of them in the same order.

    Args:
        rank: number of this process, 0 for the one that leads.
        size: processes in all.
        local_rank: number of this process on its machine.
        local_size: processes on its machine.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self._waiting = False
        """Whether the others wait for a word of the first process right now."""

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    # --- tensors --------------------------------------------------------------------------------

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, without gradient."""
        value = value.detach()
        if self.size == 1:
            return value
        summed = value.to(torch.int64) if value.dtype == torch.bool else value.clone()
        dist.all_reduce(summed)
        return summed

    def gather(self, value: Tensor, dim: int = 0) -> Tensor:
        """The parts of all processes along a dimension, in their order; with gradient."""
        if self.size == 1:
            return value
        gathered: Tensor = _Gather.apply(value, dim, self)
        return gathered

    def share(self, value: Tensor, dim: int = 0) -> Tensor:
        """This process's part of a tensor that all have: undoes `gather`."""
        if self.size == 1:
            return value
        return value.chunk(self.size, dim)[self.rank]

    @torch.no_grad()
    def average_statistics(self, module: nn.Module) -> None:
        """Make the running statistics of all BatchNorm layers the mean over the processes.

        Those of frozen layers, which are in eval mode, stay as they are to the last digit.
        """
        if self.size == 1:
            return
        layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.training]
        found = [s for m in layers for s in (m.running_mean, m.running_var) if s is not None]
        if found:
            mean = self.total(torch.cat(found)) / self.size
            torch._foreach_copy_(found, [*torch.split(mean, [len(s) for s in found])])

    def parallel(self, module: nn.Module) -> DistributedDataParallel:
        """The module with its gradients averaged over the processes during backward."""
        # A parameter may get no gradient in a step; statistics are averaged after each step.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a new name, which old torch lacks
            return DistributedDataParallel(
                module, broadcast_buffers=False, find_unused_parameters=True
            )

    # --- words ----------------------------------------------------------------------------------

    def agreed(self, reason: str) -> str:
        """The first process's reason that has one; empty when none has."""
        if self.size == 1 or not int(self.total(torch.tensor(bool(reason)))):
            return reason if self.size == 1 else ""
        return next(filter(None, self._texts(reason)))

    def say(self, message: Message) -> None:
        """Let all others `hear` a message of tensors and plain types, from the first process."""
        if self.size > 1:
            written = io.BytesIO()
            torch.save(message, written)
            content = torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)
            dist.broadcast(torch.tensor(len(content)), 0)
            dist.broadcast(content, 0)
        self._waiting = True

    def hear(self) -> Message:
        """What the first process says next.

        Raises:
            UserError: the first process raised it before training, and tells it to the user.
        """
        length = torch.tensor(0)
        dist.broadcast(length, 0)
        content = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, 0)
        message: Message = torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)
        if "error" in message:
            raise _told(UserError(message["error"]))
        return message

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Inside the block the others wait to hear; an error of the first process reaches them."""
        self._waiting = True
        try:
            with self.watched():
                yield
        except ToolkitError as error:
            if self.waits:
                self.say({"error": list(error.messages)})
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside the block all processes do the same, and none waits to hear.

        Raises:
            TrainingError: another process ended.
        """
        self._waiting = False
        with self.watched():
            yield
        self._waiting = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell the end of another process as such.

        Raises:
            TrainingError: in place of what torch raises then.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_loss(error):
                raise
            self._waiting = False  # there may be nobody to hear
            raise _told(TrainingError(LOST), self.rank > 0) from error

    @property
    def waits(self) -> bool:
        """Whether the others wait for a word of the first process."""
        return self.size > 1 and self._waiting

    def all_do(self, make: Callable[[], T]) -> T:
        """What `make` gives in each process, once it has succeeded in all.

        The first process of each machine goes before the others, which then find files that it
        has cached.

        Raises:
            UserError: it failed in some process; the first one tells it.
        """
        if self.size == 1:
            return make()
        self._waiting = False
        made, failure = None, None
        for first in (True, False):
            if (self.local_rank == 0) == first:
                try:
                    made = make()
                except UserError as error:
                    failure = error
            self.total(torch.zeros(1))  # all arrive; on the CPU, for no GPU is chosen yet
        faults = self._texts("" if failure is None else str(failure))
        if failure is not None:
            raise _told(failure, bool(self.rank and faults[0]))
        for rank, fault in enumerate(faults):
            if fault:
                raise _told(UserError(f"process {rank}: {fault}"), self.rank > 0)
        self._waiting = True
        return made  # type: ignore[return-value]

    def _texts(self, text: str) -> list[str]:
        """A short text of each process."""
        own = torch.frombuffer(
            bytearray(text.encode()[:4096].ljust(4096, b"\0")), dtype=torch.uint8
        )
        texts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(texts, own)
        return [t.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for t in texts]


class _Gather(torch.autograd.Function):
    """Concatenation over the processes; the gradient of a part is summed over them."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, ranks: Ranks) -> Tensor:
        ctx.dim, ctx.ranks = dim, ranks
        parts = [torch.empty_like(value) for _ in range(ranks.size)]
        dist.all_gather(parts, value.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ranks.share(ctx.ranks.total(gradients[0]), ctx.dim), None, None


def synchronized(module: T, device: torch.device) -> T:
    """A module with the statistics of the whole batch in every BatchNorm layer.

    Raises:
        ConfigError: torch has no such layer for the device.
    """
    if device.type != "cuda":
        raise ConfigError(
            "model.sync_batchnorm: torch synchronizes BatchNorm on CUDA devices only, not on "
            f"{device.type}; leave it out"
        )
    made: T = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return made


def under_launcher() -> bool:
    """Whether this process is one of several that ``torchrun`` or the like has started."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in needed) and int(os.environ["WORLD_SIZE"]) > 1


def restarted() -> bool:
    """Whether ``torchrun --max-restarts`` has started the processes again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined() -> Iterator[Ranks]:
    """Find the other processes of the run, if there are some; leave them at the end."""
    if not under_launcher():
        yield Ranks()
        return
    if dist.is_initialized():  # the caller's own, for several runs in a row
        yield _place()
        return
    # Words go between the hosts, so there is a backend for CPU tensors in any case.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    rendezvous = dist.rendezvous("env://", timeout=TIMEOUT)  # type: ignore[attr-defined]
    store, rank, size = next(rendezvous)
    store.set_timeout(TIMEOUT)
    fresh = _fresh(store, rank, size)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield _place()
    finally:
        dist.destroy_process_group()


def _fresh(store: Any, rank: int, size: int) -> Any:
    """The part of a store that only the processes of this very start use.

    torchrun keeps its store when it starts processes again, so they would read the addresses of
    those that are gone (seen in torch 2.14). Here each asks under a name that never was before,
    and the first process answers with the name of the part.
    """
    name = os.urandom(8).hex()
    if rank:
        store.set(f"asks/{rank}", name)
        prefix = store.get(f"answer/{name}").decode()
        store.set(f"{prefix}/{rank}", "heard")
        return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    waiting = set(range(1, size))
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while waiting and time.monotonic() < deadline:
        for other in [*waiting]:
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
            if store.check([f"{name}/{other}"]):
                waiting.remove(other)
        time.sleep(0.01)
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _place() -> Ranks:
    local = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Ranks(dist.get_rank(), dist.get_world_size(), *local)


def _told(error: T, told: bool = True) -> T:
    error.told = told  # type: ignore[attr-defined]
    return error


def _is_loss(error: RuntimeError) -> bool:
    words = ("gloo", "nccl", "connection")
    return isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
