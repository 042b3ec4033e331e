"""Launchers, which run the jobs of a comparison."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch

from ssl_toolkit.config.options import Options


@dataclass(frozen=True)
class Job:
    """One run of a comparison: a command that may be started any number of times.

    Started again it resumes from the checkpoint in its folder, and a finished one ends at once,
    so a launcher may retry it after any failure, on any machine that can read the folder. Two
    processes never work in one folder: the second one ends with status 2.
    """

    name: str
    """Unique in the comparison, for people: ``simple s0``."""
    command: tuple[str, ...]
    """Program and arguments, without a shell; paths are absolute."""
    folder: Path
    """Absolute path to the folder of the run, on a file system that every worker shares."""
    log: Path
    """Absolute path to the file to which the output of the command is appended."""
    directory: Path = field(default_factory=Path.cwd)
    """Absolute path to the working directory, for the relative paths of a configuration."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set in addition to those of the process."""
    threads: int = 1
    """Number of CPU threads that the command uses."""
    gpus: int = 0
    """Number of GPUs that it requires."""
    gpus_if_any: int = 0
    """Number of GPUs that it uses where there are some; without any it runs on the CPU."""
    config: Path | None = None
    """Configuration file of the run; None for a command that is not a run."""

    @property
    def local_gpus(self) -> int:
        """Number of GPUs that it gets on this machine; counting them creates no CUDA context."""
        return self.gpus or (self.gpus_if_any if torch.cuda.device_count() else 0)


@dataclass(frozen=True)
class JobResult:
    """How a job of `Launcher.launch` ended."""

    job: Job
    status: int
    """Exit status of the command: 0 if it is done, or stopped after it saved."""
    reason: str = ""
    """One line where it failed outside the command (a node was lost); else empty."""


class Launcher(ABC):
    """Runs jobs, several at a time where there is room.

    Args:
        options: An instance of the class's ``Config``.
    """

    plugin_kind: ClassVar[str] = "launchers"
    Config: ClassVar[type[Options]] = Options
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that it imports; a missing one is an error before anything is planned."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """Start the jobs and yield the result of each as it ends, in any order.

        A job that fails doesn't affect the others. Called once.

        Raises:
            UserError: The launcher can't work here (no cluster), raised before any job starts.
        """

    @abstractmethod
    def stop(self) -> None:
        """Let running jobs save and end (SIGTERM), and start no others.

        Called from a signal handler's thread while `launch` is waiting; `launch` then yields what
        ends and returns within ten seconds, leaving no process behind.
        """

    def slots(self, count: int) -> int | None:
        """Return how many of some jobs run at once on this machine, so that they share its cores.

        Args:
            count: Number of jobs.

        Returns:
            A number of jobs, or None if they run elsewhere: each then gets one thread by default.
        """
        return None
