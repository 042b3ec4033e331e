"""The folders of tests/cases/make_cases.py, made once a session."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "cases" / "make_cases.py"


@pytest.fixture(scope="session", name="cases")
def case_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds c00_base/, c02_side_files/, ...; not to be written to."""
    # Every module that imports this fixture has its own: they share what the first one made.
    folder = tmp_path_factory.getbasetemp() / "cases"
    if not (folder / "c40_same_name" / "EXPECT.json").exists():
        subprocess.run([sys.executable, SCRIPT, folder], check=True, capture_output=True)
    return folder
