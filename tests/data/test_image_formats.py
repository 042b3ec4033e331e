"""Every row of the page on image formats, and damage that decoders don't tell by themselves."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image_files import image_faults, noise, packed_bits, read_image, saved, tiff
from PIL import Image, features

from ssl_toolkit.data.images.files import pillow_muted, try_image
from ssl_toolkit.errors import DataError

PAGE = (Path(__file__).parents[2] / "docs/reference/image-formats.md").read_text("utf-8")

TABLE = PAGE.split("## Arrays")[0]

Case = tuple[bytes | Image.Image, object]
"""A file, or an image in memory; and its pixels, gray or RGB, or a part of the refusal."""

GRAY = [[0, 85], [170, 255]]
RGB = [[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [90, 90, 90]]]
INKS = [[[0, 255, 255], [255, 0, 255]], [[255, 255, 0], [165, 165, 165]]]
WHITE = [255, 255, 255]


def array(values: object, kind: type = np.uint8) -> np.ndarray:
    return np.array(values, kind)


def image(values: object, mode: str | None = None) -> Image.Image:
    return Image.fromarray(array(values), mode)


def clear() -> Image.Image:
    """RGB, of which the first pixel can't be seen."""
    made = image(RGB).convert("RGBA")
    made.putpixel((0, 0), (255, 0, 0, 0))
    return made


CLEAR = [[WHITE, RGB[0][1]], RGB[1]]
ROUNDED = [[[254, 0, 0], [0, 254, 0]], [[0, 0, 254], [90, 90, 90]]]
WIDE = array(GRAY, np.uint16) * 257
ROWS16 = [struct.pack("<2H", *row) for row in WIDE.tolist()]
BIG16 = [struct.pack(">2H", *row) for row in WIDE.tolist()]
ROWS8 = [bytes(row) for row in GRAY]
NEGATIVE = [[255 - level for level in row] for row in GRAY]


def flat(values: object, bits: int = 8) -> list[bytes]:
    """Rows of a TIFF, from rows of pixels of samples."""
    kind = np.uint8 if bits == 8 else "<u2"
    return [row.tobytes() for row in np.array(values).astype(kind)]


def big(kind: str, source: Image.Image | None = None, **options: object) -> Case:
    """32 x 32 pixels: formats that lose something are compared by their corners."""
    source = source or image(RGB).resize((32, 32), Image.Resampling.NEAREST)
    return saved(source, kind, **options), [
        list(source.convert("RGB").getpixel(place)) for place in ((4, 4), (27, 4), (4, 27))
    ]


def ycck() -> Case:
    data, _ = big("JPEG", image(RGB).resize((32, 32), 0).convert("CMYK"), quality=95)
    at = data.index(b"Adobe") + 11
    with Image.open(io.BytesIO(data[:at] + b"\2" + data[at + 1 :])) as opened:
        right = [list(opened.convert("RGB").getpixel(p)) for p in ((4, 4), (27, 4), (4, 27))]
    return data[:at] + b"\2" + data[at + 1 :], right


def twelve_bit_jpeg() -> bytes:
    data = saved(noise(32, 32), "JPEG")
    at = data.index(b"\xff\xc0") + 4
    return data[:at] + b"\x0c" + data[at + 1 :]


def frames(kind: str, **options: object) -> bytes:
    more = [Image.new("RGB", (2, 2), "blue")]
    return saved(image(RGB), kind, save_all=True, append_images=more, **options)


def palette() -> Image.Image:
    made = image([[0, 1], [2, 3]], "P")
    made.putpalette(np.array(RGB).ravel().tolist())
    return made


def palette_and_alpha() -> Image.Image:
    with Image.open(io.BytesIO(CASES["TIFF, palette and alpha"]()[0])) as made:
        made.load()
    made.format = None
    assert made.mode == "PA"
    return made


def png_gray(bits: int) -> bytes:
    """Levels 0, 1/3, 2/3 and 1 of so many bits."""
    top = 2**bits - 1
    rows = [packed_bits([top * level // 255 for level in row], bits) for row in GRAY]

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    head = struct.pack(">IIBBBBB", 2, 2, bits, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def png_rgb16(color: int, pixels: np.ndarray) -> bytes:
    """Of 16 bits a channel, which Pillow doesn't write."""

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    head = struct.pack(">IIBBBBB", 2, 2, 16, color, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def gray_tiff(bits: int, **options: object) -> bytes:
    top = 2**bits - 1
    rows = [packed_bits([round(top * level / 255) for level in row], bits) for row in GRAY]
    return tiff(rows, 2, (bits,), **options)


SIGNED, FLOAT = {339: ("H", [2])}, {339: ("H", [3])}
RGB16 = array(RGB, np.uint16) * 257
RGBA16 = np.dstack([RGB16, np.full((2, 2), 65535, np.uint16)])
ALPHA = np.dstack([array(RGB), [[0, 255], [255, 255]]])
PREMULTIPLIED = [[[100, 0, 0, 100], [0, 255, 0, 255]], [[0, 0, 255, 255], [90, 90, 90, 255]]]
ON_WHITE = [[[255, 155, 155], RGB[0][1]], RGB[1]]
COLORS = np.pad(RGB16.reshape(4, 3).T, ((0, 0), (0, 252))).ravel().tolist()
"""A palette as TIFF has it: 256 levels of red, then of green, then of blue."""

CASES: dict[str, Callable[[], Case]] = {
    "JPEG, gray": lambda: big("JPEG", noise(32, 32).convert("L"), quality=95),
    "JPEG, color": lambda: big("JPEG", quality=95),
    "JPEG, CMYK": lambda: big("JPEG", image(RGB).resize((32, 32), 0).convert("CMYK"), quality=95),
    "JPEG, YCCK": ycck,
    "JPEG, progressive": lambda: big("JPEG", progressive=True, quality=95),
    "JPEG, several images (MPO)": lambda: (
        saved(
            image(RGB).resize((32, 32), 0), "MPO", quality=95,
            save_all=True, append_images=[Image.new("RGB", (32, 32))],
        ),
        big("JPEG", quality=95)[1],
    ),
    "JPEG, 12 bits or lossless": lambda: (twelve_bit_jpeg(), "a JPEG that is damaged or of a kind"),
    "PNG, gray, 1 bit": lambda: (saved(image([[0, 255], [255, 0]]).convert("1"), "PNG"),
                                 [[0, 255], [255, 0]]),
    "PNG, gray, 2 and 4 bits": lambda: (png_gray(4), GRAY),
    "PNG, gray, 8 bits": lambda: (saved(image(GRAY), "PNG"), GRAY),
    "PNG, gray, 16 bits": lambda: (saved(Image.fromarray(WIDE), "PNG"), GRAY),
    "PNG, gray with a transparent level": lambda: (
        saved(Image.fromarray(WIDE), "PNG", transparency=0), [[255, 85], [170, 255]]
    ),
    "PNG, gray and alpha": lambda: (
        saved(Image.merge("LA", [image(GRAY), image([[0, 255], [255, 255]])]), "PNG"),
        [[255, 85], [170, 255]],
    ),
    "PNG, RGB, 8 bits": lambda: (saved(image(RGB), "PNG"), RGB),
    "PNG, RGB, 16 bits": lambda: (png_rgb16(2, RGB16), RGB),
    "PNG, RGB and alpha, 8 bits": lambda: (saved(clear(), "PNG"), CLEAR),
    "PNG, RGB and alpha, 16 bits": lambda: (png_rgb16(6, RGBA16), RGB),
    "PNG, palette": lambda: (saved(palette(), "PNG"), RGB),
    "PNG, palette with transparent colors": lambda: (
        saved(palette(), "PNG", transparency=b"\0\xff\xff\xff"), CLEAR
    ),
    "PNG, animated": lambda: (frames("PNG"), RGB),
    "GIF": lambda: (saved(palette(), "GIF"), RGB),
    "GIF with a transparent color": lambda: (saved(palette(), "GIF", transparency=0), CLEAR),
    "GIF, animated": lambda: (frames("GIF"), RGB),
    "WebP, lossy": lambda: big("WEBP", quality=95),
    "WebP, lossless": lambda: (saved(image(RGB), "WEBP", lossless=True), RGB),
    "WebP, with alpha": lambda: (saved(clear(), "WEBP", lossless=True), CLEAR),
    "WebP, animated": lambda: (frames("WEBP", lossless=True), RGB),
    "AVIF": lambda: big("AVIF", quality=95, subsampling="4:4:4"),
    "BMP, palette": lambda: (saved(palette(), "BMP"), RGB),
    "BMP, RGB": lambda: (saved(image(RGB), "BMP"), RGB),
    "BMP, RGB and alpha": lambda: (saved(clear(), "BMP"), RGB),
    "PPM and PGM, 8 bits": lambda: (saved(image(RGB), "PPM"), RGB),
    "PPM and PGM, another maximum value": lambda: (b"P5 2 2 15\n" + bytes([0, 5, 10, 15]), GRAY),
    "PPM and PGM, 16 bits": lambda: (b"P5 2 2 4095\n" + struct.pack(">4H", 0, 1365, 2730, 4095),
                                     GRAY),
    "PFM, floats": lambda: (saved(Image.fromarray(array(GRAY, np.float32)), "PPM"),
                            "floating-point"),
    "TIFF, gray, 1 bit": lambda: (tiff([b"\x40", b"\x80"], 2, (1,)), [[0, 255], [255, 0]]),
    "TIFF, gray, 2 and 4 bits": lambda: (gray_tiff(4), GRAY),
    "TIFF, gray, 8 bits": lambda: (tiff(ROWS8, 2), GRAY),
    "TIFF, gray, white is zero, up to 8 bits": lambda: (tiff(ROWS8, 2, photometric=0), NEGATIVE),
    "TIFF, gray, 10 or 14 bits": lambda: (gray_tiff(10), "a TIFF that is damaged or of a kind"),
    "TIFF, gray, 12 bits": lambda: (gray_tiff(12), GRAY),
    "TIFF, gray, 16 bits, little-endian": lambda: (tiff(ROWS16, 2, (16,)), GRAY),
    "TIFF, gray, 16 bits, big-endian": lambda: (tiff(BIG16, 2, (16,), order=">"), GRAY),
    "TIFF, gray, 16 bits, white is zero": lambda: (tiff(ROWS16, 2, (16,), 0), NEGATIVE),
    "TIFF, gray, 32 bits": lambda: (
        tiff([struct.pack("<2I", 1, 2)] * 2, 2, (32,)), "32-bit pixels have no agreed range"
    ),
    "TIFF, gray, signed, 8 bits": lambda: (tiff(ROWS8, 2, more=SIGNED), "signed pixels"),
    "TIFF, gray, signed, 16 bits": lambda: (tiff(ROWS16, 2, (16,), more=SIGNED), "signed pixels"),
    "TIFF, gray, floats of 32 bits": lambda: (
        tiff([struct.pack("<2f", 0, 1)] * 2, 2, (32,), more=FLOAT), "floating-point"
    ),
    "TIFF, gray, floats of 16 or 64 bits": lambda: (
        tiff([struct.pack("<2d", 0, 1)] * 2, 2, (64,), more=FLOAT), "a TIFF that is damaged or"
    ),
    "TIFF, gray and alpha": lambda: (
        tiff(flat([[[0, 0], [85, 255]], [[170, 255], [255, 255]]]), 2, (8, 8),
             more={338: ("H", [2])}),
        [[255, 85], [170, 255]],
    ),
    "TIFF, gray and alpha, premultiplied": lambda: (
        tiff(flat([[[100, 100], [85, 255]], [[170, 255], [255, 255]]]), 2, (8, 8),
             more={338: ("H", [1])}),
        [[255, 85], [170, 255]],
    ),
    "TIFF, RGB, 8 bits": lambda: (tiff(flat(RGB), 2, (8,) * 3, 2), RGB),
    "TIFF, RGB, 16 bits": lambda: (tiff(flat(RGB16, 16), 2, (16,) * 3, 2), RGB),
    "TIFF, RGB and alpha, 8 bits": lambda: (
        tiff(flat(ALPHA), 2, (8,) * 4, 2, {338: ("H", [2])}), CLEAR
    ),
    "TIFF, RGB and alpha, 16 bits": lambda: (
        tiff(flat(RGBA16, 16), 2, (16,) * 4, 2, {338: ("H", [2])}), RGB
    ),
    "TIFF, RGB and alpha, premultiplied": lambda: (
        tiff(flat(PREMULTIPLIED), 2, (8,) * 4, 2, {338: ("H", [1])}), ON_WHITE
    ),
    "TIFF, palette": lambda: (
        tiff(flat([[0, 1], [2, 3]]), 2, (8,), 3, {320: ("H", COLORS)}), RGB
    ),
    "TIFF, palette and alpha": lambda: (
        tiff(flat([[[0, 0], [1, 255]], [[2, 255], [3, 255]]]), 2, (8, 8), 3,
             {320: ("H", COLORS), 338: ("H", [2])}),
        CLEAR,
    ),
    "TIFF, CMYK, 8 bits": lambda: (tiff(flat(np.dstack([INKS, np.zeros((2, 2))])), 2, (8,) * 4, 5),
                                   RGB),
    "TIFF, CMYK, 16 bits": lambda: (
        tiff(flat(np.dstack([INKS, np.zeros((2, 2))]) * 257, 16), 2, (16,) * 4, 5), RGB
    ),
    "TIFF, YCbCr": lambda: (
        tiff(flat(np.asarray(image(RGB).convert("YCbCr"))), 2, (8,) * 3, 6,
             {530: ("H", [1, 1])}),
        ROUNDED,
    ),
    "TIFF, L*a*b*": lambda: (tiff(flat(RGB), 2, (8,) * 3, 8), r"L\*a\*b\* pixels"),
    "TIFF, several pages": lambda: (
        saved(image(RGB), "TIFF", save_all=True, append_images=[Image.new("RGB", (2, 2))]), RGB
    ),
    "TIFF, compressed": lambda: (saved(image(RGB), "TIFF", compression="tiff_lzw"), RGB),
    "TIFF, a camera's RAW (DNG)": lambda: (
        tiff(ROWS8, 2, more={50706: ("B", [1, 4, 0, 0])}), "a camera's RAW image"
    ),
    "in memory, HSV": lambda: (image(RGB).convert("HSV"), RGB),
    "in memory, YCbCr": lambda: (image(RGB).convert("YCbCr"), ROUNDED),
    "in memory, I;16B": lambda: (Image.fromarray(WIDE.astype(">u2")), GRAY),
    "in memory, RGBa": lambda: (clear().convert("RGBa"), CLEAR),
    "in memory, La": lambda: (
        Image.merge("LA", [image(GRAY), image([[0, 255], [255, 255]])]).convert("La"),
        [[255, 85], [170, 255]],
    ),
    "in memory, PA": lambda: (palette_and_alpha(), CLEAR),
    "in memory, I": lambda: (Image.fromarray(array(GRAY, np.int32)), "32-bit pixels"),
    "in memory, F": lambda: (Image.fromarray(array(GRAY, np.float32)), "floating-point"),
    "in memory, LAB": lambda: (image(RGB, "LAB"), r"L\*a\*b\* pixels"),
}  # fmt: skip


def test_the_page_has_a_row_for_every_case() -> None:
    rows = re.findall(r"^\| ([^|]+?) +\| ", TABLE, re.M)
    assert [row for row in rows if row != "kind"] == list(CASES)


@pytest.mark.parametrize("row", CASES)
def test_a_row_of_the_page(tmp_path: Path, row: str) -> None:
    if row == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    given, right = CASES[row]()
    size = 32 if isinstance(right, list) and np.ndim(right) == 2 and len(right) == 3 else 2
    if isinstance(given, Image.Image):
        with pillow_muted():
            answer = try_image(given, size)
    else:
        path = tmp_path / "image.png"
        path.write_bytes(given)
        (fault,) = image_faults([path])
        answer = read_image(path, size) if fault is None else fault
        if fault is not None:
            with pytest.raises(DataError, match=re.escape(fault)):
                read_image(path, size)
    (line,) = [line for line in TABLE.splitlines() if line.startswith(f"| {row} |")]
    assert ("refused" in line) == isinstance(right, str), line
    if isinstance(right, str):
        assert isinstance(answer, str)
        assert re.match(right, answer), answer
        return
    assert not isinstance(answer, str), answer
    if size == 32:
        pixels = answer[[4, 4, 27], [4, 27, 4]].astype(int)
        assert np.abs(pixels - np.array(right)).max() <= 12, pixels.tolist()
        return
    pixels = answer if np.ndim(right) == 3 else answer[..., 0]
    assert pixels.tolist() == right


# --- damage ---------------------------------------------------------------------------------------

PHOTO = noise(200, 160)
JPEGS = {
    "4:2:0": saved(PHOTO, "JPEG"),
    "4:4:4": saved(PHOTO, "JPEG", subsampling=0),
    "gray": saved(PHOTO.convert("L"), "JPEG"),
    "CMYK": saved(PHOTO.convert("CMYK"), "JPEG"),
    "progressive": saved(PHOTO, "JPEG", progressive=True),
    "restart markers": saved(PHOTO, "JPEG", restart_marker_rows=1),
}


def fault_of(tmp_path: Path, content: bytes) -> str | None:
    """Why both ways of reading refuse it; None where they take it."""
    path = tmp_path / "image.jpg"
    path.write_bytes(content)
    (fault,) = image_faults([path])
    with pillow_muted():
        answer = try_image(content, 8)
    assert (answer if isinstance(answer, str) else None) == fault
    return fault


def without_end(data: bytes, kept: float, end: bytes) -> bytes:
    """Only the first part; what comes then is zeros, or an end that looks right."""
    half = int(len(data) * kept)
    return data[:half] + (end or b"\0" * (len(data) - half))


@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize("kept", [0.4, 0.6, 0.9])
@pytest.mark.parametrize("end", [b"", b"\xff\xd9", b"\0" * 500 + b"\xff\xd9"])
def test_half_a_jpeg_is_unreadable(tmp_path: Path, kind: str, kept: float, end: bytes) -> None:
    fault = fault_of(tmp_path, without_end(JPEGS[kind], kept, end))
    assert fault is not None
    assert fault.startswith("damaged (")


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_has_exactly_the_pixels_that_pillow_decodes(kind: str) -> None:
    with Image.open(io.BytesIO(JPEGS[kind])) as opened:
        right = np.asarray(opened.convert("RGB").crop((20, 0, 180, 160)))
    with pillow_muted():
        assert (try_image(JPEGS[kind], 160) == right).all()


def test_oddities_of_a_jpeg_that_are_no_damage(tmp_path: Path) -> None:
    whole = JPEGS["4:2:0"]
    version = whole.index(b"JFIF\0") + 5
    profile = saved(PHOTO, "JPEG", icc_profile=b"x" * 200)
    number = profile.index(b"ICC_PROFILE\0") + 12
    odd = {
        "an unknown version": whole[:version] + b"\0\0" + whole[version + 2 :],
        "a profile that lacks a part": profile[:number] + b"\7" + profile[number + 1 :],
        "text behind the end": whole + b"some camera's notes",
        "zeros behind the end": whole + b"\0" * 1000,
        "two bytes before the end": whole[:-2] + b"\0\0" + whole[-2:],
        "fill bytes": whole[:2] + b"\xff\xff" + whole[2:],
    }
    assert {name: fault_of(tmp_path, data) for name, data in odd.items()} == dict.fromkeys(odd)
    for name, data in odd.items():  # and do not hide what is damaged
        assert fault_of(tmp_path, without_end(data, 0.6, b"\xff\xd9")) is not None, name


@pytest.mark.parametrize("kept", [0.5, 0.9])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}), ("WEBP", {}), ("WEBP", {"lossless": True}), ("AVIF", {}), ("GIF", {}),
        ("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"compression": "jpeg"}),
    ],
)  # fmt: skip
def test_a_file_that_ends_in_zeros_is_unreadable(
    tmp_path: Path, kind: str, options: dict[str, object], kept: float
) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    data = saved(PHOTO, kind, **options)
    assert fault_of(tmp_path, data) is None
    assert fault_of(tmp_path, without_end(data, kept, b"")) is not None


def test_a_png_with_a_wrong_checksum_is_unreadable(tmp_path: Path) -> None:
    data = saved(PHOTO, "PNG")
    at = data.rindex(b"IEND") - 8  # the last bytes of pixels' checksum
    fault = fault_of(tmp_path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert fault is not None
    assert "checksum" in fault
    assert fault_of(tmp_path, data[:-12]) is not None  # without its end


def test_a_compressed_tiff_with_half_a_strip_is_unreadable(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64)).astype(np.uint8)
    strip = zlib.compress(pixels.tobytes())
    whole = tiff([strip], 64, compression=8)
    assert fault_of(tmp_path, whole) is None
    for at in (len(strip) // 2, len(strip) - 100):
        half = strip[:at] + b"\0" * (len(strip) - at)
        assert fault_of(tmp_path, tiff([half], 64, compression=8)) is not None
    jpeg = saved(Image.fromarray(pixels), "JPEG")
    assert fault_of(tmp_path, tiff([jpeg], 64, compression=7)) is None
    half = without_end(jpeg, 0.6, b"\xff\xd9")
    fault = fault_of(tmp_path, tiff([half], 64, compression=7))
    assert fault is not None
    assert "premature end" in fault


@pytest.mark.parametrize("color", [(0, 0, 0), (255, 255, 255), (128, 128, 128), (200, 30, 70)])
def test_plain_images_end_in_zeros_by_right(tmp_path: Path, color: tuple[int, ...]) -> None:
    plain = Image.new("RGB", (1500, 1500), color)
    assert fault_of(tmp_path, saved(plain, "WEBP", method=0)) is None
