"""A trained model from its folder alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import call
from PIL import Image

from ssl_toolkit import DataError, Model, ModelError, load_model
from ssl_toolkit.data.images.files import read_images
from ssl_toolkit.engine.checkpoints import load_checkpoint

RUN = (
    "run", "--algo", "supervised", "--steps", "4", "--eval-every", "2", "--batch-size", "8",
    "--seed", "1", "--device", "cpu", "--quiet",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validation, on images of 32 pixels; not to be written to."""
    folder = tmp_path_factory.mktemp("model") / "run"
    result = call(*RUN, "--backbone", "wrn_10_1", "--image-size", "24", "--data",
                  cases / "c00_base", "--val-fraction", "0.25", "--output", folder)  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return load_model(run, "cpu")


@pytest.fixture
def path(cases: Path) -> Path:
    return cases / "c05_modes" / "predict" / "rgba_opaque_twin.png"


def test_it_knows_what_it_was_trained_with(model: Model) -> None:
    assert model.classes == ("a", "b", "c", "d")
    assert (model.image_size, model.backbone) == (24, "wrn_10_1")
    assert not model.classifier.training


def test_the_summary_was_scored_with_the_same_weights(model: Model, run: Path, cases: Path) -> None:
    with np.load(run / "predictions.npz") as arrays:
        recorded, labels = arrays["test_probabilities"], arrays["test_labels"]
    paths = [path for name in "abcd" for path in sorted((cases / "c00_base/test" / name).iterdir())]
    assert labels.tolist() == ["abcd".index(path.parent.name) for path in paths]
    np.testing.assert_allclose(model.predict(paths), recorded, atol=1e-6)


def test_every_form_of_an_image_means_the_same(model: Model, path: Path) -> None:
    expected = model.predict([path])
    assert expected.shape == (1, 4)
    assert expected.dtype == np.float32
    np.testing.assert_allclose(expected.sum(), 1, atol=1e-6)
    with Image.open(path) as image:
        image.load()
    pixels = np.asarray(image)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    for form in (path, str(path), image, pixels, tensor, pixels[None], tensor[None]):
        np.testing.assert_allclose(model.predict(form), expected, atol=1e-6)
    # Floats are scaled without rounding to 8 bits, so they may differ by half a gray level.
    for form in (pixels / 255, tensor.double() / 255, tensor / 255):
        np.testing.assert_allclose(model.predict([form]), expected, atol=1e-2)
    mixed = model.predict([pixels, pixels / 255])
    np.testing.assert_allclose(mixed[1:], model.predict(pixels / 255), atol=1e-6)


def test_images_of_the_right_size_are_unchanged(model: Model, path: Path) -> None:
    pixels = torch.from_numpy(read_images([path], 24)[0].transpose(2, 0, 1).copy())
    called = model(pixels[None] / 255)
    assert not called.requires_grad
    for form in (pixels, pixels / 255, [path]):
        np.testing.assert_allclose(model.predict(form), called.numpy(), atol=1e-6)


def test_gray_arrays(model: Model, path: Path) -> None:
    with Image.open(path) as image:
        gray = np.asarray(image.convert("L"))
    expected = model.predict(np.stack([gray] * 3, axis=-1))
    for form in (gray, gray[:, :, None], torch.from_numpy(gray.copy())[None]):
        np.testing.assert_allclose(model.predict(form), expected, atol=1e-6)
    np.testing.assert_allclose(model.predict([gray / 255]), expected, atol=1e-2)


def test_batches_change_nothing(model: Model, cases: Path) -> None:
    paths = sorted((cases / "c00_base" / "unlabeled").iterdir())
    expected = model.predict(paths)
    for batch_size, workers in ((1, 0), (5, 3), (7, 1), (1000, 2)):
        again = model.predict(iter(paths), batch_size=batch_size, workers=workers)
        np.testing.assert_allclose(again, expected, atol=1e-6)
    assert model.predict([]).shape == (0, 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_yields_reasons_in_place_of_unreadable_images(
    model: Model, path: Path, workers: int
) -> None:
    truncated = Image.open(path)
    truncated.fp.close()  # type: ignore[union-attr]
    forms = [
        path, Path("gone.png"), np.full((4, 4, 3), 2.0), np.full((4, 4, 3), np.nan),
        np.zeros((3, 4, 4), np.uint8), np.zeros((4, 4, 3), np.int64), np.zeros((0, 4), np.uint8),
        truncated, path,
    ]  # fmt: skip
    result = list(model.stream(forms, batch_size=2, workers=workers))
    reasons = [row if isinstance(row, str) else None for row in result]
    assert reasons[0] is reasons[-1] is None
    np.testing.assert_allclose(result[0], result[-1], atol=1e-6)
    words = ("no such file", "[0, 1]", "[0, 1]", "(H, W, 3)", "int64", "(H, W, 3)", "damaged")
    for word, reason in zip(words, reasons[1:-1], strict=True):
        assert reason is not None
        assert word in reason
    with pytest.raises(DataError) as refused:
        model.predict(forms)
    assert len(refused.value.messages) == 7
    assert "gone.png" in refused.value.messages[0]
    assert "number 2" in refused.value.messages[1]


def test_a_stream_reads_only_a_little_ahead(model: Model, path: Path) -> None:
    drawn = 0

    def endless() -> object:
        nonlocal drawn
        while True:
            drawn += 1
            yield path

    result = model.stream(endless(), batch_size=2, workers=1)  # type: ignore[arg-type]
    for _ in range(4):
        next(result)
    result.close()  # type: ignore[attr-defined]
    assert drawn < 100


def test_the_size_of_a_tensor_is_checked(model: Model) -> None:
    for images in (torch.zeros(2, 3, 32, 32), torch.zeros(3, 24, 24),
                   torch.zeros(1, 3, 24, 24, dtype=torch.uint8)):  # fmt: skip
        with pytest.raises(DataError, match="24, 24"):
            model(images)


def test_the_exported_folder_is_enough(model: Model, run: Path, path: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run / "model", tmp_path / "elsewhere")
    np.testing.assert_array_equal(load_model(str(moved), "cpu").predict(path), model.predict(path))


def test_checkpoints_where_there_is_no_model_yet(
    model: Model, run: Path, path: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(copy / "model")
    expected = model.predict(path)
    np.testing.assert_allclose(load_model(copy, "cpu").predict(path), expected, atol=1e-6)
    (copy / "checkpoints" / "best.pt").unlink()
    state = load_checkpoint(copy / "checkpoints" / "last.pt")
    last = load_model(copy, "cpu")
    assert last.classes == model.classes
    for name, tensor in last.classifier.state_dict().items():
        assert torch.equal(tensor, state["ema"]["module"][name]), name
    (copy / "checkpoints" / "last.pt").write_bytes(b"PK")
    with pytest.raises(ModelError, match=r"last\.pt"):
        load_model(copy)


def test_a_folder_that_is_not_a_model(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        load_model(tmp_path / "gone")
    with pytest.raises(ModelError, match="neither a run nor an exported model"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="--device gpuu"):
        load_model(run, "gpuu")
