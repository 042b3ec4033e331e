"""Views that an algorithm declares beside the four counts: their draws, sizes and augmenters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_runs import keys, make_images
from short_runs import configure, rows, stop_after
from torch.nn import functional as F

from ssl_toolkit import (
    Algorithm,
    AugmentationParams,
    Augmenter,
    Batch,
    ConfigError,
    Context,
    Loss,
    Options,
    StepOutput,
    TaskInfo,
    View,
    Views,
    option,
    register_algorithm,
)
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.batches import BatchMaker
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.runs import execute
from ssl_toolkit.runs import train as runs
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.testing import check_plugin


class Dim(Augmenter):
    """Reduces brightness, and counts its calls."""

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__(config, flip=flip)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {"left": torch.rand(count, generator=generator)}

    def transform(self, images: torch.Tensor, draws: AugmentationParams) -> torch.Tensor:
        self.calls = self.calls + 1
        return images * draws["left"].to(images).view(-1, 1, 1, 1)


@register_algorithm("declaring")
class Declaring(Algorithm):
    """Trains on views of every kind, which are all used."""

    class Config(Options):
        size: int = option(4, ge=1, help="side of the small views")
        short: bool = option(True, help="request weak and strong views by their counts too")

    config: Config

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.dim = Dim(flip=task.flip)

    def augmenters(self) -> dict[str, Augmenter]:
        return {"dim": self.dim}

    def views(self) -> Views:
        counts = {"labeled_weak": 1, "unlabeled_weak": 1, "unlabeled_strong": 2}
        if not self.config.short:
            counts = {"labeled_weak": 0}
        size = self.config.size
        return Views(
            **counts,
            unlabeled_ratio=2,
            extra={
                "original": View("labeled", "plain"),
                "dimmed": View("unlabeled", "dim", count=2),
                "small": View("unlabeled", "strong", count=3, size=size if size > 1 else None),
                "other": View("unlabeled", "weak"),
            },
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        logits = ctx.model(batch.extra["original"][0]).float()
        unlabeled = [view for name in ("dimmed", "small", "other") for view in batch.extra[name]]
        spread = sum(ctx.model(v).float().softmax(-1).var(dim=0).mean() for v in unlabeled)
        return StepOutput(
            {"supervised": Loss(F.cross_entropy(logits, batch.labels)), "spread": Loss(spread)}  # type: ignore[arg-type]
        )


def batches(**options: Any) -> BatchMaker:
    return prepare(configure(algo="declaring", declaring=options)).trainer.batches


def test_declared_views_have_their_count_source_and_size() -> None:
    maker = batches()
    batch = maker.draw(0)
    shapes = {name: tuple(view.shape) for name, view in batch.extra.items()}
    assert shapes == {
        "original": (1, 8, 3, 8, 8),
        "dimmed": (2, 16, 3, 8, 8),
        "small": (3, 16, 3, 4, 4),
        "other": (1, 16, 3, 8, 8),
    }
    images = maker.images
    labeled = images.loaded.gather(images.labeled[batch.labeled_indices])
    assert torch.equal(batch.extra["original"][0], labeled)
    pool = images.pool.gather(images.unlabeled[batch.unlabeled_indices])
    factors = batch.extra["dimmed"].sum(dim=(2, 3, 4)) / pool.sum(dim=(1, 2, 3))
    assert factors.unique().numel() == 32
    torch.testing.assert_close(batch.extra["dimmed"], pool * factors[:, :, None, None, None])


def test_a_view_of_another_size_is_the_view_resized() -> None:
    small, large = (batches(size=size).draw(1).extra["small"] for size in (4, 1))
    resized = [F.interpolate(view, (4, 4), mode="bilinear", antialias=True) for view in large]
    torch.testing.assert_close(small, torch.stack(resized))


def test_declared_views_change_no_others_and_depend_on_their_names_only() -> None:
    declaring, alone = batches(), batches(short=False)
    fixmatch = prepare(configure(algo="fixmatch", fixmatch={"unlabeled_ratio": 2})).trainer.batches
    for number in (0, 5, 2):
        first, usual, same = (maker.draw(number) for maker in (declaring, fixmatch, alone))
        assert torch.equal(first.labeled_weak, usual.labeled_weak)
        assert torch.equal(first.unlabeled_weak, usual.unlabeled_weak)
        assert torch.equal(first.unlabeled_strong[0], usual.unlabeled_strong[0])
        for name, view in first.extra.items():
            assert torch.equal(view, same.extra[name]), name
        # A stream of its own: not the draws of the view with the same augmenter.
        assert not torch.equal(first.extra["other"], first.unlabeled_weak)
    again = declaring.draw(5)
    assert torch.equal(again.extra["dimmed"], batches().draw(5).extra["dimmed"])


def test_digests_contain_the_views_by_augmenters_of_the_run() -> None:
    digests = batches().digests(8)
    names = {"unlabeled_strong_small", "unlabeled_weak_other"}
    assert names < digests.keys()
    assert not any("dim" in name or "original" in name for name in digests)
    others = batches(short=False).digests(8)
    assert {name: others[name] for name in names} == {name: digests[name] for name in names}


def test_processes_share_the_declared_views() -> None:
    whole = batches().draw(3)
    for rank in range(2):
        maker = batches()
        maker._processes = ProcessGroup(rank, 2)
        shard = maker.draw(3)
        for name, view in whole.extra.items():
            expected = view.chunk(2, dim=1)[rank]
            torch.testing.assert_close(shard.extra[name], expected, rtol=0, atol=1e-6)


def test_declared_views_are_resumed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"algo": "declaring", "save_every": 3, "optimizer": {"accumulation_steps": 2}}
    whole = runs.train(configure(**options, output=str(tmp_path / "whole")))
    monkeypatch.setattr(execute, "_stop_reason", stop_after(2))
    part = runs.train(configure(**options, output=str(tmp_path / "part")))
    monkeypatch.undo()
    assert resume(part.folder).summary.status == "completed"
    assert rows(part.folder) == rows(whole.folder)
    state = torch.load(part.folder / "checkpoints" / "last.pt", weights_only=True)
    assert len(state["augmenters"]) == 3  # weak, strong, dim
    assert state["augmenters"][2]["calls"] == 12
    assert state["algorithm_state"]["dim.calls"] == 12


def test_declared_views_follow_the_contract() -> None:
    check_plugin(Declaring)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    make_images(folder / "images")
    return folder


def images_of(folder: Path, **changes: Any) -> Any:
    return prepare(validate([Layer("test", keys(folder, algo="declaring", **changes))]))


def test_frozen_features_have_declared_views(folder: Path) -> None:
    trainer = images_of(folder, declaring={"size": 1}).trainer
    trainer.start()
    images = trainer.batches.images
    assert images.feature_views is not None
    batch = trainer.batches.draw(0)
    width = trainer.classifier.backbone.feature_dim
    assert {name: tuple(v.shape) for name, v in batch.extra.items()} == {
        "original": (1, 4, width),
        "dimmed": (2, 8, width),
        "small": (3, 8, width),
        "other": (1, 8, width),
    }
    assert images.features is not None
    plain = images.features.gather(images.labeled[batch.labeled_indices])
    assert torch.equal(batch.extra["original"][0], plain)
    stack = images.feature_views.stacks["dim"]
    for column, row in enumerate(images.feature_views.unlabeled[batch.unlabeled_indices].tolist()):
        drawn = batch.extra["dimmed"][1, column]
        assert (stack[:, row] == drawn).all(dim=1).any()
    assert trainer.fit() == ""


def test_a_frozen_backbone_computes_views_of_other_sizes_at_every_step(folder: Path) -> None:
    experiment = images_of(folder, declaring={"size": 16})
    (note,) = [note for note in experiment.notes if "of other sizes" in note]
    assert note == (
        "--algo declaring requests views of other sizes, so the frozen backbone runs at every step"
    )
    trainer = experiment.trainer
    assert trainer.fit() == ""
    assert trainer.batches.images.feature_views is None


def test_streamed_images_have_declared_views(folder: Path, tmp_path: Path) -> None:
    batch = images_of(folder, stream_buffer=8).trainer.batches.draw(0)
    usual = images_of(folder).trainer.batches.draw(0)
    assert batch.extra["small"].shape == usual.extra["small"].shape == (3, 8, 3, 4, 4)
    assert torch.equal(batch.extra["original"], usual.extra["original"])


def test_a_backbone_of_one_size_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="views of size 4, but backbone test_vit takes images of"):
        images_of(folder, backbone="test_vit", pretrained=False, weights=None, image_size=160)


def test_features_have_no_other_size(tmp_path: Path) -> None:
    import numpy as np

    features = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", features=features, labels=np.arange(40) % 2)
    config = configure(algo="declaring", data=str(tmp_path / "x.npz"), labels_per_class=4)
    with pytest.raises(ConfigError, match="views of size 4, but the data holds features"):
        prepare(config)
