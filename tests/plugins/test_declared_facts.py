"""What the core knows of a plugin is an attribute of its interface: third parties set it too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ssl_toolkit import (
    Dataset,
    ImageTable,
    register_algorithm,
    register_backbone,
    register_dataset,
    registry,
    train,
)
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.defaults import resolve_config


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_a_baseline_is_the_row_that_others_are_compared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixmatch = registry.load("algorithms", "fixmatch")
    register_algorithm("mine")(type("Mine", (fixmatch,), {"is_baseline": True}))
    comparison = load_comparison([], {"algos": "simple,mine,fixmatch"}, (), ())
    assert comparison.baseline == "mine"


def test_a_backbone_declares_its_batchnorm_momentum() -> None:
    plain = registry.load("backbones", "wrn_10_1")

    def momentum(cls: type, steps: int) -> float:
        return 1 / steps

    register_backbone("quick")(
        type("Quick", (plain,), {"batchnorm_momentum": classmethod(momentum)})
    )
    for name, expected in (("quick", 1 / 50), ("wrn_10_1", 0.1), ("resnet18", None)):
        config = validate([Layer("flags", {"steps": 50, "backbone": name})])
        resolved, _ = resolve_config(config)
        assert resolved.settings.model.batchnorm_momentum == expected, name


class Halves(Dataset):
    """Images that are black above or below."""

    license = "CC0-1.0"
    citation = "A. Author (2020), Halves"
    homepage = "https://example.org/halves"
    is_example = True

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        labels = np.arange(40) % 2
        images = np.zeros((40, 8, 8, 3), np.uint8)
        images[labels == 1, :4] = 255
        images[labels == 0, 4:] = 255

        def read(rows: np.ndarray, size: int) -> np.ndarray:
            return images[rows]

        return ImageTable(
            ("below", "above"),
            tuple(f"halves/{n:02d}" for n in range(40)),
            labels,
            np.where(np.arange(40) < 30, "pool", "test"),
            read,
        )

    def labeled_rows(self, name: str, table: ImageTable, root: Path) -> np.ndarray | None:
        return np.array([3, 4, 5, 8]) if name == "chosen" else None


def test_a_data_set_declares_its_license_and_selections_and_that_it_is_an_example(
    tmp_path: Path,
) -> None:
    register_dataset("halves")(Halves)
    run = tmp_path / "run"
    train(
        {"algo": "supervised", "dataset": "halves", "image_size": 8, "steps": 2, "batch_size": 4,
         "labels": "chosen", "device": "cpu", "output": run}
    )  # fmt: skip
    card = next(run.rglob("README.md")).read_text("utf-8")
    assert "The images: A. Author (2020), Halves, <https://example.org/halves>, CC0-1.0." in card
    assert "The terms of the data set" not in card
    assert "4 labeled" in card
    assert "for your own images: --data FOLDER" in (run / "log.txt").read_text("utf-8")
