"""Settings of released code that several algorithms share, for `Algorithm.profiles`.

Length, batch size, optimizer, learning rate and decay are not among them: they depend on the data
set, and belong to the recipe of a table.
"""

from __future__ import annotations

from typing import Any

_AVERAGE = {"decay": 0.999, "warmup": False}

GOOGLE_SETTINGS: dict[str, Any] = {
    "optimizer": {"clip_norm": None, "weight_decay_on": "kernels"},
    "schedule": {"cycles": 7 / 16},
    "ema": _AVERAGE,
    "augment": {"strong": "randaugment"},
}
"""Settings of google-research's code of MixMatch, ReMixMatch, FixMatch and AdaMatch."""

SIMPLE_SETTINGS: dict[str, Any] = {
    "optimizer": {"clip_norm": 5.0, "weight_decay_on": "all"},
    "schedule": {"cycles": 1023 / 2048},
    "ema": _AVERAGE,
    "augment": {
        "strong": "randaugment",
        "strong_options": {"variant": "authors", "choice": "batch"},
        "flip": True,
    },
}
"""Settings of the code of SimPLE's authors, for all algorithms in it."""

USB_SETTINGS: dict[str, Any] = GOOGLE_SETTINGS | {
    "labeled_in_pool": True,
    "augment": {"strong": "randaugment", "strong_options": {"num_ops": 3, "probability": 1.0}},
}
"""Settings of USB's code (microsoft/Semi-supervised-learning), its classic image suite."""

WHOLE_NETWORK: dict[str, Any] = {"model": {"freeze": "none", "head_init": "random"}}
"""Settings of all profiles but ``paper``: released code trains every layer, from a random head."""

PUBLISHED_STEPS = 2**20
"""Length of published runs: ``auto`` is chosen for it in all profiles but ``paper``."""
