"""No step waits for the device: one is made on torch's ``meta`` device, which holds no values.

Whatever would read a value back (``item``, a copy to the CPU, a boolean mask, ``nonzero``) raises
there, wherever it is in data, augmentation, algorithm, optimizer, average or log.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.interfaces import StepOutput

ALGORITHMS = ["simple", "mixmatch", "mixmatch_enhanced", "fixmatch", "supervised"]


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast, which the Pair Loss switches off, does not know the device."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


def on_meta(**keys: Any) -> Trainer:
    tree = {"dataset": "digits", "batch_size": 4, "steps": 4, "device": "cpu"}
    trainer = prepare(validate([Layer("test", tree | keys)])).trainer
    trainer.classifier.to("meta").train()
    assert trainer.ema is not None
    trainer.ema.module.to("meta")
    images = trainer.batches.images
    stored = images.loaded.images
    assert isinstance(stored, torch.Tensor)
    loaded = ImageSource(stored.to("meta"))
    names = ("labeled", "labels", "unlabeled", "hidden")
    moved = {name: getattr(images, name).to("meta") for name in names}
    trainer.batches.images = replace(images, loaded=loaded, **moved)
    for augmenter in trainer.augmenters:
        augmenter.to("meta")
    # Torch's fused one is not made for this device.
    trainer.optimizer = AdamW(trainer.classifier.parameters(), foreach=True)
    return trainer


def step(trainer: Trainer) -> None:
    for number in range(2):
        trainer._forward_backward(number, 1)
        trainer._update()
        trainer.step += 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_reads_nothing_back(algorithm: str) -> None:
    trainer = on_meta(algo=algorithm, optimizer={"clip_norm": 5.0})
    step(trainer)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        trainer.recorder.flush()  # the values of both steps, in one transfer


@pytest.mark.parametrize("profile", ["paper", "reference"])
def test_the_fixed_augmentation_and_the_reference_profile_read_nothing_back(profile: str) -> None:
    trainer = on_meta(algo="simple", profile=profile, augment={"strong": "fixed"})
    step(trainer)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        trainer.recorder.flush()  # the values of the step, which stayed there


def test_reads_from_the_device_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = on_meta(algo="supervised")
    make = trainer.algorithm.step

    def reading(*given: Any) -> StepOutput:
        output = make(*given)
        output.losses["supervised"].value.item()
        return output

    monkeypatch.setattr(trainer.algorithm, "step", reading)
    with pytest.raises(RuntimeError, match="meta"):
        step(trainer)
