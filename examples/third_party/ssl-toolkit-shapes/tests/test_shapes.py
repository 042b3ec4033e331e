"""Data set and backbones keep their contracts, and train together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ssl_toolkit_shapes import Conv4, Shapes
from ssl_toolkit_shapes.dataset import CLASSES, draw

import ssl_toolkit
from ssl_toolkit.testing import check_plugin, parametrize_with_checks


@parametrize_with_checks([Shapes])
def test_contract(check):
    check()


@pytest.mark.parametrize("name", ["conv4_32", "conv4_64"])
def test_contract_of_the_backbones(installed, name):
    # By name, since the name decides what is built.
    check_plugin(name, "backbone")


@pytest.mark.parametrize("width", [32, 64])
def test_the_name_says_how_wide(width):
    network = Conv4.build(f"conv4_{width}")
    assert network(torch.rand(2, 3, 24, 24)).shape == (2, width)


@pytest.mark.parametrize("row", range(len(CLASSES)))
def test_a_shape_is_bright_on_dark_ground(row):
    image = draw(row, 48).mean(axis=-1)
    share = (image > 128).mean()
    assert 0.03 < share < 0.6
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert (border < 128).mean() > 0.9


def test_a_larger_image_shows_the_same():
    large = draw(7, 64).reshape(16, 4, 16, 4, 3).mean(axis=(1, 3))
    assert abs(large - draw(7, 16)).mean() < 8


def test_they_train_by_name(installed, tmp_path):
    keys = {"algo": "supervised", "dataset": "shapes", "steps": 60, "eval_every": 30}
    keys |= {"labels_per_class": 40, "output": tmp_path / "run"}
    run = ssl_toolkit.train(keys)
    assert run.summary.backbone == "conv4_32"
    assert run.summary.test.count == 300
    assert run.summary.test.accuracy > 0.4, "chance is 0.2"
