"""Runs on images with other channels, 16 bits and sizes that are not square, end to end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import ssl_toolkit_wide_resnet.timm_registration  # noqa: F401
import timm
import torch
from in_process import call, refusal
from PIL import Image
from torch import Tensor, nn

from ssl_toolkit import AugmentationParams, Augmenter, Backbone, load_model, registry, train
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.models.timm_backbone import TimmBackbone

RUN = ("run", "--algo", "fixmatch", "--backbone", "wrn_10_1", "--labels-per-class", "3", "--steps",
       "4", "--batch-size", "4", "--device", "cpu", "--quiet")  # fmt: skip
SIZE = ("--image-size", "16x24")
DEEP_GRAY = ("--channels", "1", "--bits", "16", *SIZE)


def ramp(seed: int, shape: tuple[int, ...] = (16, 24)) -> np.ndarray[Any, Any]:
    """Smooth gradients with several hundred levels of 16 bits."""
    corner = np.random.default_rng(seed).integers(0, 9000)
    levels = corner + 137 * np.arange(int(np.prod(shape[:2])))
    return levels.reshape(shape[:2]).astype(np.uint16)


def write(top: Path, image: Any, suffix: str = ".png") -> Path:
    """Write two classes, which differ in the direction of the gradient."""
    for part, count in (("train", 8), ("test", 4)):
        for label in "ab":
            folder = top / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                levels = ramp(10 * number + (label == "b"))
                image(levels[::-1] if label == "b" else levels).save(folder / f"{number}{suffix}")
    return top


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("deep"), lambda levels: Image.fromarray(levels.copy()))


@pytest.fixture(scope="module")
def rgba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def image(levels: np.ndarray[Any, Any]) -> Image.Image:
        gray = (levels >> 8).astype(np.uint8)
        return Image.fromarray(np.stack([gray, gray // 2, 255 - gray, 255 - gray // 3], axis=-1))

    return write(tmp_path_factory.mktemp("rgba"), image)


@pytest.fixture(scope="module")
def deep_run(deep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "deep"
    result = call(*RUN, *DEEP_GRAY, "--data", deep, "--output", folder)
    assert result.returncode == 0, result.stderr
    return folder


def test_levels_of_16_bits_reach_the_model_and_predict_reads_the_same(
    deep: Path, deep_run: Path
) -> None:
    flags = {"data": str(deep), "algo": "supervised", "backbone": "wrn_10_1", "device": "cpu"}
    form = {"channels": "1", "bits": "16", "image_size": "16x24", "labels_per_class": "3"}
    experiment = prepare(load_config([], flags | form))
    images = experiment.trainer.batches.images.loaded
    trained = images.gather(torch.arange(len(images)))
    assert trained.shape[1:] == (1, 16, 24)
    paths = [str(path) for path in experiment.table.files or ()]
    rows = experiment.trainer.batches.images.rows
    for index in (0, len(rows) - 1):
        levels = np.asarray(Image.open(paths[rows[index]]))
        assert len(np.unique(levels)) > 256
        assert torch.equal(trained[index, 0], torch.from_numpy(levels / np.float32(65535)))
    seen: list[Tensor] = []
    model = load_model(deep_run, "cpu")
    model.classifier.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    model.predict([paths[row] for row in rows.tolist()])
    assert torch.equal(seen[0].contiguous(), trained[: len(seen[0])])


def test_a_run_is_recorded_evaluated_and_exported_in_its_form(deep: Path, deep_run: Path) -> None:
    config = json.loads((deep_run / "model" / "config.json").read_text("utf-8"))
    assert (config["channels"], config["bits"], config["image_size"]) == (1, 16, "16x24")
    assert "(N, 1, 16, 24) float, gray" in config["input"]
    assert "divided by 65535" in config["input"]
    assert "image_size: 16x24" in (deep_run / "config.yaml").read_text("utf-8")
    card = (deep_run / "model" / "README.md").read_text("utf-8")
    assert "16x24 px, fit crop" in card
    assert "1 channel of 16 bits" in card
    with np.load(deep_run / "predictions.npz") as arrays:
        tested = arrays["test_probabilities"]
        assert arrays["mistakes_images"].shape[1:] == (16, 24, 3)
    paths = sorted(deep.glob("test/*/*"))
    model = load_model(deep_run / "model", "cpu")
    np.testing.assert_allclose(model.predict(paths), tested, atol=1e-6)
    stack = np.stack([np.asarray(Image.open(path)) for path in paths])
    np.testing.assert_allclose(model.predict(stack), tested, atol=1e-6)
    scored = call("evaluate", deep_run, "--data", deep, "--json")
    assert json.loads(scored.stdout)["test"]["count"] == len(paths), scored.stderr
    images = torch.from_numpy(stack[:, None] / np.float32(65535))
    for form in ("torch-export", "onnx", "timm"):
        assert call("export", deep_run, "--format", form).returncode == 0
    program = torch.export.load(deep_run / "export" / "model.pt2").module()
    np.testing.assert_allclose(program(images).detach(), tested, atol=1e-5)
    session = onnxruntime.InferenceSession(deep_run / "export" / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"images": images.numpy()})[0], tested, atol=1e-5)
    network = timm.create_model(f"local-dir:{deep_run}/export/timm", pretrained=True).eval()
    mean, std = (torch.tensor(config[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        logits = network((images - mean) / std)
    np.testing.assert_allclose(logits.softmax(dim=1), tested, atol=1e-5)


def test_a_run_is_resumed_to_the_same_weights(deep: Path, deep_run: Path, tmp_path: Path) -> None:
    cut = ("--time-limit", "0.00001", "--save-every", "1")
    assert call(*RUN, *DEEP_GRAY, *cut, "--data", deep, "--output", tmp_path / "r").returncode == 0
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "interrupted"
    assert call("resume", tmp_path / "r", "--time-limit", "9", "--quiet").returncode == 0
    first, second = (load_model(path, "cpu").classifier for path in (deep_run, tmp_path / "r"))
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


@pytest.mark.parametrize(("backbone", "size"), [
    ("resnet10t", "40x32"), ("vit_tiny_patch16_224", "32x48"),
])  # fmt: skip
def test_timm_opens_models_of_four_channels(
    rgba: Path, tmp_path: Path, backbone: str, size: str
) -> None:
    result = call(*RUN, "--algo", "supervised", "--backbone", f"timm:{backbone}", "--channels", "4",
                  "--image-size", size, "--data", rgba, "--output", tmp_path / "run")  # fmt: skip
    assert result.returncode == 0, result.stderr
    model = load_model(tmp_path / "run", "cpu")
    images = torch.rand(3, 4, *map(int, size.split("x")))
    network = timm.create_model(f"local-dir:{tmp_path}/run/model", pretrained=True).eval()
    with torch.no_grad():
        logits = network((images - model.classifier.mean) / model.classifier.std)
    torch.testing.assert_close(logits.softmax(dim=1), model(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 9])
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_published_weights_are_converted_as_timm_does(
    name: str, channels: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    timm.models.save_for_hf(
        timm.create_model(name, num_classes=3), tmp_path, safe_serialization=True
    )
    source = f"local-dir:{tmp_path}"
    theirs = timm.create_model(source, pretrained=True, in_chans=channels, num_classes=0)
    ours = TimmBackbone(source, pretrained=True, channels=channels).model
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key


def test_a_file_of_rgb_weights_is_converted_too(rgba: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.pt"
    torch.save(timm.create_model("resnet10t", num_classes=0).state_dict(), weights)
    command = (*RUN, "--algo", "supervised", "--steps", "1", "--channels", "2", "--data", rgba,
               "--image-size", "32", "--weights", weights)  # fmt: skip
    result = call(*command, "--backbone", "resnet10t", "--output", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    torch.save(load_model(tmp_path / "run").classifier.backbone.state_dict(), weights)


def test_arrays_of_six_channels_are_trained_in_python(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 65536, (24, 12, 20, 6)).astype(np.uint16)
    config = {"algo": "supervised", "backbone": "wrn_10_1", "steps": 2, "batch_size": 4,
              "device": "cpu", "image_size": "12x20", "output": str(tmp_path / "run")}  # fmt: skip
    result = train(config, images=images, labels=np.arange(24) % 2)
    model = load_model(result.folder, "cpu")
    assert (model.pixels.channels, model.pixels.bits, model.image_size) == (6, 16, (12, 20))
    assert model.predict(images[:3]).shape == (3, 2)
    assert model.predict(images[0]).shape == (1, 2)


def test_a_note_says_that_gray_and_16_bits_can_be_kept(deep: Path) -> None:
    result = call("inspect", deep, "--image-size", "16x24")
    assert "--channels 1 keeps one" in result.stdout
    assert "--bits 16 keeps all" in result.stdout
    assert " keeps " not in call("inspect", deep, *DEEP_GRAY).stdout


def test_a_note_says_that_further_pages_are_not_read(tmp_path: Path) -> None:
    for place in range(4):
        pages = [Image.new("I;16", (8, 8), 1000 * place + page) for page in range(2)]
        path = tmp_path / "ab"[place % 2] / f"{place}.tif"
        path.parent.mkdir(exist_ok=True)
        pages[0].save(path, save_all=True, append_images=pages[1:])
    result = call("inspect", tmp_path)
    assert "modes: I;16+ 4" in result.stdout
    assert "of images with several pages the first is read; --channels N" in result.stdout
    assert "--bits 16 keeps all" in result.stdout
    assert "several pages" not in call("inspect", tmp_path, "--channels", "2").stdout


def test_operations_that_need_color_are_left_out_with_a_note(rgba: Path, deep: Path) -> None:
    flags = {"algo": "fixmatch", "backbone": "wrn_10_1", "labels_per_class": "3", "device": "cpu"}
    for data, form, expected in (
        (rgba, {"channels": "4"}, "randaugment leaves out color: images have 4 channels of 8 bits"),
        (deep, {"bits": "16"}, "leaves out equalize, posterize: images have 3 channels of 16 bits"),
    ):
        experiment = prepare(load_config([], {**flags, **form, "data": str(data)}))
        assert any(expected in note for note in experiment.notes), experiment.notes
        batch = experiment.trainer.batches.draw(0)
        assert batch.unlabeled_strong.shape[2] == experiment.trainer.classifier.channels
    plain = prepare(load_config([], {**flags, "data": str(rgba)}))
    assert not any("leaves out" in note for note in plain.notes)


class OnlyColor(Augmenter):
    """It declares nothing, so it takes RGB."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {}

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return images


class Flat(Backbone):
    """It takes square RGB images of 8 pixels."""

    feature_dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 4)

    @classmethod
    def build(cls, name: str, *, image_size: Any = None, pretrained: bool = False) -> Flat:
        return cls()

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))


@pytest.mark.parametrize(("flags", "message"), [
    (("--channels", "4", "--set", "augment.strong=only_color"),
     "--channels 4: augmenter only_color takes images with 3 channels; use augment.strong=weak"),
    (("--channels", "4", "--backbone", "flat", "--image-size", "8"),
     "--channels 4: backbone 'flat' takes images with 3 channels"),
    (("--backbone", "flat", "--image-size", "8x16"),
     "backbone 'flat' can't take image size 8x16 (RuntimeError: "),
    (("--channels", "0"), "--channels: must be at least 1"),
    (("--bits", "12"), "--bits: must be 8 or 16 (given 12)"),
    (("--image-size", "8x"), "--image-size: must be a side in pixels, or HEIGHTxWIDTH"),
    (("--channels", "7"), "can't read image"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_a_line(
    rgba: Path, monkeypatch: pytest.MonkeyPatch, flags: Sequence[str], message: str
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    registry.register_augmenter("only_color")(OnlyColor)
    registry.register_backbone("flat")(Flat)
    assert message in refusal(*RUN, "--data", rgba, *flags)
