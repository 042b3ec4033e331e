"""The distributions of examples/third_party, from outside: small, public names only, and listed."""

from __future__ import annotations

import ast
import json
import runpy
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from in_process import call

from ssl_toolkit import API_VERSION, registry

THIRD_PARTY = Path(__file__).parents[2] / "examples" / "third_party"
FOLDERS = sorted(path for path in THIRD_PARTY.iterdir() if (path / "pyproject.toml").is_file())
metadata = runpy.run_path(str(THIRD_PARTY / "conftest.py"))["metadata"]
PUBLIC = ("ssl_toolkit", "ssl_toolkit.ops")


def project(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    return result["project"]  # type: ignore[no-any-return]


def sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "tests"]


def test_each_documented_kind_of_plugin_exists() -> None:
    groups = {group for folder in FOLDERS for group in project(folder)["entry-points"]}
    kinds = {group.partition(".")[2] for group in groups}
    assert kinds >= {"algorithms", "augmenters", "backbones", "datasets"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_distribution_is_complete(folder: Path) -> None:
    assert folder.name == project(folder)["name"]
    assert len((folder / "README.md").read_text("utf-8").split()) > 60
    assert list((folder / "tests").glob("test_*.py"))
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in sources(folder))
    assert 40 < lines < 200


def test_the_algorithm_is_below_150_lines() -> None:
    (source,) = sources(THIRD_PARTY / "ssl-toolkit-minentropy")
    assert len(source.read_text("utf-8").splitlines()) < 150


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_it_imports_public_names_only(folder: Path) -> None:
    own = folder.name.replace("-", "_")
    wrong = []
    for path in sources(folder):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                wrong += [a.name for a in node.names if a.name.startswith("ssl_toolkit")]
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("ssl_toolkit"):
                if str(node.module).partition(".")[0] == own:
                    continue
                names = {alias.name for alias in node.names}
                known = import_module(str(node.module)).__all__ if node.module in PUBLIC else ()
                wrong += [f"{node.module} {name}" for name in names - set(known)]
    assert wrong == []


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def installed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A distribution on the path, with the metadata that pip would leave."""
    folder: Path = request.param
    metadata(folder, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(folder)
    return folder


def test_it_is_listed_with_its_distribution_and_can_be_used(installed: Path) -> None:
    rows = json.loads(call("list", "--verbose", "--json").stdout)
    own = [row for row in rows if row["distribution"] == installed.name]
    declared = project(installed)["entry-points"]
    assert {(row["group"], row["name"]) for row in own} == {
        (group.partition(".")[2], name) for group, names in declared.items() for name in names
    }
    assert {(row["state"], row["reason"], row["version"]) for row in own} == {("ok", "", "0.1.0")}
    for names in declared.values():
        for value in names.values():
            module, _, name = value.partition(":")
            assert getattr(import_module(module), name).api_version == API_VERSION


def test_without_installation_an_example_is_unknown() -> None:
    rows = json.loads(call("list", "--json").stdout)
    names = {folder.name for folder in FOLDERS}
    assert not names & {row["distribution"] for row in rows}, "left behind by another test"
    assert registry.has("algorithms", "fixmatch")
    assert not registry.has("algorithms", "minentropy")
