"""What every augmenter keeps, through the public interface (case 29 of the reports' list)."""

from __future__ import annotations

import pytest
import torch

from ssl_toolkit import Augmenter, registry

AUGMENTERS = ["weak", "randaugment", "fixed"]


def build(name: str) -> Augmenter:
    made: Augmenter = registry.load("augmenters", name)()
    return made


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def texture(height: int, width: int) -> torch.Tensor:
    """Not symmetric under any flip or turn, no two regions alike."""
    return torch.rand(3, height, width, generator=seeded(5)) * 0.6 + 0.2


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("name", AUGMENTERS)
def test_views_are_images_like_the_input(name: str, size: tuple[int, int]) -> None:
    augmenter = build(name)
    generator = seeded()
    image = texture(*size)
    for count in (8, 6, 4, 1):
        images = image.repeat(count, 1, 1, 1)
        kept = images.clone()
        views = augmenter(images, generator)
        assert views.shape == images.shape
        assert views.dtype == images.dtype
        assert torch.isfinite(views).all()
        assert 0 <= views.min() <= views.max() <= 1
        assert (views.flatten(1).std(dim=1) > 0.01).all(), "a view is constant"
        assert torch.equal(images, kept)
        if count == 8:
            differing = {view.numpy().tobytes() for view in views}
            assert len(differing) >= (7 if name != "weak" else 5)


@pytest.mark.parametrize("name", AUGMENTERS)
def test_a_seed_decides_the_views(name: str) -> None:
    augmenter, images = build(name), texture(32, 32).repeat(8, 1, 1, 1)
    one, same, other = (augmenter(images, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    state = torch.get_rng_state()
    augmenter(images, seeded(1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", AUGMENTERS)
def test_other_inputs_are_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(TypeError, match=r"float in \[0, 1\].*uint8.*255"):
        build(name)(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"\(N, C, H, W\), got \(3, 8, 8\)"):
        build(name)(torch.zeros(3, 8, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", AUGMENTERS)
def test_every_floating_type_is_restored(name: str, dtype: torch.dtype) -> None:
    views = build(name)(texture(16, 16).repeat(4, 1, 1, 1).to(dtype), seeded())
    assert views.dtype == dtype
    assert torch.isfinite(views.float()).all()


@pytest.mark.parametrize("name", AUGMENTERS)
def test_view_i_comes_from_image_i(name: str) -> None:
    corners = [[r, g, b] for r in (0.2, 0.8) for g in (0.2, 0.8) for b in (0.2, 0.8)]
    colors = torch.tensor(corners)
    images = colors[:, :, None, None].expand(-1, -1, 32, 32).contiguous()
    views = build(name)(images, seeded(3))
    if name == "weak":
        assert torch.allclose(views, images)
        return
    # The strong ones change colors: a view still depends on its own image alone.
    for i in range(len(images)):
        changed = images.clone()
        changed[i] = texture(32, 32)
        others = torch.arange(len(images)) != i
        again = build(name)(changed, seeded(3))
        assert torch.allclose(again[others], views[others], atol=1e-6)
        assert not torch.allclose(again[i], views[i])
