"""The toy runs in which every algorithm is compared with its plain loop."""

from __future__ import annotations

from loops_adaptive import (
    AdaMatchLoop,
    DashLoop,
    DebiasPLLoop,
    DeFixMatchLoop,
    FixMatchLoop,
    FlexMatchLoop,
    FreeMatchLoop,
    SoftMatchLoop,
)
from loops_addons import adjusted
from loops_consistency import (
    FullySupervisedLoop,
    MeanTeacherLoop,
    PiModelLoop,
    PseudoLabelLoop,
    SupervisedLoop,
    UDALoop,
    VATLoop,
)
from loops_graph import CoMatchLoop, PropagationLoop, SimMatchLoop
from loops_mixing import MixMatchEnhancedLoop, MixMatchLoop, ReMixMatchLoop, SimPLELoop
from loops_open import OpenMatchLoop
from parity_imbalance import IMBALANCE
from step_parity import Case

RAMP = {"rampup_fraction": 0.1}
"""The ramp ends half way through the steps that are compared."""

CASES = {
    "supervised": Case(SupervisedLoop),
    "fully_supervised": Case(FullySupervisedLoop),
    "simple": Case(SimPLELoop, scale=60),
    "mixmatch": Case(MixMatchLoop),
    "mixmatch_enhanced": Case(MixMatchEnhancedLoop),
    "fixmatch": Case(FixMatchLoop, {"confidence_threshold": 0.8}),
    "openmatch": Case(
        OpenMatchLoop,
        {"confidence_threshold": 0.6, "warmup_fraction": 0.04, "scan_interval": 3},
    ),
    "remixmatch": Case(ReMixMatchLoop, {"strong_views": 3, **RAMP}, scale=40),
    "flexmatch": Case(FlexMatchLoop, {"confidence_threshold": 0.8}),
    "freematch": Case(FreeMatchLoop, {"momentum": 0.9, "fairness_weight": 0.2}),
    "softmatch": Case(SoftMatchLoop, {"momentum": 0.9, "num_sigmas": 3.0}),
    "debiaspl": Case(
        DebiasPLLoop, {"confidence_threshold": 0.8, "debias_factor": 0.7, "momentum": 0.9}
    ),
    "adamatch": Case(
        AdaMatchLoop,
        {"relative_threshold": 0.95, "labeled_momentum": 0.9, "unlabeled_momentum": 0.8},
        scale=40,
    ),
    "dash": Case(
        DashLoop,
        {
            "threshold_factor": 0.05,
            "minimum_threshold": 0.1,
            "warmup_fraction": 0.04,
            "decay_fraction": 0.02,
            "unsupervised_weight": 2.0,
        },
        scale=60,
    ),
    "defixmatch": Case(DeFixMatchLoop, {"confidence_threshold": 0.9}),
    "deep_label_propagation": Case(
        PropagationLoop,
        {
            "neighbors": 6,
            "warmup_fraction": 0.04,
            "scan_interval": 2,
            "unsupervised_weight": 2.0,
            "unlabeled_ratio": 3,
        },
    ),
    "simmatch": Case(
        SimMatchLoop,
        {
            "confidence_threshold": 0.7,
            "smoothing": 0.9,
            "embedding_size": 5,
            "instance_weight": 3.0,
        },
        scale=40,
    ),
    "comatch": Case(
        CoMatchLoop,
        {
            "confidence_threshold": 0.8,
            "graph_threshold": 0.5,
            "memory_size": 70,  # not a multiple of the 32 images of a step
            "embedding_size": 5,
            "contrast_weight": 2.0,
        },
        scale=40,
    ),
    "uda": Case(UDALoop, {"unsupervised_weight": 2.0}, scale=50),
    "mean_teacher": Case(MeanTeacherLoop, RAMP),
    "pseudo_label": Case(
        PseudoLabelLoop,
        {"confidence_threshold": 0.9, "unsupervised_weight": 3.0, "unlabeled_ratio": 3, **RAMP},
    ),
    "pi_model": Case(PiModelLoop, RAMP),
    "vat": Case(VATLoop, {"epsilon": 0.5, "power_iterations": 2, **RAMP}, scale=10),
}
"""One for every algorithm that trains in steps, by name."""

UNEVEN = (5, 1, 1, 1)
ADD_ONS = {
    "fixmatch+logit_adjustment": Case(
        adjusted(FixMatchLoop),
        {"confidence_threshold": 0.8, "logit_adjustment": {"tau": 1.5}},
        label_counts=UNEVEN,
    ),
    "simple+logit_adjustment": Case(
        adjusted(SimPLELoop), {"logit_adjustment": {"tau": 0.7}}, scale=60, label_counts=UNEVEN
    ),
    **IMBALANCE,
}
"""One or more for every add-on, by the name of the algorithm with it."""

VARIANTS = {
    "simple": [
        {"confidence_weighted": False},
        {"pair_weight": 20, "strong_views": 3, "temperature": 0.7},
        {"rampup_steps": 8, "similarity_threshold": 0.6},
    ],
    "mixmatch": [{"mixup_per": "batch"}, {"pseudo_labels_from": "model", "weak_views": 3}],
    "mixmatch_enhanced": [{"train_on": "strong", "strong_views": 2}],
    "fixmatch": [{"forward": "separate", "confidence_threshold": 0.9}, {"forward": "selective"}],
    "supervised": [{"strong": True}],
    "remixmatch": [{"temperature": 0.9, "strong_views": 1}],
    "flexmatch": [
        {"threshold_mapping": mapping, "threshold_warmup": warmup}
        for mapping in ("convex", "linear", "concave")
        for warmup in (True, False)
    ],
    "softmatch": [{"uniform_alignment": False}],
    "adamatch": [{"hard_labels": True}],
    "dash": [{"mean_over_selected": True}],
    "simmatch": [{"confidence_threshold": 0.4, "smoothing": 0.3}, {"averaged_labels": True}],
    "uda": [{"annealing": "linear"}, {"annealing": "log"}, {"annealing": "exp"}],
}
"""Options in which an algorithm has other formulas."""
