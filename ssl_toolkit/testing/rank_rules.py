"""The rule on two processes that share a run."""

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
from ssl_toolkit.testing.rules import BrokenRuleError, require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import Trial, listed

PATIENCE = 180.0
"""Seconds that two steps of two processes may take, imports included."""

State = dict[str, list[float]]


@rule(
    "algorithms",
    why="with several GPUs, processes that disagree hang, or each train a model of their own.",
    cause="a condition on this process's share around ctx.all_reduce_sum, or a count without it",
)
def two_processes_agree(subject: Subject) -> None:
    """Two processes, of which one has no confident answer, end two steps with equal weights."""
    # On the CPU in any case: two processes can't share a GPU.
    subject = replace(subject, device=torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        answers = _answers(subject, Path(folder, "store"))
    for rank, answer in enumerate(answers):
        if isinstance(answer, str):
            raise BrokenRuleError(f"process {rank} of 2: {answer}")
    first, second = answers
    wrong = [name for name in first if first[name] != second[name]]
    require(not wrong, f"after two steps, {listed(wrong)} differ between the processes")


def _answers(subject: Subject, store: Path) -> list[Any]:
    """The state of each process after two steps, or what went wrong there."""
    # A fork needs no imports and knows classes that are defined anywhere, but after a backward
    # pass it can't use torch where there are GPUs.
    forked = sys.platform == "linux" and not torch.cuda.is_available()
    context = multiprocessing.get_context("fork" if forked else "spawn")
    started = []
    for rank in range(2):
        mine, its = context.Pipe(duplex=False)
        process = context.Process(target=_take_part, args=(subject, rank, str(store), its))  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            process.start()
        its.close()
        started.append((process, mine))
    deadline = time.monotonic() + PATIENCE
    answers = []
    try:
        for process, mine in started:
            if not mine.poll(max(deadline - time.monotonic(), 0)):
                answers.append(f"no end of two steps after {PATIENCE:g} s")
                continue
            try:
                answers.append(mine.recv())
            except EOFError:
                process.join()
                answers.append(f"ended with status {process.exitcode}")
    finally:
        for process, mine in started:
            mine.close()
            process.join(1)
            if process.is_alive():
                process.kill()
                process.join()
    return answers


def _take_part(subject: Subject, rank: int, store: str, answer: Connection) -> None:
    torch.set_num_threads(1)  # a forked process has none of the threads that others started
    faulthandler.disable()
    # What torch says of its own parts is nothing that the plugin could change.
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=PATIENCE / 2),
        )
        trial = Trial(
            subject, sharpness=100, processes=ProcessGroup(rank, 2, rank, 2), blank=rank == 1
        )
        trial.fit(2)
        state: State = {
            name: tensor.double().flatten().tolist()
            for module in (trial.classifier, trial.algorithm)
            for name, tensor in module.state_dict().items()
            if isinstance(tensor, torch.Tensor)
        }
        answer.send(state)
        dist.destroy_process_group()
    except Exception as error:
        answer.send(" ".join(f"{type(error).__name__}: {error}".split()))
