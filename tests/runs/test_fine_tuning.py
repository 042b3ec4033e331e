"""Training a pre-trained backbone, and when ``--algo auto`` chooses to."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from in_process import call
from PIL import Image

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer, RunConfig, validate
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.models import published
from ssl_toolkit.models.factory import size_for
from ssl_toolkit.models.heads import FeatureHead
from ssl_toolkit.models.probe import fit_probe
from ssl_toolkit.runs import auto, auto_trials
from ssl_toolkit.runs.auto_trials import Candidate, Trial

COLORS = {"blue": (40, 60, 200), "green": (50, 190, 60), "red": (210, 50, 40)}


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published weights of the right shape for every model."""

    def made(name: str, configuration: Any) -> tuple[Path, dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        return Path("weights"), timm.create_model(name, num_classes=0).state_dict()

    monkeypatch.setattr(published, "published_weights", made)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """24 images of 20 pixels in 3 classes that differ in color."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    for name, color in COLORS.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.clip(draw.normal(color, 40, (20, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    return tmp_path / "data"


def configured(**keys: Any) -> RunConfig:
    return validate([Layer("test", {"backbone": "test_resnet", "pretrained": True, **keys})])


def own(data: Path, **keys: Any) -> RunConfig:
    given = {"data": str(data), "labels_per_class": 2, "test_fraction": 0.25, "steps": 2}
    return configured(**given | keys)


def test_the_defaults_of_a_backbone_that_is_trained() -> None:
    for frozen in ("bn", "none", "layer1"):
        settings = configured(model={"freeze": frozen}).settings
        assert (settings.optimizer.backbone_lr, settings.lr, settings.steps) == (1e-3, 5e-3, 300)
        assert settings.schedule.name == "cosine"
        assert settings.model.head_init == "zero"
    again = validate([Layer("again", configured(model={"freeze": "bn"}).tree())])
    assert again == validate([Layer("again", again.tree())])


def test_user_settings_override_the_defaults_of_fine_tuning() -> None:
    config = configured(model={"freeze": "bn", "head_init": "probe"}, lr=0.1)
    assert (config.settings.lr, config.settings.model.head_init) == (0.1, "probe")
    assert config.settings.schedule.name == "cosine"


def test_the_papers_transfer_recipe_is_one_setting_away() -> None:
    settings = configured(model={"freeze": "none"}, optimizer={"backbone_lr": 2e-5}).settings
    assert (settings.lr, settings.steps, settings.schedule.name) == (None, None, "constant")


def test_the_defaults_of_a_frozen_backbone() -> None:
    """The same for every algorithm, but for its own options."""
    shared = []
    for algo in ("simple", "fixmatch", "supervised", "mixmatch", "linear_probe"):
        config = resolve_config(configured(algo=algo))[0]
        s = config.settings
        assert (s.steps, s.lr, s.eval_every, s.model.head_init) == (300, 0.002, 15, "probe")
        assert (s.schedule.name, s.schedule.cycles) == ("cosine", 0.5)
        shared.append(config.fingerprint())
        assert validate([Layer("again", config.tree())]).tree() == config.tree()
    assert len(set(shared)) == 1


def test_options_of_an_algorithm_for_pretrained_weights() -> None:
    def options(**keys: Any) -> tuple[float, int]:
        result: Any = configured(algo="fixmatch", **keys).algorithm
        return result.confidence_threshold, result.unlabeled_ratio

    assert options() == options(model={"freeze": "bn"}) == (0.8, 1)
    assert options(fixmatch={"confidence_threshold": 0.9}) == (0.9, 1)
    assert options(pretrained=False) == (0.95, 7)
    # Recipes of papers are theirs throughout.
    assert options(profile="reference") == (0.95, 7)
    assert options(model={"freeze": "none"}, optimizer={"backbone_lr": 2e-5}) == (0.95, 7)


def test_the_reference_profile_keeps_the_papers_transfer_recipe() -> None:
    config = resolve_config(configured(profile="reference"))[0].settings
    assert (config.steps, config.lr, config.schedule.name) == (1000, 0.002, "constant")
    assert (config.optimizer.backbone_lr, config.model.head_init) == (2e-5, "random")
    assert (config.model.freeze, config.optimizer.clip_norm) == ("none", 5)


def test_given_features_have_the_defaults_of_a_frozen_backbone(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    np.savez(path, features=np.zeros((4, 2), np.float32), labels=[0, 0, 1, 1])
    config = validate([Layer("test", {"data": str(path), "algo": "fixmatch"})])
    assert (config.settings.steps, config.settings.schedule.name) == (300, "cosine")
    options: Any = config.algorithm
    assert options.confidence_threshold == 0.8


@pytest.mark.usefixtures("weights")
def test_the_head_of_a_run_starts_calibrated(data: Path) -> None:
    trainer = prepare(own(data, algo="fixmatch", labels_per_class=4)).trainer
    trainer.start()
    images = trainer.batches.images
    assert images.features is not None
    head = trainer.classifier.head
    assert isinstance(head, FeatureHead)
    labeled = images.features.gather(images.labeled)
    probe = fit_probe(labeled, images.labels, 3, head.transform)
    assert probe.temperature != 1
    assert torch.equal(head(labeled), probe.calibrated_head()(labeled))


def test_small_images_get_a_small_size() -> None:
    sides = (16, 32, 50, 70, 112, 500)
    result = {t: [size_for("resnet50", side, trained=t) for side in sides] for t in (False, True)}
    assert result[False] == [128, 128, 128, 160, 224, 224]
    assert result[True] == [64, 64, 128, 160, 224, 224]
    # A position table is for one size.
    assert size_for("vit_tiny_patch16_224", 32, trained=True) == 224
    assert size_for("wrn_28_2", 32, trained=True) is None


def test_the_image_size_follows_the_images(data: Path) -> None:
    assert resolve_config(own(data))[0].settings.image_size == 128
    assert resolve_config(own(data, model={"freeze": "bn"}))[0].settings.image_size == 64
    assert resolve_config(own(data, image_size=96))[0].settings.image_size == 96
    assert resolve_config(own(data / "none"))[0].settings.image_size == 160  # told when it is read


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("head", ["zero", "probe"])
def test_a_trained_backbone_keeps_its_batchnorm_and_finite_weights(data: Path, head: str) -> None:
    config = own(data, algo="supervised", model={"freeze": "bn", "head_init": head})
    trainer = prepare(config).trainer
    assert isinstance(trainer.classifier.head, torch.nn.Linear if head == "zero" else FeatureHead)
    before = {name: value.clone() for name, value in trainer.classifier.state_dict().items()}
    # A feature of 0, as after a ReLU, where the slope of a root is infinite.
    trainer.classifier.backbone.register_forward_hook(lambda module, given, out: out.relu() * 1.0)
    trainer.fit()
    after = trainer.classifier.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("conv" in name for name in moved)
    assert not any("running_" in name for name in moved)


@pytest.mark.usefixtures("weights")
def test_a_bounded_graph_computes_only_the_features_it_uses(data: Path) -> None:
    config = own(data, algo="graph_probe", graph_probe={"most_unlabeled": 3})
    trainer = prepare(config).trainer
    trainer.start()
    images = trainer.batches.images
    assert images.features is not None
    known = images.features.images.abs().sum(dim=1) > 0
    assert len(images.unlabeled) == len(images.hidden) == 3
    assert int(known.sum()) == 6 + 3 + 6  # labels, drawn images, test images
    assert trainer.fit() == ""


def trial(name: str, hits: list[int], tested: list[int], overrides: dict[str, Any]) -> Trial:
    result = Candidate(name=name, algorithm=name, overrides=overrides)
    return Trial(result, np.array(tested, dtype=bool), np.array(hits, dtype=bool), 1.0)


def fixed(monkeypatch: pytest.MonkeyPatch, right: int) -> list[str]:
    """Frozen candidates that predict the first `right` labels, tuned ones that predict all."""
    tried = []

    def frozen(config: RunConfig, candidate: Candidate, *rest: Any) -> Trial:
        hits = np.arange(6) < right
        return Trial(candidate, np.ones(6, dtype=bool), hits, 1.0)

    def tuned(config: RunConfig, candidate: Candidate, *rest: Any) -> Trial:
        tried.append(candidate.name)
        assert config.settings.model.freeze == "bn"
        return Trial(candidate, np.ones(6, dtype=bool), np.ones(6, dtype=bool), 1.0)

    monkeypatch.setattr(auto, "feature_trial", frozen)
    monkeypatch.setattr(auto, "fine_tuning_trial", tuned)
    return tried


@pytest.mark.usefixtures("weights")
def test_fine_tuning_is_chosen_where_frozen_features_fail(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed(monkeypatch, right=1)
    out = tmp_path / "run"
    typed = ("run", "--data", data, "--labels-per-class", 2, "--test-fraction", 0.25, "--algo")
    typed += ("auto", "--backbone", "test_resnet", "--pretrained", "--steps", 2, "--output", out)
    done = call(*typed)
    assert done.returncode == 0, done.stderr
    assert "auto: uses supervised (fine-tuned): its accuracy on 6 held-out labels is 100.0 %, " in (
        done.stdout
    )
    config = yaml.read(out / "config.yaml")
    assert (config["algo"], config["model"]["freeze"]) == ("supervised", "bn")
    assert (config["steps"], float(config["lr"])) == ("2", 5e-3)
    result = json.loads((out / "record.json").read_text())["auto"]
    assert result["name"] == "supervised (fine-tuned)"
    assert result["overrides"] == {"model": {"freeze": "bn"}, "supervised": {"strong": True}}
    assert config["supervised"]["strong"] == "true"
    again = call(*typed, "--continue")
    assert again.returncode == 0, again.stderr
    assert json.loads((out / "record.json").read_text())["auto"] == result


@pytest.mark.usefixtures("weights")
def test_good_frozen_features_skip_fine_tuning(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = fixed(monkeypatch, right=5)
    config, choice = auto.choose(own(data, algo="auto"))
    assert (choice.name, config.settings.algo) == ("graph_probe", "graph_probe")
    assert not tried


@pytest.mark.usefixtures("weights")
def test_setting_freeze_skips_fine_tuning(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = fixed(monkeypatch, right=0)
    config, _ = auto.choose(own(data, algo="auto", model={"freeze": "backbone"}))
    assert config.settings.model.freeze == "backbone"
    assert not tried


@pytest.mark.usefixtures("weights")
def test_a_tuned_candidate_is_trained_without_the_held_out_labels(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "GOOD_ENOUGH", 2.0)
    make_trainer = auto_trials._trainer
    seen = []

    def watched(config: RunConfig, experiment: Any, split: Any) -> Any:
        trainer = make_trainer(config, experiment, split)
        everything = set(experiment.split.labeled.tolist())
        held_out = everything - set(split.labeled.tolist())
        assert 0 < len(held_out) < len(everything)
        assert set(split.unlabeled[-len(held_out) :].tolist()) == held_out
        assert len(trainer.batches.images.labels) == len(split.labeled)
        assert not len(trainer.validation[0])
        seen.append(config.settings.algo)
        return trainer

    monkeypatch.setattr(auto_trials, "_trainer", watched)
    _, choice = auto.choose(own(data, algo="auto"))
    tuned = [trial for trial in choice.trials if trial.trains_backbone]
    assert seen[0] == "supervised"
    assert [trial.algorithm for trial in tuned] == ["supervised", "fixmatch", "simple"]
    assert all(trial.count >= 3 for trial in tuned)  # a fold of two


@pytest.mark.usefixtures("weights")
def test_validation_images_decide_if_as_many_as_labels(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "GOOD_ENOUGH", 2.0)
    config = own(data, algo="auto", val_fraction=0.34, steps=2)
    _, choice = auto.choose(config)
    assert choice.folds == 0
    assert [trial.trains_backbone for trial in choice.trials] == [False] * 3 + [True] * 3
    assert {trial.images for trial in choice.trials} == {"validation images"}
    for trial in choice.trials:  # as the run itself would find
        trainer = prepare(auto.with_candidate(config, trial)).trainer
        trainer.fit()
        count = len(trainer.validation[0])
        assert count >= len(trainer.batches.images.labels)
        assert trial.count == count
        assert trainer.evaluations[-1][1] == trial.accuracy
    assert auto.describe(choice)[0].startswith(f"auto: {count} validation images: graph_probe ")


@pytest.mark.usefixtures("weights")
def test_candidates_that_do_not_fit_the_time_are_reported(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "GOOD_ENOUGH", 2.0)
    monkeypatch.setattr(auto_trials, "TRIAL_STEPS", 1)
    _, choice = auto.choose(own(data, algo="auto", steps=3), budget=0.0)
    assert choice.skipped == tuple(
        f"{name} (fine-tuned)" for name in ("supervised", "fixmatch", "simple")
    )
    assert "a larger --minutes allows it" in auto.describe(choice)[1]


def test_the_first_step_prints_no_time_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([50.0, 51.0, 52.0, 53.0])  # what step 1 imports took 50 seconds
    monkeypatch.setattr(auto_trials, "cpu_seconds", lambda: next(clock))
    monkeypatch.setattr(auto_trials, "TRIAL_STEPS", 2)
    trainer = SimpleNamespace(step=0, steps=100)
    late = auto_trials._time_limit(trainer, limit=149.5)  # type: ignore[arg-type]
    answers = []
    for trainer.step in (1, 2, 3):
        answers.append(late())
    assert answers == ["", "", ""]  # 97 steps at a second each end at 149
    trainer.steps += 1
    trainer.step = 4
    assert late() == "no time"


def test_a_lead_must_be_significant_on_the_labels_of_both() -> None:
    frozen = trial("frozen", [0, 0, 0, 0, 0, 1, 1, 1], [1] * 8, {})
    ahead = trial("tuned", [1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0], {"steps": 1})
    assert ahead.p_value(frozen) == 1 / 32
    short = trial("tuned", [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0], {"steps": 1})
    assert short.p_value(frozen) == 1 / 16
    assert short.accuracy() == 1.0
    assert frozen.accuracy() == 3 / 8


@pytest.mark.usefixtures("weights")
def test_more_folds_are_tried_while_the_lead_is_undecided(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own(data, algo="auto", labels_per_class=4)
    candidate = auto.candidates(pretrained=True)[-3]
    experiment = prepare(auto.with_candidate(config, auto.candidates(pretrained=True)[0]))
    folds = list(auto._folds(experiment))
    labels = experiment.table.labels[experiment.split.labeled]
    best = trial("frozen", [0] * 12, [1] * 12, {})
    tuned = auto.with_candidate(config, candidate)

    evaluate = Trainer.predict

    def tested(shift: int) -> int:
        answers = iter(torch.eye(3)[(labels[held_out] + shift) % 3] for _, held_out in folds)

        def predict(self: Trainer, indices: torch.Tensor, *, alone: bool = False) -> torch.Tensor:
            return next(answers) if alone else evaluate(self, indices)

        monkeypatch.setattr(Trainer, "predict", predict)
        result = auto_trials.fine_tuning_trial(
            tuned, candidate, experiment, folds, best, limit=float("inf")
        )
        assert result is not None
        return int(result.tested.sum())

    assert tested(shift=0) == 6  # 3 of 3 are chance in one case of eight, 6 of 6 in one of 64
    assert tested(shift=1) == 3  # no better on the first fold
