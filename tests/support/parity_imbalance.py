"""The toy runs in which the add-ons for uneven classes are compared with their plain loops."""

from __future__ import annotations

from dataclasses import replace

from loops_imbalance import COUNTS, ABCLoop, AdshLoop, DARPLoop, DASOLoop, SAWLoop
from step_parity import Case

_CASES = {
    "fixmatch+abc": Case(
        ABCLoop,
        {"confidence_threshold": 0.8, "abc": {"confidence_threshold": 0.28, "weight": 0.7}},
    ),
    "fixmatch+darp": Case(
        DARPLoop,
        {
            "confidence_threshold": 0.8,
            "darp": {"interval": 3, "warmup_fraction": 0.04, "kept": 1.5, "rounds": 4},
        },
    ),
    "fixmatch+daso": Case(
        DASOLoop,
        {
            "confidence_threshold": 0.7,
            "daso": {
                "queue_size": 3,
                "window": 4,
                "warmup_fraction": 0.02,
                "temperature": 0.02,
                "weight": 1.0,
            },
        },
    ),
    "fixmatch+saw": Case(
        SAWLoop, {"confidence_threshold": 0.8, "saw": {"beta": 0.9, "updates": 30}}
    ),
    "fixmatch+adsh": Case(
        AdshLoop,
        {"confidence_threshold": 0.8, "adsh": {"confidence_threshold": 0.85, "updates": 30}},
    ),
}

IMBALANCE = {name: replace(case, label_counts=COUNTS) for name, case in _CASES.items()}
"""One for every add-on, on FixMatch."""

IMBALANCE_VARIANTS = {
    "fixmatch+saw": [
        {"saw": {"beta": 0.0, "updates": 30}},
        {"saw": {"beta": 0.9, "updates": 30, "weigh_labels": False}},
    ],
    "fixmatch+daso": [{"daso": {"weight": 0.5, "window": 2, "warmup_fraction": 0.0}}],
    "fixmatch+darp": [{"darp": {"interval": 1, "warmup_fraction": 0.0, "kept": 0.5}}],
}
"""Options in which an add-on has other formulas."""
