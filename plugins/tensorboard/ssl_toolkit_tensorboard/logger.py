"""Write event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

from ssl_toolkit import Logger, RunInfo


class TensorBoard(Logger):
    """Event files in the run's folder; ``tensorboard --logdir`` on a comparison shows all runs.

    The first dot of a name becomes a slash, by which TensorBoard groups its charts. A resumed run
    makes TensorBoard drop what an earlier process wrote after the step from which it resumes.
    """

    packages: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def __init__(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(
            run.folder / "tensorboard", purge_step=run.step + 1 if run.step else None
        )
        self._add = self._writer.add_scalar
        if not run.step:
            config = yaml.safe_dump({**run.config}, sort_keys=False)
            self._writer.add_text("config", f"```yaml\n{config}```")

    def log(self, row: Mapping[str, float | int]) -> None:
        """Write a row; it is on the disk when this returns, so a kill loses nothing."""
        for name, value in row.items():
            if name != "step":
                self._add(name.replace(".", "/", 1), value, row["step"])
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the test scores of a finished run, and close."""
        for name, value in self.final_scores(summary).items():
            self._add(name.replace(".", "/", 1), value, summary["steps"])
        self._writer.close()
