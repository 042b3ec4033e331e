"""Images that are files of one array (``.npy``): read in every form, or refused in one line."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit import load_model
from ssl_toolkit.config.images import RGB8, PixelFormat
from ssl_toolkit.data.images.files import pillow_muted, try_image
from ssl_toolkit.data.load import read_data
from ssl_toolkit.labeling.page_images import encoded_image

draws = np.random.default_rng(0)
RGB = draws.integers(0, 256, (12, 16, 3)).astype(np.uint8)
BANDS = draws.integers(0, 256, (12, 16, 7)).astype(np.uint8)
SEVEN = PixelFormat(channels=7)


def saved(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def read(content: bytes, form: PixelFormat = RGB8, size: Any = (12, 16)) -> Any:
    with pillow_muted():
        return try_image(content, size, "crop", form)


def test_an_array_is_read_as_the_same_image_in_a_png() -> None:
    png = io.BytesIO()
    Image.fromarray(RGB).save(png, "PNG")
    for size in ((12, 16), 8):
        assert (read(saved(RGB), size=size) == read(png.getvalue(), size=size)).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a,
        lambda a: np.moveaxis(a, 2, 0),
        np.asfortranarray,
        lambda a: (a * np.uint16(257)).astype(">u2"),
        lambda a: a.astype(np.float64) / 255,
    ],
    ids=["last", "first", "fortran", "big-endian", "float"],
)
def test_any_number_of_channels_last_or_first(change: Callable[[Any], Any]) -> None:
    assert (read(saved(change(BANDS)), SEVEN) == BANDS).all()
    deep = read(saved(change(BANDS)), PixelFormat(channels=7, bits=16))
    assert (deep == BANDS * np.uint16(257)).all()


def test_gray_becomes_three_channels_and_color_one() -> None:
    gray = RGB[..., 0]
    for array in (gray, gray[..., None], gray[None]):
        assert (read(saved(array)) == gray[..., None]).all()
    assert read(saved(RGB), PixelFormat(channels=1)).shape == (12, 16, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (saved(RGB)[:-1], "damaged (has 575 bytes of values, its header 576)"),
        (saved(RGB) + saved(RGB), "damaged (has "),
        (saved(RGB)[:20], "damaged ("),
        (saved(RGB).replace(b"'shape'", b"'shard'"), "damaged ("),
        (b"\x93NUMPY\x03" + saved(RGB)[7:], "has version 3.0 of .npy; save it by np.save"),
        (saved(np.array([[{}]], dtype=object)), "holds Python objects; save numbers"),
        (saved(RGB.astype(np.int64)), "its dtype is int64; expected uint8, uint16, or float"),
        (saved(RGB > 9), "its dtype is bool; expected"),
        (saved(RGB[None]), "an image is (H, W), (H, W, C) or (C, H, W), got (1, 12, 16, 3)"),
        (saved(RGB[:0]), "an image is (H, W), (H, W, C) or (C, H, W), got (0, 16, 3)"),
        (saved(RGB.astype(np.float32)), "floats must be in [0, 1]; divide 0..255 by 255"),
        (saved(np.full((4, 4), np.nan)), "floats must be in [0, 1]"),
        (saved(BANDS), "has 7 channels, not 3; set --channels 7"),
        (saved(np.moveaxis(BANDS, 2, 0)), "has 7 channels, not 3; set --channels 7"),
    ],
)
def test_damage_and_other_arrays_are_one_line(content: bytes, message: str) -> None:
    answer = read(content)
    assert isinstance(answer, str)
    assert answer.startswith(message)
    assert "\n" not in answer


def test_too_many_pixels_are_refused_by_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert read(saved(RGB)).startswith("claims to be 16 x 12 pixels, more than the limit of 100")


def make_folder(top: Path) -> Path:
    """Write two classes of images with seven channels, the second brighter."""
    for number in range(20):
        path = top / "ab"[number % 2] / f"{number}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.roll(BANDS, number, axis=0) // (2 - number % 2))
    return top


def test_a_run_on_folders_of_arrays(tmp_path: Path) -> None:
    data, output = make_folder(tmp_path / "data"), tmp_path / "run"
    common = ("--algo", "supervised", "--backbone", "wrn_10_1", "--device", "cpu", "--steps", 2)
    arguments = ("run", "--data", data, *common, "--test-fraction", 0.2, "--output", output)
    message = refusal(*arguments)
    assert f"{data}/a/0.npy: has 7 channels, not 3; set --channels 7" in message
    done = call(*arguments, "--channels", 7)
    assert done.returncode == 0, done.stderr
    assert load_model(output).predict([data / "a" / "0.npy", data / "b" / "1.npy"]).shape == (2, 2)
    (data / "a" / "0.npy").write_bytes(saved(BANDS)[:-9])
    table = tmp_path / "predictions.csv"
    assert call("predict", output, data, "--output", table).returncode == 1
    rows = table.read_text().splitlines()
    assert len(rows) == 21
    assert sum("damaged (has " in row for row in rows) == 1


def test_arrays_beside_images_are_not_used(tmp_path: Path) -> None:
    make_folder(tmp_path)
    Image.fromarray(RGB).save(tmp_path / "a" / "photo.png")
    table = read_data(tmp_path)
    assert sorted(key.rpartition(".")[2] for key in table.keys).count("png") == 1
    assert not [key for key in table.keys if key.startswith("a/") and key.endswith(".npy")]
    assert any("files not used, 10" in note for note in table.notes)


def test_lists_of_arrays_and_a_folder_without_classes(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "list.txt").write_text("a/0.npy ab c\nb/1.npy b\n")
    assert read_data(tmp_path / "list.txt").classes == ("ab c", "b")
    assert len(read_data(tmp_path / "a", unlabeled=True).keys) == 10


def test_the_labeling_page_shows_the_first_three_channels(tmp_path: Path) -> None:
    table = read_data(make_folder(tmp_path), unlabeled=True)
    kind, content = encoded_image(table, 0)
    with Image.open(io.BytesIO(content)) as image:
        assert (kind, image.mode, image.size) == ("image/png", "RGB", (16, 12))
        assert (np.asarray(image) == np.load(table.files[0])[..., :3]).all()  # type: ignore[index]
