"""How images that aren't square become so: ``--fit crop|pad``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal
from PIL import Image
from webdataset_shards import shard

from ssl_toolkit import DataError, load_model
from ssl_toolkit.data.cache import open_cache
from ssl_toolkit.data.images.files import fit_image, read_images
from ssl_toolkit.data.images.inputs import to_float01, to_pixels
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.arrays import ImageArray, array_table
from ssl_toolkit.data.readers.form import lay_out
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.engine.streaming import StreamedImages
from ssl_toolkit.inference.evaluate import _predict_table

RUN = ("run", "--algo", "supervised", "--backbone", "wrn_10_1", "--image-size", "16", "--steps",
       "2", "--batch-size", "8", "--device", "cpu", "--quiet")  # fmt: skip


def wide(seed: int, width: int = 40, height: int = 20) -> Image.Image:
    """Dark noise, which differs from white and whose edges differ from its middle."""
    levels = np.random.default_rng(seed).integers(0, 120, (height, width, 3))
    return Image.fromarray(levels.astype(np.uint8))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("wide")
    for at, (part, name) in enumerate((p, n) for p in ("train", "test") for n in "ab"):
        (top / part / name).mkdir(parents=True)
        for number in range(6):
            turned = {"width": 20, "height": 40} if number % 2 else {}
            wide(10 * at + number, **turned).save(top / part / name / f"{number}.png")
    return top


@pytest.mark.parametrize(("width", "height", "place"), [
    (40, 20, (0, 4, 16, 12)), (20, 40, (4, 0, 12, 16)), (16, 16, (0, 0, 16, 16)),
    (2000, 3, (0, 7, 16, 8)), (3, 2000, (7, 0, 8, 16)), (30, 20, (0, 2, 16, 13)),
])  # fmt: skip
def test_padding_keeps_the_whole_image_and_its_shape(
    width: int, height: int, place: tuple[int, int, int, int]
) -> None:
    image = wide(0, width, height)
    padded = fit_image(image, 16, "pad")
    left, top, right, bottom = place
    expected = np.full((16, 16, 3), 255, np.uint8)
    size = (right - left, bottom - top)
    expected[top:bottom, left:right] = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    assert padded.dtype == np.uint8
    assert (padded == expected).all()


def test_gray_images_are_padded_with_white_as_well() -> None:
    padded = fit_image(Image.new("L", (40, 20), 7), 16, "pad")
    assert (padded[:4] == 255).all()
    assert (padded[4:12] == 7).all()
    assert (padded[12:] == 255).all()


def test_floats_are_padded_as_bytes_are() -> None:
    levels = np.asarray(wide(1))
    bytes_, floats = (to_pixels(given, 16, "pad") for given in (levels, levels / 255.0))
    assert not isinstance(bytes_, str)
    assert not isinstance(floats, str)
    np.testing.assert_allclose(to_float01(floats), to_float01(bytes_), atol=1 / 255)


def test_the_caches_of_both_layouts_are_apart(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path))
    paths = sorted(data.glob("train/a/*"))
    for _ in range(2):
        for fit in ("crop", "pad"):
            cache, _warning = open_cache([*map(str, paths)], 16, fit=fit)
            expected = read_images(paths, 16, fit=fit).transpose(0, 3, 1, 2)
            assert (cache.pixels == expected).all()
    table = read_data(data, size=16, fit="pad")
    padded = table.read(np.arange(3), 16)
    cropped = lay_out(table, "crop").read(np.arange(3), 16)
    assert (padded != cropped).any()


def test_arrays_are_supported_and_other_reads_are_refused() -> None:
    images = np.stack([np.asarray(wide(seed)) for seed in range(4)])
    expected = np.stack([fit_image(Image.fromarray(image), 16, "pad") for image in images])
    table = array_table("ab", [ImageArray("x/", "pool", images, np.arange(4) % 2)])
    assert (lay_out(table, "pad").read(np.arange(4), 16) == expected).all()
    own = table.__class__(**{**vars(table), "read": lambda rows, size: expected})
    with pytest.raises(DataError, match="--fit pad: the data set makes its images square itself"):
        lay_out(own, "pad")
    assert lay_out(own, "crop") is own


def test_streamed_images_of_files_and_shards_are_padded(data: Path, tmp_path: Path) -> None:
    paths = sorted(data.glob("train/a/*"))
    members = [(f"{n}.png", path.read_bytes()) for n, path in enumerate(paths)]
    members += [(f"{n}.cls", b"%d" % (n % 2)) for n in range(len(paths))]
    for source in (shard(tmp_path / "a.tar", members), data):
        table = read_data(source, fit="pad")
        rows = np.arange(6)
        streamed = StreamedImages(files_of(table), rows, table.labels, 16, buffer=4, refuse=True)
        if source != data:
            expected = read_images(paths, 16, fit="pad")
            assert (table.read(rows, 16) == expected).all()
        else:
            expected = table.read(rows, 16)
        assert (streamed.take(rows) == expected.transpose(0, 3, 1, 2)).all()


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit") / "run"
    result = call(*RUN, "--data", data, "--labels-per-class", "3", "--fit", "pad",
                  "--output", folder)  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder


def test_a_padded_run_predicts_and_evaluates_as_it_was_tested(
    run: Path, data: Path, tmp_path: Path
) -> None:
    with np.load(run / "predictions.npz") as arrays:
        tested = arrays["test_probabilities"]
    paths = sorted(data.glob("test/*/*"))
    for folder in (run, run / "model"):
        model = load_model(folder, "cpu")
        assert model.fit == "pad"
        np.testing.assert_allclose(model.predict(paths), tested, atol=1e-6)
        arrays_ = [np.asarray(Image.open(path)) for path in paths]
        np.testing.assert_allclose(model.predict(arrays_), tested, atol=1e-6)
    table = read_data(data, size=model.image_size, fit=model.fit)
    result = _predict_table(model, table, data, 64)
    np.testing.assert_allclose(result["test"][0], tested, atol=1e-6)
    model.fit = "crop"
    assert np.abs(model.predict(paths) - tested).max() > 1e-4
    (run / "model").rename(tmp_path / "model")
    try:  # from the checkpoint
        assert load_model(run, "cpu").fit == "pad"
    finally:
        (tmp_path / "model").rename(run / "model")


def test_the_export_and_the_card_state_the_layout(run: Path) -> None:
    config = json.loads((run / "model/config.json").read_text())
    assert config["fit"] == "pad"
    assert "longer side scaled to 16 pixels" in config["input"]
    assert "centered on a white square" in config["input"]
    card = (run / "model/README.md").read_text()
    assert "centered on a white square" in card
    assert "16 px, fit pad" in card


def test_an_unknown_layout_is_refused_in_one_line(data: Path, tmp_path: Path) -> None:
    message = refusal(*RUN, "--data", data, "--fit", "stretch", "--output", tmp_path / "run")
    assert len(message.splitlines()) == 1
    for word in ("fit", "stretch", "crop", "pad"):
        assert word in message


def test_the_default_size_follows_the_side_that_is_scaled(data: Path) -> None:
    for fit, side in (("crop", 20), ("pad", 40)):
        files = files_of(read_data(data, fit=fit))
        assert files is not None
        assert files.sides(4) == [side] * 4


def test_runs_of_two_layouts_are_not_compared(run: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    result = call(*RUN, "--data", data, "--labels-per-class", "3", "--output", other)
    assert result.returncode == 0, result.stderr
    message = refusal("report", run, other, "--output", tmp_path / "report.html")
    assert "fit" in message
    assert "crop" in message
    assert "pad" in message


def test_the_snippet_of_the_card_opens_a_padded_model_in_timm(data: Path, tmp_path: Path) -> None:
    result = call("run", "--algo", "supervised", "--backbone", "resnet18", "--image-size", "32",
                  "--steps", "2", "--batch-size", "8", "--device", "cpu", "--quiet", "--data",
                  data, "--labels-per-class", "3", "--fit", "pad", "--output",
                  tmp_path / "run")  # fmt: skip
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "run/model"
    snippet = (folder / "README.md").read_text().split("```python\n")[2].split("```")[0]
    names: dict[str, Any] = {}
    exec(snippet.replace("FOLDER", str(folder)), names)
    expected = load_model(folder, "cpu")
    for path in sorted(data.glob("test/*/*"))[:2]:  # one wide, one tall
        image = Image.open(path)
        logits = names["network"](names["transform"](image)[None])
        actual = logits.softmax(-1).detach().numpy()
        np.testing.assert_allclose(actual, expected.predict([image]), atol=1e-5)


def test_inspect_decodes_for_a_run_of_the_same_fit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    message = call("inspect", data, "--image-size", "16", "--fit", "pad")
    assert message.returncode == 0, message.stderr
    table = read_data(data, fit="pad")
    files = files_of(table)
    assert files is not None
    files.open_existing(16)
    assert files.has(np.arange(4), 16)
