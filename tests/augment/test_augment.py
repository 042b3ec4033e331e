"""What every built-in augmenter keeps to, and the weak augmentation."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from ssl_toolkit import SIMPLE_SETTINGS
from ssl_toolkit.augment.fixed import Fixed
from ssl_toolkit.augment.randaugment import RandAugment
from ssl_toolkit.augment.weak import NoAugmentation, Weak, draw_shift, shift, whole

RANDAUGMENTS = {
    "randaugment": {},
    "authors": {"variant": "authors"},
    "reference": SIMPLE_SETTINGS["augment"]["strong_options"],
    "max": {"magnitude": "max", "probability": 1},
    "operations only": {"include_weak": False, "cutout": 0, "probability": 1, "num_ops": 4},
    "nothing": {"include_weak": False, "cutout": 0, "num_ops": 0},
}


def build(name, flip=True):
    if name in RANDAUGMENTS:
        return RandAugment(RandAugment.Config(**RANDAUGMENTS[name]), flip=flip)
    return {"none": NoAugmentation, "weak": Weak, "fixed": Fixed}[name](flip=flip)


STRONG = ["randaugment", "authors", "reference", "max", "fixed"]
ALL = ["none", "weak", "fixed", *RANDAUGMENTS]
each = pytest.mark.parametrize("name", ALL)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def textures(count, height=32, width=32, seed=0):
    return torch.rand(count, 3, height, width, generator=seeded(seed))


@each
@pytest.mark.parametrize("size", [(32, 32), (24, 40), (8, 8), (1, 1)])
def test_shape_range_and_input_are_kept(name, size):
    augmenter = build(name)
    for count in (8, 6, 4, 1):
        for images in (textures(count, *size), torch.zeros(count, 3, *size)):
            original = images.clone()
            out = augmenter(images, seeded(count))
            assert out.shape == images.shape
            assert out.dtype == images.dtype
            assert out.min() >= 0
            assert out.max() <= 1
            assert torch.equal(images, original)


@each
def test_white_stays_in_range(name):
    out = build(name)(torch.ones(8, 3, 16, 16), seeded())
    assert out.max() <= 1


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_give_the_same_image(name, dtype):
    augmenter = build(name)
    # Multiples of 1/4 are exact in bfloat16, so that no 8-bit level is rounded differently.
    images = (textures(16) * 4).round() / 4
    draws = augmenter.draw(16, 32, 32, seeded())
    out = augmenter.transform(images.to(dtype), draws)
    assert out.dtype == dtype
    # float64 may take a neighboring pixel at a tie, or a posterized level's neighbor.
    error = (out.float() - augmenter.transform(images, draws)).abs()
    assert (error > 1 / 128).float().mean() < 0.002


@each
def test_draws_are_rows_that_can_be_joined_and_replayed(name):
    augmenter = build(name)
    images = textures(6, 24, 40)
    first, second = (augmenter.draw(6, 24, 40, seeded(seed)) for seed in (1, 2))
    assert all(v.device.type == "cpu" and len(v) == 6 for v in first.values())
    joined = {key: torch.cat([first[key], second[key]]) for key in first}
    kept = {key: value.clone() for key, value in joined.items()}
    together = augmenter.transform(torch.cat([images, images]), joined)
    apart = torch.cat([augmenter.transform(images, first), augmenter.transform(images, second)])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-6)
    assert torch.equal(together, augmenter.transform(torch.cat([images, images]), joined))
    assert all(torch.equal(kept[key], joined[key]) for key in joined)


@each
def test_a_shorter_draw_is_the_start_of_a_longer_one(name):
    augmenter = build(name)
    longer = augmenter.draw(1100, 24, 40, seeded(1))
    for count in (0, 1, 2, 7, 15, 16, 17, 64, 448, 511, 513, 1024):
        shorter = augmenter.draw(count, 24, 40, seeded(1))
        assert shorter.keys() == longer.keys()
        for key, value in shorter.items():
            assert torch.equal(value, longer[key][:count]), (key, count)


@pytest.mark.parametrize("option", ["cutout", "include_weak"])
def test_omitted_operations_do_not_change_the_other_draws(option):
    whole_draw, fewer = (
        RandAugment(config).draw(9, 32, 32, seeded())
        for config in (RandAugment.Config(), RandAugment.Config(**{option: 0}))
    )
    assert fewer.keys() < whole_draw.keys()
    assert all(torch.equal(fewer[key], whole_draw[key]) for key in fewer)


def test_random_integers_are_below_their_count():
    nearly_one = torch.tensor([1 - 2**-24])  # the largest number that torch.rand gives
    assert all(whole(nearly_one, count) == count - 1 for count in range(1, 5000))
    shares = torch.bincount(whole(torch.rand(90_000, generator=seeded()), 9)) / 90_000
    assert len(shares) == 9
    assert (shares - 1 / 9).abs().max() < 0.005


@each
def test_randomness_comes_only_from_the_generator(name):
    augmenter = build(name)
    images = textures(8)
    state = torch.get_rng_state()
    generator = seeded(3)
    first, then = augmenter(images, generator), augmenter(images, generator)
    torch.rand(5)
    torch.set_rng_state(state)
    assert torch.equal(first, augmenter(images, seeded(3)))
    assert torch.equal(torch.get_rng_state(), state)
    if name not in ("none", "nothing"):
        assert not torch.equal(first, then)


def test_without_a_generator_the_global_state_of_torch_decides():
    torch.manual_seed(5)
    first, second = Weak()(textures(8)), Weak()(textures(8))
    torch.manual_seed(5)
    assert torch.equal(first, Weak()(textures(8)))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", STRONG)
def test_copies_of_one_texture_become_different_images(name):
    for seed in range(5):
        out = build(name)(textures(1).repeat(8, 1, 1, 1), seeded(seed))
        assert len(out.flatten(1).unique(dim=0)) >= 7


@each
def test_integers_and_wrong_shapes_are_refused(name):
    with pytest.raises(TypeError, match="uint8; divide by 255"):
        build(name)(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"\(N, C, H, W\)"):
        build(name)(torch.zeros(3, 8, 8))


@each
def test_an_empty_batch_stays_empty(name):
    assert build(name)(textures(0), seeded()).shape == (0, 3, 32, 32)


@each
def test_copies_and_pickles_behave_the_same(name):
    augmenter = build(name, flip=False)
    expected = augmenter(textures(4), seeded())
    assert not list(augmenter.parameters())
    assert not augmenter.state_dict()
    for other in (copy.deepcopy(augmenter), pickle.loads(pickle.dumps(augmenter))):
        assert torch.equal(other(textures(4), seeded()), expected)


@pytest.mark.parametrize("name", ["weak", *RANDAUGMENTS])
def test_nothing_is_read_back_from_the_device(name):
    # Tensors of the meta device hold no values, so that any read or data-dependent shape fails.
    augmenter = build(name)
    draws = augmenter.draw(64, 32, 32, seeded())
    out = augmenter.transform(torch.empty(64, 3, 32, 32, device="meta"), draws)
    assert out.shape == (64, 3, 32, 32)


def test_no_augmentation_returns_the_images_themselves():
    images = textures(2)
    assert NoAugmentation()(images) is images


def test_weak_view_i_comes_from_image_i():
    colors = textures(8, 1, 1).expand(8, 3, 32, 32)
    assert torch.equal(Weak()(colors, seeded()), colors)


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (8, 8), (2, 9), (1, 1)])
@pytest.mark.parametrize("fraction", [0.0, 0.125, 0.5])
def test_weak_crops_from_the_padded_image(size, fraction):
    height, width = size
    images = textures(32, height, width)
    vertical, horizontal = int(fraction * height), int(fraction * width)
    weak = Weak(Weak.Config(padding_fraction=fraction))
    draws = weak.draw(32, height, width, seeded())
    padded = F.pad(images, (horizontal, horizontal, vertical, vertical), mode="reflect")
    for image, out, top, left, mirror in zip(
        padded, weak.transform(images, draws), *draws.values(), strict=True
    ):
        y, x = int(top) + vertical, int(left) + horizontal
        expected = image[:, y : y + height, x : x + width]
        assert torch.equal(out, expected.flip(2) if mirror else expected)


@pytest.mark.parametrize(("size", "padding"), [(32, 4), (84, 10), (224, 28)])
def test_weak_offsets_reach_the_published_padding(size, padding):
    draws = draw_shift(torch.rand(4000, 3, generator=seeded()), size, size)
    for key in ("top", "left"):
        assert draws[key].unique().tolist() == list(range(-padding, padding + 1))
    assert abs(draws["mirror"].float().mean() - 0.5) < 0.03
    assert abs(torch.corrcoef(torch.stack([draws["top"], draws["left"]]))[0, 1]) < 0.06


def test_shift_takes_images_that_are_not_contiguous():
    images = textures(4).permute(0, 1, 3, 2)
    draws = draw_shift(torch.rand(4, 3, generator=seeded()), 32, 32)
    assert torch.equal(shift(images, draws), shift(images.contiguous(), draws))


@pytest.mark.parametrize("name", ["weak", "randaugment", "authors", "reference"])
def test_without_flip_nothing_is_mirrored(name):
    plain, mirrored = (build(name, flip=flip).draw(500, 32, 32, seeded()) for flip in (False, True))
    assert not plain["mirror"].any()
    assert mirrored["mirror"].any()
    assert all(torch.equal(plain[key], mirrored[key]) for key in plain if key != "mirror")
    still = Weak(Weak.Config(padding_fraction=0), flip=False)
    assert torch.equal(still(textures(8), seeded()), textures(8))


@pytest.mark.parametrize(
    ("augmenter", "wrong"),
    [
        (Weak, {"padding_fraction": 0.6}),
        (RandAugment, {"num_ops": -1}),
        (RandAugment, {"probability": 1.5}),
        (RandAugment, {"choice": "pixel"}),
        (RandAugment, {"variant": "kornia"}),
        (RandAugment, {"cutout": 2}),
        (Fixed, {"flip": True}),
    ],
)
def test_options_out_of_range_are_refused(augmenter, wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        augmenter.Config(**wrong)


def test_kornia_is_imported_only_when_it_is_used():
    code = (
        "import sys; from ssl_toolkit.augment import fixed, randaugment, weak; fixed.Fixed();"
        "sys.exit('kornia' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
