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
    """One run of a comparison: a command that may be started several times.

    A restarted command resumes from the checkpoint in its folder, and a finished one exits
    immediately, so a launcher may retry it after any failure, on any machine that can read the
    folder. The folder is locked: a second process exits with status 2.
    """

    name: str
    """Name to print, unique in the comparison: ``simple s0``."""
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
    """Number of GPUs that it uses if there are any; otherwise it runs on the CPU."""
    config: Path | None = None
    """Configuration file of the run; None for a command that is not a run."""

    @property
    def local_gpus(self) -> int:
        """Number of GPUs to reserve on this machine; counting them creates no CUDA context."""
        return self.gpus or (self.gpus_if_any if torch.cuda.device_count() else 0)


@dataclass(frozen=True)
class JobResult:
    """The exit status of a job, yielded by `Launcher.launch`."""

    job: Job
    status: int
    """Exit status of the command: 0 if it finished, or stopped after saving."""
    reason: str = ""
    """Reason of a failure outside the command, such as a lost node, in one line; else empty."""


class Launcher(ABC):
    """Base class of job runners.

    Args:
        config: Options, an instance of the class's ``Config``.
    """

    plugin_kind: ClassVar[str] = "launchers"
    Config: ClassVar[type[Options]] = Options
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that it imports; if one is not installed, the comparison doesn't start."""

    def __init__(self, config: Options) -> None:
        self.config = config

    @abstractmethod
    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """Start the jobs and yield the result of each as it ends, in any order.

        A job that fails doesn't affect the others. Called once.

        Raises:
            UserError: The launcher is not available (no cluster), raised before any job starts.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop running jobs with SIGTERM, on which they save, and start no others.

        Called from another thread while `launch` is waiting. `launch` must then yield the results
        of the stopped jobs and return within ten seconds, without leaving processes.
        """

    def slots(self, count: int) -> int | None:
        """Return the number of jobs that run in parallel on this machine.

        Args:
            count: Number of jobs.

        Returns:
            Number of parallel jobs, or None if they run elsewhere, with one thread each by default.
        """
        return None
