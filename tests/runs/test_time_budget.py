"""``--minutes``: what is chosen, that it is kept to, and that it is chosen once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import kill_resume
import numpy as np
import pytest
from in_process import call, refusal
from PIL import Image
from run_files import strict_json, summary

from ssl_toolkit import ConfigError, ModelError
from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.config.defaults import HEAD_TRAINING
from ssl_toolkit.config.loading import Layer, RunConfig, validate
from ssl_toolkit.console import Console
from ssl_toolkit.data.cache import cache_folder
from ssl_toolkit.data.load import load_table
from ssl_toolkit.engine.costs import Costs
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.splitting import split_of
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.multirun.measure import measure
from ssl_toolkit.runs import auto, time_budget
from ssl_toolkit.runs.record import AutoChoice, Candidate, MinutesChoice
from ssl_toolkit.runs.speeds import Speeds, measure_speeds
from ssl_toolkit.runs.time_budget import Fitting

DIGITS = ("run", "--dataset", "digits", "--algo", "supervised", "--backbone", "timm:test_resnet",
          "--image-size", "32", "--batch-size", "8", "--device", "cpu")  # fmt: skip


STEPS = HEAD_TRAINING["steps"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images of training, none for validation, 12 of test."""
    made = kill_resume.make_images(tmp_path_factory.mktemp("minutes"))
    for path in made.rglob("*.png"):  # so large that they don't bound the size
        with Image.open(path) as image:
            image.resize((256, 256)).save(path)
    return made


class Device:
    """A device of known speed in place of measurements; remembers the sizes it was asked for."""

    def __init__(self, *, image: float = 0.0, step: float, sizes: tuple[int, ...] = ()) -> None:
        self.image = image
        self.step = step
        self.sizes = sizes
        self.asked: list[int] = []

    def __call__(self, config: RunConfig, *_: object, ready: bool) -> Speeds:
        size = config.settings.image_size
        assert size is not None
        if self.sizes and size not in self.sizes:
            raise ModelError(f"it can't take {size}")
        self.asked.append(size)
        area = (size / 224) ** 2
        image = 0.0 if ready else area * self.image
        step = self.step if self.image else area * self.step
        return Speeds(0.0, image, 2 * image, 0, 0.0, Costs(step, 0.0, 0.0, 0), self.image > 0)


def configured(data: Path, **keys: Any) -> RunConfig:
    given = {"data": str(data), "algo": "fixmatch", "backbone": "timm:resnet50", "device": "cpu"}
    return validate([Layer("test", given | {"pretrained": True, "minutes": 1} | keys)])


def fitted(
    monkeypatch: pytest.MonkeyPatch, config: RunConfig, device: Device, seconds: float
) -> tuple[MinutesChoice, tuple[int, float] | None]:
    monkeypatch.setattr(time_budget, "measure_speeds", device)
    return Fitting(config).fit(config, time.monotonic() + seconds)


# --- what fits -------------------------------------------------------------------------------


def test_with_enough_time_the_defaults_are_kept(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(image=0.01, step=0.01)
    fit, larger = fitted(monkeypatch, configured(data), device, 10_000)
    assert (fit.image_size, fit.feature_views, fit.steps, larger) == (224, 8, STEPS, None)
    assert len(device.asked) == 2  # the smallest, and the one that it lets hope for


def test_size_has_priority_over_views_and_views_over_spare_time(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At 224 px 52 images and 40 in four pairs of views take 52 + 320 s; at 192 px 0.73 of that.
    device = Device(image=1.0, step=0.01)
    config = configured(data)
    fit, larger = fitted(monkeypatch, config, device, 300)
    assert (fit.image_size, fit.feature_views, fit.steps) == (192, 4, STEPS)
    assert larger is not None
    assert larger[0] == 224
    assert larger[1] == pytest.approx(52 + 320 + 10, rel=0.02)
    assert fit.expected_seconds < 300
    # A little more than 192 px needs becomes views, not more steps.
    fit, _ = fitted(monkeypatch, config, device, 350)
    assert (fit.image_size, fit.feature_views, fit.steps) == (192, 5, STEPS)
    assert fit.expected_seconds < 350


def test_steps_on_images_fit_at_the_largest_size_that_has_half_of_them(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(step=1.0)
    config = configured(data, model={"freeze": "none"})
    fit, _ = fitted(monkeypatch, config, device, 180)
    assert fit.image_size == 224
    assert fit.feature_views is None
    assert 170 <= (fit.steps or 0) <= 180
    fit, larger = fitted(monkeypatch, config, device, 90)
    # 160 px: 0.51 s a step, so 176 steps; 192 px would have 122.
    assert (fit.image_size, larger) == (160, (192, pytest.approx(220, rel=0.01)))
    assert 170 <= (fit.steps or 0) <= 176
    # Where even the smallest has less, that is taken.
    fit, _ = fitted(monkeypatch, config, device, 20)
    assert fit.image_size == 96
    assert 90 <= (fit.steps or 0) <= 109


def test_given_values_are_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(step=1.0)
    whole = {"model": {"freeze": "none"}}
    fit, _ = fitted(monkeypatch, configured(data, steps=100, **whole), device, 60)
    assert (fit.image_size, fit.steps) == (160, 100)
    fit, _ = fitted(monkeypatch, configured(data, image_size=224, **whole), device, 60)
    assert fit.image_size == 224
    assert 50 <= (fit.steps or 0) <= 60
    views = Device(image=0.01, step=0.001)
    fit, _ = fitted(monkeypatch, configured(data, model={"feature_views": 3}), views, 1000)
    assert fit.feature_views == 3  # those are the most
    with pytest.raises(ConfigError, match=r"at 224 px 100 steps .* give at least --minutes"):
        fitted(monkeypatch, configured(data, image_size=224, steps=100, **whole), device, 60)


def test_steps_of_pretrained_defaults_are_reduced_to_fit_the_time(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for freeze in ("backbone", "bn"):
        config = configured(data, image_size=224, model={"freeze": freeze})
        assert config.settings.steps == 300
        fit, _ = fitted(monkeypatch, config, Device(step=1.0), 60)
        assert 50 <= (fit.steps or 0) <= 60


def test_too_little_time_is_refused_with_the_time_needed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(image=1.0, step=0.01)
    config = configured(data, minutes=0.1)
    with pytest.raises(ConfigError, match=r"--minutes 0\.1: at 96 px") as error:
        fitted(monkeypatch, config, device, 0.9 * 6)
    needed = float(str(error.value).partition("at least --minutes ")[2].split(",")[0])
    fit, _ = fitted(monkeypatch, configured(data, minutes=needed), device, 0.9 * 60 * needed)
    assert fit.enough


def test_sizes_that_the_backbone_rejects_are_skipped(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(step=1.0, sizes=(224, 128))
    fit, larger = fitted(monkeypatch, configured(data, model={"freeze": "none"}), device, 100)
    assert (fit.image_size, device.asked[0]) == (128, 128)
    assert larger is not None
    only = Device(step=1.0, sizes=(224,))
    fit, _ = fitted(monkeypatch, configured(data, model={"freeze": "none"}), only, 30)
    assert fit.image_size == 224


# --- what is measured ------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", ["backbone", "none"])
def test_speeds_are_measured_on_noise_and_leave_nothing(
    freeze: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    keys = {"pretrained": False, "backbone": "timm:test_resnet", "image_size": 32, "batch_size": 4}
    config = resolve_config(configured(data, model={"freeze": freeze}, **keys))[0]
    table, split, _ = split_of(load_table(config.settings, lazily=True), config.settings)
    result = measure_speeds(config, table, split, ready=False)
    assert result.costs is not None
    assert result.costs.step > 0
    assert result.on_features == (freeze == "backbone")
    assert (result.plain > 0) == (result.view > 0) == (freeze == "backbone")
    assert result.read > 0
    assert not list(cache_folder("features").glob("*.npy"))
    assert not list((tmp_path / "cache").rglob("*.partial"))
    again = measure_speeds(config, table, split, ready=True)
    assert (again.read, again.plain, again.view) == (0, 0, 0)
    # Twice the side is four times the work, but for steps on features.
    scaled = result.scaled(4)
    assert scaled.costs is not None
    factor = 1 if result.on_features else 4
    assert scaled.costs.step == pytest.approx(factor * result.costs.step)
    assert scaled.plain == pytest.approx(4 * result.plain)


@pytest.mark.parametrize("of", ["features", "pseudo labels"])
def test_what_the_data_is_and_what_is_labeled_later_do_not_prevent_it(
    of: str, data: Path, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"pretrained": False, "batch_size": 4, "image_size": 32}
    if of == "features":
        path = tmp_path / "features.npz"
        values = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
        np.savez(path, features=values, labels=np.arange(40) % 2)
        keys = {"pretrained": False, "backbone": None, "labels_per_class": 2}
    else:
        path, keys["backbone"] = data, "timm:test_resnet"
        key = next(path for path in (data / "unlabeled").iterdir()).relative_to(data)
        label = next((data / "labeled").iterdir()).name
        (tmp_path / "pseudo.csv").write_text(f"path,label\n{key},{label}\n")
        keys["pseudo_labels"] = str(tmp_path / "pseudo.csv")
    config = resolve_config(configured(path, **keys))[0]
    table, split, _ = split_of(load_table(config.settings, lazily=True), config.settings)
    result = measure_speeds(config, table, split, ready=False)
    assert result.costs is not None
    assert result.costs.step > 0


# --- runs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_reuses_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    command = (*DIGITS, "--minutes", "0.2", "--output", run)
    began = time.monotonic()
    ended = call(*command, "--set", "eval_every=1000", "--time-limit", "1e-9")
    assert ended.returncode == 0, ended.stderr
    config = yaml.read(run / "config.yaml")
    chosen = strict_json((run / "record.json").read_text())["minutes"]
    assert config["minutes"] is None
    assert int(config["steps"]) == chosen["steps"] <= 1000
    assert chosen["minutes"] == 0.2
    line = f"--minutes 0.2: 32 px, {chosen['steps']:,} steps (measured "
    assert line in ended.stdout
    assert line in (run / "log.txt").read_text()
    assert time.monotonic() - began < 60

    def refused(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(time_budget, "measure_speeds", refused)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("time_limit: 1.0e-09", "time_limit: null"))
    again = call(*command, "--set", "eval_every=1000", "--continue")
    assert again.returncode == 0, again.stderr
    assert summary(run)["status"] == "completed"
    assert summary(run)["steps"] == chosen["steps"]
    assert call("check-run", run).returncode == 0
    changed = ("--minutes", "9", "--set", "eval_every=1000", "--continue")
    other = (*DIGITS, *changed, "--output", run)
    assert refusal(*other).endswith("configuration: minutes is 0.2 there, 9 here\n")


def test_auto_has_half_of_the_time(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    fixmatch = Candidate(name="fixmatch", algorithm="fixmatch")

    def chosen(
        config: RunConfig, announce: object, progress: object, budget: float
    ) -> tuple[RunConfig, dict[str, Any]]:
        given.append(budget)
        assert config.settings.image_size == 192
        return auto.with_candidate(config, fixmatch), AutoChoice.model_construct(
            name="fixmatch", algorithm="fixmatch", trials=(1,)
        )

    monkeypatch.setattr(time_budget, "resolve_auto", chosen)
    monkeypatch.setattr(
        time_budget, "without_auto", lambda config: auto.with_candidate(config, fixmatch)
    )
    device = Device(image=1.0, step=0.01)
    monkeypatch.setattr(time_budget, "measure_speeds", device)
    # Half of nine tenths of 667 s is what 300 s are in a test above.
    config = configured(data, algo="auto", minutes=667 / 60)
    config, choice, minutes = time_budget.resolve_minutes(config, Console(quiet=True))
    assert 320 < given[0] <= 667 / 2
    settings = config.settings
    assert (settings.image_size, settings.steps, settings.minutes) == (192, STEPS, None)
    assert settings.model.feature_views == 4  # as the features that are there
    assert choice.algorithm == "fixmatch"
    assert minutes.image_seconds == pytest.approx((192 / 224) ** 2)


def test_auto_keeps_the_image_size_that_is_set(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixmatch = Candidate(name="fixmatch", algorithm="fixmatch")
    choice = AutoChoice.model_construct(name="fixmatch", algorithm="fixmatch", trials=())
    monkeypatch.setattr(
        time_budget,
        "resolve_auto",
        lambda config, *_: (auto.with_candidate(config, fixmatch), choice),
    )
    monkeypatch.setattr(time_budget, "measure_speeds", Device(image=0.001, step=0.01))
    config = configured(data, algo="auto", minutes=60, image_size=96)
    config, _, minutes = time_budget.resolve_minutes(config, Console(quiet=True))
    assert config.settings.image_size == minutes.image_size == 96


# --- where it is refused ---------------------------------------------------------------------


def test_a_comparison_names_its_own_budget() -> None:
    with pytest.raises(ConfigError, match="use --budget minutes=5") as error:
        load_comparison([], {"algos": "supervised,fixmatch", "minutes": "5"})
    assert len(error.value.messages) == 1
    message = refusal("compare", "--algos", "supervised,fixmatch", "--minutes", "5")
    assert len(message.splitlines()) == 1


def test_the_budget_of_a_comparison_measures_steps_on_features(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the runs will do them: a frozen backbone is not run in its steps."""
    measured = Trainer.measure
    monkeypatch.setattr(
        Trainer,
        "measure",
        lambda trainer: measured(trainer, 1, 1) and trainer.batches.images.features,
    )
    keys = {"pretrained": False, "backbone": "timm:test_resnet", "image_size": 32, "minutes": None}
    for freeze in ("backbone", "none"):
        config = configured(data, model={"freeze": freeze}, **keys)
        assert (measure(config) is not None) == (freeze == "backbone")


def test_several_processes_are_refused(data: Path) -> None:
    config = configured(data)
    several = config.settings.model_copy(update={"devices": 2})
    with pytest.raises(ConfigError, match=r"--minutes 1: .* set --steps"):
        time_budget.resolve_minutes(replace(config, settings=several), Console(quiet=True))


def test_a_dry_run_lists_unresolved_settings(capsys: pytest.CaptureFixture[str]) -> None:
    ended = call(*DIGITS, "--minutes", "5", "--dry-run")
    assert "minutes: 5.0\n" in ended.stdout
    assert "at the start" in ended.stderr
    assert "--minutes" not in call(*DIGITS, "--dry-run").stderr
