"""Folders of tests/cases/make_cases.py, created once per session."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "cases" / "make_cases.py"


@pytest.fixture(scope="session", name="cases")
def case_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that contains c00_base/, c02_side_files/, ...; tests must not modify it."""
    # Each module that imports this fixture has a copy of it; all share the same folders.
    folder = tmp_path_factory.getbasetemp() / "cases"
    if not (folder / "c40_same_name" / "EXPECT.json").exists():
        subprocess.run([sys.executable, SCRIPT, folder], check=True, capture_output=True)
    return folder
