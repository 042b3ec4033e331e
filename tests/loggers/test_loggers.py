"""Loggers: what they sent is read back from where they sent it; training never depends on them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from in_process import call, refusal

from ssl_toolkit import Logger, RunInfo, register_logger, registry, train
from ssl_toolkit.errors import PluginError, TrainingError
from ssl_toolkit.runs.metrics_log import metric_rows, write_table
from ssl_toolkit.runs.resume import resume

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # also where a test imports it first

OWN_WARNINGS = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy:DeprecationWarning"
)
"""What MLflow's tables make SQLAlchemy 2.1 say when they are first imported."""
CONFIG: dict[str, Any] = {
    "algo": "supervised", "dataset": "digits", "backbone": "wrn_10_1", "steps": 6, "log_every": 1,
    "eval_every": 2, "batch_size": 8, "eval_batch_size": 512, "device": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


class Notes(Logger):
    """Keeps what it is given; as a third party writes one."""

    runs: ClassVar[list[Notes]] = []

    def __init__(self, run: RunInfo) -> None:
        self.run = run
        self.rows: list[dict[str, float]] = []
        self.summaries: list[dict[str, Any]] = []
        self.runs.append(self)

    def log(self, row: Mapping[str, float | int]) -> None:
        self.rows.append(dict(row))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.summaries.append(dict(summary))


@pytest.fixture
def notes() -> list[Notes]:
    Notes.runs.clear()
    register_logger("notes")(Notes)
    return Notes.runs


def stop_at(step: int) -> None:
    """Register ``stop``, which interrupts the first run that comes to a step, after its row."""

    @register_logger("stop")
    class Stop(Logger):
        stopped = False

        def __init__(self, run: RunInfo) -> None:
            pass

        def log(self, row: Mapping[str, float | int]) -> None:
            if row["step"] == step and not Stop.stopped:
                Stop.stopped = True
                raise KeyboardInterrupt

        def finish(self, summary: Mapping[str, Any]) -> None:
            pass


def rows_of(run: Path) -> list[dict[str, Any]]:
    return list(metric_rows(run / "metrics.jsonl"))


def table(run: Path) -> list[dict[str, float]]:
    """The rows of ``metrics.csv`` without the empty cells."""
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def status(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text("utf-8"))["status"])


@pytest.fixture(scope="module")
def stopped_and_resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint after step 2, stopped after the row of step 3, and resumed."""
    before = dict(registry._registered)
    stop_at(3)
    run = tmp_path_factory.mktemp("comparison") / "supervised-s0"
    loggers = ["tensorboard", "mlflow", "stop"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        outcome = train({**CONFIG, "loggers": loggers, "group": "mine", "output": run})
        assert outcome.summary.status == "interrupted"
        assert [row["step"] for row in rows_of(run)] == [1, 2, 3]
        assert table(run) == rows_of(run)
        resume(run)
    registry._registered.clear()
    registry._registered.update(before)
    assert status(run) == "completed"
    return run


@OWN_WARNINGS
def test_the_table_contains_the_rows_of_metrics(stopped_and_resumed: Path) -> None:
    rows = rows_of(stopped_and_resumed)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert table(stopped_and_resumed) == rows
    assert "validation.accuracy" not in rows[0]
    assert "validation.accuracy" in table(stopped_and_resumed)[1]


def test_the_table_of_a_run_that_failed_and_of_no_rows(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        train({**CONFIG, "lr": 1e30, "output": tmp_path / "run"})
    assert status(tmp_path / "run") == "failed"
    assert table(tmp_path / "run") == rows_of(tmp_path / "run")
    write_table(tmp_path / "none.jsonl", tmp_path / "none.csv")
    assert (tmp_path / "none.csv").read_text("utf-8").strip() == ""


def test_the_table_ends_before_a_truncated_row(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(
        '{"format": 1, "step": 1}\n{"format": 1, "step": 2, "a, b": 0.5}\n{"format": 1, "st',
        "utf-8",
    )
    write_table(tmp_path / "m.jsonl", tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text("utf-8") == 'step,"a, b"\n1,\n2,0.5\n'


@OWN_WARNINGS
def test_tensorboard_shows_each_row_once(stopped_and_resumed: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(stopped_and_resumed / "tensorboard"))
    events.Reload()
    rows = rows_of(stopped_and_resumed)
    shown = {name: [(e.step, e.value) for e in events.Scalars(name)]
             for name in events.Tags()["scalars"]}  # fmt: skip
    for name in ("train.loss", "train.loss.supervised", "validation.accuracy", "lr"):
        expected = [(row["step"], pytest.approx(row[name])) for row in rows if name in row]
        assert shown[name.replace(".", "/", 1)] == expected, name
    summary = json.loads((stopped_and_resumed / "summary.json").read_text("utf-8"))
    assert shown["test/accuracy"] == [(6, pytest.approx(summary["test"]["accuracy"]))]
    (text,) = events.Tensors("config/text_summary")
    assert b"backbone: wrn_10_1" in text.tensor_proto.string_val[0]


@OWN_WARNINGS
def test_mlflow_has_one_run_in_the_experiment_of_the_comparison(
    stopped_and_resumed: Path,
) -> None:
    from mlflow.tracking import MlflowClient

    run = stopped_and_resumed
    client = MlflowClient(f"sqlite:///{run.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (result,) = client.search_runs([experiment.experiment_id])
    assert result.info.status == "FINISHED"
    assert result.info.run_name == "supervised-s0"
    assert result.data.tags["group"] == "mine"
    assert result.data.params["optimizer.weight_decay"] == "0.02"
    assert result.data.params["backbone"] == "wrn_10_1"
    for name in ("train.loss", "validation.accuracy", "lr"):
        history = client.get_metric_history(result.info.run_id, name)
        expected = [(row["step"], row[name]) for row in rows_of(run) if name in row]
        assert sorted((m.step, m.value) for m in history) == expected, name
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert result.data.metrics["test.accuracy"] == summary["test"]["accuracy"]
    assert not (run.parent / "mlruns").exists()
    assert not Path("mlruns").exists()


@OWN_WARNINGS
def test_a_second_run_of_the_comparison_joins_the_experiment(
    stopped_and_resumed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    other = stopped_and_resumed.parent / "supervised-s1"
    logger = registry.load("loggers", "mlflow")(
        RunInfo(other_made(other), other.name, "supervised", 1, {"seed": 1}, 0, "mine")
    )
    logger.log({"step": 1, "seconds": 0.5})
    logger.finish({"status": "interrupted", "steps": 1})
    client = MlflowClient(f"sqlite:///{other.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"supervised-s0", "supervised-s1"}
    assert runs["supervised-s1"].info.status == "KILLED"


def other_made(folder: Path) -> Path:
    folder.mkdir()
    return folder


WANDB = """
import json, os, sys
import test_loggers
from ssl_toolkit import train
from ssl_toolkit.runs.resume import resume

test_loggers.stop_at(3)
config = {**test_loggers.CONFIG, "loggers": ["wandb", "stop"], "group": "mine", "output": "s0"}
assert train(config).summary.status == "interrupted"
assert json.load(open("s0/wandb/run.json"))["step"] == 3
assert resume("s0").summary.status == "completed"
"""


def test_wandb_offline_resumes_under_one_id_and_leaves_no_process(tmp_path: Path) -> None:
    marker = f"{tmp_path.name}-{os.getpid()}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    paths = os.pathsep.join((str(Path(__file__).parent), kept["PYTHONPATH"]))
    env = kept | {"HOME": str(tmp_path), "MARKER": marker, "PYTHONPATH": paths}
    script = WANDB.replace('resume("s0")', 'resume(__import__("pathlib").Path("s0"))')
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    output = [line for line in result.stdout.splitlines() if "not logged in" in line]
    assert len(output) == 2  # once a start
    assert "wandb sync s0/wandb/offline-run-*" in output[0]
    assert processes(marker) == []

    run = tmp_path / "s0"
    records = [
        r for path in sorted(run.glob("wandb/offline-run-*/*.wandb")) for r in wandb_log(path)
    ]
    starts = [record.run for record in records if record.HasField("run")]
    identity = json.loads((run / "wandb" / "run.json").read_text("utf-8"))["id"]
    assert {start.run_id for start in starts} == {identity}
    assert {(start.run_group, start.display_name) for start in starts} == {("mine", "s0")}
    assert {start.project for start in starts} == {"ssl-toolkit"}
    settings = {item.key: json.loads(item.value_json) for item in starts[0].config.update}
    assert settings["backbone"] == "wrn_10_1"
    sent = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json)
         for item in record.history.item}
        for record in records if record.HasField("history")
    ]  # fmt: skip
    rows = rows_of(run)
    assert [row["step"] for row in sent] == [1, 2, 3, 4, 5, 6]
    assert [row["train.loss"] for row in sent] == [row["train.loss"] for row in rows]
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1, 0]
    final = {
        ".".join(item.nested_key) or item.key: json.loads(item.value_json)
        for record in records if record.HasField("summary") for item in record.summary.update
    }  # fmt: skip
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert final["test.accuracy"] == summary["test"]["accuracy"]


def processes(marker: str) -> list[str]:
    """Command lines of living processes that have the marker in their environment."""
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                result.append((folder / "cmdline").read_text("utf-8"))
        except OSError:
            continue
    return [line for line in result if line]


def wandb_log(path: Path) -> Iterator[Any]:
    """The records of a file of W&B: a header of 7 bytes, then LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block that has no room for a header
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_wandb_online_without_a_login_is_refused_without_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "login", lambda *, prompt, verify: prompt or verify)
    run = RunInfo(tmp_path, "r", "supervised", 0, {}, 0)
    with pytest.raises(PluginError, match="wandb login"):
        registry.load("loggers", "wandb")(run)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow"),
     ("mlflow", "sqlalchemy")],
)  # fmt: skip
def test_a_missing_package_is_reported_before_any_file_is_written(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    output = tmp_path / "run"
    message = refusal("run", "--loggers", name, "--output", output, "--steps", "1")
    assert message == (
        f"error: logger '{name}' needs the package {package}, which is not installed: "
        f"pip install 'ssl-toolkit[{name}]'\n"
    )
    assert not output.exists()


def test_an_unknown_logger_is_reported_with_a_close_match(tmp_path: Path) -> None:
    message = refusal("run", "--loggers", "tensorbord,wandb", "--output", tmp_path / "run")
    assert "unknown logger 'tensorbord' (did you mean 'tensorboard'?)" in message
    assert not (tmp_path / "run").exists()


def test_loggers_are_a_list_or_names_with_commas_and_change_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("loggers: [a, b]\ngroup: g\n", "utf-8")
    (tmp_path / "text.yaml").write_text("loggers: a, b\n", "utf-8")
    flag = call("run", "--dry-run", "--loggers", "a,b").stdout
    assert "\nloggers:\n- a\n- b\n" in flag
    for name in ("list", "text"):
        shown = call("run", "--dry-run", "--config", tmp_path / f"{name}.yaml").stdout
        assert shown.replace("group: g", "group: null") == flag


def test_a_logger_of_a_third_party_gets_every_row_and_the_summary(
    tmp_path: Path, notes: list[Notes]
) -> None:
    run = tmp_path / "mine"
    train({**CONFIG, "loggers": "notes,notes", "group": "g", "seed": 3, "output": run})
    (logger,) = notes
    message = logger.run
    assert (message.folder, message.name, message.algorithm) == (run, "mine", "supervised")
    assert (message.seed, message.step, message.group) == (3, 0, "g")
    assert message.config["optimizer"]["name"] == "adamw"
    assert logger.rows == rows_of(run)
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    del summary["format"]
    assert logger.summaries == [summary]


def test_a_logger_that_fails_is_disabled_and_training_continues(
    tmp_path: Path, notes: list[Notes]
) -> None:
    @register_logger("fragile")
    class Fragile(Notes):
        def log(self, row: Mapping[str, float | int]) -> None:
            super().log(row)
            if row["step"] == 2:
                raise ConnectionError("the line\nis dead")

    run = tmp_path / "run"
    flags = [part for k, v in CONFIG.items() for part in (f"--{k.replace('_', '-')}", v)]
    result = call("run", *flags, "--loggers", "fragile,notes", "--output", run)
    assert result.returncode == 0
    warnings = [line for line in result.stdout.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: logger 'fragile' failed; the run continues without it: "
        "ConnectionError: the line is dead"
    ]
    fragile, kept = notes
    assert [row["step"] for row in fragile.rows] == [1, 2]
    assert fragile.summaries == []
    assert kept.rows == rows_of(run)
    assert [summary["status"] for summary in kept.summaries] == ["completed"]
    assert status(run) == "completed"


def test_a_logger_that_cannot_start_ends_the_run_before_its_first_step(
    tmp_path: Path, notes: list[Notes]
) -> None:
    @register_logger("away")
    class Away(Notes):
        reachable = False

        def __init__(self, run: RunInfo) -> None:
            if not Away.reachable:
                raise ConnectionError("no route to host")
            super().__init__(run)

    run = tmp_path / "run"
    with pytest.raises(
        PluginError, match=r"logger 'away' of .* can't start: ConnectionError: no ro"
    ):
        train({**CONFIG, "loggers": ["notes", "away"], "output": run})
    assert rows_of(run) == []
    assert status(run) == "failed"
    assert [summary["status"] for summary in notes[0].summaries] == ["failed"]
    Away.reachable = True
    resume(run)
    assert status(run) == "completed"
    assert [row["step"] for row in notes[-1].rows] == [1, 2, 3, 4, 5, 6]


def test_loggers_are_closed_when_an_algorithm_has_a_bug(
    tmp_path: Path, notes: list[Notes], monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = registry.load("algorithms", "supervised")

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(algorithm, "step", broken)
    with pytest.raises(ZeroDivisionError):
        train({**CONFIG, "loggers": ["notes"], "output": tmp_path / "run"})
    (summary,) = notes[0].summaries
    assert summary["status"] == "failed"
    assert summary["reason"] == "ZeroDivisionError: a bug"
