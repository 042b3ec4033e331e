"""Files from elsewhere: nothing in them runs, and no path in them leads outside."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import call, refusal
from run_files import DIGITS, strict_json, summary
from ssl_toolkit_benchmarks.safe_pickle import read_array_pickle

from ssl_toolkit import ConfigError, DataError, ModelError, load_model
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.models.weights import read_weights


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trust") / "run"
    assert call(*DIGITS, "--algo", "supervised", "--output", run).returncode == 0
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_test_tensor_raises_on_every_read(mark: Path) -> None:
    pickle.loads(pickle.dumps(Runs(mark)))
    assert mark.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_that_would_run_code(zipped: bool, mark: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    content = {"state_dict": {"a": torch.zeros(1), "b": Runs(mark)}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match=r"weights\.pt was not loaded.*(posix|nt)\.system"):
        read_weights(path)
    message = refusal(
        *DIGITS, "--algo", "supervised", "--weights", path, "--output", tmp_path / "run"
    )
    assert str(path) in message
    assert not mark.exists()
    assert not (tmp_path / "run").exists()


def test_a_run_whose_checkpoints_would_run_code(mark: Path, run: Path) -> None:
    shutil.rmtree(run / "model")
    torch.save({"format": 1, "model": Runs(mark)}, run / "checkpoints" / "best.pt")
    torch.save({"format": 1, "step": 2, "model": Runs(mark)}, run / "checkpoints" / "last.pt")
    (run / "summary.json").write_text(json.dumps(summary(run) | {"status": "interrupted"}))
    with pytest.raises(ModelError, match=r"best\.pt: refused, it names (posix|nt)\.system"):
        load_model(run)
    assert "last.pt: refused" in refusal("resume", run)
    assert call("check-run", run).returncode == 1
    assert not mark.exists()


def test_a_model_folder_with_a_pickle_in_it(mark: Path, run: Path) -> None:
    weights = run / "model" / "model.safetensors"
    weights.write_bytes(pickle.dumps(Runs(mark)))
    with pytest.raises(ModelError, match=r"model\.safetensors is not a readable safetensors"):
        load_model(run / "model")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [("classes", "abc"), ("classes", [1, 2]), ("image_size", "8 px"), ("image_size", -1),
     ("backbone", None), ("mean", [0.5]), ("std", [0, 0, 0]), ("classes", [])],
)  # fmt: skip
def test_a_model_folder_with_invalid_values(key: str, value: Any, run: Path) -> None:
    path = run / "model" / "config.json"
    path.write_text(json.dumps(strict_json(path.read_text()) | {key: value}))
    with pytest.raises(ModelError, match=r"config\.json|model contains no exported model"):
        load_model(run / "model")


def test_predictions_with_a_pickle_in_them(mark: Path, run: Path) -> None:
    with np.load(run / "predictions.npz") as arrays:
        content = dict(arrays)
    content["test_labels"] = np.array([Runs(mark)], dtype=object)
    np.savez(run / "predictions.npz", **content)
    result = call("check-run", run)
    assert result.returncode == 1
    assert "predictions.npz: damaged" in result.stderr
    assert not mark.exists()


def test_a_pickle_of_images_that_would_run_code(mark: Path, tmp_path: Path) -> None:
    path = tmp_path / "mini-imagenet-cache-train.pkl"
    path.write_bytes(pickle.dumps({"image_data": Runs(mark)}))
    with pytest.raises(DataError, match=r"names (posix|nt)\.system"):
        read_array_pickle(path)
    assert not mark.exists()


def test_a_configuration_that_would_run_code(mark: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f'algo: !!python/object/apply:os.system ["touch {mark}"]\n')
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load_config([path])
    assert not mark.exists()


def test_a_split_that_names_files_outside(run: Path, tmp_path: Path) -> None:
    content = strict_json((run / "split.json").read_text())
    content["unlabeled"] += ["../../../etc/passwd", "/etc/hostname"]
    split = tmp_path / "split.json"
    split.write_text(json.dumps(content))
    messages = refusal(*DIGITS, "--algo", "simple", "--split", split, "--output", tmp_path / "new")
    assert "doesn't match its hash" in messages


@pytest.mark.parametrize("deep", ['{"a":' * 5000, "[" * 100_000])
def test_json_that_is_nested_too_deep(deep: str, run: Path, tmp_path: Path) -> None:
    # At the recursion limit, garbage of earlier tests can't be reported, and prints that instead.
    gc.collect()
    for name in ("split.json", "list.jsonl"):
        (tmp_path / name).write_text(deep)
    assert "split.json" in refusal(
        *DIGITS, "--algo", "simple", "--split", tmp_path / "split.json", "--output", tmp_path / "x"
    )
    assert "list.jsonl" in refusal("inspect", tmp_path / "list.jsonl")
    (run / "model" / "config.json").write_text(deep)
    with pytest.raises(ModelError, match="no exported model"):
        load_model(run / "model")
    (run / "summary.json").write_text(deep)
    assert "summary.json" in refusal("resume", run)
