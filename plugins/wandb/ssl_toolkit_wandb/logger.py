"""Log to Weights & Biases, online or offline."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ssl_toolkit import Logger, PluginError, RunInfo

OFFLINE = "not logged in to W&B, so the run is offline; upload it later: wandb sync {}"


class WandB(Logger):
    """A run of Weights & Biases; a comparison is its group.

    The run's files are in ``wandb/`` of the run's folder, and ``wandb/run.json`` there contains
    its ID and the last step that was sent: a resumed run continues under the same ID after
    that step. Project, entity and mode are those of ``WANDB_PROJECT`` (else ``ssl-toolkit``),
    ``WANDB_ENTITY`` and ``WANDB_MODE``. Without a mode it is online after ``wandb login``, and
    offline otherwise. It never prompts.

    Raises:
        PluginError: ``WANDB_MODE`` is ``online``, and there is no login.
    """

    packages: ClassVar[tuple[str, ...]] = ("wandb",)

    def __init__(self, run: RunInfo) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        mode: Any = os.environ.get("WANDB_MODE")
        if mode in (None, "", "online", "shared"):
            logged_in = wandb.login(prompt=False, verify=False)
            if not logged_in and mode:
                raise PluginError(
                    f"logger 'wandb': WANDB_MODE is {mode}, but there is no login; "
                    "run `wandb login` or set WANDB_MODE=offline"
                )
            mode = mode or ("online" if logged_in else "offline")
            if not logged_in:
                self.note = OFFLINE.format(run.folder / "wandb" / "offline-run-*")
        self._state = run.folder / "wandb" / "run.json"
        self._id, self._sent = _identity(self._state)
        self._run: Any = wandb.init(
            id=self._id,
            resume="allow",
            mode=mode,
            dir=run.folder,
            project=os.environ.get("WANDB_PROJECT") or "ssl-toolkit",
            group=run.group,
            name=run.name,
            tags=[run.algorithm],
            config={**run.config},
            settings=wandb.Settings(
                console="off", silent=True, disable_code=True, disable_git=True
            ),
        )
        self._remember(self._sent)

    def log(self, row: Mapping[str, float | int]) -> None:
        """Send a row to the process of W&B, unless an earlier process did."""
        step = int(row["step"])
        if step > self._sent:
            self._run.log({**row}, step=step)
            self._remember(step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send the test scores of a finished run and its status, and close."""
        self._run.summary.update({"status": summary["status"], **self.final_scores(summary)})
        self._run.finish(exit_code=0 if summary["status"] == "completed" else 1)

    def _remember(self, step: int) -> None:
        self._sent = step
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps({"id": self._id, "step": step}), encoding="utf-8")
        new.replace(self._state)  # atomic, so that a killed run leaves a complete file


def _identity(path: Path) -> tuple[str, int]:
    """Return the ID and the last step that a file holds, or a new ID and 0."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return str(state["id"]), int(state["step"])
    except FileNotFoundError:
        return secrets.token_hex(8), 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PluginError(f"logger 'wandb': {path} is corrupt ({error}); remove it") from error
