"""Augmenters by name, and the ramp of consistency losses."""

from __future__ import annotations

import math

import pytest
import torch

from ssl_toolkit import ConfigError, PluginError, make_augmenter
from ssl_toolkit.ops import gaussian_rampup


def test_an_augmenter_has_its_options_and_its_flip() -> None:
    augmenter = make_augmenter("randaugment", {"num_ops": 1}, flip=False)
    assert augmenter.config.num_ops == 1  # type: ignore[attr-defined]
    assert not augmenter.flip
    assert make_augmenter("randaugment").config.num_ops == 2  # type: ignore[attr-defined]
    views = make_augmenter("weak")(torch.rand(3, 3, 8, 8), torch.Generator().manual_seed(0))
    assert views.shape == (3, 3, 8, 8)


def test_unknown_names_and_options_are_reported_in_a_line() -> None:
    with pytest.raises(PluginError, match="randaugment"):
        make_augmenter("randaugmnt")
    with pytest.raises(ConfigError, match=r"randaugment\.num_op.*num_ops"):
        make_augmenter("randaugment", {"num_op": 1})


def test_the_gaussian_ramp_ends_at_1() -> None:
    weights = [gaussian_rampup(step, 10) for step in (0, 5, 10, 20)]
    assert weights == pytest.approx([math.exp(-5), math.exp(-1.25), 1, 1])
    assert gaussian_rampup(0, 0) == 1
