"""Simulate ``pip install``: add each distribution and its entry points to the path."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

# Before torch is imported: tests of small tensors run in parallel.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

HERE = Path(__file__).parent
sys.path += [str(folder) for folder in sorted(HERE.glob("ssl-toolkit-*"))]


def metadata(folder: Path, target: Path) -> None:
    """Write the metadata that ``pip install`` would record."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    name, version = project["name"], project["version"]
    record = target / f"{name.replace('-', '_')}-{version}.dist-info"
    record.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (record / "METADATA").write_text(text, encoding="utf-8")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (record / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def installed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the name of the test's distribution, discoverable as if it were installed."""
    folder = request.path.parents[1]
    site = tmp_path / "site-packages"
    site.mkdir()
    metadata(folder, site)
    monkeypatch.syspath_prepend(site)
    return folder.name
