"""What RandAugment draws, and that what it draws is what it applies."""

import pytest
import torch

from ssl_toolkit import SIMPLE_SETTINGS
from ssl_toolkit.augment.randaugment import AUTHORS, FIXMATCH, RandAugment

NAMES = [entry.name for entry in FIXMATCH]


def build(**options):
    return RandAugment(RandAugment.Config(**options))


def draw(count=20000, size=32, seed=0, **options):
    return build(**options).draw(count, size, size, torch.Generator().manual_seed(seed))


def values(draws, name):
    chosen = draws["operation"] == NAMES.index(name)
    return draws["value"][chosen]


def test_the_operations_are_those_of_fixmatch():
    assert set(NAMES) == {
        *("autocontrast", "equalize", "identity", "posterize", "solarize"),
        *("brightness", "color", "contrast", "sharpness"),
        *("rotate", "shear_x", "shear_y", "translate_x", "translate_y"),
    }
    assert len(NAMES) == 14
    assert [entry.name for entry in AUTHORS] == NAMES


def test_each_image_draws_its_operations_with_replacement():
    operation = draw()["operation"]
    assert operation.shape == (20000, 2)
    applied = operation >= 0
    assert (applied.float().mean(0) - 0.5).abs().max() < 0.015
    both = applied.all(1).float().mean()
    assert abs(both - 0.25) < 0.015
    share = torch.bincount(operation[applied], minlength=14) / applied.sum()
    assert (share - 1 / 14).abs().max() < 0.008
    repeated = (operation[:, 0] == operation[:, 1])[applied.all(1)].float().mean()
    assert abs(repeated - 1 / 14) < 0.012


def spread(result):
    levels, counts = result.unique(return_counts=True)
    return [round(level, 4) for level in levels.tolist()], counts / counts.sum()


def test_magnitudes_are_levels_one_to_nine_of_the_table():
    draws = draw(60000)
    for name in ("brightness", "color", "contrast", "sharpness"):
        levels, share = spread(values(draws, name))
        assert levels == [0.14, 0.23, 0.32, 0.41, 0.5, 0.59, 0.68, 0.77, 0.86]
        assert (share - 1 / 9).abs().max() < 0.02
    for name, step in (("rotate", 3), ("shear_x", 0.03), ("translate_y", 0.03)):
        levels, share = spread(values(draws, name))
        assert levels == [round(step * k, 4) for k in range(-9, 10) if k]
        assert (share - 1 / 18).abs().max() < 0.015
    levels, share = spread(values(draws, "posterize"))
    assert levels == [4, 5, 6, 7]
    assert (share * 9 - torch.tensor([2, 2, 3, 2])).abs().max() < 0.25
    assert spread(values(draws, "solarize"))[0] == [round(k / 10, 4) for k in range(1, 10)]


def test_the_highest_magnitude_is_the_end_of_each_range():
    draws = draw(magnitude="max")
    for name, ends in (
        ("rotate", [-30, 30]),
        ("shear_y", [-0.3, 0.3]),
        ("translate_x", [-0.3, 0.3]),
        ("brightness", [0.95]),
        ("posterize", [8]),
        ("solarize", [0]),
    ):
        assert spread(values(draws, name))[0] == ends


def test_the_authors_levels_overshoot_by_a_tenth():
    draws = draw(variant="authors")
    levels, share = spread(values(draws, "rotate"))
    assert levels == [-24, -18, -12, -6, 0, 6, 12, 18, 24, 30, 36]
    assert (share - 1 / 11).abs().max() < 0.03
    assert spread(values(draws, "solarize"))[0][-1] == 1.1
    assert spread(values(draws, "brightness"))[0][-1] == 1.04
    assert spread(values(draws, "translate_x"))[0][-1] == 0.36
    assert values(draws, "posterize").floor().unique().tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("variant", ["fixmatch", "authors"])
def test_one_choice_for_a_batch(variant):
    seen = set()
    for seed in range(40):
        draws = draw(16, seed=seed, choice="batch", variant=variant)
        for key in ("operation", "value"):
            assert draws[key].shape == (16, 2)
            assert (draws[key] == draws[key][:1]).all()
        assert len(draws["box"].unique(dim=0)) > 8, "squares are drawn for each image"
        assert len(draws["top"].unique()) > 3, "crops are drawn for each image"
        seen.update(draws["operation"][0].tolist())
    assert len(seen) > 10


def test_the_reference_profile_is_the_authors_choice_for_each_batch():
    reference = RandAugment.Config(**SIMPLE_SETTINGS["augment"]["strong_options"])
    assert (reference.variant, reference.choice) == ("authors", "batch")


def test_probability_zero_and_one():
    assert (draw(100, probability=0)["operation"] == -1).all()
    assert (draw(100, probability=1)["operation"] >= 0).all()


def test_the_square_has_its_center_anywhere_and_is_clipped():
    top, left, bottom, right = draw(5000)["box"].unbind(1)
    for low, high in ((top, bottom), (left, right)):
        assert (high - low == 16).all()
        assert (low + 8).unique().tolist() == list(range(32))
    out = build(num_ops=0, include_weak=False)(
        torch.ones(200, 3, 32, 32), torch.Generator().manual_seed(0)
    )
    assert out.unique().tolist() == [0.5, 1.0]
    area = (out == 0.5)[:, 0].sum((1, 2))
    assert area.max() <= 256
    assert 64 <= area.min() < 128


def test_the_square_of_the_authors_is_inside_the_image():
    top, left, bottom, right = draw(5000, variant="authors")["box"].unbind(1)
    assert top.unique().tolist() == left.unique().tolist() == list(range(17))
    assert bottom.max() == right.max() == 32


def test_no_square_and_no_weak_augmentation_on_demand():
    assert set(draw(4, cutout=0, include_weak=False)) == {"operation", "value"}
    assert draw(4, size=24, cutout=0.25)["box"].diff(dim=1).shape == (4, 3)


@pytest.mark.parametrize("pool", ["fixmatch", "authors"])
def test_each_image_gets_its_own_operations_in_order(pool):
    augmenter = build(include_weak=False, cutout=0, probability=0.8, num_ops=3, variant=pool)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(64, 3, 24, 32, generator=generator)
    draws = augmenter.draw(64, 24, 32, generator)
    together = augmenter.transform(images, draws)
    for k in range(64):
        expected = images[k : k + 1]
        for operation, value in zip(draws["operation"][k], draws["value"][k], strict=True):
            entry = augmenter.pool[operation]
            if operation < 0:
                continue
            one = {
                "operation": operation.view(1, 1),
                "value": value.view(1, 1),
            }
            before, expected = expected, augmenter.transform(expected, one)
            if entry.operation is not None:
                assert torch.equal(expected, entry.operation(before, value[None]))
        torch.testing.assert_close(together[k : k + 1], expected, rtol=0, atol=1e-6)
