"""Heads over features: what they compute, their files, and their exports."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import call
from pretrained_runs import flags, make_images
from torch import Tensor, nn

from ssl_toolkit import FeatureHead, FeatureTransform, Neighbors, load_model
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.heads import head_for
from ssl_toolkit.models.probe import pooled_transform, unfitted_head, unit_length
from ssl_toolkit.models.timm_backbone import TimmBackbone

SIZES = (4, 3)


@pytest.fixture
def features() -> Tensor:
    return torch.randn(9, 7, generator=torch.Generator().manual_seed(1))


def linear_head(transform: FeatureTransform) -> FeatureHead:
    torch.manual_seed(2)
    return FeatureHead(transform, nn.Linear(7, 3))


def neighbor_head(features: Tensor) -> FeatureHead:
    transform = unit_length(SIZES, center=features)
    scores = torch.eye(3)[torch.arange(9) % 3]
    return FeatureHead(transform, Neighbors(transform(features), scores, 2))


HEADS = {
    "probe": lambda x: linear_head(unit_length(SIZES)),
    "pooled": lambda x: linear_head(pooled_transform(x, SIZES)),
    "neighbors": neighbor_head,
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_restored_from_its_state_and_from_a_pickle(kind: str, features: Tensor) -> None:
    head = HEADS[kind](features)
    made = head_for(head.state_dict())
    assert made is not None
    made.load_state_dict(head.state_dict())
    for other in (made, copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(other(features), head(features))


def test_a_state_includes_its_architecture(features: Tensor) -> None:
    """The shapes alone don't tell a transform with powers from one without."""
    head = linear_head(unit_length((7,)))
    other = unfitted_head((7,), 3, "zero", frozen=True)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(features), head(features))
    one, two = neighbor_head(features), neighbor_head(features)
    two.predictor.neighbors.fill_(5)
    one.load_state_dict(two.state_dict())
    assert one.predictor.k == 5


def test_a_classifier_restores_the_head_of_a_state(features: Tensor) -> None:
    backbone = TimmBackbone.build("test_resnet", image_size=32)
    classifier = Classifier(backbone, 3, (0.5,) * 3, (0.5,) * 3)
    blocks = (backbone.feature_dim,)
    points = torch.randn(6, backbone.feature_dim)
    head = FeatureHead(unit_length(blocks), Neighbors(points, torch.rand(6, 3), 2))
    state = classifier.state_dict()
    state = {key: value for key, value in state.items() if not key.startswith("head.")}
    classifier.load_state_dict(state | {f"head.{k}": v for k, v in head.state_dict().items()})
    assert torch.equal(classifier.head(points), head(points))


def test_the_pooled_transform_by_hand(features: Tensor) -> None:
    x = features.double().numpy()
    first = np.sign(x[:, :4]) * np.sqrt(np.abs(x[:, :4]))
    second = (x[:, 4:] - x[:, 4:].mean(0)) / x[:, 4:].std(0)
    y = np.concatenate(
        [
            first / np.linalg.norm(first, axis=1, keepdims=True),
            0.4 * second / np.linalg.norm(second, axis=1, keepdims=True),
        ],
        axis=1,
    )
    y -= y.mean(0)
    wanted = y / np.linalg.norm(y, axis=1, keepdims=True)
    result = pooled_transform(features, SIZES)(features)
    assert np.abs(result.numpy() - wanted).max() < 1e-5


def test_a_feature_that_is_constant_in_training_does_not_dominate_the_others(
    features: Tensor,
) -> None:
    features[:, 5] = 0.25
    transform = pooled_transform(features, SIZES)
    unseen = features.clone()
    unseen[:, 5] = 3.0
    assert torch.isfinite(transform(unseen)).all()
    assert torch.allclose(transform(unseen), transform(features), atol=1e-6)
    alone = pooled_transform(features[:1], SIZES)(features[:1])
    assert torch.isfinite(alone).all()


def test_the_features_without_stages_have_unit_length(features: Tensor) -> None:
    changed = features.clone()
    changed[:, 4:] = 9.0
    transform = unit_length(SIZES)
    assert torch.equal(transform(changed), transform(features))
    assert torch.allclose(transform(features).norm(dim=1), torch.ones(9))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one value for each block"):
        FeatureTransform(torch.zeros(7), sizes=SIZES)
    with pytest.raises(ValueError, match="blocks of 5 features, but 7 means"):
        FeatureTransform(torch.zeros(7), sizes=(4, 1), powers=(1, 1), weights=(1, 1))


# --- files and exports ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["linear_probe", "knn", "simple"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    make_images(folder / "images")
    done = call("run", *flags(folder, algo=request.param), "--output", folder / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_every_way_to_a_model_gives_the_probabilities_of_the_run(run: Path) -> None:
    """Exported folder, checkpoint, torch.export and ONNX."""
    stored = np.load(run / "predictions.npz")
    assert call("evaluate", run).returncode == 0
    assert call("check-run", run).returncode == 0
    model = load_model(run)
    images = sorted((run.parent / "images").rglob("*.png"))
    predicted = model.predict(images)
    assert np.isclose(predicted.sum(axis=1), 1, atol=1e-5).all()
    pixels = _pixels(images)
    for form, opened in (("torch-export", _torch_export), ("onnx", _onnx)):
        done = call("export", run, "--format", form, "--overwrite")
        assert done.returncode == 0, done.stderr
        result = opened(run / "export", pixels)
        assert np.abs(result - predicted).max() < 1e-4, form
    tested = stored["test_probabilities"]
    distance = np.abs(predicted[:, None] - tested[None]).max(axis=2).min(axis=0)
    assert distance.max() < 1e-5


def _pixels(images: list[Path]) -> np.ndarray:
    from PIL import Image

    return np.stack([np.array(Image.open(p)) for p in images]).transpose(0, 3, 1, 2) / 255


def _torch_export(folder: Path, pixels: np.ndarray) -> np.ndarray:
    module = torch.export.load(folder / "model.pt2").module()
    with torch.no_grad():
        return module(torch.from_numpy(pixels).float()).numpy()


def _onnx(folder: Path, pixels: np.ndarray) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "model.onnx")
    name = session.get_inputs()[0].name
    return session.run(None, {name: pixels.astype(np.float32)})[0]


def test_weights_of_a_fitted_run_start_another_one(run: Path) -> None:
    """With features of other stages its head does not fit, and is left out."""
    for stages in (2, 0):
        done = call(
            "run",
            *flags(run.parent, algo="fixmatch", weights=run / "model" / "model.safetensors"),
            *("--set", f"model.stages={stages}", "--set", "model.head_init=random"),
            *("--output", run.parent / f"next{stages}", "--quiet"),
        )
        assert done.returncode == 0, done.stderr
