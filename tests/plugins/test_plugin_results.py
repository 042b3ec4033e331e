"""What the methods of plugins take and return is checked by a run, in one line that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plain_backbone  # noqa: F401  # registers "plain"
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ssl_toolkit
from ssl_toolkit import (
    AddOn,
    Algorithm,
    Augmenter,
    Backbone,
    Dataset,
    DatasetDefaults,
    ImageTable,
    Loss,
    PluginError,
    StepOutput,
    ToolkitError,
    Views,
    registry,
)

SHORT = {"steps": 2, "eval_every": 2, "batch_size": 4, "backbone": "plain", "device": "cpu"}


def step(self: Any, batch: Any, ctx: Any) -> StepOutput:
    logits = ctx.model(batch.labeled_weak[0]).float()
    return StepOutput({"supervised": Loss(F.cross_entropy(logits, batch.labels))})


def method(attributes: dict[str, Any]) -> type[Algorithm]:
    plain = {"__module__": __name__, "views": lambda self: Views(unlabeled_strong=1), "step": step}
    return type("Mistaken", (Algorithm,), plain | attributes)


def augmenter(attributes: dict[str, Any]) -> type[Augmenter]:
    plain = {
        "draw": lambda self, count, height, width, generator: {"x": torch.zeros(count)},
        "transform": lambda self, images, draws: images,
    }
    return type("Mistaken", (Augmenter,), plain | attributes)


def addon(attributes: dict[str, Any]) -> type[AddOn]:
    return type("Mistaken", (AddOn,), attributes)


def backbone(attributes: dict[str, Any]) -> type[Backbone]:
    def init(self: Any) -> None:
        super(Backbone, self).__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self: Any, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layer(images.mean(dim=(2, 3)))
        return features

    plain = {"feature_dim": 8, "__init__": init, "forward": forward}
    return type("Mistaken", (Backbone,), plain | attributes)


def table(**fields: Any) -> ImageTable:
    def read(rows: Any, size: int) -> Any:
        return np.random.default_rng(0).integers(0, 255, (len(rows), size, size, 3), np.uint8)

    count = 40
    every: dict[str, Any] = {
        "classes": ("a", "b"),
        "keys": [str(number) for number in range(count)],
        "labels": np.arange(count, dtype=np.int64) % 2,
        "splits": np.array(["pool", "pool", "pool", "test"] * 10),
        "read": read,
    }
    return ImageTable(**every | fields)


def dataset(fields: dict[str, Any]) -> type[Dataset]:
    def load(self: Any, root: Any, *, download: bool = False) -> ImageTable:
        return table(**fields)

    defaults = DatasetDefaults(image_size=8, batch_size=4, labels_per_class=2)
    members = {"load": load, "defaults": fields.pop("defaults", defaults)}
    return type("Mistaken", (Dataset,), members)


RUNS: dict[str, tuple[str, Callable[[dict[str, Any]], type], dict[str, Any]]] = {
    "algorithms": ("register_algorithm", method, {"algo": "mistaken"}),
    "augmenters": (
        "register_augmenter",
        augmenter,
        {"algo": "fixmatch", "augment": {"strong": "mistaken"}},
    ),
    "addons": ("register_addon", addon, {"algo": "fixmatch+mistaken"}),
    "backbones": ("register_backbone", backbone, {"algo": "supervised", "backbone": "mistaken"}),
    "datasets": ("register_dataset", dataset, {"algo": "supervised", "dataset": "mistaken"}),
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for group in RUNS:
        registry._registered.pop((group, "mistaken"), None)


def run_with(group: str, attributes: dict[str, Any], folder: Path) -> None:
    register, make, keys = RUNS[group]
    getattr(ssl_toolkit, register)("mistaken")(make(attributes))
    ssl_toolkit.train({**SHORT, **keys, "output": str(folder / "run")})


def buffered(self: Any, config: Any, task: Any) -> None:
    super(Algorithm, self).__init__()
    self.config, self.task = config, task
    self.register_buffer("mean", torch.zeros(3))


def rebinding(self: Any, batch: Any, ctx: Any) -> StepOutput:
    self.mean = torch.zeros(5)
    return step(self, batch, ctx)


@pytest.mark.parametrize(
    ("group", "attributes", "message"),
    [
        ("algorithms", {"step": lambda self, batch: None}, "Mistaken.step(self, batch) does not"),
        ("algorithms", {"scan_every": lambda self: 2}, "scan_every is a method; write @property"),
        ("algorithms", {"scan_every": 2.5}, "scan_every is 2.5, not a whole number"),
        ("algorithms", {"lr_factors": ["a"]}, "lr_factors is ['a'], not a dict"),
        ("algorithms", {"metrics": ["a"]}, "metrics is ['a'], not a tuple of Metric"),
        ("algorithms", {"tasks": "multiclass"}, "tasks is 'multiclass', not a frozenset of"),
        ("algorithms", {"addon_hooks": frozenset({"refined"})}, "not a frozenset of refine or"),
        (
            "algorithms",
            {"views": lambda self: Views(extra={"x": ssl_toolkit.View("labeled", "weak", size=0)})},
            "count and size are whole numbers of at least 1",
        ),
        (
            "algorithms",
            {"predict": lambda self, output: output.logits.numpy()},
            "predict of algorithm 'mistaken' returned ndarray instead of logits (2, 10)",
        ),
        (
            "algorithms",
            {
                "get_extra_state": lambda self: {"x": [np.float64(1)]},
                "set_extra_state": lambda self, state: None,
            },
            "get_extra_state of algorithm 'mistaken' returned a float64, which a checkpoint can't",
        ),
        ("algorithms", {"get_extra_state": lambda self: 1}, "but not set_extra_state"),
        (
            "algorithms",
            {"__init__": buffered, "step": rebinding},
            "'mean' of algorithm 'mistaken' was a tensor (3,) after __init__ and is now a tensor",
        ),
        ("augmenters", {"draw": lambda self, *of: [1]}, "draw of augmenter Mistaken returned list"),
        ("augmenters", {"draw": lambda self, *of: {"x": torch.zeros(3)}}, "'x' as the shape (3,)"),
        (
            "augmenters",
            {"transform": lambda self, images, draws: images[..., :4]},
            "transform of augmenter Mistaken returned the shape",
        ),
        (
            "augmenters",
            {"transform": lambda self, images, draws: images.double()},
            "transform of augmenter Mistaken returned torch.float64 on cpu instead of torch.",
        ),
        ("addons", {"predict": lambda self, output: output.logits}, "does not take the arguments"),
        (
            "addons",
            {"refine": lambda self, probs, batch, ctx: None},
            "refine of add-on Mistaken returned NoneType instead of",
        ),
        (
            "addons",
            {"weigh_labels": lambda self, losses, batch, ctx: losses.mean()},
            "weigh_labels of add-on Mistaken returned the shape () instead of (4,)",
        ),
        (
            "addons",
            {"losses": lambda self, batch, ctx, output: None},
            "NoneType, not a dict of Loss",
        ),
        (
            "addons",
            {"losses": lambda self, batch, ctx, output: {"own": torch.zeros(())}},
            "losses of add-on 'mistaken' returned Tensor, not a dict of Loss",
        ),
        ("addons", {"scan_every": 1.5}, "scan_every is 1.5, not a whole number"),
        ("datasets", {"defaults": {"image_size": 8}}, "defaults is a dict, not DatasetDefaults("),
        ("backbones", {"feature_dim": 9}, "forward of backbone Mistaken returned the shape"),
        (
            "datasets",
            {"keys": ["a"] * 40},
            "dataset 'mistaken' returned 40 keys, 1 of them",
        ),
        ("datasets", {"labels": np.zeros(40)}, "returned labels (40,) float64 instead of (N,)"),
        ("datasets", {"classes": ("a",)}, "returned labels from 0 to 1 instead of -1 to 0"),
        (
            "datasets",
            {"splits": np.array(["train"] * 40)},
            "returned the split 'train'; known: pool",
        ),
        (
            "datasets",
            {"read": lambda rows, size: np.zeros((len(rows), size, size, 3))},
            "read of the data set returned float64 of the shape",
        ),
    ],
)
def test_a_mistake_is_refused_in_one_line(
    group: str, attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PluginError) as caught:
        run_with(group, attributes, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_in_a_function_inside_load_is_that_of_the_data_set(tmp_path: Path) -> None:
    @ssl_toolkit.register_dataset("mistaken")
    class Mistaken(Dataset):
        defaults = DatasetDefaults(image_size=8, batch_size=4, labels_per_class=2)

        def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
            def read(rows: Any, size: int) -> Any:
                raise LookupError("no file")

            return table(read=read)

    with pytest.raises(ToolkitError, match=r"LookupError in read of dataset 'mistaken'.*no file"):
        ssl_toolkit.train({**SHORT, **RUNS["datasets"][2], "output": str(tmp_path / "run")})


def test_scan_may_name_its_context_otherwise(tmp_path: Path) -> None:
    seen = []

    def scan(self: Any, labeled: Any, unlabeled: Any, context: Any) -> None:
        seen.append(context.step)

    run_with("algorithms", {"scan_every": 1, "scan": scan}, tmp_path)
    assert seen == [0, 1]
