"""The estimate of how many unlabeled images belong to no class, and its warning."""

import numpy as np
import pytest

from ssl_toolkit.models.known_scores import KnownScores
from ssl_toolkit.runs.summary import ExpectedStrangers


def estimate(rng, strangers, validation=200, pool=500, distance=6.0):
    energies = KnownScores.of(rng.normal(0, 1, validation), "validation")
    count = round(strangers * pool)
    images = np.concatenate([rng.normal(0, 1, pool - count), rng.normal(distance, 1, count)])
    share, lower = energies.share_of_strangers(images)
    return ExpectedStrangers(share=share, lower=lower)


@pytest.mark.parametrize("strangers", [0.2, 0.5, 0.9])
def test_the_share_of_distant_strangers_is_found(strangers):
    estimates = [estimate(np.random.default_rng(seed), strangers) for seed in range(50)]
    assert np.mean([one.share for one in estimates]) == pytest.approx(strangers, abs=0.01)
    assert all(one.lower < one.share and one.warning for one in estimates)


def test_strangers_like_the_classes_are_counted_in_part_and_never_too_many():
    estimates = [estimate(np.random.default_rng(seed), 0.5, distance=1.5) for seed in range(50)]
    assert 0.1 < np.mean([one.share for one in estimates]) < 0.5
    assert np.mean([one.lower <= 0.5 for one in estimates]) > 0.97


@pytest.mark.parametrize("validation", [50, 200])
def test_pools_without_strangers_raise_no_alarm(validation):
    rngs = (np.random.default_rng(seed) for seed in range(300))
    alarms = [bool(estimate(rng, 0.0, validation).warning) for rng in rngs]
    assert np.mean(alarms) < 0.03


def test_the_warning_says_what_to_do():
    text = ExpectedStrangers(share=0.234, lower=0.187).warning
    assert text.startswith("23% of the unlabeled images or more (19% at least")
    assert "--drop-strangers hard" in text
    assert not ExpectedStrangers(share=0.234, lower=0.0).warning
    assert not ExpectedStrangers(share=0.09, lower=0.05).warning
