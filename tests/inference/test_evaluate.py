"""``ssl-toolkit evaluate``, and the scores behind it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import call, refusal
from PIL import Image
from sklearn import metrics as sklearn_metrics

from ssl_toolkit import evaluate
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.inference.confusion import MOST_NAMED, draw_confusion
from ssl_toolkit.runs.progress import score_rows
from ssl_toolkit.runs.scoring import (
    bootstrap_interval,
    confusion_matrix,
    scores,
    top_k_accuracy,
)

RUN = ("run", "--algo", "supervised", "--backbone", "wrn_10_1", "--image-size", "16", "--steps",
       "3", "--batch-size", "8", "--device", "cpu", "--quiet")  # fmt: skip


@pytest.fixture(scope="module")
def run(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on its own copy of the data; neither is written to."""
    folder = tmp_path_factory.mktemp("evaluate")
    shutil.copytree(cases / "c00_base", folder / "data")
    result = call(*RUN, "--data", folder / "data", "--output", folder / "run")
    assert result.returncode == 0, result.stderr
    return folder / "run"


def evaluated(*arguments: object) -> dict[str, Any]:
    result = call("evaluate", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    actual: dict[str, Any] = json.loads(result.stdout)
    return actual


# --- scores -------------------------------------------------------------------------------------


def test_top_k_and_confusion_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(9), 300).astype(np.float32)
    labels = generator.integers(0, 8, 300)  # the last class is absent
    for k in (1, 3, 5):
        expected = sklearn_metrics.top_k_accuracy_score(labels, probs, k=k, labels=range(9))
        assert top_k_accuracy(probs, labels, k) == pytest.approx(expected)
    expected = sklearn_metrics.confusion_matrix(labels, probs.argmax(axis=1), labels=range(9))
    np.testing.assert_array_equal(confusion_matrix(probs, labels), expected)
    got = scores(probs, labels, "abcdefghi")
    assert got["top5"] == top_k_accuracy(probs, labels, 5)
    assert got["accuracy"] == top_k_accuracy(probs, labels, 1)


def test_equal_probabilities_rank_as_argmax_does() -> None:
    uniform = np.full((6, 6), 1 / 6, np.float32)
    assert top_k_accuracy(uniform, np.arange(6), 1) == pytest.approx(1 / 6)
    assert top_k_accuracy(uniform, np.arange(6), 5) == pytest.approx(5 / 6)
    assert top_k_accuracy(uniform[:, :3], np.array([0, 1, 2, 0, 1, 2]), 5) == 1


def test_the_interval_is_that_of_resampled_images() -> None:
    generator = np.random.default_rng(1)
    correct = generator.random(80) < 0.8
    resampled = correct[generator.integers(0, 80, (20_000, 80))].mean(axis=1)
    expected = np.quantile(resampled, [0.025, 0.975])
    got = bootstrap_interval(int(correct.sum()), 80)
    np.testing.assert_allclose(got, expected, atol=1 / 80)
    assert got == bootstrap_interval(int(correct.sum()), 80)
    assert got != bootstrap_interval(int(correct.sum()), 80, level=0.5)
    assert bootstrap_interval(80, 80) == (1, 1)
    lower, upper = bootstrap_interval(800, 1000)
    assert lower < 0.8 < upper
    assert upper - lower == pytest.approx(2 * 1.96 * (0.8 * 0.2 / 1000) ** 0.5, rel=0.05)


@pytest.mark.parametrize(("number", "lines"), [(20, 20), (21, 10), (2000, 10)])
def test_many_classes_keep_the_scores_visible(number: int, lines: int) -> None:
    labels = np.arange(number).repeat(2)
    labels = labels[labels != 3]  # a class without images
    probs = np.full((len(labels), number), 0.1 / number, np.float32)
    probs[np.arange(len(labels)), np.where(labels < 9, 0, labels)] += 0.9
    names = [f"class {n}" for n in range(number)]
    rows = score_rows({"test": scores(probs, labels, names)}, all_in="that file")
    classes = [name.strip() for name, _ in rows if name.startswith(" ")]
    assert len(classes) == lines
    message = dict(rows).get("test classes")
    if number == 20:
        assert (classes, message) == (names, None)
    else:  # all that is taken for class 0 comes first
        assert classes[:7] == [f"class {n}" for n in (1, 2, 4, 5, 6, 7, 8)]
        assert message == f"the 10 least accurate of {number:,} (that file lists all)"


# --- the command --------------------------------------------------------------------------------


def test_it_gives_the_summary_and_more(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    result = evaluated(run)
    with np.load(run / "predictions.npz") as arrays:
        probs, labels = arrays["test_probabilities"], arrays["test_labels"]
    confusion = result["test"].pop("confusion")
    assert confusion == confusion_matrix(probs, labels).tolist()
    assert np.sum(confusion) == 12
    assert result == {"validation": None, "test": summary["test"]}
    assert summary["test"]["interval"] == list(
        bootstrap_interval(round(12 * summary["test"]["accuracy"]), 12)
    )
    output = call("evaluate", run).stdout
    lower, upper = summary["test"]["interval"]
    assert f"95 % interval: {lower:.4f} to {upper:.4f}\n" in output
    assert "negative log-likelihood" in output
    assert "top-5" not in output  # of four classes it says nothing


def test_batches_change_nothing(run: Path) -> None:
    expected = evaluated(run)["test"]
    for batch_size in (1, 5, 100):
        result = evaluated(run, "--batch-size", batch_size)["test"]
        for key in ("ece", "nll"):
            assert result.pop(key) == pytest.approx(expected[key], abs=1e-6)
        assert result == {key: expected[key] for key in result}


def test_a_run_on_several_gpus_is_evaluated_on_a_cpu(run: Path, tmp_path: Path) -> None:
    expected = evaluated(run)
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    text = config.read_text("utf-8")
    config.write_text(text.replace("sync_batchnorm: false", "sync_batchnorm: true"), "utf-8")
    assert config.read_text("utf-8") != text
    assert evaluated(tmp_path / "run") == expected


def test_other_data(run: Path, cases: Path, tmp_path: Path) -> None:
    own = evaluated(run)["test"]
    assert evaluated(run, "--data", cases / "c00_base") == {"test": own}
    # Without a test part every image with a label is scored: here the test images once more.
    pool = shutil.copytree(cases / "c00_base" / "test", tmp_path / "pool")
    assert evaluated(run, "--data", pool) == {"labeled": own}
    manifest = tmp_path / "m.csv"
    lines = [f"{path.relative_to(pool)},{path.parent.name},test" for path in pool.rglob("*.png")]
    others = [f"../pool/{name}/t_0.png,{name},train" for name in "dcba"]
    manifest.write_text("\n".join(["path,label,split", *lines]) + "\n")
    assert "no labeled image" in refusal("evaluate", run, "--data", manifest, "--root", pool)
    (tmp_path / "extra").mkdir()
    for name in "abcd":
        shutil.copy(pool / name / "t_0.png", tmp_path / "extra" / f"{name}.png")
    lines = [f"pool/{line}" for line in lines]
    others = [f"extra/{name}.png,{name},train" for name in "dcba"]
    manifest.write_text("\n".join(["path,label,split", *lines, *others]) + "\n")
    result = evaluated(run, "--data", manifest)["test"]
    assert (result["accuracy"], result["count"]) == (own["accuracy"], 12)
    assert result["confusion"] == own["confusion"]
    assert "labeled accuracy: " in call("evaluate", run, "--data", pool).stdout


def test_classes_in_another_order(run: Path, tmp_path: Path, cases: Path) -> None:
    """The run's own order counts, whatever the data's is."""
    copy = shutil.copytree(run, tmp_path / "run")
    config = json.loads((copy / "model" / "config.json").read_text("utf-8"))
    config["classes"] = [*"dcba"]  # as if it had been trained with that order
    (copy / "model" / "config.json").write_text(json.dumps(config))
    straight = np.array(evaluated(run)["test"]["confusion"])
    result = np.array(evaluated(copy, "--data", cases / "c00_base")["test"]["confusion"])
    # The network answers in its own order: only the true classes change places.
    np.testing.assert_array_equal(result, straight[::-1])


def test_the_run_is_enough_for_other_data(run: Path, cases: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    config = (moved / "config.yaml").read_text("utf-8")
    (moved / "config.yaml").write_text(config.replace(str(run.parent / "data"), "/not/there"))
    assert "/not/there" in refusal("evaluate", moved)
    result = evaluated(moved, "--data", cases / "c00_base")
    assert result["test"] == evaluated(run)["test"]


def test_unreadable_images_of_other_data(run: Path, cases: Path, tmp_path: Path) -> None:
    data = shutil.copytree(cases / "c00_base", tmp_path / "data")
    (data / "test" / "a" / "t_0.png").write_bytes(b"")
    assert "t_0.png" in refusal("evaluate", run, "--data", data)
    assert evaluated(run, "--data", data, "--on-bad-image", "skip")["test"]["count"] == 11


def test_the_confusion_matrix_image(run: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "confusion.png", tmp_path / "python.png"
    assert call("evaluate", run, "--confusion", path).returncode == 0
    result = evaluate(run, confusion=other)
    assert other.read_bytes() == path.read_bytes()
    expected = draw_confusion(result.confusion["test"], result.classes)
    with Image.open(path) as image:
        np.testing.assert_array_equal(np.asarray(image), np.asarray(expected))
        assert image.format == "PNG"
        assert min(image.size) > 100
    message = refusal("evaluate", run, "--confusion", tmp_path / "confusion.jpg")
    assert ".png" in message
    with pytest.raises(ConfigError, match="ends in"):
        evaluate(run, confusion=tmp_path / "confusion.jpg")
    assert "--root" in refusal("evaluate", run, "--root", tmp_path)


@pytest.mark.parametrize("number", [2, MOST_NAMED + 1])
def test_the_darkness_of_a_cell_is_its_share_of_the_row(number: int) -> None:
    matrix = np.zeros((number, number), np.int64)
    matrix[0, 0], matrix[0, 1], matrix[1, 1] = 1, 3, 40
    image = np.asarray(draw_confusion(matrix, [f"class {n}" for n in range(number)]))
    quarter = np.round(255 + 0.25 * (np.array([8, 48, 107]) - 255)).astype(np.uint8)

    def extent(color: object) -> list[int]:
        result = (image == color).all(axis=-1)
        # Three at least: the edges of letters may have any color.
        rows, columns = (np.flatnonzero(result.sum(axis=axis) >= 3) for axis in (1, 0))
        return [int(end) for ends in (rows, columns) for end in (ends[0], ends[-1])]

    # Class 1 is always right: the one full cell. Of class 0 a quarter is: the cell before it.
    top, bottom, left, right = extent((8, 48, 107))
    above, below, before, behind = extent(quarter)
    assert (below, behind) == (top - 1, left - 1)
    assert bottom - top == below - above == right - left == behind - before


def test_weights_of_the_run_are_not_changed(run: Path) -> None:
    before = (run / "model" / "model.safetensors").read_bytes()
    state = torch.get_rng_state()
    evaluated(run, "--data", run.parent / "data")
    assert torch.equal(torch.get_rng_state(), state)
    assert (run / "model" / "model.safetensors").read_bytes() == before
