"""What derives from the declarations of the settings: flags, lists and the reference page."""

from __future__ import annotations

import re
from pathlib import Path

from in_process import call
from settings_page import page

from ssl_toolkit.config.options import declaration_of, fields_of
from ssl_toolkit.config.settings import (
    FOLLOW_STEPS,
    FREE_ON_RESUME,
    MOVED_ON_RESUME,
    NOT_COMPARED,
    OPEN_VALUES,
    RECORDED_ON_RESUME,
    Settings,
    keys_behind,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = {"dataset", "data", "classes", "channels", "bits", "task"}
SPLIT = DATA | {
    "labels_per_class", "num_labels", "labels", "val_fraction", "test_fraction", "labeled_in_pool",
    "on_bad_image", "drop_leaks", "stream_buffer", "pseudo_labels", "imbalance", "imbalance.labels",
    "imbalance.pool", "strangers", "strangers.data", "strangers.fraction",
}  # fmt: skip


def test_settings_that_comparisons_and_resume_leave_free() -> None:
    assert {
        "algo", "seed", "output", "workers", "time_limit", "minutes", "on_collapse", "log_every",
        "save_every", "keep_checkpoints", "download", "root", "split", "loggers", "group",
    } == NOT_COMPARED  # fmt: skip
    assert {*FOLLOW_STEPS} == {"steps", "eval_every", "ema.decay", "model.batchnorm_momentum"}
    assert {
        "output", "root", "download", "workers", "time_limit", "on_collapse", "loggers", "group",
    } == FREE_ON_RESUME  # fmt: skip
    assert {"data"} == MOVED_ON_RESUME
    assert {"steps", "devices"} == RECORDED_ON_RESUME


def test_declared_effects_of_a_setting() -> None:
    assert {*keys_behind("classes")} == DATA
    assert {*keys_behind("split")} == SPLIT
    table = DATA | {"labels", "pseudo_labels", "on_bad_image", "stream_buffer"}
    assert {*keys_behind("data")} == table
    assert {*keys_behind("strangers")} == table | {"strangers.data"}
    assert "weights" in keys_behind("weights file")
    assert {*keys_behind("initial weights")} == SPLIT | {
        "backbone", "pretrained", "weights", "image_size", "fit", "model.args",
            "lora.rank", "lora.targets",
    }  # fmt: skip
    assert {*keys_behind("draws")} == SPLIT | {"sampler", "image_size", "batch_size", "augment"}


def test_a_flag_shows_the_help_and_default_of_its_declaration() -> None:
    output = " ".join(call("run", "--help").stdout.split())
    for key, field in fields_of(Settings):
        flag = f"--{key.replace('_', '-').replace('.', '-')}"
        assert (re.search(rf"{flag}[ /]", output) is not None) == declaration_of(field).flag, key
    assert "--lr X Learning rate (default: 0.002)." in output
    assert "--on-bad-image error|skip How to handle unreadable images (default: error)." in output
    assert OPEN_VALUES == {"dataset": "digits", "steps": 1000, "lr": 0.002}
    resumed = call("resume", "--help").stdout
    declared = {k for k, f in fields_of(Settings) if declaration_of(f).resume_help}
    assert declared == {"data", "steps", "devices", "time_limit"}
    assert all(f"--{key.replace('_', '-')} " in resumed for key in declared)


def test_every_setting_is_explained() -> None:
    assert all(field.description for _, field in fields_of(Settings))
    assert (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8") == page(), (
        "run: python tests/support/settings_page.py > docs/reference/settings.md"
    )
