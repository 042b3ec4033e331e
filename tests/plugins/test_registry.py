"""Names to plugins: faults stay behind the fence, clashes are told, built-ins win."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import call, refusal

from ssl_toolkit import registry
from ssl_toolkit.errors import PluginError

Install = Callable[..., Path]
PLUGIN = """
from ssl_toolkit import Algorithm, Loss, StepOutput, Views

class Algo(Algorithm):
    "From {module}."

    def views(self):
        return Views()

    def step(self, batch, ctx):
        return StepOutput({{"supervised": Loss(ctx.model(batch.labeled_weak[0]).sum())}})
"""
FAULTS = {
    "import_error": (
        "import json\nimport not_there_at_all",
        "Algo",
        "import_error_pkg.py:2)",
    ),
    "leaves": ("raise SystemExit('no license')", "Algo", "SystemExit: no license"),
    "syntax_error": ("class Algo(:", "Algo", "SyntaxError"),
    "two_lines": ("raise RuntimeError('one\\ntwo')", "Algo", "RuntimeError: one two"),
    "can_not_say": (
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd",
        "Algo",
        "Odd, which can't say why",
    ),
    "odd_import": ("raise ImportError('no', name=3)", "Algo", "ImportError: no"),
    "garbled": (r"raise ValueError('\ud800\x1b[2J')", "Algo", r"ValueError: \ud800\x1b[2J"),
    "no_repr": (
        "class Odd(type):\n    def __repr__(cls): raise ValueError('no text')\n"
        "class Algo(metaclass=Odd): pass",
        "Algo",
        "ValueError: no text",
    ),
    "missing": ("x = 1", "Algo", "has no attribute 'Algo'"),
    "wrong_class": ("class Algo: pass", "Algo", "is not a subclass of ssl_toolkit.Algorithm"),
    "not_a_class": ("Algo = 3", "Algo", "3 is not a subclass of ssl_toolkit.Algorithm"),
    "other_kind": (
        "from ssl_toolkit import Augmenter as Algo",
        "Algo",
        "is not a subclass of ssl_toolkit.Algorithm",
    ),
    "no_object": ("x = 1", "not an object reference", "not an object reference"),
    "unfinished": (
        "from ssl_toolkit import Algorithm\nclass Algo(Algorithm):\n    def views(self): pass\n",
        "Algo",
        "Algo is abstract, it does not implement step",
    ),
    "foreign_options": (
        PLUGIN.format(module="x") + "    class Config: pass\n",
        "Algo",
        "Config is not a subclass of ssl_toolkit.Options",
    ),
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution with one entry point on the path, as pip would have left it."""
    before = set(sys.modules)

    def put(
        distribution: str,
        name: str,
        source: str = "",
        attribute: str = "Algo",
        group: str = "algorithms",
    ) -> Path:
        module = distribution.replace("-", "_")
        folder = tmp_path / module
        metadata = folder / f"{module}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source or PLUGIN.format(module=module))
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(
            f"[ssl_toolkit.{group}]\n{name} = {module}:{attribute}\n"
        )
        monkeypatch.syspath_prepend(folder)
        return folder

    yield put
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and module.endswith("_pkg"):
            del sys.modules[module]


@pytest.fixture(autouse=True)
def no_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_plugin_is_reported_with_its_reason(fault: str, install: Install) -> None:
    source, attribute, reason = FAULTS[fault]
    install(f"{fault.replace('_', '-')}-pkg", fault, source, attribute)

    listed = call("list", "algorithms", "--verbose")
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f"  {fault} ")]
    assert (listed.returncode, listed.stderr) == (0, "")
    assert f"{fault.replace('_', '-')}-pkg 1.0  broken" in line
    assert reason in line

    message = refusal("run", "--algo", fault, "--dry-run")
    assert len(message.splitlines()) == 1
    assert reason in message
    assert f"{fault.replace('_', '-')}-pkg" in message
    assert "unknown" not in message

    shown = json.loads(call("show", fault, "--json").stdout)
    assert shown[0]["state"] == "broken"
    assert reason in shown[0]["reason"]


def test_a_broken_plugin_does_not_affect_others(install: Install) -> None:
    install("leaves-pkg", "leaves", "raise SystemExit(3)")
    install("wrong-pkg", "wrong", "1 / 0", group="augmenters")
    assert call("run", "--algo", "fixmatch", "--dry-run").returncode == 0
    assert call("show", "simple").returncode == 0
    result = call("doctor")
    assert result.returncode == 0
    assert "2 broken" in result.stdout
    assert "wrong-pkg: ZeroDivisionError" in result.stdout


def test_listing_imports_no_plugin(install: Install) -> None:
    install("marker-pkg", "marker", "raise AssertionError('imported')")
    listed = call("list", "--json")
    (row,) = [row for row in json.loads(listed.stdout) if row["name"] == "marker"]
    assert row == {
        "group": "algorithms",
        "name": "marker",
        "distribution": "marker-pkg",
        "version": "1.0",
        "state": "unloaded",
        "reason": "",
    }
    assert "marker_pkg" not in sys.modules


@pytest.mark.parametrize("damage", ["METADATA", "entry_points.txt"])
def test_damaged_metadata_is_skipped(damage: str, install: Install) -> None:
    folder = install("damaged-pkg", "damaged")
    (folder / "damaged_pkg-1.0.dist-info" / damage).write_bytes(b"\xff\xfe[ssl_toolkit.x\n=")
    assert call("list").returncode == 0
    assert call("run", "--dry-run").returncode == 0
    assert call("doctor").returncode == 0


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("[ssl_toolkit.algorithm]", "'ssl_toolkit.algorithm' (did you mean 'ssl_toolkit.algor"),
        ("[ssl-toolkit.augmenters]", "'ssl-toolkit.augmenters' (did you mean 'ssl_toolkit.augm"),
        ("[ssl_toolkit]", "'ssl_toolkit'; known: ssl_toolkit.algorithms, ssl_toolkit.addons, "),
        ("[ssl_toolkit_other.hooks]", ""),
        ("[console_scripts]\nssl_toolkit = x:y\n[pytest11]", ""),
    ],
)
def test_an_unknown_group_of_entry_points_is_reported(
    group: str, message: str, install: Install
) -> None:
    folder = install("stray-pkg", "stray")
    points = folder / "stray_pkg-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"{group}\nstray = stray_pkg:Algo\n")
    warned = call("list").stderr
    result = [line for line in call("doctor").stdout.splitlines() if line.startswith("unread:")]
    if message:
        assert warned.startswith("warning: stray-pkg declares entry points in the unknown group ")
        assert message in warned
        (line,) = result
        assert message in line
    else:
        assert (warned, result) == ("", [])


def test_a_third_party_plugin_works_and_is_recorded_by_its_distribution(install: Install) -> None:
    install("fine-pkg", "fine")
    assert "algo: fine\n" in call("run", "--algo", "fine", "--dry-run").stdout
    assert registry.find("algorithms", "fine").distribution == "fine-pkg"
    assert registry.load("algorithms", "Fine_Pkg:fine").__doc__ == "From fine_pkg."


def test_a_name_with_a_colon_is_found(install: Install) -> None:
    install("colon-pkg", "first:second")
    for name in ("first:second", "Colon_Pkg:first:second"):
        assert registry.find("algorithms", name).distribution == "colon-pkg"
        assert registry.has("algorithms", name)
    assert not registry.has("algorithms", "second")
    assert not registry.has("algorithms", "other-pkg:first:second")


@pytest.mark.parametrize("key", ["lr", "seed", "ema"])
def test_a_plugin_named_like_a_key_has_no_side_effects(key: str, install: Install) -> None:
    install("key-pkg", key)
    sets = ["--lr", "0.1", "--seed", "3", "--set", "ema=off"]
    assert call("run", *sets, "--set", "algorithm.temperature=1", "--dry-run").returncode == 0
    assert "key-pkg" in refusal("run", "--algo", key, *sets, "--dry-run")


# --- unknown names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "name", "near"),
    [
        ("--algo", "fixmach", "fixmatch"),
        ("--algo", "FixMatch", "fixmatch"),
        ("--algo", "fix-match", "fixmatch"),
        ("--algo", "MixMatch_Enhanced", "mixmatch_enhanced"),
        ("--backbone", "WRN-28-2", "wrn_28_2"),
        ("--backbone", "timm:ResNet-50", "resnet50"),
        ("--dataset", "CIFAR-10", "cifar10"),
        ("--dataset", "torchvision:fashion_mnist", "FashionMNIST"),
        ("--loggers", "TensorBoard", "tensorboard"),
        ("--dataset", "digit", "digits"),
        ("--set=augment.strong", "randaugmnt", "randaugment"),
    ],
)
def test_an_unknown_name_gets_a_close_match(flag: str, name: str, near: str) -> None:
    arguments = [f"{flag.partition('=')[2]}={name}"] if "=" in flag else [name]
    message = refusal("run", flag.partition("=")[0], *arguments)
    assert f"{name.rpartition(':')[2]}" in message
    assert f" (did you mean {near!r}" in message


def test_a_name_that_differs_only_in_spelling_is_the_only_suggestion() -> None:
    known = ["fixmatch", "mixmatch", "fix_match_2", "Fix-Match"]
    assert registry.did_you_mean("FixMatch", known[:3]) == " (did you mean 'fixmatch'?)"
    assert registry.near_names("FIX_MATCH", known) == ["Fix-Match", "fixmatch"]
    message = registry.did_you_mean("match", ["matcha", "matchb", "matchc", "other"])
    assert message == " (did you mean 'matchc', 'matchb' or 'matcha'?)"


def test_a_name_without_a_close_match_lists_the_known_ones() -> None:
    message = refusal("run", "--algo", "zzzz", "--dry-run")
    assert "did you mean" not in message
    for name in ("fixmatch", "fully_supervised", "mixmatch", "mixmatch_enhanced", "simple"):
        assert name in message


def test_show_of_an_unknown_name() -> None:
    assert "did you mean 'wrn_28_2'" in refusal("show", "wrn_28_22")


def test_an_unknown_group() -> None:
    assert "algorithms" in refusal("list", "algoritms")


# --- clashes ------------------------------------------------------------------------------------


def test_two_third_party_claims_stop_the_run_and_a_prefix_decides(install: Install) -> None:
    install("two-pkg", "twice")
    install("three-pkg", "twice")
    message = refusal("run", "--algo", "twice", "--dry-run")
    assert "two-pkg" in message
    assert "three-pkg" in message
    picked = call("run", "--algo", "three-pkg:twice", "--dry-run")
    assert picked.returncode == 0, picked.stderr
    assert "algo: three-pkg:twice\n" in picked.stdout
    assert registry.load("algorithms", "two-pkg:twice").__doc__ == "From two_pkg."

    rows = json.loads(call("list", "algorithms", "--json").stdout)
    assert [row["state"] for row in rows if row["name"] == "twice"] == ["clash", "clash"]


def test_a_built_in_has_priority_and_the_conflict_is_reported(install: Install) -> None:
    install("rival-pkg", "fixmatch")
    ran = call("run", "--algo", "fixmatch", "--dry-run")
    assert ran.returncode == 0
    assert "fixmatch:\n  confidence_threshold" in ran.stdout
    (line,) = ran.stderr.splitlines()
    assert line.startswith("warning: ")
    assert "ssl-toolkit" in line
    assert "rival-pkg" in line
    # A run that does not use the name is not told of it; the list always is.
    assert call("run", "--algo", "simple", "--dry-run").stderr == ""
    assert "rival-pkg" in call("list").stderr
    rows = json.loads(call("list", "--json").stdout)
    states = {row["distribution"]: row["state"] for row in rows if row["name"] == "fixmatch"}
    assert states == {"ssl-toolkit": "unloaded", "rival-pkg": "shadowed"}
    assert registry.load("algorithms", "rival-pkg:fixmatch").__doc__ == "From rival_pkg."
    assert (
        "fixmatch:\n  confidence"
        not in call("run", "--algo", "rival-pkg:fixmatch", "--dry-run").stdout
    )


def test_one_distribution_found_twice_is_no_clash(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install("once-pkg", "once")
    copy = tmp_path / "copy"
    copy.mkdir()
    metadata = folder / "once_pkg-1.0.dist-info"
    (copy / metadata.name).mkdir()
    for file in metadata.iterdir():
        text = file.read_text().replace("once-pkg", "Once.Pkg")  # another spelling of the name
        (copy / metadata.name / file.name).write_text(text)
    monkeypatch.syspath_prepend(copy)
    assert registry.clashes("algorithms") == {}
    assert [e.name for e in registry.entries("algorithms")].count("once") == 1


def test_metadata_is_read_once_until_a_distribution_is_installed(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.entries("algorithms")
    read = registry.importlib_metadata.distributions
    paths = []

    def counted(path: list[str]) -> Any:
        paths.append(path)
        return read(path=path)

    monkeypatch.setattr(registry.importlib_metadata, "distributions", counted)
    assert all(registry.entries(group) for group in ("algorithms", "backbones"))
    assert paths == []
    install("late-pkg", "late")
    assert registry.has("algorithms", "late")
    assert len(paths) == 1


# --- decorators ---------------------------------------------------------------------------------

REGISTRARS = {
    "algorithms": registry.register_algorithm,
    "augmenters": registry.register_augmenter,
    "backbones": registry.register_backbone,
    "datasets": registry.register_dataset,
}


def plugin_class(group: str) -> type:
    # Enough to be one: the registry does not import the interfaces.
    return type("Fake", (), {"plugin_kind": group})


@pytest.mark.parametrize("group", REGISTRARS)
def test_a_decorator_registers_for_this_process(group: str) -> None:
    first, second = plugin_class(group), plugin_class(group)
    assert REGISTRARS[group]("mine")(first) is first
    assert registry.load(group, "mine") is first
    REGISTRARS[group]("mine")(second)
    assert registry.load(group, "mine") is second
    assert registry.clashes(group) == {}


@pytest.mark.parametrize("group", REGISTRARS)
@pytest.mark.parametrize("name", ["", "Mine", "2nd", "a-b", "a b", "a.b", "a:b", "é", "a\n"])
def test_a_decorator_refuses_a_malformed_name(group: str, name: str) -> None:
    with pytest.raises(PluginError, match="lower-case letters"):
        REGISTRARS[group](name)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("algorithms", "simple"),
        ("augmenters", "weak"),
        ("backbones", "wrn_28_2"),
        ("datasets", "digits"),
    ],
)
def test_a_decorator_never_replaces_a_built_in(group: str, name: str) -> None:
    with pytest.raises(PluginError, match=f"'{name}' is built in"):
        REGISTRARS[group](name)


@pytest.mark.parametrize("group", REGISTRARS)
def test_a_decorator_refuses_another_kind(group: str) -> None:
    other = "augmenters" if group != "augmenters" else "backbones"
    for plugin in (plugin_class(other), object, lambda: None):
        with pytest.raises(PluginError, match="is not a subclass of"):
            REGISTRARS[group]("mine")(plugin)  # type: ignore[type-var]
    assert not registry.has(group, "mine")


def test_a_registered_name_clashes_with_an_installed_one(install: Install) -> None:
    install("mine-pkg", "mine")
    registry.register_algorithm("mine")(plugin_class("algorithms"))
    with pytest.raises(PluginError, match="mine-pkg"):
        registry.load("algorithms", "mine")
