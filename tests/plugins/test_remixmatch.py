"""Ramp and forward passes of ReMixMatch."""

from __future__ import annotations

import math

import pytest
from ssl_toolkit_remixmatch import ReMixMatch
from toy_context import FakeContext, build, make_batch


def test_the_ramp_is_the_published_share_of_the_run() -> None:
    output = build(ReMixMatch).step(make_batch(build(ReMixMatch)), FakeContext(step=1))
    ramp = 1 / (100 / 64)
    assert output.losses["unsupervised"].weight == pytest.approx(1.5 * ramp)
    assert output.losses["strong"].weight == pytest.approx(0.5 * ramp)
    assert output.losses["rotation"].weight == 0.5
    options = ReMixMatch.Config()
    assert math.isclose(options.rampup_fraction * 2**20, 16384)


def test_one_pass_trains_and_pseudo_labels_change_no_statistics() -> None:
    algorithm, ctx = build(ReMixMatch, strong_views=2), FakeContext()
    algorithm.step(make_batch(algorithm), ctx)
    assert ctx.calls == [("forward", 4, False), ("forward", 4 + 3 * 4 + 4 + 4, True)]
