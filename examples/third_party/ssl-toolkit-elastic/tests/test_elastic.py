"""The augmenter keeps its contract, deforms images by the requested strength, and trains."""

from __future__ import annotations

import torch
from ssl_toolkit_elastic import Elastic

import ssl_toolkit
from ssl_toolkit.testing import parametrize_with_checks


@parametrize_with_checks([Elastic])
def test_contract(check):
    check()


def ramp(count: int = 1, side: int = 16) -> torch.Tensor:
    """Return images whose values increase from left to right."""
    return torch.linspace(0, 1, side).expand(count, 3, side, side).clone()


def test_no_strength_changes_nothing():
    images = torch.rand(4, 3, 9, 14)
    still = Elastic(Elastic.Config(strength=0))
    torch.testing.assert_close(still(images, torch.Generator().manual_seed(0)), images)


def test_a_constant_field_shifts():
    images = ramp()
    elastic = Elastic(Elastic.Config(strength=0.25))
    right = torch.zeros(1, 2, 4, 4)
    right[:, 0] = 1
    moved = elastic.transform(images, {"field": right})
    # A quarter of 16 pixels: each pixel shows the one four to its right.
    torch.testing.assert_close(moved[..., :12], images[..., 4:])
    torch.testing.assert_close(moved[..., 12:], torch.ones(1, 3, 16, 4))


def test_each_image_bends_its_own_way():
    views = Elastic()(ramp(2), torch.Generator().manual_seed(0))
    assert not torch.allclose(views[0], views[1])
    assert not torch.allclose(views[0], ramp()[0])


def test_it_trains_by_its_name(installed, tmp_path):
    keys = {"algo": "fixmatch", "dataset": "digits", "steps": 6, "eval_every": 3}
    strong = {"strong": "elastic", "strong_options": {"strength": 0.2}}
    run = ssl_toolkit.train(keys | {"augment": strong, "output": tmp_path / "run"})
    assert run.summary.status == "completed"
    assert "strength: 0.2" in (run.folder / "config.yaml").read_text("utf-8")
