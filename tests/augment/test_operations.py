"""The operations of RandAugment against PIL, on a photograph, at every level that is used."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image

from ssl_toolkit import image_ops as ops
from ssl_toolkit.augment.randaugment import FIXMATCH

LEVELS = range(1, 10)
SIZES = [(96, 96), (32, 32), (40, 72)]
ENTRIES = {entry.name: entry for entry in FIXMATCH}


def photo(height, width):
    pixels = load_sample_image("china.jpg")[:400, 100:620]
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def flat(image):
    """Less contrast, differently in each channel, so that stretching has something to do."""
    return Image.merge(
        "RGB",
        [c.point(lambda v, k=k: v // (k + 2) + 30 * k) for k, c in enumerate(image.split())],
    )


def enhance(enhancer):
    return lambda image, level: enhancer(image).enhance(0.9 * level / 10 + 0.05)


PIL_COLOR = {
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "equalize": lambda image, level: ImageOps.equalize(image),
    "brightness": enhance(ImageEnhance.Brightness),
    "color": enhance(ImageEnhance.Color),
    "contrast": enhance(ImageEnhance.Contrast),
    "sharpness": enhance(ImageEnhance.Sharpness),
    "posterize": lambda image, level: ImageOps.posterize(image, int(0.4 * level) + 4),
    "solarize": lambda image, level: ImageOps.solarize(image, 256 - int(25.6 * level)),
}


def test_a_negative_is_that_of_pil():
    image = photo(32, 32)
    images = to_tensor(image)[None]
    torch.testing.assert_close(ops.invert(images)[0], to_tensor(ImageOps.invert(image)))


def test_images_are_warped_by_a_value_each():
    images = to_tensor(photo(40, 72)).repeat(3, 1, 1, 1)
    values = torch.tensor([-20.0, 0.0, 35.0])
    turned = ops.warp_by(images, ops.rotation, values)
    for image, value, result in zip(images, values.tolist(), turned, strict=True):
        matrix = torch.tensor([ops.rotation(value, 40, 72)])
        assert torch.equal(result, ops.warp(image[None], matrix)[0])
    assert torch.equal(turned[1], images[1])
    assert not torch.equal(turned[0], turned[2])


@pytest.mark.parametrize("size", [*SIZES, (84, 84), (224, 224)])
@pytest.mark.parametrize("name", PIL_COLOR)
@pytest.mark.parametrize("prepare", [lambda image: image, flat], ids=["photo", "flat"])
def test_colors_are_within_two_levels_of_pil(name, size, prepare):
    image = prepare(photo(*size))
    entry = ENTRIES[name]
    images = to_tensor(image).repeat(len(LEVELS), 1, 1, 1)
    original = images.clone()
    ours = entry.operation(images, torch.tensor([entry.value(k) for k in LEVELS]))
    pil = torch.stack([to_tensor(PIL_COLOR[name](image, k)) for k in LEVELS])
    assert torch.equal(images, original)
    tolerance = 1e-6 if name in ("equalize", "posterize", "solarize") else 2 / 255
    assert (ours - pil).abs().max() <= tolerance
    assert ours.min() >= 0
    assert ours.max() <= 1


@pytest.mark.parametrize("operation", [ops.autocontrast, ops.equalize])
def test_a_constant_channel_stays_as_in_pil(operation):
    image = np.array(flat(photo(32, 32)))
    image[..., 1] = 77
    images = to_tensor(image)[None]
    pil = {ops.autocontrast: ImageOps.autocontrast, ops.equalize: ImageOps.equalize}[operation]
    assert (np.array(pil(Image.fromarray(image)))[..., 1] == 77).all()
    # Noise below one level of 255, such as rounding leaves, isn't stretched to black and white.
    images[:, 1, ::2] += 1e-6
    out = operation(images, torch.zeros(1))
    torch.testing.assert_close(out[:, 1], images[:, 1], rtol=0, atol=1e-5)
    assert not torch.allclose(out[:, 0], images[:, 0], atol=0.1)


def test_equalize_leaves_a_image_that_is_too_small_for_a_table():
    image = photo(8, 8)
    assert ImageOps.equalize(image).tobytes() == image.tobytes()
    images = to_tensor(image)[None]
    assert torch.equal(ops.equalize(images, torch.zeros(1)), images)


def pil_matrix(name, amount, height, width):
    cos, sin = math.cos(math.radians(amount)), math.sin(math.radians(amount))
    x, y = width / 2, height / 2
    return {
        "rotate": (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y),
        "shear_x": (1, amount, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, amount, 1, 0),
        "translate_x": (1, 0, amount * width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, amount * height),
    }[name]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_geometry_takes_the_same_pixels_as_pil(name, size):
    height, width = size
    image = photo(*size)
    entry = ENTRIES[name]
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    for level in LEVELS:
        for sign in (-1, 1):
            amount = sign * level * (3 if name == "rotate" else 0.03)
            a, b, c, d, e, f = pil_matrix(name, amount, *size)
            if name == "rotate":
                pil = to_tensor(image.rotate(amount))
            else:
                affine = Image.Transform.AFFINE
                pil = to_tensor(image.transform(image.size, affine, (a, b, c, d, e, f)))
            ours = ops.warp(
                to_tensor(image)[None],
                torch.tensor([entry.geometry(sign * entry.value(level), *size)]),
            )[0]
            # PIL counts in 16-bit fractions of a pixel: within a hundredth of the border between
            # two pixels it may take the other one.
            source = np.stack([a * x + b * y + c, d * x + e * y + f])
            clear = (np.abs(source - source.round()) > 0.01).all(0)
            assert clear.mean() > 0.9
            assert torch.equal(ours[:, clear], pil[:, clear])
            assert (ours - to_tensor(image)).abs().mean() > 0.004


@pytest.mark.parametrize("size", [32, 84, 224])
@pytest.mark.parametrize(
    ("name", "most", "at_one_level"),
    [("rotate", 1e-3, 2e-3), ("shear_x", 2.5e-3, 0.04), ("shear_y", 2.5e-3, 0.04)],
)
def test_few_interpolated_pixels_differ_from_pil(name, most, at_one_level, size):
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    image, entry, affine = Image.fromarray(noise), ENTRIES[name], Image.Transform.AFFINE
    shares = []
    for level in LEVELS:
        for sign in (-1, 1):
            amount = sign * level * (3 if name == "rotate" else 0.03)
            pil = (
                image.rotate(amount)
                if name == "rotate"
                else image.transform(image.size, affine, pil_matrix(name, amount, size, size))
            )
            matrix = entry.geometry(sign * entry.value(level), size, size)
            ours = ops.warp(to_tensor(image)[None], torch.tensor([matrix]))[0]
            shares.append((ours != to_tensor(pil)).any(0).float().mean().item())
    assert sum(shares) / len(shares) < most
    assert max(shares) < at_one_level


DOT = (2, 9)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("translate_x", 0.25, (2, 6)),
        ("translate_x", -0.25, None),
        ("translate_y", -0.25, (5, 9)),
        ("shear_x", 0.4, (2, 8)),
        ("shear_x", -0.4, (2, 10)),
        ("shear_y", -0.2, (4, 9)),
        ("rotate", 90.0, (2, 2)),
        ("rotate", -90.0, (9, 9)),
        ("rotate", 180.0, (9, 2)),
    ],
)
def test_geometry_moves_a_dot_correctly_and_fills_with_black(name, value, expected):
    images = torch.zeros(1, 3, 12, 12)
    images[..., DOT[0], DOT[1]] = 1
    out = ops.warp(images, torch.tensor([ENTRIES[name].geometry(value, 12, 12)]))
    places = out[0].amax(0).nonzero().tolist()
    assert places == ([] if expected is None else [list(expected)])
    white = ops.warp(torch.ones_like(images), torch.tensor([(1.0, 0, 3, 0, 1, 0)]))
    assert (white[..., :9] == 1).all()
    assert (white[..., 9:] == 0).all()


@pytest.mark.parametrize("entry", FIXMATCH, ids=lambda entry: entry.name)
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 5)])
def test_tiny_images_are_possible(entry, size):
    images = torch.rand(2, 3, *size)
    value = torch.full((2,), entry.value(5))
    if entry.geometry is not None:
        out = ops.warp(images, torch.tensor([entry.geometry(v, *size) for v in value]))
    elif entry.operation is not None:
        out = entry.operation(images, value)
    else:
        return
    assert out.shape == images.shape
    assert out.isfinite().all()
    if entry.name == "sharpness" and min(size) < 3:
        torch.testing.assert_close(out, images)


def test_the_authors_operations_follow_kornia():
    enhance = pytest.importorskip("kornia.enhance")
    images = to_tensor(photo(32, 48)).repeat(4, 1, 1, 1)
    values = torch.tensor([0.14, 0.5, 0.95, 1.04])
    for ours, theirs in (
        (ops.add_brightness, enhance.adjust_brightness),
        (ops.scale_contrast, enhance.adjust_contrast),
        (ops.scale_saturation, enhance.adjust_saturation),
        (ops.sharpness, enhance.sharpness),
    ):
        torch.testing.assert_close(
            ours(images, values), theirs(images, values), rtol=0, atol=1e-4, msg=ours.__name__
        )
    out = ops.solarize_below(torch.tensor([0.2, 0.5, 0.7]).expand(1, 3, 1, 3), torch.tensor([0.5]))
    torch.testing.assert_close(out[0, 0, 0], torch.tensor([0.8, 0.5, 0.7]))


def test_cutout_is_gray_inside_the_box_only():
    images = torch.zeros(2, 3, 6, 8)
    out = ops.cutout_(images, torch.tensor([[1, 2, 4, 5], [-2, 6, 2, 10]]))
    expected = torch.zeros(2, 3, 6, 8)
    expected[0, :, 1:4, 2:5] = 0.5
    expected[1, :, :2, 6:] = 0.5
    assert torch.equal(out, expected)
