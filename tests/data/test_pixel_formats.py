"""Images with other channels than RGB, and with 16 bits, from files to arrays."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ssl_toolkit import DataError
from ssl_toolkit.config.images import RGB8, PixelFormat, parse_size
from ssl_toolkit.data.cache import find_cache, open_cache
from ssl_toolkit.data.images.files import fit_array, fit_image, pillow_muted, try_image
from ssl_toolkit.data.images.inputs import to_pixels
from ssl_toolkit.data.images.levels import for_display
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.arrays import ImageArray, array_table
from ssl_toolkit.data.readers.form import lay_out
from ssl_toolkit.data.readers.image_files import ImageFiles

RAMP = np.arange(32 * 32, dtype=np.uint16).reshape(32, 32) * 63 + 7
"""1,024 levels of 16 bits."""


def png(levels: np.ndarray[Any, Any], kind: int) -> bytes:
    """Encode a PNG with 16 bits; the kind is that of the header, such as 2 for RGB."""
    height, width = levels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels)

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def read(source: Any, channels: int, bits: int = 8, size: int = 32) -> Any:
    with pillow_muted():
        return try_image(source, size, "crop", PixelFormat(channels, bits))


def saved(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def noise(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_gray_images_keep_16_bits(form: str) -> None:
    levels = read(saved(Image.fromarray(RAMP), form), 1, 16)
    assert levels.dtype == np.uint16
    assert np.array_equal(levels[..., 0], RAMP)
    assert len(np.unique(levels)) == 1024
    assert np.array_equal(
        read(saved(Image.fromarray(RAMP), form), 3, 16), RAMP[..., None][..., [0] * 3]
    )


@pytest.mark.parametrize(("kind", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_color_of_a_png_keeps_16_bits(kind: int, channels: int) -> None:
    levels = np.random.default_rng(1).integers(0, 65536, (32, 32, channels)).astype(np.uint16)
    assert np.array_equal(read(png(levels, kind), channels, 16), levels)
    assert read(png(levels, kind), channels).dtype == np.uint8


def test_a_rotated_png_with_16_bits_is_turned() -> None:
    levels = np.random.default_rng(1).integers(0, 65536, (32, 32, 3)).astype(np.uint16)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        chunk = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
        block = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        content = png(levels, 2)
        turned = read(content[:33] + block + content[33:], 3, 16)
        plain = Image.fromarray((levels >> 8).astype(np.uint8))
        plain.getexif()[0x0112] = orientation
        expected = read(saved(plain, exif=exif), 3)
        assert np.array_equal(turned >> 8, expected), orientation


def test_images_of_8_bits_are_scaled_to_16() -> None:
    rgb = noise(32, 32, 3)
    assert np.array_equal(read(saved(Image.fromarray(rgb)), 3, 16), rgb.astype(np.uint16) * 257)
    gray = Image.fromarray(rgb).convert("L")
    exact = read(saved(Image.fromarray(rgb)), 1, 16)[..., 0] / 257
    assert np.abs(exact - np.asarray(gray)).max() < 0.51


def test_other_channels_of_8_bits_are_pillows() -> None:
    rgba = Image.fromarray(noise(32, 32, 4))
    for channels, mode in ((1, "L"), (2, "LA"), (4, "RGBA")):
        expected = np.asarray(rgba.convert(mode)).reshape(32, 32, channels)
        assert channels == 1 or np.array_equal(read(saved(rgba), channels), expected)
    on_white = Image.fromarray(read(saved(rgba), 3)).convert("L")
    assert np.array_equal(read(saved(rgba), 1)[..., 0], np.asarray(on_white))
    opaque = read(saved(Image.fromarray(noise(32, 32))), 4)
    assert (opaque[..., 3] == 255).all()


def test_pages_of_a_tiff_are_channels() -> None:
    pages = [Image.fromarray(noise(32, 32, seed=seed)) for seed in range(6)]
    content = saved(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    assert np.array_equal(read(content, 6), np.stack([np.asarray(p) for p in pages], axis=-1))
    assert "6 pages, not 5" in read(content, 5)
    assert np.array_equal(read(content, 3)[..., 0], np.asarray(pages[0]))  # the first page
    colored = [Image.fromarray(noise(32, 32, 3, seed=seed)) for seed in range(2)]
    content = saved(colored[0], "TIFF", save_all=True, append_images=colored[1:])
    assert "mode RGB, not gray" in read(content, 2)


def test_what_pillow_would_drop_is_refused() -> None:
    assert "as arrays (.npy or .npz)" in read(saved(Image.fromarray(noise(8, 8, 3))), 7)
    extra = b"\x52\x01\x03\x00\x01\x00\x00\x00"  # the tag ExtraSamples, one number
    content = saved(Image.fromarray(noise(8, 8, 4)), "TIFF")
    assert extra + b"\x02" in content
    assert "isn't alpha" in read(content.replace(extra + b"\x02", extra + b"\x00"), 4)
    ppm = b"P6 2 1 65535\n" + bytes(12)
    assert "only 8 bits of color" in read(ppm, 3, 16)


def test_each_channel_is_scaled_on_its_own() -> None:
    levels = noise(40, 24, 5)
    fitted = fit_array(levels, 16)
    for channel in range(5):
        alone = fit_image(Image.fromarray(levels[..., channel]), 16)
        assert np.array_equal(fitted[..., channel], alone[..., 0])
    smooth = np.add.outer(np.arange(40), np.arange(24))[..., None].astype(np.uint8)
    deep = fit_array(smooth.astype(np.uint16) * 257, 16)
    assert np.abs(deep / 257 - fit_array(smooth, 16)).max() <= 1
    assert (fit_array(levels, 16, "pad")[:, 0] == 255).all()


def test_a_cache_has_the_format_in_its_key(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(RAMP + number).save(tmp_path / f"{number}.png")
    paths = [str(path) for path in sorted(tmp_path.glob("*.png"))]
    deep, _ = open_cache(paths, 32, pixels=PixelFormat(1, 16))
    assert deep.pixels.shape == (3, 1, 32, 32)
    assert deep.pixels.dtype == np.uint16
    levels = deep.pixels[0].astype(object)
    assert deep.moments[0, :, 0].tolist() == [levels.sum(), (levels**2).sum()]
    assert find_cache(paths, 32) is None
    plain, _ = open_cache(paths, 32)
    assert plain.pixels.shape == (3, 3, 32, 32)
    again = find_cache(paths, 32, pixels=PixelFormat(1, 16))
    assert again is not None
    assert np.array_equal(again.pixels, deep.pixels)


def test_sums_of_many_white_images_do_not_wrap(tmp_path: Path) -> None:
    path, count = tmp_path / "white.png", 70_000
    Image.fromarray(np.full((256, 256), 65535, dtype=np.uint16)).save(path)
    files = ImageFiles([str(path)], pixels=PixelFormat(1, 16))
    assert not files.open(256)
    pixels = 256**2 * count
    moments = files.moments(np.zeros(count, dtype=np.int64), 256)
    assert moments.tolist() == [[pixels * 65535], [pixels * 65535**2]]


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
def test_arrays_of_any_channels(tmp_path: Path, kind: str) -> None:
    white = {"uint8": 255, "uint16": 65535, "float32": 1}[kind]
    images = (np.random.default_rng(0).random((8, 16, 16, 6)) * white).astype(kind)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(8) % 2)
    table = read_data(tmp_path / "x.npz")
    bits = 16 if kind == "uint16" else 8
    assert table.pixels == PixelFormat(6, bits)
    rows = table.read(np.arange(8), 16)
    expected = np.rint(images * 255) if kind == "float32" else images
    assert np.array_equal(rows, expected)
    deep = read_data(tmp_path / "x.npz", pixels=PixelFormat(6, 16)).read(np.arange(8), 16)
    scale = {"uint8": 257, "uint16": 1, "float32": 65535}[kind]
    assert np.array_equal(deep, np.rint(images.astype(np.float32) * scale).astype(np.uint16))
    with pytest.raises(DataError, match="has 6 channels, not 3; set --channels 6"):
        read_data(tmp_path / "x.npz", pixels=RGB8).read(np.arange(8), 16)


def test_arrays_with_the_channels_first_are_refused(tmp_path: Path) -> None:
    for shape in ((8, 3, 16, 16), (8, 6, 16, 16), (8, 5, 12, 18), (8, 13, 48, 64)):
        np.savez(tmp_path / "x.npz", images=np.zeros(shape, np.uint8), labels=np.arange(8) % 2)
        with pytest.raises(DataError, match="puts the channels last"):
            read_data(tmp_path / "x.npz")
    for shape in ((8, 9, 11, 200), (8, 24, 32, 100)):  # of many channels
        np.savez(tmp_path / "x.npz", images=np.zeros(shape, np.uint8), labels=np.arange(8) % 2)
        assert read_data(tmp_path / "x.npz").pixels.channels == shape[3]


def test_a_data_set_that_makes_its_images_refuses_other_formats() -> None:
    group = ImageArray("", "pool", noise(4, 8, 8), [0, 1, 0, 1])
    table = array_table(["a", "b"], [group])
    gray = lay_out(table, "crop", pixels=PixelFormat(1, 16))
    assert gray.read(np.arange(4), 8).shape == (4, 8, 8, 1)
    own = table.__class__(**{**vars(table), "read": lambda rows, size: np.empty(0)})
    with pytest.raises(DataError, match="3 channels of 8 bits itself"):
        lay_out(own, "crop", pixels=PixelFormat(1))


def test_arrays_for_a_model_have_its_channels() -> None:
    form = PixelFormat(5, 16)
    levels = RAMP[..., None].repeat(5, axis=2)
    assert np.array_equal(to_pixels(levels, 32, "crop", form), levels)
    wrong = to_pixels(noise(8, 8, 3), 8, "crop", form)
    assert isinstance(wrong, str)
    assert "(H, W, 5)" in wrong
    for gray in (noise(8, 8), np.full((8, 8), 0.5, np.float32)):
        for channels in (2, 4, 5):  # what the others would be is unknown
            refused = to_pixels(gray, 8, "crop", PixelFormat(channels))
            assert isinstance(refused, str)
            assert f"an array is (H, W, {channels}) and" in refused


def test_images_of_any_format_are_shown_as_rgb() -> None:
    assert np.array_equal(for_display(RAMP[None, ..., None])[0, ..., 2], (RAMP + 128) // 257)
    five = noise(2, 4, 4, 5)
    assert np.array_equal(for_display(five), five[..., :3])


@pytest.mark.parametrize(("text", "size"), [
    ("32", 32), (32, 32), ("48x64", (48, 64)), ("48X64", (48, 64)), ("32x32", 32),
    ([48, 64], (48, 64)), ((7, 7), 7), (None, None),
])  # fmt: skip
def test_sizes(text: Any, size: Any) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["0", "48x", "x48", "48x0", "1x2x3", "9999", True, 1.5, [1, 2, 3]])
def test_other_sizes_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="48x64"):
        parse_size(text)
