"""Rule for two processes that share a run."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.testing.assertions import listed
from ssl_toolkit.testing.rules import RuleViolationError, error_line, require
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import Trial

TIMEOUT = 180.0
"""Seconds for two steps of two processes, imports included."""


def synchronizes_processes(subject: Subject) -> None:
    """After two steps, two processes, one of them with uniform predictions, have equal weights.

    Why: processes that differ deadlock, or train different models.
    Cause: a condition on the local shard around ctx.all_reduce_sum, or a count without it.
    """
    subject = replace(subject, device=torch.device("cpu"))  # two processes can't share a GPU
    with tempfile.TemporaryDirectory() as folder:
        states = _train(subject, Path(folder, "store"))
    for rank, state in enumerate(states):
        if isinstance(state, str):
            raise RuleViolationError(f"process {rank} of 2: {state}")
    first, second = states
    wrong = [name for name in first if first[name] != second[name]]
    require(not wrong, f"after two steps, {listed(wrong)} differ between the processes")


def _train(subject: Subject, store: Path) -> list[Any]:
    """Return the state of each process after two steps, or its error."""
    # A fork needs no imports and supports classes that are defined anywhere, but can't use torch
    # after a backward pass if there are GPUs.
    can_fork = sys.platform == "linux" and not torch.cuda.is_available()
    context: Any = multiprocessing.get_context("fork" if can_fork else "spawn")
    workers = []
    for rank in range(2):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_train_rank, args=(subject, rank, str(store), sender))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
            process.start()
        sender.close()
        workers.append((process, receiver))
    deadline = time.monotonic() + TIMEOUT
    states = []
    try:
        for process, receiver in workers:
            if not receiver.poll(max(deadline - time.monotonic(), 0)):
                states.append(f"timed out after {TIMEOUT:g} s")
                continue
            try:
                states.append(receiver.recv())
            except EOFError:
                process.join()
                states.append(f"exited with status {process.exitcode}")
    finally:
        for process, receiver in workers:
            receiver.close()
            process.join(1)
            process.kill()
            process.join()
    return states


def _train_rank(subject: Subject, rank: int, store: str, sender: Connection) -> None:
    torch.set_num_threads(1)  # a fork has none of the threads of its parent
    faulthandler.disable()
    warnings.simplefilter("ignore")  # of torch, which the plugin can't affect
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=TIMEOUT / 2),
        )
        processes = ProcessGroup(rank, 2, rank, 2)
        trial = Trial(subject, sharpness=100, processes=processes, blank=rank == 1)
        trial.fit(2)
        modules = {
            "model": trial.classifier,
            "algorithm": trial.algorithm,
            "averaged": trial.trainer.predictor.averages,
        }
        state = {
            f"{part}.{name}": tensor.double().flatten().tolist()
            for part, module in modules.items()
            for name, tensor in module.state_dict().items()
            if isinstance(tensor, torch.Tensor)
        }
        sender.send(state)
        dist.destroy_process_group()
    except Exception as error:
        sender.send(error_line(error))
