"""The plugins that are used by default, and other defaults of pre-trained weights.

This is the only file of the core that names plugins; everything else that it needs to know about
one is an attribute of its interface.
"""

from __future__ import annotations

from typing import Any

ALGORITHM = "simple"
AUTO = "auto"
"""The algorithm that stands for a choice among the installed ones."""
DATASET = "digits"
BACKBONE = "wrn_28_2"
PROBE = "linear_probe"
"""The algorithm that `compare` adds to a comparison of pre-trained runs."""

HEAD_TRAINING: dict[str, Any] = {
    "steps": 300,
    "schedule": {"name": "cosine", "cycles": 0.5},
}
"""Defaults for training the head alone, on a frozen backbone or on given features
(docs/results/pretrained.md): it starts at the probe, and more steps lead away from it. The same for
every algorithm; one that needs other options has them in ``Config.for_pretrained``."""

FINE_TUNING_RATE = 0.001
FINE_TUNING: dict[str, Any] = {
    "steps": 300,
    "batch_size": 32,
    "lr": 5e-3,
    "eval_every": 100,
    "optimizer": {"clip_norm": 5.0},
    "schedule": {"name": "cosine", "cycles": 0.5, "warmup_steps": 10},
    "augment": {"flip": False},
    "model": {"head_init": "zero"},
}
"""Defaults for training a pre-trained backbone, beside `FINE_TUNING_RATE` for the backbone,
unless ``optimizer.backbone_lr`` is given: with 2e-5 there it is the paper's transfer recipe. Images
are not mirrored: where frozen features fail, it is often for signs whose mirror image is another
one (7 points on letters, docs/results/pretrained.md)."""
