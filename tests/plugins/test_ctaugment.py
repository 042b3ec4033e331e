"""CTAugment: its operations against PIL, its weights against a plain loop, its draws."""

from __future__ import annotations

import copy
import math
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_sample_image
from ssl_toolkit_remixmatch import CTAugment
from ssl_toolkit_remixmatch.operations import KERNELS, Drawn, crop_and_mirror
from ssl_toolkit_remixmatch.pool import BINS, POOL
from torch import Tensor

from ssl_toolkit.augment.weak import draw_shift, shift

LEVELS = [0.0, 0.03, 0.2, 0.37, 0.5, 0.61, 0.8, 0.97, 0.999]
SIZES = [(32, 32), (40, 72), (96, 96)]
OPERATIONS = {entry.name: entry.operation for entry in POOL}
NAMES = list(OPERATIONS)
Resampling, Transform = Image.Resampling, Image.Transform


def photo(height: int, width: int) -> Image.Image:
    pixels = load_sample_image("china.jpg")[:400, 100:620]
    return Image.fromarray(pixels).resize((width, height), Resampling.BILINEAR)


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def drawn(levels: list[float], method: int = 0, place: float = 0.5) -> Drawn:
    level = torch.tensor(levels, dtype=torch.float64)
    full = torch.full_like(level, place)
    return Drawn(level, torch.full(level.shape, method), full, full)


def blend(function):
    return lambda image, level: Image.blend(image, function(image), level)


def enhance(enhancer):
    return lambda image, level: enhancer(image).enhance(level)


PIL_COLOR = {
    "autocontrast": blend(ImageOps.autocontrast),
    "blur": blend(lambda image: image.filter(ImageFilter.BLUR)),
    "brightness": enhance(ImageEnhance.Brightness),
    "color": enhance(ImageEnhance.Color),
    "contrast": enhance(ImageEnhance.Contrast),
    "equalize": blend(ImageOps.equalize),
    "invert": blend(ImageOps.invert),
    "identity": lambda image, level: image,
    "posterize": lambda image, level: ImageOps.posterize(image, 1 + int(8 * level)),
    "sharpness": enhance(ImageEnhance.Sharpness),
    "smooth": blend(lambda image: image.filter(ImageFilter.SMOOTH)),
    "solarize": lambda image, level: ImageOps.solarize(image, int(256 * level)),
}


def compare(name: str, image: Image.Image, pil: list[Image.Image], **options: int) -> Tensor:
    """Return the largest difference from PIL in levels of 255, by pixel (level, 3, H, W)."""
    images = to_tensor(image).repeat(len(LEVELS), 1, 1, 1)
    original = images.clone()
    ours = OPERATIONS[name](images, drawn(LEVELS, **options))
    assert torch.equal(images, original)
    assert ours.min() >= 0
    assert ours.max() <= 1
    return (ours - torch.stack([to_tensor(one) for one in pil])).abs() * 255


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PIL_COLOR)
def test_colors_and_filters_are_those_of_pil(name: str, size: tuple[int, int]) -> None:
    image = photo(*size)
    difference = compare(name, image, [PIL_COLOR[name](image, level) for level in LEVELS])
    exact = name in ("identity", "posterize", "solarize")
    assert difference.max() <= (1e-3 if exact else 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["shear_x", "shear_y", "translate_x", "translate_y", "rotate"])
def test_geometry_takes_the_pixels_of_pil(name: str, size: tuple[int, int]) -> None:
    height, width = size
    image, pil = photo(*size), []
    for level in LEVELS:
        amount = (2 * level - 1) * 0.3
        matrix = {
            "shear_x": (1, amount, 0, 0, 1, 0),
            "shear_y": (1, 0, 0, amount, 1, 0),
            "translate_x": (1, 0, amount * width, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, amount * height),
        }
        if name == "rotate":
            pil.append(image.rotate(int(np.round((2 * level - 1) * 45))))
        else:
            pil.append(image.transform(image.size, Transform.AFFINE, matrix[name]))
    # At the border between two pixels, PIL, which uses 16-bit fractions, may take the other one.
    other = (compare(name, image, pil) > 1e-3).any(dim=1).float().mean()
    assert other < (1e-6 if name.startswith("translate") else 0.003)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", range(len(KERNELS)))
def test_rescale_is_that_of_pil(method: int, size: tuple[int, int]) -> None:
    filters = [
        *(Resampling.LANCZOS, Resampling.BICUBIC, Resampling.BILINEAR),
        *(Resampling.BOX, Resampling.HAMMING, Resampling.NEAREST),
    ]
    height, width = size
    image, pil = photo(*size), []
    for level in LEVELS:
        x, y = 0.25 * level * width, 0.25 * level * height
        part = image.crop((x, y, width - x, height - y))
        pil.append(part.resize(image.size, filters[method]))
    difference = compare("rescale", image, pil, method=method)
    # For the nearest pixel, rounding decides if the place is exactly between two pixels.
    others = 0.005 if filters[method] == Resampling.NEAREST else 1e-9
    assert (difference > 2).float().mean() < others


def test_cutout_is_a_gray_square_of_up_to_half_the_side() -> None:
    images = torch.ones(len(LEVELS), 3, 32, 32)
    out = OPERATIONS["cutout"](images, drawn(LEVELS))
    assert out.unique().tolist() == [0.5, 1.0]
    sides = (out[:, 0] == 0.5).sum(dim=(1, 2)).sqrt().tolist()
    assert sides == [2 * ((1 + int(level * 32 * 0.499)) // 2) for level in LEVELS]
    clipped = OPERATIONS["cutout"](images, drawn(LEVELS, place=0.0))
    assert (clipped[-1, 0] == 0.5).sum() == (sides[-1] / 2) ** 2


@pytest.mark.parametrize("flip", [False, True])
def test_the_weak_augmentation_is_that_of_the_run(flip: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(200, 3, 24, 40, generator=generator)
    uniform = torch.rand(200, 3, generator=generator)
    expected = shift(images, draw_shift(uniform, 24, 40, flip=flip))
    assert torch.equal(crop_and_mirror(images, uniform, flip), expected)


def test_the_pool_is_that_of_the_paper() -> None:
    assert len(NAMES) == len({*NAMES}) == 19
    bins = {entry.name: entry.bins for entry in POOL}
    assert {*NAMES} == {*PIL_COLOR} | {
        *("cutout", "rescale", "rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    }
    assert Counter(bins.values()) == {17: 17, 8: 1, 1: 1}
    assert (bins["posterize"], bins["identity"]) == (8, 1)


class PlainWeights:
    """The rule of the weights, with a list for each parameter."""

    def __init__(self, decay: float, threshold: float) -> None:
        self.decay, self.threshold = decay, threshold
        self.weights = {(entry.name, 0): [1.0] * entry.bins for entry in POOL}
        self.weights["rescale", 1] = [1.0] * 6

    def update(self, name: str, level: float, method: int, probs: list[float], label: int) -> None:
        error = sum(abs(p - (c == label)) for c, p in enumerate(probs))
        bins = [(0, math.floor(level * len(self.weights[name, 0])))]
        if name == "rescale":
            bins.append((1, method))
        for parameter, index in bins:
            weights = self.weights[name, parameter]
            weights[index] = self.decay * weights[index] + (1 - self.decay) * (1 - error / 2)

    def probabilities(self, name: str, parameter: int) -> list[float]:
        weights = [weight + 1 - self.decay for weight in self.weights[name, parameter]]
        kept = [w / max(weights) * (w / max(weights) >= self.threshold) for w in weights]
        return [weight / sum(kept) for weight in kept]


def trained(decay: float = 0.9, threshold: float = 0.8) -> tuple[CTAugment, PlainWeights]:
    """An augmenter after 60 batches for which low bins are recognized and others hardly."""
    augmenter = CTAugment(CTAugment.Config(decay=decay, threshold=threshold))
    plain = PlainWeights(decay, threshold)
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        draws = augmenter.draw_probe(16, 16, 16, generator)
        labels = torch.randint(4, (16,), generator=generator)
        hard = draws["level"].mean(dim=1).float() + 0.2 * torch.rand(16, generator=generator)
        logits = 6 * (1 - hard[:, None]) * torch.nn.functional.one_hot(labels, 4)
        probs = logits.softmax(dim=1)
        augmenter.feedback(draws, probs, labels)
        for row in range(16):
            for slot in range(2):
                plain.update(
                    NAMES[draws["operation"][row, slot]],
                    float(draws["level"][row, slot]),
                    int(draws["method"][row, slot]),
                    probs[row].tolist(),
                    int(labels[row]),
                )
    return augmenter, plain


def test_the_weights_follow_the_rule_of_the_paper() -> None:
    augmenter, plain = trained()
    for (name, parameter), weights in plain.weights.items():
        row = len(NAMES) if parameter else NAMES.index(name)
        ours = augmenter.weights[row, : len(weights)]
        torch.testing.assert_close(ours, torch.tensor(weights), rtol=0, atol=1e-5)
    assert augmenter.weights.min() < 0.6
    assert augmenter.weights[NAMES.index("posterize"), 8:].unique().tolist() == [1]


def test_bins_are_drawn_by_their_weights() -> None:
    augmenter, plain = trained()
    draws = augmenter.draw(60_000, 16, 16, torch.Generator().manual_seed(2))
    operation, chosen = draws["operation"].flatten(), draws["bin"].flatten()
    share = torch.bincount(operation, minlength=19) / len(operation)
    assert (share - 1 / 19).abs().max() < 0.003
    unused = 0
    for index, entry in enumerate(POOL):
        bins = chosen[operation == index]
        counts = torch.bincount(bins, minlength=entry.bins) / len(bins)
        expected = torch.tensor(plain.probabilities(entry.name, 0))
        assert len(counts) == entry.bins
        assert (counts - expected).abs().max() < 0.03
        assert torch.equal(counts > 0, expected > 0)
        unused += int((expected == 0).sum())
    assert unused > 30
    methods = draws["method"].flatten()[operation == NAMES.index("rescale")]
    counts = torch.bincount(methods, minlength=6) / len(methods)
    assert (counts - torch.tensor(plain.probabilities("rescale", 1))).abs().max() < 0.03
    bins = torch.tensor([entry.bins for entry in POOL])[draws["operation"]]
    assert torch.equal((draws["level"] * bins).floor().long(), draws["bin"])


def test_probes_draw_all_bins_equally() -> None:
    augmenter, _ = trained()
    draws = augmenter.draw_probe(60_000, 16, 16, torch.Generator().manual_seed(2))
    rotate = draws["bin"][draws["operation"] == NAMES.index("rotate")]
    share = torch.bincount(rotate, minlength=BINS) / len(rotate)
    assert (share - 1 / BINS).abs().max() < 0.015


def test_all_weights_of_zero_draw_all_bins() -> None:
    augmenter = CTAugment()
    augmenter.weights.zero_()
    draws = augmenter.draw(5000, 16, 16, torch.Generator().manual_seed(0))
    assert len(draws["bin"].unique()) == BINS


def test_each_image_gets_its_own_operations_in_order() -> None:
    augmenter = CTAugment(CTAugment.Config(depth=3, include_weak=False))
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(64, 3, 24, 32, generator=generator)
    draws = augmenter.draw(64, 24, 32, generator)
    together = augmenter.transform(images, draws)
    for k in range(64):
        expected = images[k : k + 1]
        for slot in range(3):
            values = Drawn(*(draws[name][k, slot : slot + 1] for name in Drawn._fields))
            expected = OPERATIONS[NAMES[draws["operation"][k, slot]]](expected, values)
        torch.testing.assert_close(together[k], expected[0], rtol=0, atol=1e-5)


def test_a_restored_augmenter_continues_as_before() -> None:
    augmenter, _ = trained()
    restored = CTAugment(CTAugment.Config(decay=0.9))
    restored.load_state_dict(copy.deepcopy(augmenter.state_dict()))
    for one in (augmenter, restored):
        generator = torch.Generator().manual_seed(5)
        draws = one.draw_probe(8, 16, 16, generator)
        one.feedback(draws, torch.full((8, 4), 0.25), torch.arange(8) % 4)
    assert torch.equal(augmenter.weights, restored.weights)
    drawn = [
        one.draw(50, 16, 16, torch.Generator().manual_seed(6)) for one in (augmenter, restored)
    ]
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
