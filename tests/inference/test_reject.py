"""Images of no class: ``predict --reject``, ``pseudo-label --reject`` and what they need."""

from __future__ import annotations

import csv
import json
import math
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import call, refusal
from PIL import Image
from sklearn.datasets import load_digits

from ssl_toolkit import ConfigError, ModelError, predict, pseudo_label, train
from ssl_toolkit.engine.checkpoints import load_checkpoint
from ssl_toolkit.inference.export import export
from ssl_toolkit.inference.model import Model, load_model
from ssl_toolkit.inference.predict import predict_table
from ssl_toolkit.models.classifier import energy
from ssl_toolkit.models.known_scores import KnownScores
from ssl_toolkit.runs.folder import RunFolder

KEYS = {"algo": "supervised", "steps": 40, "labels_per_class": 8, "device": "cpu", "seed": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validation images."""
    return train(
        {**KEYS, "val_fraction": 0.2, "output": tmp_path_factory.mktemp("r") / "run"}
    ).folder


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return load_model(run, "cpu")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Ten digits and ten images of noise."""
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(10):
        digit = (load_digits().images[i] * 15.9).astype(np.uint8)
        Image.fromarray(digit).save(folder / f"digit{i}.png")
        noise = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"noise{i}.png")
    return folder


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_quantiles_accept_the_share_of_further_images():
    rng = np.random.default_rng(0)
    accepted = []
    for _ in range(400):
        energies = KnownScores.of(rng.normal(size=60), "validation")
        assert energies is not None
        accepted.append((rng.normal(size=200) <= energies.limit(0.9)).mean())
    assert np.mean(accepted) == pytest.approx(0.9, abs=0.01)
    assert KnownScores.parse(json.loads(json.dumps(energies.tree())), "x") == energies
    assert energies.limit(1) == energies.quantiles[-1]
    assert KnownScores.of(np.arange(49.0), "validation") is None
    assert KnownScores.of(1e-7 * np.arange(99.0), "validation") is None


def test_energy_of_huge_logits_is_finite():
    logits = torch.tensor([[1e38, -1e38], [-1e38, -1e38]])
    assert energy(logits).tolist() == pytest.approx([-1e38, 1e38])
    assert energy(logits.double()).dtype == torch.float64
    assert energy(torch.zeros(2, 3).bfloat16()).dtype == torch.float32


def test_the_score_is_the_energy_of_the_logits(model: Model, images: Path):
    paths = sorted(images.iterdir())
    scores = model.stranger_scores(paths)
    stack = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
    with torch.no_grad():
        logits = model.classifier(torch.from_numpy(stack).permute(0, 3, 1, 2) / 255).logits
    np.testing.assert_allclose(scores, energy(logits).numpy(), atol=1e-5)
    results = list(predict(model, images, reject=True))
    assert [image.stranger_score for image in results] == pytest.approx(scores.tolist())
    limit = model.stranger_limit()
    assert [image.stranger for image in results] == (scores > limit).tolist()
    assert all((image.label is None) == image.stranger for image in results)
    assert all((image.confidence is None) == image.stranger for image in results)
    unchanged = list(predict(model, images))
    assert {(image.stranger, image.stranger_score) for image in unchanged} == {(None, None)}
    np.testing.assert_array_equal(
        [image.probabilities for image in results], [image.probabilities for image in unchanged]
    )


def test_the_limit_comes_from_validation_images(run: Path, model: Model):
    probabilities = np.load(run / "predictions.npz")["validation_probabilities"]
    assert model.known_scores is not None
    assert (model.known_scores.images, model.known_scores.count) == (
        "validation",
        len(probabilities),
    )
    assert model.stranger_limit(0.5) < model.stranger_limit(0.9) < model.stranger_limit(1)


def test_the_table_and_the_console_show_what_is_rejected(run: Path, model: Model, images: Path):
    (images / "broken.png").write_bytes(b"no image")
    good = [path for path in sorted(images.iterdir()) if path.name != "broken.png"]
    result = call("predict", run, images, "--reject", "0.5")
    assert result.returncode == 1
    rows = table(result.stdout)
    assert [*rows[0]] == ["path", "class", "confidence", "stranger", "stranger_score", "error"]
    broken, *others = rows
    assert broken["error"]
    assert (broken["stranger"], broken["stranger_score"]) == ("", "")
    scores = model.stranger_scores(good)
    strangers = scores > model.stranger_limit(0.5)
    assert 0 < strangers.sum() < 20
    assert [row["stranger"] for row in others] == ["yes" if one else "no" for one in strangers]
    assert [not row["class"] for row in others] == strangers.tolist()
    assert [float(row["stranger_score"]) for row in others] == pytest.approx(scores.tolist())
    assert f"{strangers.sum()} of 21 images rejected as strangers" in result.stderr
    assert f"which accepts 0.5 of {model.known_scores.count} validation images" in result.stderr
    alone = call("predict", run, images, "--reject")
    expected = call("predict", run, images, "--reject-above", model.stranger_limit(0.95))
    assert alone.stdout == expected.stdout
    shown = table(call("predict", run, images, "--reject-above", "inf").stdout)
    assert {row["stranger"] for row in shown} == {"no", ""}


@pytest.mark.parametrize(
    "prior", ["estimate", {str(c): 0.55 if c == 3 else 0.05 for c in range(10)}]
)
def test_a_prior_changes_neither_scores_nor_rejections(model: Model, images: Path, prior):
    plain, adjusted = (
        list(predict(model, images, reject=0.5, prior=each)) for each in (None, prior)
    )
    for before, after in zip(plain, adjusted, strict=True):
        assert (before.stranger, before.stranger_score) == (after.stranger, after.stranger_score)
        same = np.array_equal(before.probabilities, after.probabilities)
        assert same == before.stranger
    accepted = [image.path for image in plain if not image.stranger]
    alone = [image.probabilities for image in predict(model, accepted, prior=prior)]
    together = [image.probabilities for image in adjusted if not image.stranger]
    np.testing.assert_allclose(together, alone, atol=1e-6)  # an estimate of these alone


def test_pseudo_labels_of_rejected_images_are_empty(run: Path, model: Model, images: Path):
    plain = pseudo_label(model, images, threshold=0)
    result = pseudo_label(model, images, threshold=0, reject=0.5, uncertain=20)
    strangers = model.stranger_scores(sorted(images.iterdir())) > model.stranger_limit(0.5)
    expected = [None if s else name for s, name in zip(strangers, plain.labels, strict=True)]
    assert list(result.labels) == expected
    assert len(result.uncertain) == 20 - strangers.sum()
    shown = call("pseudo-label", run, images, "--threshold", 0, "--reject", "0.5")
    assert f"{strangers.sum()} of 20 images rejected as strangers" in shown.stderr
    assert [row["label"] for row in table(shown.stdout)] == [label or "" for label in expected]


def test_what_is_needed_travels_with_the_model(run: Path, model: Model, tmp_path: Path):
    exported = load_model(export(run, "timm", tmp_path / "timm").path, "cpu")
    assert exported.known_scores == model.known_scores
    assert load_model(run / "model", "cpu").stranger_limit() == model.stranger_limit()


def test_without_validation_images_the_pool_is_used(tmp_path: Path):
    folder = train({**KEYS, "val_fraction": 0, "output": tmp_path / "run"}).folder
    model = load_model(folder, "cpu")
    assert model.known_scores is not None
    assert (model.known_scores.images, model.known_scores.count >= 500) == ("unlabeled", True)
    summary = RunFolder(folder).read_summary()
    assert summary.validation is None
    digits = (load_digits().images[:40] * 15.9).astype(np.uint8)
    scores = model.stranger_scores(digits)
    assert (scores <= model.stranger_limit(0.95)).mean() > 0.8
    # The weights of a checkpoint alone have no limit.
    (folder / "model").rename(tmp_path / "away")
    with pytest.raises(ModelError, match="has no limit of the score of strangers") as caught:
        load_model(folder, "cpu").stranger_limit()
    assert len(caught.value.messages) == 1
    assert "--reject-above inf" in caught.value.messages[0]
    assert load_checkpoint(RunFolder(folder).last)["step"] == 40
    np.testing.assert_allclose(load_model(folder, "cpu").stranger_scores(digits), scores, rtol=1e-5)


def test_features_have_scores_and_votes_of_neighbors_are_refused(tmp_path: Path):
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))  # they are sorted by writer
    data, target = digits.data[order], digits.target[order]
    labels = [int(c) if n < 60 else None for n, c in enumerate(target[:400])]
    models = {}
    for algo in ("linear_probe", "knn"):
        keys = {"algo": algo, "output": tmp_path / algo, "device": "cpu"}
        run = train(keys, images=data[:400], labels=labels)
        models[algo] = load_model(run.folder, "cpu")
    probe = models["linear_probe"]
    of_classes = probe.stranger_scores(data[400:])
    assert (of_classes <= probe.stranger_limit(0.9)).mean() == pytest.approx(0.9, abs=0.05)
    noise = np.random.default_rng(0).uniform(0, 16, (400, 64)).astype(np.float32)
    assert np.median(probe.stranger_scores(noise)) > np.median(of_classes)
    assert models["knn"].known_scores is None
    for refused in (models["knn"].stranger_limit, lambda: models["knn"].stranger_scores(noise)):
        with pytest.raises(ModelError, match="votes of neighbors"):
            refused()


def test_errors_are_one_line(run: Path, model: Model, images: Path, cases: Path):
    assert "'2' is not a share above 0 and at most 1" in refusal(
        "predict", run, images, "--reject", "2"
    )
    assert "write it last" in refusal("predict", run, "--reject", images)
    both = refusal("predict", run, images, "--reject=0.9", "--reject-above", "1")
    assert "leave one out" in both
    for values in ({"reject": 0.0}, {"reject": 1.5}, {"reject_above": math.nan}):
        with pytest.raises(ConfigError) as caught:
            predict_table(model, images, **values)
        assert len(caught.value.messages) == 1


def test_a_model_of_several_classes_is_refused(model: Model, images: Path, run: Path):
    other = load_model(run, "cpu")
    other.classifier.task = "multilabel"
    for keys in ({"reject": True}, {"reject_above": 0.0}):
        with pytest.raises(ModelError, match="one class per image"):
            predict(other, images, **keys)


def test_damaged_quantiles_are_named(run: Path, tmp_path: Path):
    copy = export(run, "timm", tmp_path / "timm").path
    config = json.loads((copy / "config.json").read_text())
    config["known_scores"]["quantiles"].reverse()
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="invalid known_scores"):
        load_model(copy)
