"""Augmentations of images with other channels than RGB, of 16 bits, and that are not square."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from ssl_toolkit_remixmatch.ctaugment import CTAugment
from ssl_toolkit_remixmatch.pool import POOL
from torch import Tensor

from ssl_toolkit import PixelFormat, image_ops
from ssl_toolkit.augment.fixed import Fixed
from ssl_toolkit.augment.randaugment import RandAugment
from ssl_toolkit.augment.weak import NoAugmentation, Weak

EACH = (NoAugmentation, Weak, RandAugment, Fixed, CTAugment)
AUTHORS = RandAugment.Config(variant="authors")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn_names(augmenter: Any) -> set[str]:
    """Return the operations that an augmenter draws."""
    operations = augmenter.draw(4000, 12, 12, seeded())["operation"].unique().tolist()
    pool = POOL if isinstance(augmenter, CTAugment) else augmenter.pool
    return {pool[index].name for index in operations if index >= 0}


@pytest.mark.parametrize("build", [RandAugment, lambda: RandAugment(AUTHORS), CTAugment])
@pytest.mark.parametrize(("pixels", "omitted"), [
    (PixelFormat(1), {"color"}), (PixelFormat(4), {"color"}),
    (PixelFormat(3, 16), {"equalize", "posterize"}),
    (PixelFormat(2, 16), {"color", "equalize", "posterize"}), (PixelFormat(), set()),
])  # fmt: skip
def test_operations_are_left_out_by_name(
    build: Any, pixels: PixelFormat, omitted: set[str]
) -> None:
    augmenter = build()
    everything = drawn_names(augmenter)
    assert set(augmenter.omit_operations(pixels)) == omitted
    assert drawn_names(augmenter) == everything - omitted


@pytest.mark.parametrize("build", [RandAugment, CTAugment])
def test_draws_for_rgb_do_not_change(build: Any) -> None:
    first, second = build(), build()
    second.omit_operations(PixelFormat())
    draws, others = (each.draw(50, 9, 9, seeded()) for each in (first, second))
    assert all(torch.equal(value, others[name]) for name, value in draws.items())


@pytest.mark.parametrize("plugin", EACH)
@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_channels_are_augmented_alike(plugin: Any, channels: int) -> None:
    augmenter = plugin()
    augmenter.omit_operations(PixelFormat(channels))
    images = torch.rand(24, 1, 12, 20, generator=seeded()).expand(-1, channels, -1, -1)
    views = augmenter(images, seeded())
    assert views.shape == images.shape
    for channel in range(channels):
        torch.testing.assert_close(views[:, channel], views[:, 0])


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "brightness", "contrast", "sharpness",
                                  "posterize", "solarize", "add_brightness", "scale_contrast",
                                  "solarize_below", "invert"])  # fmt: skip
def test_operations_on_gray_are_those_on_equal_channels(name: str) -> None:
    gray = torch.rand(6, 1, 9, 11, generator=seeded(), dtype=torch.float64)
    values = torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
    values = 1 + 7 * values if name == "posterize" else values
    operation = getattr(image_ops, name)
    expected = operation(gray.expand(-1, 3, -1, -1), values)[:, :1]
    torch.testing.assert_close(operation(gray, values), expected)


@pytest.mark.parametrize("plugin", [RandAugment, CTAugment, Weak])
def test_views_of_16_bits_keep_their_levels(plugin: Any) -> None:
    augmenter = plugin()
    augmenter.omit_operations(PixelFormat(1, 16))
    ramp = torch.linspace(0.2, 0.8, 48 * 64).view(1, 1, 48, 64).expand(200, -1, -1, -1)
    for view in augmenter(ramp, seeded()):
        # a shift or rotation may leave half of the image
        assert len(view.unique()) > 256


def moved(image: Tensor, place: Any) -> Tensor:
    """Take each pixel from a place, in pixels; black outside: one pixel after the other."""
    height, width = image.shape[-2:]
    result = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            x, y = (math.floor(value) for value in place(column + 0.5, row + 0.5))
            if 0 <= x < width and 0 <= y < height:
                result[:, row, column] = image[:, y, x]
    return result


@pytest.mark.parametrize("shape", [(10, 23), (23, 10)])
def test_geometry_is_in_pixels_on_images_that_are_not_square(shape: tuple[int, int]) -> None:
    height, width = shape
    images = torch.rand(1, 2, *shape, generator=seeded(), dtype=torch.float64)
    angle = math.radians(27.3)

    def turned(x: float, y: float) -> tuple[float, float]:
        across, down = x - width / 2, y - height / 2
        return (
            width / 2 + math.cos(angle) * across - math.sin(angle) * down,
            height / 2 + math.sin(angle) * across + math.cos(angle) * down,
        )

    for geometry, value, place in (
        (image_ops.rotation, 27.3, turned),
        (image_ops.shear_x, 0.31, lambda x, y: (x + 0.31 * y, y)),
        (image_ops.shear_y, -0.31, lambda x, y: (x, y - 0.31 * x)),
        (image_ops.translation_x, 0.21, lambda x, y: (x + 0.21 * width, y)),
        (image_ops.translation_y, 0.21, lambda x, y: (x, y + 0.21 * height)),
    ):
        ours = image_ops.warp_by(images, geometry, torch.tensor([value], dtype=torch.float64))
        assert torch.equal(ours[0], moved(images[0], place)), geometry.__name__


def test_the_padding_of_weak_crops_is_a_share_of_each_side() -> None:
    draws = Weak().draw(2000, 16, 48, seeded())
    assert (draws["top"].min(), draws["top"].max()) == (-2, 2)
    assert (draws["left"].min(), draws["left"].max()) == (-6, 6)
    images = torch.from_numpy(np.arange(16 * 48, dtype=np.float32)).view(1, 1, 16, 48)
    views = Weak().transform(images.expand(2000, -1, -1, -1), draws)
    plain = ~draws["mirror"] & (draws["top"] == 2) & (draws["left"] == -6)
    assert torch.equal(views[plain][0, 0, :14, 6:], images[0, 0, 2:, :42])


def test_the_cutout_of_randaugment_is_a_share_of_the_shorter_side() -> None:
    box = RandAugment().draw(5, 16, 48, seeded())["box"]
    assert (box[:, 2] - box[:, 0] == 8).all()
    assert (box[:, 3] - box[:, 1] == 8).all()
