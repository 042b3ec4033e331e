"""Images of no class that are mixed into the pool: ``--strangers``."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process import call, refusal
from PIL import Image
from split_tables import table_of

from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.data.splits.strangers import add_strangers, count_strangers, with_strangers
from ssl_toolkit.engine.step_metrics import StepRecorder
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import Loss, PseudoLabels, StepOutput
from ssl_toolkit.interfaces.datasets import STRANGER


def numbered(table, first):
    """Return the table with images whose value is `first` plus their row."""

    def read(rows, size):
        values = first + np.asarray(rows, dtype=np.uint8)
        return np.broadcast_to(values[:, None, None, None], (len(rows), size, size, 3)).copy()

    return replace(table, read=read, digest=lambda row: f"{first + row}")


def mixed(fraction, seed=0):
    known, strangers = numbered(table_of([20] * 3, test=3), 0), numbered(table_of([50, 40]), 100)
    table = with_strangers(known, strangers, "others")
    split = draw_split(table, seed=seed, labels_per_class=4, val_fraction=0.1)
    return table, split, add_strangers(table, split, fraction, seed, "others")


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 42), (0.25, 14), (0.01, 0), (0.6, 63)])
def test_they_are_a_fraction_of_the_pool_and_all_else_stays_the_same(fraction, count):
    table, before, split = mixed(fraction)
    assert count_strangers(table, split) == count
    assert split.unlabeled[: len(before.unlabeled)].tolist() == before.unlabeled.tolist()
    assert (table.labels[split.unlabeled[len(before.unlabeled) :]] == STRANGER).all()
    assert len(np.unique(split.unlabeled)) == len(split.unlabeled)
    for part in ("labeled", "validation", "test"):
        assert getattr(split, part).tolist() == getattr(before, part).tolist()
    alone = draw_split(table_of([20] * 3, test=3), seed=0, labels_per_class=4, val_fraction=0.1)
    assert alone.unlabeled.tolist() == before.unlabeled.tolist()


def test_a_larger_fraction_contains_a_smaller_one_and_a_seed_draws_others():
    few, many = (set(mixed(fraction)[2].unlabeled.tolist()) for fraction in (0.2, 0.5))
    assert few < many
    assert set(mixed(0.5, seed=1)[2].unlabeled[42:].tolist()) != many


def test_images_and_digests_come_from_their_own_table():
    table, _, _ = mixed(0.5)
    rows = np.array([61, 0, 63, 5, 62])  # the first table has 63 rows
    assert table.read(rows, 2)[:, 0, 0, 0].tolist() == [61, 0, 100, 5, 62]
    assert [table.digest(row) for row in rows.tolist()] == ["61", "0", "100", "5", "62"]
    assert table.keys[63] == "strangers/pool/0"
    assert table.read(np.array([70]), 3).shape == (1, 3, 3, 3)


def test_impossible_requests_are_one_line():
    with pytest.raises(DataError, match=r"needs 168 images .* others has 90; use at most 0.68"):
        mixed(0.8)
    table = table_of([5, 5])
    features = replace(table, features=np.zeros((10, 4), np.float32))
    with pytest.raises(DataError, match="the data holds features"):
        with_strangers(features, table, "x")
    several = replace(table, label_sets=np.eye(2, dtype=np.uint8))
    with pytest.raises(DataError, match="need --task multiclass"):
        with_strangers(several, table, "x")
    gray = replace(table, pixels=PixelFormat(1, 8))
    with pytest.raises(DataError, match="set --channels and --bits"):
        with_strangers(table, gray, "x")


def test_their_pseudo_labels_are_wrong_and_their_pairs_false():
    recorder = StepRecorder([2, 2])
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    hidden = torch.tensor([0, STRANGER, STRANGER, -1])
    every = ~torch.eye(4, dtype=torch.bool)
    output = StepOutput(
        losses={"supervised": Loss(torch.tensor(1.0))},
        pseudo_labels=PseudoLabels(probs, torch.ones(4, dtype=torch.bool)),
        pairs={"similarity": every},
    )
    recorder.add(1, torch.tensor(1.0), output, hidden)
    values = recorder.flush()
    assert values["train.coverage"] == 1
    assert values["train.pseudo_label_accuracy"] == pytest.approx(1 / 3)  # one is not known
    assert values["train.pair_similarity_false"] == 1  # two strangers are not judged


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "others"
    path.mkdir()
    rng = np.random.default_rng(0)
    for i in range(40):
        Image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)).save(path / f"{i}.png")
    return path


def test_runs_record_them_and_can_be_checked_and_evaluated(tmp_path, folder):
    run = tmp_path / "run"
    keys = ["--algo", "fixmatch", "--steps", 4, "--strangers", folder, "--strangers-fraction", 0.03]
    result = call("run", *keys, "--output", run)
    assert "39 of the 1,292 unlabeled images are strangers" in result.stdout
    summary = json.loads((run / "summary.json").read_text())
    assert summary["strangers"] == 39
    assert summary["counts"]["unlabeled"] == 1292
    keys = json.loads((run / "split.json").read_text())["unlabeled"]
    assert sum(key.startswith("strangers/") for key in keys) == 39
    assert "39 of the unlabeled are strangers" in (run / "model" / "README.md").read_text()
    call("report", run)
    assert "39 of 1,292 unlabeled images are strangers" in (run / "report.html").read_text()
    assert call("check-run", run).returncode == 0
    assert call("evaluate", run).returncode == 0
    (folder / "0.png").unlink()
    assert "strangers/0.png" in call("evaluate", run).stderr


def test_a_split_is_used_again_only_for_the_same_fraction(tmp_path, folder):
    run = tmp_path / "run"
    keys = ["run", "--steps", 2, "--strangers", folder]
    assert call(*keys, "--strangers-fraction", 0.02, "--output", run).returncode == 0
    again = [*keys, "--split", run / "split.json", "--output", tmp_path / "again"]
    assert "has 26 strangers beside 1,253" in refusal(*again, "--strangers-fraction", 0.03)
    assert call(*again, "--strangers-fraction", 0.02).returncode == 0


def test_a_dry_run_shows_the_number_and_faults_are_one_line(tmp_path, folder):
    shown = call("run", "--strangers", "mnist5k", "--dry-run").stdout
    assert "# 1,253 of the 2,506 unlabeled images are strangers, images of mnist5k" in shown
    assert "did you mean 'mnist5k'" in refusal("run", "--strangers", "mnist5", "--dry-run")
    assert "needs 1,253 images" in refusal("run", "--strangers", folder, "--output", tmp_path / "x")
    assert "less than 1" in refusal("run", "--strangers", folder, "--strangers-fraction", 1)
    buffered = ["run", "--data", folder, "--stream-buffer", 8, "--strangers", "digits"]
    assert refusal(*buffered)


def test_an_upper_bound_refuses_them(folder):
    keys = ["--strangers", folder, "--strangers-fraction", 0.02]
    assert "fully_supervised" in refusal("run", "--algo", "fully_supervised", *keys)
