"""What a value in a file becomes, and that no file, tree or text does harm."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import refusal

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer, load_config, validate
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.errors import ConfigError, PluginError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a configuration file, each under a name of its own."""

    def put(text: str) -> Path:
        path = tmp_path / f"c{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return put


# --- what YAML makes of a value -----------------------------------------------------------------


def test_numbers_are_numbers(write: Write) -> None:
    file = write("lr: 1e-3\nsteps: 1_0\noptimizer: {weight_decay: .5, clip_norm: 5}\n")
    s = load_config([file]).settings
    assert (s.lr, s.optimizer.weight_decay, s.optimizer.clip_norm) == (1e-3, 0.5, 5.0)


def test_names_stay_text(write: Write) -> None:
    written = ["no", "yes", "on", "off", "001", "1e3", "0x10", "1_000", "12:30", "2020-01-01", "y"]
    file = write(f"classes: [{', '.join(written)}]\ndata: 007\n")
    s = load_config([file]).settings
    assert s.classes == written
    assert s.data == "007"


@pytest.mark.parametrize("text", ["ema: off", "ema: false", "ema: no", 'ema: "no"', "ema: OFF"])
def test_ema_off(text: str, write: Write) -> None:
    assert load_config([write(text)]).settings.ema is False


def test_ema_is_not_disabled_by_other_words(write: Write) -> None:
    for text in ("ema: true", "ema: on", "ema: maybe", "ema: 0", "ema: []"):
        with suppress(ConfigError):
            assert load_config([write(text)]).settings.ema == Settings().ema, text
    assert load_config([write("ema: off")], sets=["ema.decay=0.5"]).tree()["ema"]["decay"] == 0.5
    assert load_config([write("ema: {decay: 0.5}")], sets=["ema=off"]).settings.ema is False


@pytest.mark.parametrize(("written", "meant"), [("no", False), ("yes", True), ("false", False)])
def test_booleans_accept_the_usual_words(written: str, meant: bool, write: Write) -> None:
    assert load_config([write(f"pretrained: {written}")]).settings.pretrained is meant


def test_null_means_unset(write: Write) -> None:
    s = load_config([write("steps: 5\nlr: 0.1\n"), write("steps: null\nlr: ~\n")]).settings
    assert (s.steps, s.lr) == (None, None)


def test_a_duplicate_key_is_refused(write: Write) -> None:
    file = write("algo: fixmatch\nlr: 0.1\nsteps: 1\nlr: 0.0001\n")
    message = refusal("run", "--config", file)
    assert str(file) in message
    assert re.search(r"line 4: duplicate key 'lr' .*line 2", message)
    nested = write("fixmatch:\n  unlabeled_ratio: 1\n  unlabeled_ratio: 2\n")
    assert "line 3: duplicate key 'unlabeled_ratio'" in refusal("run", "--config", nested)


@pytest.mark.parametrize(
    "text",
    [
        "lr: !!python/object/apply:os.system ['touch pwned']",
        "lr: !!python/name:os.system",
        "!!python/object:builtins.object {}",
        "lr: !!float abc",
        "lr: !!int x",
        "lr: !!bool perhaps",
        "lr: !!timestamp soon",
        "classes: !!set {a, b}",
        "a: &a [1, *a]",
        "a: &a {b: *a}",
        "a: &a {x: 1}\nb: *a\n",
        "lr: 1\n---\nlr: 2\n",
        "lr: [1",
        "lr: 'x",
        "\tlr: 1",
        "lr: \x07",
        "? [a, b]\n: 1",
        "null: 1",
        "- lr\n- 1\n",
        "just text",
        "[" * 3000,
        "a: " + "{b: " * 3000,
    ],
)
def test_a_file_that_is_not_a_mapping_of_plain_values_is_refused(
    text: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(text)
    message = refusal("run", "--config", file, "--dry-run")
    assert message.startswith(f"error: {file}: ")
    assert not (tmp_path / "pwned").exists()


def test_deep_keys_are_refused(write: Write) -> None:
    assert "too deep" in refusal("run", "--set", ".".join("a" * 5000) + "=1", "--dry-run")
    file = write("a: " + "{b: " * 150 + "1" + "}" * 150)
    assert f"{file}: a: unknown key" in refusal("run", "--config", file, "--dry-run")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("data: caf\xe9\n".encode("latin-1"))
    assert "not UTF-8" in refusal("run", "--config", latin)
    for path in (tmp_path / "gone.yaml", tmp_path):
        assert str(path) in refusal("run", "--config", path)


def test_an_empty_file_and_one_from_windows(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing\n")
    windows = tmp_path / "windows.yaml"
    windows.write_bytes(b"\xef\xbb\xbflr: 0.5\r\nsteps: 7\r\n")
    s = load_config([empty, windows]).settings
    assert (s.lr, s.steps) == (0.5, 7)


# --- properties ---------------------------------------------------------------------------------

words = st.sampled_from(
    [*Settings.model_fields, "simple", "fixmatch", "algorithm", "momentum", "decay", "strong",
     "strong_options", "weak", "on", "off", "auto", "float", "null", "a[0]"]
) | st.text(max_size=8)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
trees = st.dictionaries(words, values, max_size=5)
quick = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@quick
@given(st.lists(trees, max_size=3))
def test_any_tree_is_a_configuration_or_a_documented_error(layers: list[dict[str, Any]]) -> None:
    with suppress(ConfigError, PluginError):
        tree = validate([Layer(f"layer {n}", tree) for n, tree in enumerate(layers)]).tree()
        assert validate([Layer("again", tree)]).tree() == tree


@quick
@given(st.text(max_size=60))
def test_any_text_is_yaml_or_a_documented_error(text: str) -> None:
    with suppress(ConfigError):
        assert yaml.parse(yaml.dump(yaml.parse(text))) == yaml.parse(text)
    with suppress(ConfigError, PluginError):
        assert load_config(sets=[text]).tree()


@quick
@given(st.lists(st.text(max_size=12), min_size=2))
def test_names_of_classes_survive_the_file(names: list[str]) -> None:
    assert yaml.parse(yaml.dump({"classes": names})) == {"classes": names}
