"""Images, labels and features of a Python program as the data of a run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import call, refusal
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from ssl_toolkit import ConfigError, DataError, ModelError, load_model, train
from ssl_toolkit.config import yaml
from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.console import Console
from ssl_toolkit.data.images.files import fit_array
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.in_memory import write_data
from ssl_toolkit.data.readers.npz import read_npz
from ssl_toolkit.interfaces import ImageTable

SHORT = {"algo": "supervised", "backbone": "wrn_10_1", "image_size": 8, "steps": 1}
GRAY = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
LABELS = [0, 1, 2] * 4


class Pairs(Dataset[tuple[Any, int]]):
    """A map-style data set that never raises IndexError, as many don't."""

    def __len__(self) -> int:
        return len(GRAY)

    def __getitem__(self, place: int) -> tuple[Image.Image, int]:
        return Image.fromarray(GRAY[place % len(GRAY)]), LABELS[place] if place < 9 else -1


def files(folder: Path) -> list[Path]:
    folder.mkdir()
    for place, image in enumerate(GRAY):
        Image.fromarray(image).save(folder / f"{place:02d}.png")
    return sorted(folder.iterdir())


def forms(folder: Path) -> dict[str, Any]:
    """The same twelve images in every form."""
    paths = files(folder)
    rgb = np.repeat(GRAY[..., None], 3, axis=-1)
    return {
        "gray": GRAY,
        "one channel": GRAY[..., None],
        "rgb": rgb,
        "floats": (GRAY / 255).astype(np.float32),
        "tensor": torch.from_numpy(rgb).movedim(-1, 1) / 255,
        "gray tensor": torch.from_numpy(GRAY)[:, None],
        "list of arrays": list(GRAY),
        "list of tensors": [*torch.from_numpy(rgb).movedim(-1, 1)],
        "paths": paths,
        "array of paths": np.array([str(path) for path in paths]),
        "images": [Image.fromarray(image) for image in GRAY],
        "mixed": [*paths[:6], *GRAY[6:]],
        "data set": [Pairs()[place][0] for place in range(12)],
    }


def read(folder: Path, *given: Any, **more: Any) -> ImageTable:
    made = write_data(folder, *given, **more)
    return read_data(made.path, root=made.root)


def by_part(table: ImageTable) -> dict[str, int]:
    return {part: int((table.splits == part).sum()) for part in sorted({*table.splits.tolist()})}


def test_every_form_gives_the_same_pixels_and_labels(tmp_path: Path) -> None:
    labels = [None if place > 8 else f"class {label}" for place, label in enumerate(LABELS)]
    for place, (form, images) in enumerate(forms(tmp_path / "files").items()):
        table = read(tmp_path / str(place), images, labels)
        assert table.classes == ("class 0", "class 1", "class 2"), form
        assert by_part(table) == {"pool": 9, "unlabeled": 3}, form
        pixels = table.read(np.arange(12), 8)
        assert np.array_equal(pixels, np.repeat(GRAY[..., None], 3, axis=-1)), form
        assert table.labels.tolist() == [*LABELS[:9], -1, -1, -1], form


def test_images_of_any_sizes_keep_their_size(tmp_path: Path) -> None:
    images = [np.full((5 + place, 9, 3), place, np.uint8) for place in range(4)]
    made = write_data(tmp_path, images, [0, 1, 0, 1])
    table = read_data(made.path)
    assert table.read(np.arange(4), 4).max(axis=(1, 2, 3)).tolist() == [0, 1, 2, 3]
    assert sorted(path.name for path in made.path.iterdir()) == ["train.tar"]


@pytest.mark.parametrize(
    ("form", "of_pillow", "kind"),
    [
        (PixelFormat(1, 16), True, "uint16"),
        (PixelFormat(2, 8), True, "uint8"),
        (PixelFormat(3, 16), False, "uint16"),
        (PixelFormat(4, 8), True, "uint8"),
        (PixelFormat(5, 8), False, "uint8"),
        (PixelFormat(5, 16), False, "uint16"),
        (PixelFormat(2, 16), False, "float64"),
    ],
)
def test_images_of_any_sizes_keep_their_channels_and_bits(
    tmp_path: Path, form: PixelFormat, of_pillow: bool, kind: str
) -> None:
    draws = np.random.default_rng(0)
    shapes = [(8 + n, 9, form.channels) for n in range(4)]
    arrays = [draws.integers(0, form.white + 1, shape).astype(form.dtype) for shape in shapes]
    given = [a / form.white for a in arrays] if kind == "float64" else arrays
    lists: list[list[Any]] = [given, [torch.from_numpy(a).movedim(-1, 0) for a in given]]
    if of_pillow:
        lists.append([Image.fromarray(array.squeeze()) for array in arrays])
    for place, images in enumerate(lists):
        made = write_data(tmp_path / str(place), images, [0, 1, 0, 1], form=form)
        pixels = read_data(made.path, pixels=form).read(np.arange(4), 8)
        expected = [fit_array(array, 8) for array in arrays]
        assert np.array_equal(pixels, expected), place


def test_floats_keep_the_bits_of_the_configuration(tmp_path: Path) -> None:
    levels = np.arange(12 * 64, dtype=np.uint16).reshape(12, 8, 8) * 85
    config = SHORT | {"output": tmp_path / "run", "bits": 16, "channels": 1}
    quiet = Console(silent=True)
    for images in (levels / 65535, list(levels / 65535)):
        outcome = train(config, images=images, labels=LABELS, overwrite=True, console=quiet)
        data = yaml.read(outcome.folder / "config.yaml")["data"]
        read = read_data(Path(data), pixels=PixelFormat(1, 16)).read(np.arange(12), 8)
        assert np.array_equal(read[..., 0], levels)


def test_all_parts_of_a_data_set_of_pairs(tmp_path: Path) -> None:
    labeled = torch.utils.data.Subset(Pairs(), range(6))
    table = read(tmp_path, Pairs(), unlabeled=Pairs(), validation=labeled, test=labeled)
    assert by_part(table) == {"pool": 9, "test": 6, "unlabeled": 15, "validation": 6}


def test_paths_are_named_and_not_copied(tmp_path: Path) -> None:
    paths = files(tmp_path / "files")
    made = write_data(
        tmp_path / "out", paths, LABELS, test=(paths[:0] or files(tmp_path / "t"), LABELS)
    )
    assert made.root == tmp_path
    rows = [json.loads(line) for line in made.path.read_text().splitlines()]
    assert rows[0] == {"path": "files/00.png", "label": "0", "split": "train"}
    assert made.path.stat().st_size < 3000


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.arange(12) * 7 - 1, ("6", "13", "20", "27", "34", "41", "48", "55", "62", "69", "76")),
        (torch.tensor([2, 10] * 6), ("2", "10")),
        (np.array([["b"], ["a"]] * 6), ("a", "b")),
        (["cafe\u0301", "caf\u00e9", "x"] * 4, ("caf\u00e9", "x")),
        ([1.0, float("nan"), 0.0] * 4, ("0", "1")),
        ([np.int8(3), "unlabeled", 4, None] * 3, ("3", "4")),
    ],
)
def test_labels_of_any_type(tmp_path: Path, labels: Any, classes: tuple[str, ...]) -> None:
    assert read(tmp_path, GRAY, labels).classes == classes


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            np.zeros((4, 3, 8, 8), np.float32),
            [0, 1, 0, 1],
            r"images: .* got \(4, 3, 8, 8\) float32",
        ),
        (np.zeros((4, 8, 8), np.int64), [0, 1, 0, 1], r"images: .* got \(4, 8, 8\) int64"),
        (np.full((4, 8, 8), 255.0), [0, 1, 0, 1], r"images: floats must be in \[0, 1\]"),
        (np.zeros(4), [0, 1, 0, 1], r"images: .* got \(4,\) float64"),
        (GRAY, [0, 1], r"labels of images: 12 images need \(12,\) labels, .* got shape \(2,\)"),
        (GRAY, [0.5] * 12, "labels of images: a label is a text or a whole number"),
        (GRAY, np.eye(12), r"got shape \(12, 12\)"),
        (GRAY[:0], [], "images: there are no images"),
        ("one.png", [0], "images: expected several images, got one str"),
        ([GRAY[0], None], [0, 1], "images number 1: .* got NoneType"),
        ([GRAY[0], "gone.png"], [0, 1], "images number 1: can't read the image"),
        ([GRAY[0], GRAY], [0, 1], r"images number 1: images are .* got \(12, 8, 8\) uint8; set ch"),
        (GRAY, [7] * 12, r"too few classes \(1 of at least 2\)"),
        (np.full((4, 3), np.nan), [0, 1, 0, 1], "4 of 4 feature vectors are not finite"),
        (np.full((4, 3), "a", dtype=object), [0, 1, 0, 1], "images number 0"),
    ],
)
def test_an_error_is_one_line_without_values(
    tmp_path: Path, images: Any, labels: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / "out", images, labels)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 250
    assert not [*tmp_path.rglob(".given*")]


def test_a_stream_of_images_is_not_a_data_set(tmp_path: Path) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    with pytest.raises(DataError, match="images: a data set must be map-style"):
        write_data(tmp_path, Stream())


def test_features_and_images_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images \(12, 64\) uint8, test \(12, 8, 8\) uint8"):
        write_data(tmp_path, GRAY.reshape(12, 64), LABELS, test=(GRAY, LABELS))


def test_a_run_on_arrays_works_like_any_other(tmp_path: Path) -> None:
    config = SHORT | {"output": tmp_path / "run"}
    given: dict[str, Any] = {"labels": LABELS, "unlabeled": GRAY[::-1], "test": (GRAY, LABELS)}
    outcome = train(config, images=GRAY, **given, console=Console(silent=True))
    assert outcome.summary.counts.model_dump() == {
        "labeled": 12, "unlabeled": 12, "validation": 0, "test": 12,
    }  # fmt: skip
    assert call("check-run", tmp_path / "run").returncode == 0
    assert call("evaluate", tmp_path / "run").returncode == 0
    assert call("resume", tmp_path / "run", "--steps", 2).returncode == 0
    again = train(tmp_path / "run" / "config.yaml", overwrite=True, console=Console(silent=True))
    assert again.summary.test is not None
    # The same data has one file, whatever runs on it.
    train(
        SHORT | {"output": tmp_path / "other"}, images=GRAY, **given, console=Console(silent=True)
    )
    assert len([*tmp_path.glob("given-*.npz")]) == 1
    probabilities = load_model(tmp_path / "run").predict(GRAY)
    assert probabilities.shape == (12, 3)


def test_nothing_is_written_if_the_run_cannot_be(tmp_path: Path) -> None:
    config = SHORT | {"output": str(tmp_path / "run")}
    (tmp_path / "run").mkdir()
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        (config, ModelError, "the folder exists"),
        (config | {"learning_rate": 1}, ConfigError, "learning_rate"),
        (config | {"dataset": "digits"}, ConfigError, "dataset and images= are both given"),
        (config | {"task": "multilabel"}, ConfigError, "has one label per image; write the labels"),
    ]
    for keys, kind, message in wrong:
        with pytest.raises(kind, match=message):
            train(keys, images=GRAY, labels=LABELS)
    with pytest.raises(ConfigError, match="go with images="):
        train(config, labels=LABELS)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# --- .npz files ---------------------------------------------------------------------------------


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_names_of_medmnist(tmp_path: Path, save: Any) -> None:
    labels = np.array(LABELS, np.uint8)[:, None]
    parts = {f"{part}_{kind}": value for part in ("train", "val", "test")
             for kind, value in (("images", GRAY), ("labels", labels))}  # fmt: skip
    save(tmp_path / "pathmnist.npz", **parts)
    table = read_npz(tmp_path / "pathmnist.npz")
    assert by_part(table) == {"pool": 12, "test": 12, "validation": 12}
    assert table.classes == ("0", "1", "2")
    assert table.keys[12] == "val/00"
    assert np.array_equal(table.read(np.arange(12), 8)[..., 0], GRAY)
    done = call("inspect", tmp_path / "pathmnist.npz")
    assert "layout: arrays of a .npz file, images" in done.stdout
    assert "byte-identical: 12" in done.stdout


def test_arrays_of_one_file(tmp_path: Path) -> None:
    path = saved(
        tmp_path, images=GRAY, labels=[1, 0, -1] * 4, classes=["dog", "cat"],
        splits=["train", "TEST", "unlabeled"] * 4, keys=[f"k{n}" for n in range(12)], other=[1],
    )  # fmt: skip
    table = read_npz(path)
    assert table.classes == ("dog", "cat")
    assert table.labels.tolist() == [1, 0, -1] * 4
    assert table.splits.tolist() == ["pool", "test", "unlabeled"] * 4
    assert list(table.keys) == [f"k{n}" for n in range(12)]
    assert any("not used: other" in note for note in table.notes)


@pytest.mark.parametrize("labels", [[1, 0] * 6, ["x", "cafe\u0301"] * 6, ["x", "caf\u00e9"] * 6])
def test_classes_of_an_array_in_another_form(tmp_path: Path, labels: Any) -> None:
    table = read_npz(saved(tmp_path, images=GRAY, labels=labels, classes=["cafe\u0301", "x"]))
    assert table.classes == ("caf\u00e9", "x")
    assert table.labels.tolist() == [1, 0] * 6


def test_files_that_tools_leave_in_an_archive_are_no_arrays(tmp_path: Path) -> None:
    path = saved(tmp_path, images=GRAY, labels=LABELS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._images.npy", b"\0\5\x16\7")
        archive.writestr("._labels.npy", b"\0\5\x16\7")
    table = read_npz(path)
    assert len(table.keys) == len(GRAY)
    assert not table.notes


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": [1, 2]}, "has labels; it needs images"),
        ({"images": GRAY, "features": GRAY}, "both images and features"),
        ({"images": GRAY, "labels": np.array([None] * 12)}, "Python objects"),
        ({"images": GRAY, "labels": LABELS, "splits": ["tast"] * 12}, "one of pool, train"),
        ({"images": GRAY, "labels": LABELS, "classes": ["a", "b"]}, "2 are not among its classes"),
        ({"images": GRAY, "labels": LABELS, "keys": ["a"] * 12}, "keys must be 12 different"),
        ({"test_images": GRAY}, "for validation or test and have no label"),
        ({"images": GRAY}, "too few classes"),
        (
            {"features": GRAY, "format": 9},
            "unknown format .9.: this version of ssl-toolkit reads format 1",
        ),
        ({"images": np.float32(3)}, r"images has shape \(\)"),
    ],
)
def test_an_invalid_file_is_reported(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_npz(saved(tmp_path, **arrays))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY"])
def test_a_file_that_is_not_an_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    assert "can't read" in refusal(
        "run", "--data", tmp_path / "data.npz", "--output", tmp_path / "r"
    )


# --- features -----------------------------------------------------------------------------------


def clusters(count: int = 90) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Points around the corners of a triangle."""
    labels = np.arange(count) % 3
    centers = np.array([[5, 0, 0, 1], [0, 5, 0, 1], [0, 0, 5, 1]], np.float32)
    noise = np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)
    return centers[labels] + noise, labels


@pytest.mark.parametrize("algo", ["graph_probe", "supervised", "fixmatch", "simple", "auto"])
def test_features_in_place_of_images(tmp_path: Path, algo: str) -> None:
    x, y = clusters()
    config = {"algo": algo, "steps": 20, "labels_per_class": 4, "output": str(tmp_path / "run")}
    outcome = train(config, images=x, labels=y, test=(x, y), console=Console(silent=True))
    assert outcome.summary.backbone == "features_4"
    assert outcome.summary.test.accuracy > 0.9
    assert outcome.summary.counts.unlabeled == 78
    assert yaml.read(tmp_path / "run" / "config.yaml")["model"]["head_init"] == "probe"
    probabilities = load_model(tmp_path / "run").predict(torch.from_numpy(x))
    assert (probabilities.argmax(axis=1) == y).mean() == outcome.summary.test.accuracy


def test_a_run_on_features_works_like_any_other(tmp_path: Path) -> None:
    x, y = clusters()
    path = saved(tmp_path, features=x, labels=y, splits=["train"] * 60 + ["test"] * 30)
    assert "holds features" in refusal("run", "--data", path, "--backbone", "wrn_10_1")
    assert "holds features" in refusal("run", "--data", path, "--pretrained")
    run = tmp_path / "run"
    done = call("run", "--data", path, "--algo", "supervised", "--steps", 3, "--output", run)
    assert done.returncode == 0, done.stderr
    assert "linear probe" in done.stdout
    assert "px" not in done.stdout
    for command in (["check-run", run], ["evaluate", run], ["evaluate", run, "--data", path],
                    ["resume", run, "--steps", 5], ["report", run],
                    ["export", run, "--format", "torch-export"]):  # fmt: skip
        done = call(*command)
        assert done.returncode == 0, (command, done.stderr)
    assert "features)  # (N, 4)" in (run / "model" / "README.md").read_text()
    assert "(N, 4) float32 features" in (run / "model" / "config.json").read_text()
    program = torch.export.load(run / "export" / "model.pt2").module()
    ours = load_model(run).predict(x)
    assert np.allclose(program(torch.from_numpy(x)).detach().numpy(), ours, atol=1e-5)
    Image.fromarray(GRAY[0]).save(tmp_path / "image.png")
    assert "takes features, not images" in refusal("predict", run, tmp_path / "image.png")


def test_mismatched_features_and_models_are_reported(tmp_path: Path) -> None:
    x, y = clusters()
    message = refusal("run", "--dataset", "digits", "--backbone", "features_4")
    assert "features_4 takes features of length 4, the data holds images" in message
    run = tmp_path / "run"
    config = {"algo": "knn", "output": str(run)}
    train(config, images=x, labels=y, console=Console(silent=True))
    path = saved(tmp_path, features=x[:, :3], labels=y)
    assert "the data holds features of length 3" in refusal("evaluate", run, "--data", path)
    model = load_model(run)
    for wrong in (x[:, :3], GRAY, x[0]):
        with pytest.raises(DataError, match=r"takes features \(N, 4\) float, got \("):
            model.predict(wrong)
    with pytest.raises(DataError, match="an array or a tensor, got a str"):
        model.predict("image.png")


# --- gray stacks --------------------------------------------------------------------------------


def test_gray_stacks_are_predicted(tmp_path: Path) -> None:
    config = SHORT | {"output": tmp_path / "run"}
    train(config, images=GRAY, labels=LABELS, console=Console(silent=True))
    model = load_model(tmp_path / "run")
    expected = model.predict(list(GRAY))
    for stack in (GRAY, GRAY[..., None], torch.from_numpy(GRAY), torch.from_numpy(GRAY)[:, None]):
        assert np.array_equal(model.predict(stack), expected)
    for one in (GRAY[:1], GRAY[0], GRAY[0][..., None], np.repeat(GRAY[0][..., None], 3, axis=-1)):
        assert np.allclose(model.predict(one), expected[:1], atol=1e-6)
    with pytest.raises(DataError, match=r"got \(8, 8, 4\)"):
        model.predict(np.zeros((8, 8, 4), np.uint8))
