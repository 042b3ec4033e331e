"""Where the runs of a comparison are carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ssl_toolkit.config.options import Options


@dataclass(frozen=True)
class Job:
    """One run of a comparison: a command that may be started any number of times.

    Started again it goes on with what it finds in its folder, and a finished one ends at once,
    so a launcher may retry it after any failure, on any machine that sees the folder. Two
    processes never work in one folder: the second one ends with status 2.
    """

    name: str
    """Unique in the comparison, for people: ``simple s0``."""
    command: tuple[str, ...]
    """The program and its arguments, no shell; paths are absolute."""
    folder: Path
    """Absolute; the folder of the run, on a file system that every worker sees."""
    log: Path
    """Absolute; where what the command prints is appended."""
    directory: Path = field(default_factory=Path.cwd)
    """Absolute; where the command is started, for the relative paths of a configuration."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set beside those of the process."""
    threads: int = 1
    """CPU threads that the command uses."""
    gpus: int = 0
    """GPUs that it wants for itself."""
    gpus_if_any: int = 0
    """GPUs that it wants where there are some; it does without where there are none."""


@dataclass(frozen=True)
class JobResult:
    """How a job of `Launcher.launch` ended."""

    job: Job
    status: int
    """Exit status of the command: 0 done, or stopped in good order."""
    reason: str = ""
    """One line where it failed outside the command (a node was lost); else empty."""


class Launcher(ABC):
    """Carries out jobs, several at a time where there is room.

    Args:
        options: an instance of the class's ``Config``.
    """

    plugin_kind: ClassVar[str] = "launchers"
    Config: ClassVar[type[Options]] = Options

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """Start the jobs and yield each as it ends, in any order.

        One that fails takes no other with it. Called once.

        Raises:
            UserError: the launcher can't work here (a missing package, no cluster); before
                anything was started.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ask what is running to save and end (SIGTERM), and start nothing more.

        Called from a signal handler's thread while `launch` is waiting; `launch` then yields what
        ends and returns within ten seconds, leaving no process behind.
        """
