"""`Algorithm.stranger_scores` in the saved model, its exports, and with add-ons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import call
from safetensors.torch import load_file
from ssl_toolkit_fixmatch import OpenMatch
from torch import Tensor

import ssl_toolkit
from ssl_toolkit import PluginError, load_model
from ssl_toolkit.inference.export import export
from ssl_toolkit.models.export import ALGORITHM
from ssl_toolkit.models.known_scores import KnownScores

KEYS = {
    "algo": "openmatch",
    "backbone": "wrn_10_1",
    "steps": 20,
    "batch_size": 16,
    "val_fraction": 0.1,
    "device": "cpu",
    "lr": 0.05,
}
IMAGES = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "run"
    ssl_toolkit.train(KEYS | {"output": str(folder)})
    return folder


def by_hand(model: ssl_toolkit.Model, weight: Tensor, shift: float | Tensor = 0.0) -> np.ndarray:
    """Return the log-odds that the binary classifier of the predicted class refuses."""
    with torch.no_grad():
        output = model.classifier(IMAGES)
    predicted = (output.logits + shift).argmax(dim=1)
    outlier, inlier = (output.features @ weight.T).view(len(IMAGES), 2, -1).unbind(dim=1)
    odds = (inlier - outlier)[torch.arange(len(IMAGES)), predicted]
    return -odds.numpy()


def test_scores_are_those_of_the_averaged_one_vs_all_classifiers(run: Path) -> None:
    model = load_model(run, "cpu")
    weight = load_file(run / "model" / ALGORITHM)["open_head.weight"]
    scores = model.stranger_scores(IMAGES)
    np.testing.assert_allclose(scores, by_hand(model, weight), rtol=1e-5, atol=1e-5)
    assert scores.std() > 0
    live = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["algorithm_state"]
    assert not torch.equal(live["open_head.weight"], weight)


def test_the_head_predicts_the_probabilities(run: Path) -> None:
    model = load_model(run, "cpu")
    with torch.no_grad():
        expected = model.classifier(IMAGES).logits.softmax(dim=1).numpy()
    np.testing.assert_allclose(model.predict(IMAGES), expected, atol=1e-6)


def test_the_limit_is_a_quantile_of_the_same_scores(run: Path) -> None:
    model = load_model(run, "cpu")
    known = model.known_scores
    assert known is not None
    assert known.images == "validation"
    assert known.quantiles[0] < known.quantiles[-1]
    config = json.loads((run / "model" / "config.json").read_text())
    assert model.stranger_limit(0.5) == config["known_scores"]["quantiles"][50]


def test_timm_and_programs_export_the_head(run: Path, tmp_path: Path) -> None:
    model = load_model(run, "cpu")
    exported = export(run, "timm", tmp_path / "timm").path
    again = load_model(exported, "cpu")
    assert np.array_equal(again.stranger_scores(IMAGES), model.stranger_scores(IMAGES))
    assert again.stranger_limit() == model.stranger_limit()
    program = torch.export.load(export(run, "torch-export", tmp_path / "model.pt2").path)
    found = program.module()(IMAGES).detach().numpy()
    np.testing.assert_allclose(found, model.predict(IMAGES), atol=1e-5)
    assert not any("open_head" in name for name in program.state_dict)


def test_scores_of_certain_classifiers_still_have_limits(run: Path) -> None:
    model = load_model(run, "cpu")
    assert model.predictor is not None
    algorithm = model.predictor.algorithm
    assert isinstance(algorithm, OpenMatch)
    before = model.stranger_scores(IMAGES)
    with torch.no_grad():
        algorithm.open_head.weight *= 1000
    after = KnownScores.of(model.stranger_scores(IMAGES), "validation")
    assert after is not None
    assert len(set(after.quantiles)) > 50
    np.testing.assert_allclose(model.stranger_scores(IMAGES), 1000 * before, rtol=1e-3, atol=1)


def test_an_addon_changes_the_predicted_class_of_the_scores(tmp_path: Path) -> None:
    keys = {**KEYS, "algo": "openmatch+logit_adjustment", "output": str(tmp_path / "run")}
    options = {"openmatch": {"logit_adjustment": {"when": "prediction"}}}
    ssl_toolkit.train(keys | options | {"imbalance": {"labels": 4}, "labels_per_class": 8})
    model = load_model(tmp_path / "run", "cpu")
    weight = load_file(tmp_path / "run" / "model" / ALGORITHM)["base.open_head.weight"]
    with torch.no_grad():
        output = model.classifier(IMAGES)
        assert model.predictor is not None
        shift = model.predictor.logits(output) - output.logits
    assert shift.abs().max() > 0.1
    np.testing.assert_allclose(
        model.stranger_scores(IMAGES), by_hand(model, weight, shift), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "stranger_scores of algorithm 'openmatch' returned NoneType instead of scores (2,)"),
        (torch.zeros(2, 3), "returned the shape (2, 3) instead of scores (2,)"),
    ],
)
def test_a_wrong_result_is_refused_before_training(
    result: Tensor | None, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(OpenMatch, "stranger_scores", lambda self, output: result)
    with pytest.raises(PluginError) as caught:
        ssl_toolkit.train(KEYS | {"output": str(tmp_path / "run")})
    assert message in str(caught.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_reject_uses_the_scores(run: Path, tmp_path: Path) -> None:
    from PIL import Image

    for number, image in enumerate(IMAGES[:20]):
        pixels = (image.permute(1, 2, 0).numpy() * 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    model = load_model(run, "cpu")
    scores = model.stranger_scores(sorted(tmp_path.iterdir()))
    limit = float(np.median(scores))
    lines = call("predict", run, tmp_path, "--reject-above", limit).stdout.splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    assert [row["stranger"] == "yes" for row in rows] == (scores > limit).tolist()
    assert [not row["class"] for row in rows] == (scores > limit).tolist()
