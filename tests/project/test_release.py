"""Version, date and description are the same wherever a release states them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

import ssl_toolkit

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def releases() -> list[tuple[str, str]]:
    """Version and date of each section of the changelog, the newest first."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)


def test_the_citation_is_of_the_newest_release() -> None:
    version, date = releases()[0]
    assert version == PROJECT["version"] == ssl_toolkit.__version__ == CITATION["version"]
    assert str(CITATION["date-released"]) == date


def test_the_citation_is_complete() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert {"title", "message", "type", "authors", "license"} <= CITATION.keys()
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["abstract"].rstrip(".") == PROJECT["description"]
    for reference in CITATION["references"]:
        assert {"type", "title", "authors", "year", "url"} <= reference.keys()
        assert all({"family-names", "given-names"} == set(a) for a in reference["authors"])


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    dated = [f"[{version}] - {date}" for version, date in releases()]
    assert headings in (dated, ["[Unreleased]", *dated])
    assert [date for _, date in releases()] == sorted((d for _, d in releases()), reverse=True)
    for kind in re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE):
        assert kind in KINDS


def test_the_script_refuses_a_tag_of_another_version() -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "package", "v99.0.0"], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "v99.0.0" in line
    assert f"v{PROJECT['version']}" in line


def test_the_steps_name_every_file_with_the_version() -> None:
    page = (ROOT / "RELEASING.md").read_text("utf-8")
    files = re.findall(r"^ +\| `([\w./]+)` \|", page, re.MULTILINE)
    assert len(files) == 4
    for file in files:
        assert PROJECT["version"] in (ROOT / file).read_text("utf-8"), file
    for script in re.findall(r"\.ci/[\w-]+", page):
        assert (ROOT / script).is_file(), script
