"""Log to MLflow, on a server or in a SQLite file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ssl_toolkit import Logger, RunInfo

STATUS = {"completed": "FINISHED", "interrupted": "KILLED"}
"""MLflow's statuses of runs; any other status is FAILED."""
BATCH = 100
"""Maximum number of parameters in one call."""
LONGEST = 500
"""Maximum number of characters of a parameter in every store; longer values are truncated."""


class MLflow(Logger):
    """A run of MLflow; a comparison is its experiment.

    The store is the one of ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` beside the run's folder,
    so that the runs of a comparison share one. SQLite needs a local disk: where several machines
    train into a shared folder, set the variable to a server. ``mlflow-run.txt`` in the run's folder
    holds the ID: a resumed run continues under it, after the last step in the store.
    """

    packages: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, run: RunInfo) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # An unreachable server must not delay training for the default of several minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        store = run.folder.absolute().parent / "mlflow.db"
        if not uri:
            self.note = f"mlflow ui --backend-store-uri sqlite:///{store}"
        self._client: Any = MlflowClient(tracking_uri=uri or f"sqlite:///{store}")
        id_file = run.folder / "mlflow-run.txt"
        self._sent = 0
        if id_file.exists():
            self._id = id_file.read_text(encoding="utf-8").strip()
            history = self._client.get_metric_history(self._id, "seconds")
            self._sent = max((metric.step for metric in history), default=0)
            self._client.update_run(self._id, status="RUNNING")
        else:
            folder = None if uri else (store.parent / "mlflow-artifacts").as_uri()
            self._id = self._create(run, folder)
            id_file.write_text(f"{self._id}\n", encoding="utf-8")

    def log(self, row: Mapping[str, float | int]) -> None:
        """Store a row in one transaction, unless an earlier process did."""
        if row["step"] > self._sent:
            self._store({k: v for k, v in row.items() if k != "step"}, int(row["step"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Store the test scores of a finished run and its status."""
        self._store(self.final_scores(summary), int(summary["steps"]))
        self._client.set_terminated(self._id, status=STATUS.get(summary["status"], "FAILED"))

    def _store(self, values: Mapping[str, float | int], step: int) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _create(self, run: RunInfo, artifacts: str | None) -> str:
        from mlflow.entities import Param

        tags = {"algorithm": run.algorithm, "seed": str(run.seed)}
        if run.group is not None:
            tags["group"] = run.group
        mlflow_run = self._client.create_run(
            self._experiment(run.group, artifacts), tags=tags, run_name=run.name
        )
        params = [Param(name, str(value)[:LONGEST]) for name, value in run.parameters().items()]
        for i in range(0, len(params), BATCH):
            self._client.log_batch(mlflow_run.info.run_id, params=params[i : i + BATCH])
        return str(mlflow_run.info.run_id)

    def _experiment(self, group: str | None, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        name = group or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "ssl-toolkit"
        try:
            return str(self._client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:
            # Usually another run of the comparison has created it.
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                raise
            return str(experiment.experiment_id)
