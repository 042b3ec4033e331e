"""What `run` and `inspect` recommend for uneven classes."""

import json
import shlex

import pytest
from in_process import call

from ssl_toolkit import AddOn, registry
from ssl_toolkit.runs import advice
from ssl_toolkit.runs.advice import uneven_advice

UNEVEN = {"labels": {"a": 30, "b": 10}}


class Toy(AddOn):
    """Change nothing."""


class Refining(AddOn):
    """Need an algorithm with pseudo labels."""

    def refine(self, probs, batch, ctx):
        return probs


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(advice, "ADD_ONS", {"refining": "x", "toy": "nothing", "absent": "y"})
    registry.register_addon("toy")(Toy)
    registry.register_addon("refining")(Refining)


@pytest.mark.usefixtures("toys")
def test_only_add_ons_that_fit_are_named():
    lines = uneven_advice(UNEVEN, "supervised", ["--data", "my images"], "runs/x")
    assert lines == [
        "uneven labels, 10 to 30 in a class: compare results by the balanced accuracy; add-ons for "
        "uneven classes: +toy (nothing)",
        "to use one: ssl-toolkit run --algo supervised+toy --data 'my images' --output runs/x-toy",
    ]
    assert "+refining (x), +toy" in uneven_advice(UNEVEN, "fixmatch", [], "x")[0]


@pytest.mark.usefixtures("toys")
def test_no_advice_where_it_would_not_help():
    assert uneven_advice({"labels": {"a": 29, "b": 10}}, "fixmatch", [], "x") == []
    assert uneven_advice({"labels": {"a": 29, "b": 0}}, "fixmatch", [], "x") == []
    assert uneven_advice({"labels": None}, "fixmatch", [], "x") == []
    assert uneven_advice(UNEVEN, "fixmatch+toy", [], "x") == []


def test_without_add_ons_the_score_is_named(monkeypatch):
    monkeypatch.setattr(advice, "ADD_ONS", {})
    (line,) = uneven_advice(
        {"labels": {"a": 3, "b": 1}, "pool": {"a": 1, "b": 9}}, "simple", [], ""
    )
    assert line.startswith("uneven labels, 1 to 3 in a class and pool, 1 to 9 in a class: compare")


@pytest.mark.usefixtures("toys")
def test_the_command_of_a_run_works(tmp_path):
    keys = ["--steps", 2, "--labels-per-class", 6, "--imbalance", 6]
    first = call("run", "--algo", "fixmatch", *keys, "--output", tmp_path / "run")
    line = next(line for line in first.stdout.splitlines() if line.startswith("to use one: "))
    program, *arguments = shlex.split(line.removeprefix("to use one: "))
    assert program == "ssl-toolkit"
    again = call(*[text.replace("refining", "toy") for text in arguments])
    assert again.returncode == 0, again.stderr
    splits = [
        json.loads((tmp_path / name / "split.json").read_text()) for name in ("run", "run-toy")
    ]
    assert splits[0]["hash"] == splits[1]["hash"]


@pytest.mark.usefixtures("toys")
def test_inspect_recommends_too(tmp_path):
    from PIL import Image

    for name, count in (("a", 6), ("b", 2)):
        (tmp_path / "labeled" / name).mkdir(parents=True)
        for i in range(count):
            color = (40 * i, 90 if name == "a" else 10, 7)
            Image.new("RGB", (8, 8), color).save(tmp_path / "labeled" / name / f"{i}.png")
    result = call("inspect", tmp_path)
    assert "uneven labels, 2 to 6 in a class" in result.stdout
    assert f"--algo simple+refining --data {tmp_path} --output" in result.stdout
