"""``~`` is the home folder, whoever wrote it; never a folder of that name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from in_process import call, refusal
from PIL import Image
from tiny_images import put

from ssl_toolkit import load_model, train
from ssl_toolkit.commands import _at_home
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.cache import VARIABLE, cache_folder
from ssl_toolkit.data.sets.local_files import ROOT_VARIABLE, default_root
from ssl_toolkit.runs.resume import resume

DIGITS = {"algo": "supervised", "steps": 2, "eval_every": 1, "device": "cpu", "batch_size": 8}
PLACES = ("data", "root", "weights", "labels", "split", "output")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.mark.parametrize("key", PLACES)
def test_every_location_of_a_configuration(home: Path, key: str) -> None:
    Path("c.yaml").write_text(f"{key}: ~/x\n")
    for config in (
        load_config([Path("c.yaml")]),
        load_config([], {key: "~/x"}),
        load_config([], {}, [f"{key}=~/x"]),
    ):
        assert getattr(config.settings, key) == str(home / "x")
        assert config.tree()[key] == str(home / "x")
    for given in ("./~/x", "a/~/b", "x~", "fold:0"):
        assert getattr(load_config([], {key: given}).settings, key) == given
    assert "must not be empty" in refusal("run", "--dry-run", "--set", f"{key}=''")


def test_values_that_shells_do_not_change(home: Path) -> None:
    assert _at_home("--output=~/x") == f"--output={home}/x"
    assert _at_home("~/x") == f"{home}/x"
    assert _at_home("~") == str(home)
    for argument in ("--name=a~b", "--set=data=~/x", "x~", "a/~", "--", "-1", "~~"):
        assert _at_home(argument) == argument


def test_runs_from_every_directory_are_in_the_home_folder(home: Path) -> None:
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in DIGITS.items()]
    assert call("run", *flags, "--output=~/flag").returncode == 0
    train(DIGITS | {"output": "~/python"})
    shutil.copy(home / "flag" / "config.yaml", home / "c.yaml")
    assert call("run", "--config=~/c.yaml", "--output", "~/quoted").returncode == 0
    train("~/c.yaml", overwrite=True)
    assert {*home.iterdir()} == {home / n for n in ("flag", "python", "quoted", "c.yaml")}
    assert [*Path().iterdir()] == []

    Image.new("RGB", (8, 8)).save(home / "1.png")
    model = load_model("~/flag", "cpu")
    assert model.predict("~/1.png").shape == (1, 10)
    assert resume(Path("~/flag")).folder == home / "flag"
    assert call("predict", "~/flag", "~/1.png", "--output=~/p.csv").returncode == 0
    assert call("evaluate", "~/flag", "--confusion=~/c.png").returncode == 0
    assert call("report", "~/flag", "--output=~/r.html").returncode == 0
    for name in ("p.csv", "c.png", "r.html"):
        assert (home / name).exists()
    assert [*Path().iterdir()] == []


def test_a_comparison_and_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = load_comparison(flags={"algos": "supervised", "output": "~/c", "data": "~/d"})
    assert comparison.settings.output == str(home / "c")
    assert comparison.rows[0].config.settings.data == str(home / "d")
    monkeypatch.setenv(ROOT_VARIABLE, "~/sets")
    monkeypatch.setenv(VARIABLE, "~/cache")
    assert default_root() == home / "sets"
    assert cache_folder("images") == home / "cache" / "images"


def test_a_folder_of_that_name_can_still_be_selected(home: Path) -> None:
    train(DIGITS | {"output": "./~/run"})
    assert load_model("./~/run", "cpu").image_size == 8
    put(Path("./~/x/1.png"))
    assert call("predict", "./~/run", "./~/x").returncode == 0
