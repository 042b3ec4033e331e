"""What the commands do, as functions of Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from PIL import Image

import ssl_toolkit
from ssl_toolkit import (
    ConfigError,
    DataError,
    ModelError,
    RunResult,
    check_run,
    compare,
    evaluate,
    export,
    inspect,
    load_model,
    predict,
    pseudo_label,
    report,
    resume,
    train,
)
from ssl_toolkit.runs.metrics_log import last_step, metric_rows
from ssl_toolkit.runs.predictions import read_arrays

FUNCTIONS = (
    *("train", "resume", "evaluate", "predict", "export"),
    *("report", "inspect", "pseudo_label", "compare", "check_run"),
)
DIGITS = {"algo": "supervised", "backbone": "wrn_10_1", "steps": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return train(DIGITS | {"output": tmp_path_factory.mktemp("runs") / "run"})


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    for level in (0, 128, 255):
        Image.new("L", (9, 9), level).save(folder / f"{level}.png")
    (folder / "cut.png").write_bytes(b"\x89PNG")
    return folder


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_command_has_a_typed_function_that_documents_its_exceptions(name: str) -> None:
    function = getattr(ssl_toolkit, name)
    text = function.__doc__
    for part in ("Args:", "Raises:"):
        assert part in text
    assert function.__annotations__["return"] != "dict[str, Any]"


def test_a_result_has_types(run: RunResult) -> None:
    assert run.status == run.summary.status == "completed"
    assert run.test is not None
    assert 0 <= run.test.accuracy <= 1
    assert run.test.per_class["3"].count > 0
    assert run.summary.counts.test == run.test.count
    stored = json.loads((run.folder / "summary.json").read_text())
    assert stored.pop("format") == 1
    assert stored == run.summary.tree()
    with pytest.raises(ValueError, match="frozen"):
        run.summary.steps = 7  # type: ignore[misc]
    assert get_type_hints(type(run.summary))["seconds"] is float


def test_resume_leaves_a_finished_run_or_trains_longer(run: RunResult, tmp_path: Path) -> None:
    assert resume(str(run.folder)).summary == run.summary
    short = train(DIGITS | {"steps": 2, "output": tmp_path / "short"})
    assert resume(short.folder, steps=4).test == run.test
    with pytest.raises(ModelError, match="not the folder of a run"):
        resume(tmp_path)


def test_evaluate_gives_the_scores_of_the_run(run: RunResult, tmp_path: Path) -> None:
    result = evaluate(str(run.folder))
    assert result.test == run.test
    assert result.confusion["test"].sum() == run.summary.counts.test
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "a.png")
    with pytest.raises(DataError, match="was trained on the classes"):
        evaluate(run.folder, tmp_path)


def test_predict_streams_images_and_reasons(run: RunResult, pool: Path) -> None:
    result = {Path(one.path).name: one for one in predict(run.folder, [pool])}
    assert result["cut.png"].label is None
    assert result["cut.png"].error
    whole = result["0.png"]
    assert whole.probabilities is not None
    model = load_model(run.folder)
    assert whole.label == model.classes[whole.probabilities.argmax()]
    assert whole.confidence == pytest.approx(whole.probabilities.max())
    (single,) = predict(model, pool / "0.png")
    assert single.probabilities == pytest.approx(whole.probabilities, abs=1e-6)
    with pytest.raises(DataError, match="absent"):
        predict(model, pool / "absent.png")


def test_export_reports_where_the_model_is_and_how_to_open_it(run: RunResult) -> None:
    made = export(str(run.folder), "timm")
    assert made.path == run.folder / "export" / "timm"
    assert "create_model" in made.opened_by


def test_report_of_a_run(run: RunResult, tmp_path: Path) -> None:
    made = report(run.folder, output=str(tmp_path / "page.html"))
    assert made.files == (tmp_path / "page.html",)
    assert made.comparison.rows[0].runs[0].summary == run.summary


def test_inspect_describes_a_folder(pool: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "labeled" / name).mkdir(parents=True)
        for source in pool.glob("*.png"):
            (tmp_path / "labeled" / name / f"{name}{source.name}").write_bytes(source.read_bytes())
    facts = inspect(tmp_path, contact_sheet=tmp_path.with_suffix(".png"))
    assert facts["classes"] == ["a", "b"]
    assert len(facts["unreadable"]) == 2
    assert tmp_path.with_suffix(".png").exists()
    with pytest.raises(ConfigError, match=r"must be a \.png file"):
        inspect(tmp_path, contact_sheet="sheet.jpg")


def test_pseudo_label_writes_a_manifest(run: RunResult, pool: Path, tmp_path: Path) -> None:
    sure = pseudo_label(run.folder, pool, threshold=0)
    assert len(sure.paths) == len(sure.labels) == len(sure.confidences) == 3
    assert None not in sure.labels
    assert len(sure.unreadable) == 1
    unsure = pseudo_label(run.folder, pool, threshold=1, output=tmp_path / "pool.csv")
    assert set(unsure.labels) == {None}
    assert unsure.root
    assert len((tmp_path / "pool.csv").read_text().splitlines()) == 4


def test_compare_has_typed_rows(tmp_path: Path) -> None:
    result = compare(
        {
            "algos": ["supervised", "fully_supervised"],
            "seeds": [0],
            "backbone": "wrn_10_1",
            "steps": 2,
            "device": "cpu",
            "output": tmp_path / "comparison",
        }
    )
    assert result.status == 0
    plain, bound = result.rows
    assert plain.scores["test.accuracy"].values.keys() == {0}
    assert bound.uses_hidden_labels
    assert plain.runs[0].summary is not None
    assert plain.runs[0].summary.status == "completed"


def test_check_run_finds_damage(run: RunResult, tmp_path: Path) -> None:
    assert check_run(str(run.folder)).faults == []
    (tmp_path / "summary.json").write_text('{"format": 9}')
    assert "unknown format 9" in check_run(tmp_path).faults[0]


def test_an_unknown_format_ends_in_one_line(run: RunResult, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    text = (run.folder / "config.yaml").read_text()
    assert text.startswith("format: 1\n")
    config.write_text(text.replace("format: 1", "format: 7"))
    with pytest.raises(ConfigError, match=r"config.yaml: unknown format '7'.*version"):
        train(config)
    record = run.folder / "record.json"
    (tmp_path / "record.json").write_text(record.read_text())
    log = tmp_path / "metrics.jsonl"
    log.write_text((run.folder / "metrics.jsonl").read_text().replace('"format": 1', '"format": 8'))
    for read in (lambda: next(metric_rows(log)), lambda: last_step(log)):
        with pytest.raises(ModelError, match=f"unknown format 8: .* {ssl_toolkit.__version__},"):
            read()
    with np.load(run.folder / "predictions.npz") as result:
        arrays = dict(result)
    assert arrays["format"] == 1
    np.savez(tmp_path / "predictions.npz", **(arrays | {"format": np.array(7)}))
    with pytest.raises(ModelError, match=r"predictions.npz: unknown format 7: "):
        read_arrays(tmp_path / "predictions.npz")
