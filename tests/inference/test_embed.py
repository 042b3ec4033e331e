"""``ssl-toolkit embed``: features of images in a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from in_process import call, refusal
from PIL import Image
from pretrained_runs import CLASSES, SIZE, flags, make_images, make_weights
from torch import Tensor

from ssl_toolkit import ConfigError, embed, load_model, train
from ssl_toolkit.console import Console
from ssl_toolkit.data.cache import cache_folder
from ssl_toolkit.models import published
from ssl_toolkit.models.timm_backbone import TimmBackbone


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache" / "images"))
    make_images(tmp_path / "images", 4)
    return tmp_path


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that the backbone sees, its first probe left out."""
    seen: list[int] = []
    forward = TimmBackbone.forward

    def counted(self: TimmBackbone, images: Tensor) -> Tensor:
        seen.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(TimmBackbone, "forward", counted)
    return seen


def command(folder: Path, *more: object) -> list[object]:
    weights = make_weights(folder)
    given = ("--backbone", "test_resnet", "--weights", weights, "--image-size", SIZE)
    return ["embed", folder / "images", *given, "--device", "cpu", "--workers", 0, *more]


def test_features_in_an_npz(folder: Path, forwards: list[int]) -> None:
    done = call(*command(folder, "--output", folder / "features.npz", "--batch-size", 5))
    assert done.returncode == 0, done.stderr
    assert "12 images, 96 features each" in done.stderr
    assert forwards == [5, 5, 2]
    with np.load(folder / "features.npz") as result:
        assert result["format"] == 1
        assert result["features"].shape == (12, 96)
        assert result["features"].dtype == np.float32
        assert result["classes"].tolist() == [*CLASSES]
        keys, labels = result["keys"].tolist(), result["labels"]
        assert [CLASSES[label] for label in labels] == [key.split("/")[0] for key in keys]
        assert set(result["splits"].tolist()) == {"pool"}
        features = result["features"]

    # As by hand, from the very pixels.
    backbone = TimmBackbone.build("test_resnet", image_size=SIZE)
    state = safetensors.torch.load_file(make_weights(folder))
    backbone.model.load_state_dict(state, strict=False)
    pixels = np.stack([np.array(Image.open(folder / "images" / key)) for key in keys])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (backbone.mean, backbone.std))
    with torch.no_grad():
        wanted = backbone.eval()((images - mean) / std)
    assert np.abs(features - wanted.numpy()).max() < 1e-4


def test_the_second_call_computes_nothing(folder: Path, forwards: list[int]) -> None:
    target = folder / "features.npz"
    call(*command(folder, "--output", target))
    first, count = target.read_bytes(), len(forwards)
    assert count
    target.unlink()
    assert call(*command(folder, "--output", target)).returncode == 0
    assert len(forwards) == count
    assert target.read_bytes() == first
    # The content counts, not the name; and another image is another set.
    (folder / "images").rename(folder / "moved")
    shutil.copytree(folder / "moved", folder / "images")
    call(*command(folder, "--output", target))
    assert len(forwards) == count
    (folder / "images" / "a" / "00.png").unlink()
    call(*command(folder, "--output", target))
    assert sum(forwards[count:]) == 11


@pytest.mark.parametrize("damage", [b"", b"not a file of features", None])
def test_a_damaged_cache_is_computed_again(
    damage: bytes | None, folder: Path, forwards: list[int]
) -> None:
    target = folder / "features.npz"
    call(*command(folder, "--output", target))
    first, count = target.read_bytes(), len(forwards)
    (kept,) = cache_folder("features").glob("*.npy")
    content = bytearray(kept.read_bytes())
    content[200] ^= 255
    kept.write_bytes(content if damage is None else damage)
    call(*command(folder, "--output", target))
    assert len(forwards) == 2 * count
    assert target.read_bytes() == first


def test_features_in_a_parquet_file(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = call(*command(folder, "--output", folder / "features.parquet"))
    assert done.returncode == 0, done.stderr
    assert parquet.read_schema(folder / "features.parquet").metadata == {b"format": b"1"}
    table = parquet.read_table(folder / "features.parquet").to_pydict()
    assert set(table) == {"path", "label", "split", "embedding"}
    result = embed(
        folder / "images",
        backbone="test_resnet",
        weights=make_weights(folder),
        image_size=SIZE,
        device="cpu",
    )
    assert table["path"] == list(result.keys)
    assert table["label"] == [key.split("/")[0] for key in result.keys]
    assert np.array_equal(np.array(table["embedding"], dtype=np.float32), result.features)


def test_images_without_labels_and_unreadable_ones(folder: Path) -> None:
    flat = folder / "flat"
    flat.mkdir()
    for path in sorted((folder / "images").rglob("*.png")):
        shutil.copy(path, flat / f"{path.parent.name}{path.name}")
    weights = make_weights(folder)
    given = {"backbone": "test_resnet", "weights": weights, "image_size": SIZE, "device": "cpu"}
    result = embed(flat, **given)
    assert (result.labels == -1).all()
    assert len(result.features) == 12
    (flat / "broken.png").write_bytes(b"no image")
    broken = ("--backbone", "test_resnet", "--weights", weights, "--output", folder / "x.npz")
    assert "broken.png" in refusal("embed", flat, *broken, "--image-size", SIZE)
    skipped = embed(flat, **given, on_bad_image="skip")
    assert skipped.keys == result.keys


def test_published_weights_are_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_weights(folder)
    monkeypatch.setattr(
        published, "published_weights", lambda *_: (weights, safetensors.torch.load_file(weights))
    )
    given = {"image_size": SIZE, "device": "cpu"}
    one = embed(folder / "images", backbone="test_resnet", **given)
    two = embed(folder / "images", backbone="test_resnet", weights=weights, **given)
    assert np.array_equal(one.features, two.features)


def test_the_weights_of_a_run_give_the_features_without_stages(folder: Path) -> None:
    """Its head, and the stages that it saw, play no part."""
    given = flags(folder, algo="knn", labels_per_class=1, test_fraction=0, val_fraction=0)
    done = call("run", *given, "--output", folder / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert len(load_model(folder / "run").classifier.blocks) == 1 + 2
    ways = (make_weights(folder), folder / "run" / "model" / "model.safetensors")
    one, two = (
        embed(folder / "images", backbone="test_resnet", weights=way, image_size=SIZE, device="cpu")
        for way in ways
    )
    assert np.array_equal(one.features, two.features)


@pytest.mark.parametrize("channels", [2, 3])
def test_the_normalization_of_a_run_belongs_to_its_weights(tmp_path: Path, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 90, (6, 8, 12, channels), dtype=np.uint8)
    config = {"algo": "supervised", "backbone": "wrn_10_1", "steps": 1, "image_size": "8x12",
              "device": "cpu", "output": str(tmp_path / "run")}  # fmt: skip
    train(config, images=images, labels=[0, 1] * 3, console=Console(silent=True))
    np.savez(tmp_path / "other.npz", images=images[:4], labels=[0, 1] * 2)
    found = embed(
        tmp_path / "other.npz",
        backbone="wrn_10_1",
        weights=tmp_path / "run" / "model" / ("model.safetensors" if channels == 3 else ""),
        image_size="8x12",
        device="cpu",
    )
    with torch.no_grad():
        pixels = torch.from_numpy(images[:4]).movedim(-1, 1).float() / 255
        expected = load_model(tmp_path / "run", "cpu").classifier(pixels).features
    np.testing.assert_allclose(found.features, expected, atol=1e-5)


def test_the_arguments_of_a_run_belong_to_its_weights(folder: Path) -> None:
    given = flags(folder, algo="supervised", labels_per_class=1, test_fraction=0, val_fraction=0)
    more = ("--image-size", 64, "--set", "model.args.global_pool=max", "--set",
            "model.stages=0", "--quiet")  # fmt: skip
    done = call("run", *given, *more, "--output", folder / "run")
    assert done.returncode == 0, done.stderr
    weights = folder / "run" / "model" / "model.safetensors"
    found = embed(
        folder / "images", backbone="test_resnet", weights=weights, image_size=64, device="cpu"
    )
    pixels = [
        np.array(Image.open(folder / "images" / key).resize((64, 64), 3)) for key in found.keys
    ]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        expected = load_model(folder / "run", "cpu").classifier(images).features
    np.testing.assert_allclose(found.features, expected, atol=1e-4)


def test_outputs_of_other_kinds_are_refused(folder: Path) -> None:
    for name in ("features.csv", "features"):
        assert ".npz" in refusal(*command(folder, "--output", folder / name))
    result = embed(
        folder / "images",
        backbone="test_resnet",
        weights=make_weights(folder),
        image_size=SIZE,
        device="cpu",
    )
    with pytest.raises(ConfigError, match=r"must be a \.npz or \.parquet file"):
        result.save(folder / "features.txt")


def test_images_are_padded_on_request(folder: Path) -> None:
    flat = folder / "flat"
    flat.mkdir()
    levels = np.random.default_rng(0).integers(0, 120, (SIZE // 2, SIZE, 3)).astype(np.uint8)
    Image.fromarray(levels).save(flat / "wide.png")
    whole = np.full((SIZE, SIZE, 3), 255, np.uint8)
    whole[SIZE // 4 : SIZE // 4 + SIZE // 2] = levels
    (folder / "square").mkdir()
    Image.fromarray(whole).save(folder / "square" / "wide.png")
    given = {"backbone": "test_resnet", "weights": make_weights(folder), "image_size": SIZE}
    expected = embed(folder / "square", **given, device="cpu").features
    padded = embed(flat, **given, device="cpu", fit="pad").features
    cropped = embed(flat, **given, device="cpu").features
    np.testing.assert_allclose(padded, expected, atol=1e-6)
    assert np.abs(cropped - expected).max() > 1e-4
    weights, output = given["weights"], folder / "pad.npz"
    done = call("embed", flat, "--backbone", "test_resnet", "--weights", weights, "--image-size",
                SIZE, "--device", "cpu", "--fit", "pad", "--output", output)  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(output)["features"], expected, atol=1e-6)
