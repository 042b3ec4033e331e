"""Features of a frozen backbone: what they depend on, their cache, and batches made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import call, refusal
from plain_backbone import Plain
from pretrained_runs import experiment, flags, keys, make_images
from torch import Tensor

import ssl_toolkit
from ssl_toolkit import registry
from ssl_toolkit.augment.weak import Weak
from ssl_toolkit.data.cache import cache_folder
from ssl_toolkit.engine.features import FeatureExtractor
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.runs.train import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("features")
    make_images(made / "images")
    return made


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache" / "images"))


class Counting(Plain):
    """Counts the images that it sees."""

    seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return super().forward(images)


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(1)
    return Classifier(Counting(), 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


@pytest.fixture
def store() -> ImageSource:
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(256, (10, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return ImageSource(images)


ROWS = torch.tensor([7, 0, 3, 3, 9])


def test_plain_features_are_those_of_the_backbone_in_eval_mode(
    classifier: Classifier, store: ImageSource
) -> None:
    result = FeatureExtractor(classifier.train(), 2).plain(store, ROWS)
    assert classifier.training
    with torch.no_grad():
        wanted = classifier.eval()(store.gather(ROWS)).features
    assert torch.allclose(result, wanted, atol=1e-6)
    assert result.requires_grad is False
    layer = torch.nn.Linear(result.shape[1], 2)
    layer(result).sum().backward()  # no tensor of inference mode


def test_the_cache_saves_every_forward(classifier: Classifier, store: ImageSource) -> None:
    weak = Weak()
    first = FeatureExtractor(classifier, 4)
    plain, views = first.plain(store, ROWS), first.views(store, ROWS, weak, 2, seed=5)
    assert classifier.backbone.seen == 3 * len(ROWS)
    again = FeatureExtractor(classifier, 4)
    assert torch.equal(again.plain(store, ROWS), plain)
    assert torch.equal(again.views(store, ROWS, weak, 2, seed=5), views)
    assert classifier.backbone.seen == 3 * len(ROWS)


@pytest.mark.parametrize("what", ["weights", "statistics", "pixels", "batch size", "seed"])
def test_the_cache_is_only_for_the_same_content(
    what: str, classifier: Classifier, store: ImageSource
) -> None:
    weak, size, seed = Weak(), 4, 5
    FeatureExtractor(classifier, size).views(store, ROWS, weak, 1, seed)
    before = classifier.backbone.seen
    if what == "weights":
        with torch.no_grad():
            next(classifier.backbone.parameters())[0] += 1e-3
    elif what == "statistics":
        classifier.set_statistics((0.4, 0.5, 0.61), (0.2, 0.3, 0.4))
    elif what == "pixels":
        store.images[3, 0, 0, 0] += 1
    elif what == "batch size":
        size = 5
    else:
        seed = 6
    FeatureExtractor(classifier, size).views(store, ROWS, weak, 1, seed)
    assert classifier.backbone.seen == before + len(ROWS)


def test_equal_weights_of_another_backbone_share_nothing(
    classifier: Classifier, store: ImageSource
) -> None:
    FeatureExtractor(classifier, 4).plain(store, ROWS)
    classifier.backbone.layers[2] = torch.nn.Tanh()  # no weight says so
    before = classifier.backbone.seen
    FeatureExtractor(classifier, 4).plain(store, ROWS)
    assert classifier.backbone.seen == before + len(ROWS)


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_computed_again(
    damage: str, classifier: Classifier, store: ImageSource
) -> None:
    wanted = FeatureExtractor(classifier, 4).plain(store, ROWS)
    (file,) = cache_folder("features").glob("*.npy")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes({"cut": content[:-5], "changed": content, "empty": b""}[damage])
    before = classifier.backbone.seen
    assert torch.equal(FeatureExtractor(classifier, 4).plain(store, ROWS), wanted)
    assert classifier.backbone.seen == before + len(ROWS)
    assert torch.equal(FeatureExtractor(classifier, 4).plain(store, ROWS), wanted)
    assert classifier.backbone.seen == before + len(ROWS)


def test_a_view_depends_only_on_seed_index_and_number(
    classifier: Classifier, store: ImageSource
) -> None:
    weak = Weak()
    one, all_ = (
        FeatureExtractor(classifier, size, cached=False).views(store, ROWS, weak, 3, seed=5)
        for size in (1, 64)
    )
    assert torch.allclose(one, all_, atol=1e-6)
    fewer = FeatureExtractor(classifier, 64).views(store, ROWS[:2], weak, 1, seed=5)
    assert torch.allclose(fewer[0], all_[0, :2], atol=1e-6)
    assert not torch.allclose(all_[0], all_[1], atol=1e-3)
    assert FeatureExtractor(classifier, 4).views(store, ROWS, weak, 0, seed=5).shape == (0, 5, 12)


# --- runs ---------------------------------------------------------------------------------------


def test_batches_hold_features_of_the_computed_views(folder: Path) -> None:
    trainer = experiment(folder, algo="fixmatch").trainer
    trainer.start()
    batches = trainer.batches
    images = batches.images
    batch = batches.draw(3)
    assert batch.labeled_weak.shape == (1, 4, trainer.classifier.backbone.feature_dim)
    assert batch.unlabeled_strong.shape[:2] == (1, 4)
    views = images.feature_views
    assert views is not None
    rows = views.unlabeled[batch.unlabeled_indices]
    for column, row in enumerate(rows.tolist()):
        drawn = batch.unlabeled_strong[0, column]
        assert (views.stacks["strong"][:, row] == drawn).all(dim=1).any()
    assert torch.equal(batch.labels, images.labels[batch.labeled_indices])
    again = batches.draw(3)
    assert torch.equal(again.unlabeled_weak, batch.unlabeled_weak)


@pytest.mark.parametrize(
    ("changes", "cached"),
    [
        ({}, True),
        ({"algo": "mixmatch"}, False),
        ({"model": {"feature_views": 0}}, False),
        ({"model": {"freeze": "bn"}}, False),
        ({"augment": {"strong": "learning"}}, False),
        ({"stream_buffer": 8}, False),
    ],
    ids=["plain", "mixes", "no views", "trained", "feedback", "streamed"],
)
def test_algorithms_that_need_pixels_get_them(folder: Path, changes: dict, cached: bool) -> None:
    augment = changes.get("augment", {}).get("strong")
    if augment is not None:

        class Learning(ssl_toolkit.Augmenter):
            wants_feedback = True

            def draw(self, count, height, width, generator):
                return {"x": torch.rand(count, 1, generator=generator)}

            def transform(self, images, draws):
                return images.clone()

        ssl_toolkit.register_augmenter(augment)(Learning)
    trainer = experiment(folder, **{"algo": "fixmatch", **changes}).trainer
    assert trainer.fit() == ""
    assert (trainer.batches.images.feature_views is not None) == cached
    assert trainer.probe is not None


def test_a_frozen_backbone_is_unchanged_to_the_last_bit(folder: Path) -> None:
    for algo in ("simple", "mixmatch"):  # on features, and on images
        trainer = experiment(folder, algo=algo, ema={"decay": 0.5, "warmup": False}).trainer
        before = {k: v.clone() for k, v in trainer.classifier.backbone.state_dict().items()}
        assert {group["name"] for group in trainer.optimizer.param_groups} == {"classifier"}
        trainer.fit()
        for model in (trainer.classifier, trainer.eval_model):
            after = model.backbone.state_dict()
            assert all(torch.equal(value, after[key]) for key, value in before.items()), algo
        head = trainer.classifier.head
        assert not torch.equal(head.predictor.weight, trainer.eval_model.head.predictor.weight)


def test_precision_and_accumulation_of_a_head(folder: Path) -> None:
    changes = {"precision": "bf16", "optimizer": {"accumulation_steps": 2}}
    trainer = experiment(folder, algo="simple", **changes).trainer
    assert trainer.fit() == ""
    assert trainer.images == 2 * 2 * (4 + 4)


def test_an_algorithm_that_scans_sees_features(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    supervised = registry.load("algorithms", "supervised")
    seen: list[tuple[int, ...]] = []

    @ssl_toolkit.register_algorithm("scans_features")
    class Scanning(supervised):
        scan_every = 1

        def scan(self, labeled, unlabeled, ctx):
            seen.extend(tuple(images.shape) for _, images, _ in labeled)
            seen.extend(tuple(ctx.teacher_forward(images).logits.shape) for _, images in unlabeled)

    trainer = experiment(folder, algo="scans_features", steps=1).trainer
    trainer.fit()
    pool = len(trainer.batches.images.unlabeled)
    assert seen == [(12, trainer.classifier.backbone.feature_dim), (pool, 3)]


def test_algorithms_that_need_all_features_refuse_a_stream(folder: Path) -> None:
    message = refusal("run", *flags(folder, algo="knn", stream_buffer=8))
    assert "--stream-buffer: --algo knn" in message


def test_a_killed_run_resumed_has_the_same_result(folder: Path, tmp_path: Path) -> None:
    """Also one that was killed before its first step, when only its first state was there."""
    whole = train(_tree(folder, tmp_path / "whole"))
    for step in (0, 1):
        place = tmp_path / f"killed{step}"
        _kill_after(step, folder, place)
        resumed = resume(place)
        assert resumed.summary.test == whole.summary.test
        assert resumed.summary.probe == whole.summary.probe
        ours, theirs = (
            torch.load(path / "checkpoints" / "last.pt", weights_only=True)
            for path in (place, tmp_path / "whole")
        )
        for part in ("model", "ema"):
            state, wanted = ours[part], theirs[part]
            state, wanted = state.get("module", state), wanted.get("module", wanted)
            assert all(torch.equal(value, wanted[key]) for key, value in state.items())


def _tree(folder: Path, output: Path) -> dict:
    return keys(folder, algo="simple", output=str(output), save_every=1, eval_every=1)


class _Killed(BaseException):
    pass


def _kill_after(step: int, folder: Path, output: Path) -> None:
    before, update = Trainer.start, Trainer._update

    def start(self: Trainer) -> None:
        before(self)
        if step == 0:
            raise _Killed

    def updated(self: Trainer) -> None:
        if self.step == step:
            raise _Killed
        update(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "start", start)
        patched.setattr(Trainer, "_update", updated)
        with pytest.raises(_Killed):
            train(_tree(folder, output))


def test_algorithms_that_fit_a_head_need_no_steps(folder: Path, tmp_path: Path) -> None:
    done = call("run", *flags(folder, algo="knn"), "--output", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    again = call("resume", tmp_path / "run", "--steps", 50)
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    assert np.load(tmp_path / "run" / "predictions.npz")["test_labels"].shape == (12,)


@pytest.mark.slow
def test_processes_that_share_a_run_leave_the_backbone_alone(folder: Path, tmp_path: Path) -> None:
    given = flags(folder, algo="simple", devices=2)
    done = call("run", *given, "--output", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["model"]
    wanted = experiment(folder, algo="simple").trainer.classifier.backbone.state_dict()
    assert all(torch.equal(value, state[f"backbone.{key}"]) for key, value in wanted.items())
