"""Class shares of a file or an estimate: ``--prior`` and ``prior.json``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from in_process import call, refusal
from PIL import Image

from ssl_toolkit import load_model
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.readers.priors import ordered_prior, read_prior
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.inference.evaluate import evaluate
from ssl_toolkit.inference.prior import Adjustment, make_adjustment
from ssl_toolkit.runs.class_shares import adjust_probabilities, estimate_class_shares
from ssl_toolkit.runs.folder import RunFolder


def plain_em(probs, training, rounds=3000):
    """The algorithm of Saerens et al., image by image and class by class."""
    shares = list(training)
    for _ in range(rounds):
        sums = [0.0] * len(shares)
        for row in probs:
            weighted = [p * s / t for p, s, t in zip(row, shares, training, strict=True)]
            for c, value in enumerate(weighted):
                sums[c] += value / sum(weighted)
        shares = [total / len(probs) for total in sums]
    return shares


def shifted(rng, count, shares, training, spread=1.2):
    """Posteriors for the training's shares, of images with other shares."""
    labels = rng.choice(len(shares), size=count, p=shares)
    centers = spread * np.eye(len(shares))
    x = centers[labels] + rng.normal(size=(count, len(shares)))
    logits = -((x[:, None] - centers) ** 2).sum(-1) / 2 + np.log(training)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True), labels


def test_em_is_that_of_the_paper():
    rng = np.random.default_rng(0)
    training = np.array([0.5, 0.3, 0.2])
    probs, _ = shifted(rng, 60, [0.1, 0.2, 0.7], training, spread=2.0)
    result = estimate_class_shares(probs, training, resamples=2)
    assert result.shares == pytest.approx(plain_em(probs.tolist(), training.tolist()), abs=2e-4)
    assert result.shares.sum() == pytest.approx(1)


def test_adjusted_probabilities_are_those_of_a_classifier_of_the_other_shares():
    rng = np.random.default_rng(1)
    training, target = np.array([0.5, 0.3, 0.2]), np.array([0.05, 0.15, 0.8])
    state = np.random.default_rng(2).bit_generator.state
    ours, theirs = (np.random.default_rng() for _ in range(2))
    ours.bit_generator.state = theirs.bit_generator.state = state
    probs, labels = shifted(ours, 2000, target, training)
    expected, _ = shifted(theirs, 2000, target, target)
    adjusted = adjust_probabilities(probs, target, training)
    np.testing.assert_allclose(adjusted, expected, atol=1e-9)
    accuracy = [np.mean(p.argmax(axis=1) == labels) for p in (probs, adjusted)]
    assert accuracy[1] > accuracy[0] + 0.1
    del rng


@pytest.mark.slow
def test_the_intervals_cover_the_shares():
    rng = np.random.default_rng(3)
    training, target = np.full(4, 0.25), np.array([0.55, 0.25, 0.15, 0.05])
    covered = []
    for trial in range(100):
        probs, _ = shifted(rng, 250, target, training)
        result = estimate_class_shares(probs, training, resamples=100, seed=trial)
        assert (result.lower <= result.shares).all()
        assert (result.shares <= result.upper).all()
        covered.append((result.lower <= target) & (target <= result.upper))
    by_class = np.mean(covered, axis=0)
    assert (by_class >= 0.88).all(), by_class
    assert by_class.mean() <= 0.99


@pytest.mark.parametrize("known", [False, True])
def test_validation_images_make_up_for_probabilities_that_are_not_calibrated(known):
    rng = np.random.default_rng(4)
    training, target = np.full(3, 1 / 3), np.array([0.6, 0.3, 0.1])
    covered = []
    for trial in range(20):
        # A classifier that favors the last class, as scalar temperatures can't correct.
        bias = np.array([0.7, 0.8, 1.5])
        (probs, _), (held_out, labels) = (
            shifted(rng, 300, target, training),
            shifted(rng, 300, training, training),
        )
        probs, held_out = (p * bias / (p * bias).sum(axis=1)[:, None] for p in (probs, held_out))
        result = estimate_class_shares(
            probs, training, validation=(held_out, labels) if known else None, resamples=60,
            seed=trial,
        )  # fmt: skip
        assert (result.lower <= result.shares).all()
        assert (result.shares <= result.upper).all()
        covered.append((result.lower <= target) & (target <= result.upper))
    assert np.mean(covered) >= 0.9 if known else np.mean(covered) <= 0.6


def test_degenerate_estimates():
    even = np.full(3, 1 / 3)
    nothing = estimate_class_shares(np.empty((0, 3)), even)
    assert nothing.shares.tolist() == even.tolist()
    assert (nothing.lower.tolist(), nothing.upper.tolist()) == ([0, 0, 0], [1, 1, 1])
    certain = estimate_class_shares(np.eye(3)[[0, 0, 0, 1]], even, resamples=20)
    assert certain.shares == pytest.approx([0.75, 0.25, 0], abs=1e-6)
    ignorant = estimate_class_shares(np.tile(even, (9, 1)), even, resamples=5)
    assert ignorant.shares == pytest.approx(even)
    elsewhere = (np.eye(3)[[2]], np.array([2]))  # no validation image of a class with a share
    same = estimate_class_shares(np.eye(3)[[0, 1]], even, validation=elsewhere, resamples=5)
    assert same.shares == pytest.approx([0.5, 0.5, 0], abs=1e-6)
    absent = np.array([0.5, 0.5, 0.0])  # a class without labels
    result = estimate_class_shares(np.eye(3), absent, resamples=5)
    assert result.shares == pytest.approx([0.5, 0.5, 0])
    impossible = estimate_class_shares(np.eye(3)[[2, 2]], absent, resamples=5)
    assert np.isfinite(impossible.shares).all()
    kept = adjust_probabilities(np.eye(3)[[2]], np.array([0.5, 0.5, 0.0]), even)
    assert kept.tolist() == [[0, 0, 1]]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prior") / "run"
    result = call("run", "--algo", "supervised", "--steps", 40, "--val-fraction", 0.1,
                  "--labels-per-class", 10, "--output", folder)  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder


SHARES = {str(c): 0.55 if c == 3 else 0.05 for c in range(10)}


def test_a_run_writes_its_estimate_in_the_form_that_it_reads(run: Path):
    summary = json.loads((run / "summary.json").read_text())["class_shares"]
    stored = json.loads((run / "prior.json").read_text())
    assert {"format": 1, **summary} == stored
    assert sum(stored["shares"].values()) == pytest.approx(1, abs=1e-4)
    for name, (lower, upper) in stored["intervals"].items():
        assert 0 <= lower <= stored["shares"][name] <= upper <= 1
    assert read_prior(run / "prior.json") == stored["shares"]
    assert call("evaluate", run, "--prior", run / "prior.json").returncode == 0
    assert call("check-run", run).returncode == 0


def test_evaluate_and_predict_agree_with_the_formula(run: Path, tmp_path: Path):
    file = tmp_path / "shares.csv"
    file.write_text("class,share\n" + "".join(f"{k},{v}\n" for k, v in SHARES.items()))
    before, after = evaluate(run), evaluate(run, prior=file)
    assert evaluate(run, prior=SHARES).test == after.test
    assert before.confusion["test"][:, 3].sum() < after.confusion["test"][:, 3].sum()
    assert evaluate(run).test == before.test
    model = load_model(run)
    images = np.random.default_rng(0).random((20, 8, 8, 3), dtype=np.float32)
    plain, adjusted = model.predict(images), model.predict(images, prior=SHARES)
    adjustment = make_adjustment(SHARES, run, model.classes)
    assert adjustment.training == pytest.approx([0.1] * 10)
    np.testing.assert_allclose(adjusted, adjustment.apply(plain)[0], rtol=1e-6)
    assert adjusted.sum(axis=1) == pytest.approx(1, abs=1e-5)
    nested = make_adjustment(SHARES, run / "model", model.classes)
    assert nested.temperature == adjustment.temperature != 1


def test_the_table_of_predict(run: Path, tmp_path: Path):
    rng = np.random.default_rng(1)
    for i in range(6):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    file = tmp_path / "p.json"
    file.write_text(json.dumps(SHARES))
    paths = [str(tmp_path / f"{i}.png") for i in range(6)]
    expected = load_model(run).predict(paths, prior=file)
    result = call("predict", run, tmp_path, "--prior", file, "--probabilities")
    rows = {row["path"]: row for row in csv.DictReader(result.stdout.splitlines())}
    assert rows[str(tmp_path / "broken.png")]["error"]
    got = [[float(rows[path][f"p_{c}"]) for c in range(10)] for path in paths]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    estimated = call("predict", run, *paths, "--prior", "estimate")
    assert "class shares, estimated (95 % interval):" in estimated.stderr
    assert len(estimated.stdout.splitlines()) == 7
    line = next(line for line in estimated.stderr.splitlines() if line.startswith("3: "))
    assert line.count("0.") == 3
    assert "test: class shares, estimated" in call("evaluate", run, "--prior", "estimate").stderr


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.json", '{"a": 0.5}', "no share for class b; give one for each class"),
        ("x.json", '{"a": 0.5, "b": 0.2, "bb": 0.3}', "the data has no class bb (did you mean"),
        ("x.json", '{"a": 0.5, "b": 0.4}', "the shares sum to 0.9, not to 1"),
        ("x.json", '{"a": 1.5, "b": -0.5}', "the share of class 'b' is -0.5; it must be 0 or more"),
        ("x.json", '{"a": NaN, "b": 1}', "the share of class 'a' is nan"),
        ("x.json", '{"a": "much", "b": 1}', "the share of class 'a' is 'much', not a number"),
        ("x.json", '{"a": 0.5, "a": 0.5}', "'a' is given twice"),
        ("x.json", "[1]", "must be a map of classes to shares"),
        ("x.json", "{", "corrupt, not valid JSON"),
        ("x.csv", "a,0.5\n", "the first line must name the columns class and share"),
        ("x.csv", "class,share\na\n", "'a' has 1 columns, the first line 2"),
        ("x.csv", "", "the first line must name the columns class and share"),
        ("x.txt", "", "give a .json that maps classes to shares, or a .csv"),
        ("missing.json", None, "No such file"),
    ],
)
def test_wrong_files_are_one_line(tmp_path: Path, name: str, text: str | None, words: str):
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(DataError) as caught:
        ordered_prior(read_prior(file), ("a", "b"))
    assert len(caught.value.messages) == 1
    assert words in caught.value.messages[0]


def test_rounded_shares_are_accepted(tmp_path: Path):
    file = tmp_path / "x.csv"
    file.write_text("share,class\n0.333,a\n0.333,b\n0.333, c \n")
    assert ordered_prior(read_prior(file), ("c", "b", "a")) == pytest.approx([1 / 3] * 3)


def test_training_uses_it_and_a_changed_file_changes_nothing(tmp_path: Path):
    file = tmp_path / "x.json"
    file.write_text(json.dumps(SHARES))
    config = load_config(flags={"prior": str(file), "steps": "2"})
    experiment = prepare(config)
    shares = experiment.trainer._class_shares
    assert shares.tolist() == pytest.approx([*SHARES.values()])
    tree = experiment.config.tree()
    assert tree["prior"] == SHARES
    folder = tmp_path / "run"
    keys = ["--algo", "adamatch", "--steps", 4, "--labels-per-class", 4]
    result = call("run", *keys, "--prior", file, "--output", folder)
    assert result.returncode == 0, result.stderr
    file.unlink()
    assert RunFolder(folder).read_config().settings.prior == SHARES
    assert call("resume", folder, "--steps", 6).returncode == 0


def test_wrong_shares_end_before_training(tmp_path: Path):
    file = tmp_path / "x.json"
    file.write_text('{"0": 1.0}')
    message = refusal("run", "--prior", file, "--output", tmp_path / "run")
    assert "no share for class 1, 2" in message
    assert not (tmp_path / "run").exists()
    assert "No such file" in refusal("run", "--prior", tmp_path / "none.json")


def test_multilabel_models_are_refused():
    with pytest.raises(ConfigError, match="multilabel has no class shares"):
        make_adjustment("estimate", None, ("a", "b"), "multilabel")
    without = make_adjustment("estimate", None, ("a", "b"))
    assert isinstance(without, Adjustment)
    assert (without.training.tolist(), without.temperature) == ([0.5, 0.5], 1.0)
