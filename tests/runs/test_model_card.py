"""The card in a run's ``model/``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from in_process import call
from PIL import Image

import ssl_toolkit
from ssl_toolkit.markdown import escaped, table

SHORT = ("run", "--steps", 2, "--batch-size", 8, "--device", "cpu", "--seed", 3)
ODD = "*a|b* <i>&amp; [x](y) `c` #1_2_ \\"


def rows(card: str) -> list[list[str]]:
    """The cells of every table, unescaped."""
    lines = [line for line in card.splitlines() if line.startswith("| ")]
    cells = [re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in lines]
    return [[re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell) for cell in line] for line in cells]


def card_of(run: Path) -> str:
    return (run / "model" / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "run"
    done = call(
        *SHORT, "--algo", "fixmatch", "--set", "fixmatch.confidence_threshold=0.8",
        "--set", "fixmatch.unlabeled_ratio=2", "--output", folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images of two classes, one with a name that is hard to write, without a test."""
    folder = tmp_path_factory.mktemp("secret-place")
    draw = np.random.default_rng(0)
    for name, count in ((ODD.replace("/", "-"), 3), ("plain", 1)):
        (folder / "images" / "labeled" / name).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"images/labeled/{name}/{number}.png")
    done = call(
        *SHORT, "--algo", "supervised", "--data", folder / "images", "--backbone", "test_resnet",
        "--batch-size", 2, "--output", folder / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_the_front_matter(digits: Path, own: Path) -> None:
    front = yaml.safe_load(card_of(own).split("---\n")[1])
    assert front == {
        "library_name": "timm",
        "pipeline_tag": "image-classification",
        "tags": [
            "image-classification", "semi-supervised-learning", "ssl-toolkit", "supervised",
        ],
        "metrics": ["accuracy", "f1"],
    }  # fmt: skip
    front = yaml.safe_load(card_of(digits).split("---\n")[1])
    assert "library_name" not in front, "timm alone does not open a wide ResNet"
    assert "fixmatch" in front["tags"]
    assert "# license:" in card_of(digits).split("---\n")[1]


def test_the_numbers_are_those_of_the_summary(digits: Path) -> None:
    card = card_of(digits)
    summary = json.loads((digits / "summary.json").read_text("utf-8"))
    result = {row[0]: row[1:] for row in rows(card)}
    for part in ("test", "validation"):
        scores = summary[part]
        low, high = scores["interval"]
        assert result[part] == [
            str(scores["count"]),
            f"{scores['accuracy']:.4f}",
            f"{low:.4f} to {high:.4f}",
            *(f"{scores[key]:.4f}" for key in ("balanced_accuracy", "macro_f1", "ece", "nll")),
        ]
    for name, own in summary["test"]["per_class"].items():
        _, _, test, accuracy = result[name]
        assert (test, accuracy) == (str(own["count"]), f"{own['accuracy']:.4f}")
    labeled = sum(int(result[name][0]) for name in summary["classes"])
    assert labeled == summary["counts"]["labeled"] == 40
    for part, count in summary["counts"].items():
        assert f"{count} {part}" in card
    assert result["seed"] == ["3"]
    assert result["fingerprint of what comparisons hold equal"] == [summary["fingerprint"]]
    assert result["time"] == [f"{summary['seconds']:.1f} s"]
    assert f"ssl-toolkit {ssl_toolkit.__version__}" in result["versions"][0]
    assert f"of step {summary['best_step']}, the best on validation" in result["weights"][0]


def test_options_that_are_not_the_default(digits: Path, own: Path) -> None:
    what = "options other than the defaults"
    result = {row[0]: row[1:] for row in rows(card_of(digits))}
    assert sorted(result[what][0].split(", ")) == [
        "confidence_threshold 0.8",
        "unlabeled_ratio 2",
    ]
    assert {row[0]: row[1:] for row in rows(card_of(own))}[what] == ["none"]


def test_notes_on_the_limits_of_the_numbers(digits: Path, own: Path) -> None:
    limits = card_of(digits).split("## Limits")[1].split("## ")[0]
    summary = json.loads((digits / "summary.json").read_text("utf-8"))
    assert "one run with seed 3" in limits
    assert f"The test has {summary['test']['count']} images" in limits
    low, high = summary["test"]["interval"]
    assert f"means {low:.4f} to {high:.4f} (95 %)" in limits
    assert "fewer than 30 test images" not in limits
    limits = card_of(own).split("## Limits")[1].split("## ")[0]
    assert "No test images" in limits
    assert "There are no validation images" in limits
    assert "one labeled image or none: plain." in limits
    assert "The run warned: " in limits
    assert "CC BY 4.0" in card_of(digits).split("## Licenses")[1]
    assert "rights to the images" in card_of(own).split("## Licenses")[1]


def test_the_card_describes_the_preprocessing(digits: Path, own: Path) -> None:
    assert "shorter side scaled to 8 pixels" in card_of(digits)
    assert "import ssl_toolkit_wide_resnet.timm_registration" in card_of(digits)
    assert "timm_registration" not in card_of(own)
    assert 'timm.create_model("local-dir:FOLDER"' in card_of(own)


def test_names_are_not_markup_and_no_path_is_revealed(own: Path) -> None:
    card = card_of(own)
    assert ODD not in card
    assert ODD in [row[0] for row in rows(card)]
    assert "<i>" not in card
    assert "secret-place" not in card
    assert "on images:" in card


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain name-1", "plain name-1"),
        ("été 猫", "été 猫"),
        ("a|b", r"a\|b"),
        ("<script>", r"\<script\>"),
        ("www.a.b", r"www\.a\.b"),
        ("two\nlines", r"two\\nlines"),
        ("\u202egpj", r"\\u202egpj"),
        ("👨\u200d👩", "👨\u200d👩"),
        (3, "3"),
    ],
)
def test_escaped(text: object, expected: str) -> None:
    assert escaped(text) == expected


def test_a_table() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
