import json
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from case_folders import case_folders  # noqa: F401
from image_files import image_faults, read_image
from PIL import Image

from ssl_toolkit.data.images.files import read_images
from ssl_toolkit.errors import DataError
from ssl_toolkit.text import display_text


def save(image: Image.Image, path: Path, **options) -> Path:
    image.save(path, **options)
    return path


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    return Image.fromarray(levels.astype(np.uint8))


def test_a_square_image_of_the_right_size_is_unchanged(tmp_path):
    image = noise(12, 12)
    assert (read_image(save(image, tmp_path / "a.png"), 12) == np.asarray(image)).all()


@pytest.mark.parametrize("case", ["c04_exif", "c05_modes"])
def test_duplicates_of_the_cases_are_read_equally(cases, case):
    folder = cases / case / "predict"
    pairs = json.loads((cases / case / "EXPECT.json").read_text("utf-8"))["same_prediction"]
    assert len(pairs) >= 6
    for one, other in pairs:
        first, second = read_images([folder / one, folder / other], 32)
        assert (first == second).all(), (one, other)
        assert first.std() > 1


def test_all_eight_orientations_differ(cases):
    folder = cases / "c04_exif" / "predict"
    images = read_images([folder / f"o{turn}.jpg" for turn in range(1, 9)], 32)
    assert len({image.tobytes() for image in images}) == 8


def test_a_damaged_exif_block_does_not_rotate(tmp_path):
    path = save(noise(8, 8), tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage")
    assert image_faults([path]) == [None]
    assert read_image(path, 8).shape == (8, 8, 3)


def test_transparent_images_are_on_white_and_nothing_is_printed(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
        assert (read_image(save(clear, tmp_path / "rgba.png"), 4) == 255).all()
        half = Image.new("LA", (4, 4), (0, 128))
        assert (read_image(save(half, tmp_path / "la.png"), 4) == 127).all()
        palette = Image.new("P", (4, 4), 0)
        palette.putpalette([10, 20, 30, 40, 50, 60])
        palette.putpixel((0, 0), 1)
        path = save(palette, tmp_path / "p.png", transparency=b"\xff\x00")
        pixels = read_image(path, 4)
    assert tuple(pixels[1, 1]) == (10, 20, 30)
    assert tuple(pixels[0, 0]) == (255, 255, 255)


def test_16_bit_gray_is_scaled_not_clipped(tmp_path):
    levels = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    path = save(Image.fromarray(levels), tmp_path / "a.png")
    assert read_image(path, 2)[..., 0].tolist() == [[0, 1], [128, 255]]
    path = save(Image.fromarray(levels), tmp_path / "a.tif")
    assert read_image(path, 2)[..., 1].tolist() == [[0, 1], [128, 255]]


def test_pixels_without_an_agreed_range_are_refused(tmp_path):
    floats = save(Image.fromarray(np.ones((2, 2), np.float32)), tmp_path / "f.tif")
    wide = save(Image.fromarray(np.full((2, 2), 70000, np.int32)), tmp_path / "i.tif")
    for fault in image_faults([floats, wide]):
        assert fault is not None
        assert "no agreed range" in fault
    with pytest.raises(DataError, match=r"f\.tif.*floating-point"):
        read_image(floats, 2)


def test_first_frame_of_a_gif(tmp_path):
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    path = save(red, tmp_path / "a.gif", save_all=True, append_images=[blue])
    assert tuple(read_image(path, 4)[0, 0]) == (255, 0, 0)


def test_first_image_of_a_telephones_jpeg(tmp_path):
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    path = save(red, tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[blue])
    assert image_faults([path]) == [None]
    assert read_image(path, 8)[0, 0, 0] > 250


def test_the_middle_square_is_kept(tmp_path):
    stripes = np.zeros((10, 30, 3), dtype=np.uint8)
    stripes[:, 10:20] = 200
    path = save(Image.fromarray(stripes), tmp_path / "wide.png")
    assert (read_image(path, 10) == 200).all()
    path = save(Image.fromarray(stripes.transpose(1, 0, 2)), tmp_path / "tall.png")
    assert (read_image(path, 10) == 200).all()


def test_shrinking_is_antialiased(tmp_path):
    board = np.indices((64, 64)).sum(0) % 2 * 255
    path = save(Image.fromarray(board.astype(np.uint8)), tmp_path / "a.png")
    small = read_image(path, 8)
    assert small.min() > 110
    assert small.max() < 145


def test_odd_sizes(cases):
    folder = cases / "c06_ext_sizes" / "unlabeled"
    paths = [folder / f"{name}.png" for name in ("one_px", "wide", "tall", "odd")]
    assert image_faults(paths) == [None] * 4
    assert all(image.min() < image.max() for image in read_images(paths, 32))


def test_unreadable_files_and_their_reasons(tmp_path, cases):
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    (tmp_path / "script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (tmp_path / "folder.png").mkdir()
    reasons = {
        "empty.png": "empty file",
        "text.jpg": "not an image",
        "gone.png": "broken link",
        "script.png": "not an image",
        "folder.png": "not a regular file",
        "absent.png": "no such file",
    }
    assert image_faults([tmp_path / name for name in reasons]) == list(reasons.values())


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif", "bmp", "gif"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.97])
def test_a_truncated_file_is_unreadable(tmp_path, suffix, kept):
    path = save(noise(64, 64), tmp_path / f"a.{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    (fault,) = image_faults([path])
    assert fault is not None
    with pytest.raises(DataError, match="can't read image"):
        read_image(path, 8)


def test_several_errors_are_reported_together(tmp_path):
    good = save(noise(8, 8), tmp_path / "good.png")
    paths = [tmp_path / "one.png", good, tmp_path / "two.png"]
    with pytest.raises(DataError) as caught:
        read_images(paths, 8, workers=2)
    assert [message.split(": ")[1] for message in caught.value.messages] == ["no such file"] * 2
    assert "two.png" in caught.value.messages[1]


def test_threads_return_results_in_order(tmp_path):
    paths = [save(noise(9, 9, seed), tmp_path / f"{seed}.png") for seed in range(12)]
    assert (read_images(paths, 9, workers=3) == read_images(paths, 9)).all()


def test_a_decompression_bomb_is_detected_by_its_header(cases):
    path = cases / "c07_bomb" / "unlabeled" / "huge.png"
    (fault,) = image_faults([path])
    assert fault is not None
    assert "60000 x 60000 pixels" in fault


def test_a_decompression_bomb_that_pillow_only_warns_about(tmp_path):
    # Between its limit and twice its limit.
    header = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    data = bytes(5000)

    def chunk(tag, body):
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    path = tmp_path / "big.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data))
    )
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        (fault,) = image_faults([path])
    assert fault is not None
    assert "10000 x 10000 pixels" in fault
    assert shown == []


def test_a_decompression_bomb_uses_no_memory(cases):
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from ssl_toolkit.data.images.files import decode_images\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert isinstance(decode_images([Path(sys.argv[1])], 8)[0], str)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    path = cases / "c07_bomb" / "unlabeled" / "huge.png"
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    kilobytes = int(done.stdout) / (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 50_000


def test_names_that_are_not_utf8():
    assert display_text("caf\udce9") == "caf\\xe9"
    assert display_text("名前") == "名前"
