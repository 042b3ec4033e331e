"""The workflows of GitHub: they call scripts that exist, on every supported Python."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PATHS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in PATHS}
WRITES = {("release", "publish"): {"id-token"}, ("docs", "deploy"): {"id-token", "pages"}}
"""The permissions to write, by workflow and job; everything else only reads."""
VERSIONS = sorted(
    name.rpartition(" ")[2]
    for name in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
)


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, workflow in WORKFLOWS.items():
        for job, content in workflow["jobs"].items():
            yield name, job, content


def scripts(job: dict[str, Any]) -> Iterator[str]:
    """The scripts of a job, once for each value of its matrix."""
    for step in job.get("steps", []):
        for line in step.get("run", "").splitlines():
            if line.startswith("python -m pip install "):
                continue
            script = line.split()[0]
            found = re.search(r"\$\{\{ matrix\.(\w+) \}\}", line)
            if found is None:
                yield script
            else:
                for value in job["strategy"]["matrix"][found[1]]:
                    yield script.partition("${{")[0] + value


def test_the_workflows() -> None:
    assert WORKFLOWS.keys() == {"tests", "nightly", "docs", "release"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_reads_only_and_ends(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for workflow, job, content in jobs():
        if workflow != name:
            continue
        granted = content.get("permissions", {})
        assert set(granted) == WRITES.get((name, job), set()), job
        assert "uses" in content or content["timeout-minutes"] <= 360, job


def test_every_step_calls_a_script_of_the_repository_or_a_tagged_action() -> None:
    called, actions = set(), set()
    for _, _, job in jobs():
        called |= set(scripts(job))
        actions |= {step["uses"] for step in job.get("steps", []) if "uses" in step}
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".ci").iterdir()}
    assert own - {".ci/types"} == called, "a script that no workflow calls, or the reverse"
    assert ".ci/types" in (ROOT / ".ci" / "run").read_text("utf-8")
    for script in own:
        assert os.access(ROOT / script, os.X_OK), f"{script} can't be executed"
    for action in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40}|release/v\d+)", action)


def test_checkouts_keep_no_credentials() -> None:
    for name, _, job in jobs():
        for step in job.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}, name


def test_the_matrix_has_every_supported_python_and_system() -> None:
    matrix = WORKFLOWS["tests"]["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == VERSIONS
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    assert [int(version.partition(".")[2]) for version in VERSIONS] == [11, 12, 13, 14]
    systems = {name.split(" :: ")[-1] for name in PROJECT["classifiers"] if name[:9] == "Operating"}
    names = {"ubuntu-latest": "Linux", "macos-latest": "MacOS"}
    assert {names[system] for system in matrix["os"]} == systems


def test_the_lowest_bounds_are_tested_on_the_lowest_python() -> None:
    (setup,) = (
        step
        for step in WORKFLOWS["tests"]["jobs"]["lower-bounds"]["steps"]
        if step.get("uses", "").startswith("actions/setup-python@")
    )
    assert setup["with"]["python-version"] == VERSIONS[0]


def test_only_a_tested_tag_is_published() -> None:
    release = WORKFLOWS["release"]
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    publish = release["jobs"]["publish"]
    assert publish["needs"] == ["tests", "build"]
    assert publish["environment"] == "pypi"
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text("utf-8")


def test_hooks_call_tools_of_the_development_extra() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    (local,) = config["repos"]
    tools = {hook["entry"].split()[0] for hook in local["hooks"]}
    extra = {re.split(r"[<>=\[;]", one)[0] for one in PROJECT["optional-dependencies"]["dev"]}
    assert tools == {f".venv/bin/{name}" for name in ("ruff", "mypy")}
    assert {"ruff", "mypy", "pre-commit"} <= extra


@pytest.mark.parametrize("name", ["bug", "wrong-number", "plugin-question"])
def test_an_issue_form_asks_for_what_is_needed(name: str) -> None:
    path = ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml"
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "labels", "body"} == form.keys()
    identities = [part["id"] for part in form["body"]]
    assert len(identities) == len(set(identities))
    assert any(part.get("validations", {}).get("required") for part in form["body"])
    for part in form["body"]:
        assert part["type"] in {"input", "textarea", "checkboxes"}
        assert part["attributes"]["label"]
