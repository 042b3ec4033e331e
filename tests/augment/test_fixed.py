"""The fixed pipeline of SimPLE, on kornia."""

import pytest
import torch

from ssl_toolkit.augment.fixed import Fixed, steps


def draw(count, size=32, flip=True, seed=0):
    return Fixed(flip=flip).draw(count, size, size, torch.Generator().manual_seed(seed))


def neutral(count, size=32):
    """Draws that change nothing but for the resampling of a whole-image crop."""
    draws = draw(count, size)
    for step in ("mirror", "blur", "erase", "affine"):
        draws[f"{step}.batch_prob"].zero_()
    draws["crop.src"] = draws["crop.dst"].clone()
    draws["contrast.contrast_factor"].fill_(1)
    return draws


def texture(count, size=32):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(9))


def test_neutral_draws_give_the_image_back():
    torch.testing.assert_close(
        Fixed().transform(texture(4), neutral(4)), texture(4), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("step", "probability"), [("mirror", 0.5), ("blur", 0.5), ("erase", 0.1), ("affine", 0.5)]
)
def test_each_image_has_its_own_gate(step, probability):
    gate = draw(2000)[f"{step}.batch_prob"]
    assert abs(gate.mean() - probability) < 0.04
    count = 6
    draws = neutral(count)
    changed = draws[f"{step}.batch_prob"]
    changed[1::2] = 1
    images = texture(count)
    difference = (Fixed().transform(images, draws) - images).abs().amax((1, 2, 3))
    assert (difference[1::2] > 0.05).all()
    assert (difference[::2] < 1e-5).all()


def test_ranges_are_those_of_the_table():
    draws = draw(4000)

    def ends(key, low, high, slack):
        result = draws[key]
        assert low <= result.min() <= low + slack
        assert high - slack <= result.max() <= high

    ends("contrast.contrast_factor", 0.75, 1.5, 0.01)
    ends("affine.angle", -25, 25, 0.5)
    ends("affine.shear_x", -8, 8, 0.2)
    ends("affine.scale", 0.8, 1.2, 0.01)
    ends("affine.translations", -6.4, 6.4, 0.1)
    assert (draws["affine.shear_y"] == 0).all()
    assert (draws["blur.sigma"] == 1.5).all()
    assert (draws["erase.values"] == 0).all()
    corners = draws["crop.src"]
    side = corners[:, 2] - corners[:, 0] + 1
    assert (side[:, 0] == side[:, 1]).all()
    assert ((side[:, 0] / 32) ** 2).min() > 0.75
    assert side.max() == 32


def test_contrast_multiplies_and_clamps():
    draws = neutral(2)
    draws["contrast.contrast_factor"] = torch.tensor([0.75, 1.5])
    images = texture(2)
    expected = (images * torch.tensor([0.75, 1.5]).view(2, 1, 1, 1)).clamp(0, 1)
    torch.testing.assert_close(Fixed().transform(images, draws), expected, rtol=0, atol=1e-5)


def test_the_steps_come_in_the_order_of_the_table():
    draws = neutral(1)
    for step in ("blur", "erase"):
        draws[f"{step}.batch_prob"].fill_(1)
    for key, value in (("xs", 8), ("ys", 8), ("widths", 6), ("heights", 6)):
        draws[f"erase.{key}"].fill_(value)
    out = Fixed().transform(torch.ones(1, 3, 32, 32), draws)
    # Blurring after erasing would smear the rectangle's border.
    assert (out[..., 8:14, 8:14] == 0).all()
    torch.testing.assert_close(out[..., 7, 8:14], torch.ones(1, 3, 6))
    assert (out[..., 0, :] < 0.9).all(), "the blur takes black from beyond the border"


def test_without_flip_nothing_is_mirrored():
    plain, mirrored = draw(200, flip=False), draw(200)
    assert not plain["mirror.batch_prob"].any()
    assert mirrored["mirror.batch_prob"].any()
    assert all(torch.equal(plain[k], mirrored[k]) for k in plain if k != "mirror.batch_prob")


def test_draws_cover_the_changed_size():
    augmenter = Fixed()
    generator = torch.Generator().manual_seed(0)
    for size in (32, 84, 32, 20):
        assert augmenter(texture(3, size), generator).shape == (3, 3, size, size)


def by_kornia(images, draws):
    for name, step in steps(*images.shape[-2:]):
        prefix = name + "."
        parameters = {k.removeprefix(prefix): v for k, v in draws.items() if k.startswith(prefix)}
        parameters["forward_input_shape"] = torch.tensor(images.shape)
        images = step(images, params=parameters)
    return images


@pytest.mark.parametrize(
    ("size", "tolerance"),
    [
        *(((1, 1), 1e-5), ((2, 2), 1e-5), ((3, 5), 1e-5), ((24, 40), 1.5e-5), ((32, 32), 1e-5)),
        *(((84, 84), 3e-5), ((224, 224), 1e-4)),
    ],
)
def test_own_transforms_give_kornia_s_pixels(size, tolerance):
    generator = torch.Generator().manual_seed(4)
    count = 150 if max(size) < 200 else 40
    images = torch.rand(count, 3, *size, generator=generator)
    draws = Fixed().draw(count, *size, generator)
    kept = {key: value.clone() for key, value in draws.items()}
    expected = by_kornia(images, draws).clamp(0, 1)
    ours = Fixed().transform(images, draws)
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance)
    assert all(torch.equal(kept[key], draws[key]) for key in draws)
    gates = [draws[f"{step}.batch_prob"] for step in ("mirror", "blur", "erase", "affine")]
    assert len(torch.stack(gates, dim=1).unique(dim=0)) > 8, "few combinations were seen"
